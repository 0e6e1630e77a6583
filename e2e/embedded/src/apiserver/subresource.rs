//! Subresources: status, finalize, binding, eviction and token.

use http::{Method, StatusCode};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::Binding;
use k8s_openapi::api::policy::v1::Eviction;
use serde_json::{Value, json};

use super::admission;
use super::call::Call;
use super::clock;
use super::field::{FieldError, Path, aggregate};
use super::object::{self, Object, set, text};
use super::reply::{Reply, success};
use super::resource::Kind;
use super::schema;
use super::status::Status;
use super::stored::key;
use super::strategy::Part;
use super::type_meta::ObjectType;
use super::write_options::{DeleteOptions, Preconditions};

/// Default lifetime of a token.
const TOKEN_SECONDS: i64 = 3600;

/// Handles a request for a subresource.
pub(crate) fn handle(call: &mut Call<'_>, method: &Method) -> Result<Reply, Status> {
    let location = call.location;
    let name = location.subresource.as_str();
    if !location.resource.subresources.contains(&name) {
        let of_pod = [
            "log",
            "exec",
            "attach",
            "portforward",
            "proxy",
            "resize",
            "ephemeralcontainers",
        ];
        let kind = location.resource.kind;
        let known = (kind == Kind::Pod && of_pod.contains(&name)) || (kind == Kind::Node && name == "proxy");
        return Err(if known {
            Status::not_implemented(&format!("{}/{name}", location.resource.plural))
        } else {
            Status::no_such_path()
        });
    }
    match (name, method.as_str()) {
        ("status", "GET") => {
            let encoder = call.encoder()?;
            call.version_of_read()?;
            call.read(&encoder)
        }
        ("status", "PUT") => call.update(Part::Status),
        ("status", "PATCH") => call.patch(Part::Status),
        ("finalize", "PUT") => call.update(Part::Finalize),
        ("binding", "POST") => bind(call),
        ("eviction", "POST") => evict(call),
        ("token", "POST") => token(call),
        _ => Err(Status::method_not_allowed()),
    }
}

/// Whether the request is a dry run, and its decoded body.
fn body<K: k8s_openapi::Resource>(call: &mut Call<'_>) -> Result<(bool, Value), Status> {
    super::request::accepts_body(call.headers)?;
    let (dry_run, validation) = call.query.write_options("CreateOptions")?;
    let expected = ObjectType::of::<K>();
    let object = call.decode(&expected, validation, |document| {
        schema::decode(expected.schema, document)
    })?;
    Ok((dry_run, Value::Object(object)))
}

/// Admits the creation of a subresource: its namespace must exist and be the request's.
fn admit(call: &Call<'_>, document: &Value) -> Result<(), Status> {
    let location = call.location;
    location.check_namespace(document["metadata"]["namespace"].as_str().unwrap_or_default())?;
    admission::namespace_exists(
        &call.server.store(),
        location.resource,
        &location.name,
        &location.namespace,
    )
}

/// Adds a condition to a pod, or replaces the one of its type (`podutil.UpdatePodCondition`).
fn update_condition(pod: &mut Object, mut condition: Value) {
    let mut conditions = object::list(pod, "/status/conditions").to_vec();
    let old = conditions.iter_mut().find(|old| old["type"] == condition["type"]);
    match old {
        Some(old) => {
            if old["status"] == condition["status"] {
                condition["lastTransitionTime"] = old["lastTransitionTime"].take();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
    set(pod, "/status/conditions", conditions);
}

/// Binds a pod to a node.
fn bind(call: &mut Call<'_>) -> Result<Reply, Status> {
    let (dry_run, binding) = body::<Binding>(call)?;
    admit(call, &binding)?;
    let resource = call.location.resource;
    let name = call.location.name.clone();
    if binding["metadata"]["name"].as_str().unwrap_or_default() != name {
        let why = "name in URL does not match name in Binding object";
        return Err(Status::bad_request(why));
    }
    let target = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    let path = Path::new("target");
    if !matches!(kind, "" | "Node") {
        errors.push(FieldError::not_supported(
            &path.child("kind"),
            kind,
            &["Node", "<empty>"],
        ));
    }
    if target.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    if !errors.is_empty() {
        return Err(Status::unclassified(aggregate(&errors)));
    }
    let given = |field: &str| binding["metadata"][field].as_str().map(str::to_owned);
    let preconditions = Preconditions {
        uid: given("uid"),
        resource_version: given("resourceVersion"),
    };
    let preconditions = preconditions.without_empty();
    let key = key(&call.location.namespace, &name);
    call.write(dry_run, |writer| {
        let existing = writer.store.existing(resource, writer.namespace, &name)?;
        let refuse = |why: String| Err(Status::conflict_of("pods/binding", &name, &why));
        let mut pod = Object::clone(&existing.object());
        if let Some(failed) = preconditions.failed(&pod) {
            return Err(writer.precondition_failed(&key, &name, failed));
        }
        if object::is_deleting(&pod) {
            return refuse(format!(
                "pod {name} is being deleted, cannot be assigned to a host"
            ));
        }
        let bound = text(&pod, "/spec/nodeName");
        if !bound.is_empty() {
            return refuse(format!("pod {name} is already assigned to node {bound:?}"));
        }
        if !object::list(&pod, "/spec/schedulingGates").is_empty() {
            return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        set(&mut pod, "/spec/nodeName", target.clone());
        set(&mut pod, "/status/nominatedNodeName", Value::Null);
        for field in ["annotations", "labels"] {
            if let Value::Object(entries) = &binding["metadata"][field] {
                object::struct_mut(&mut pod, &format!("/metadata/{field}")).extend(entries.clone());
            }
        }
        if kind == "Node" {
            admission::add_topology_labels(writer.store, &mut pod);
        }
        let condition = json!({
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": null,
            "lastTransitionTime": writer.now,
        });
        update_condition(&mut pod, condition);
        writer.put_changed(&key, pod, &existing);
        Ok(())
    })?;
    Ok(success(StatusCode::CREATED))
}

/// Evicts a pod; there are no disruption budgets.
fn evict(call: &mut Call<'_>) -> Result<Reply, Status> {
    let (dry_run, eviction) = body::<Eviction>(call)?;
    let mut options = eviction["deleteOptions"].as_object().cloned().unwrap_or_default();
    // Kubernetes does not check the type of embedded options.
    options.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
    let mut options = DeleteOptions::decode(options)?;
    let dry_run = dry_run || !options.dry_run.is_empty();
    admit(call, &eviction)?;
    let name = call.location.name.clone();
    if eviction["metadata"]["name"].as_str().unwrap_or_default() != name {
        let why = "name in URL does not match name in Eviction object";
        return Err(Status::bad_request(why));
    }
    let resource = call.location.resource;
    let key = key(&call.location.namespace, &name);
    call.write(dry_run, |writer| {
        let existing = writer.store.existing(resource, writer.namespace, &name)?;
        if !dry_run {
            let mut pod = Object::clone(&existing.object());
            if let Some(failed) = options.preconditions.without_empty().failed(&pod) {
                return Err(Status::conflict_of("Pod", &name, &failed.before_delete()));
            }
            let condition = json!({
                "type": "DisruptionTarget",
                "status": "True",
                "lastProbeTime": null,
                "lastTransitionTime": writer.now,
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            });
            update_condition(&mut pod, condition);
            let written = writer.put_changed(&key, pod, &existing);
            if let Some(version) = &mut options.preconditions.resource_version {
                text(&written.object(), "/metadata/resourceVersion").clone_into(version);
            }
        }
        writer.delete(&name, options)
    })?;
    Ok(success(StatusCode::CREATED))
}

/// Issues a token of a ServiceAccount. The server does not authenticate, so it accepts requests without it.
fn token(call: &mut Call<'_>) -> Result<Reply, Status> {
    // A token is not stored, so a dry run issues one, too.
    let (_, request) = body::<TokenRequest>(call)?;
    admit(call, &request)?;
    let location = call.location;
    let (namespace, name) = (&location.namespace, &location.name);
    let given = request["metadata"]["name"].as_str().unwrap_or_default();
    if !given.is_empty() && given != name {
        let path = Path::new("metadata").child("name");
        let error = FieldError::invalid(&path, given, "must be the name of the ServiceAccount");
        return Err(Status::invalid(
            "authentication.k8s.io",
            "TokenRequest",
            name,
            &[error],
        ));
    }
    let account = call.server.store().existing(location.resource, namespace, name)?;
    let spec = &request["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS);
    let now = call.server.clock().now();
    let until = clock::format_time(now + jiff::SignedDuration::from_secs(seconds));
    let number = call.server.rng().u64(..);
    let audiences = match spec["audiences"].as_array() {
        Some(audiences) if !audiences.is_empty() => json!(audiences),
        _ => json!(["https://kubernetes.default.svc"]),
    };
    let response = json!({
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": location.name,
            "namespace": location.namespace,
            "uid": text(&account.object(), "/metadata/uid"),
            "creationTimestamp": clock::format_time(now),
        },
        "spec": {
            "audiences": audiences,
            "expirationSeconds": seconds,
            "boundObjectRef": spec["boundObjectRef"],
        },
        "status": {
            "token": format!("embedded.{}.{}.{number:016x}", location.namespace, location.name),
            "expirationTimestamp": until,
        },
    });
    Ok(Reply::json(StatusCode::CREATED, response.to_string()))
}

impl Status {
    /// A conflict about a subresource.
    fn conflict_of(resource: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        let details = json!({ "name": name, "kind": resource });
        Self::new(StatusCode::CONFLICT, "Conflict", message, details)
    }
}
