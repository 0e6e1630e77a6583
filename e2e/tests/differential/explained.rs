//! Known and accepted differences. Any other difference between the servers is a bug of the embedded one.

use http::Method;
use serde_json::{Value, json};

use super::request::Request;
use super::server::ServerResponse;

const NOT_IMPLEMENTED_SUFFIX: &str = " is not implemented by the embedded API server";

/// A known difference.
pub(crate) struct Explained {
    pub(crate) reason: &'static str,
    /// Removes the difference from both responses.
    hide: fn(&Request, &mut ServerResponse, &mut ServerResponse),
}

/// Unimplemented features, for which the embedded API server responds with 501: the name in the response, and the reason.
pub(crate) const NOT_IMPLEMENTED: [(&str, &str); 15] = [
    ("server-side apply", "501: server-side apply"),
    ("application/yaml", "501: YAML"),
    (
        "application/vnd.kubernetes.protobuf",
        "501: responses in protobuf to clients that do not accept JSON",
    ),
    ("pods/log", "501: logs of pods"),
    ("pods/ephemeralcontainers", "501: ephemeral containers"),
    (
        "a propagationPolicy other than Background",
        "501: deletions in the foreground, and orphaning",
    ),
    ("pods/resize", "501: resizing of pods"),
    ("nodes/proxy", "501: the proxy to nodes"),
    ("pods/proxy", "501: the proxy to pods"),
    ("/readyz/ping", "501: single health checks"),
    ("/openid/v1/jwks", "501: the keys of service account tokens"),
    (
        "/.well-known/openid-configuration",
        "501: the configuration of OpenID Connect",
    ),
    (
        "configmaps",
        "501: ConfigMaps, as an example of kinds of served groups",
    ),
    (
        "volumeattributesclasses.storage.k8s.io",
        "501: VolumeAttributesClasses",
    ),
    ("/apis/apps", "501: the group apps, as an example of other groups"),
];

/// All other known differences.
pub(crate) const ALL: &[Explained] = &[
    Explained {
        reason: "columns of tables have no description: the texts are documentation",
        hide: |_, ours, real| {
            without_descriptions(&mut ours.body);
            without_descriptions(&mut real.body);
        },
    },
    // Must precede the next one, which removes events from the response of kube-apiserver only; a watch of metadata has them in both
    // responses.
    Explained {
        reason: "a watch gets a bookmark before its timeout if kube-apiserver's cache heard from etcd since it began",
        hide: |request, ours, real| {
            if request.reads_to_bookmark() {
                without_last_bookmark(&mut ours.body);
                without_last_bookmark(&mut real.body);
            }
        },
    },
    Explained {
        reason: "managedFields are not implemented: kube-apiserver stores a new version when an update changes them alone",
        hide: |request, ours, real| {
            let is_update = matches!(request.method.as_str(), "PUT" | "PATCH");
            for pointer in VERSIONS {
                let (our, real) = (ours.body.pointer_mut(pointer), real.body.pointer(pointer));
                if let (true, Some(our), Some(real)) = (is_update, our, real)
                    && version(our) < version(real)
                {
                    *our = real.clone();
                }
            }
            if request.is_watch() {
                without_changes_of_versions(&mut real.body);
            }
        },
    },
    Explained {
        reason: "kube-apiserver has a Lease of its own, which lists over all namespaces show",
        hide: |request, ours, real| {
            if request.method == Method::GET && request.path == "/apis/coordination.k8s.io/v1/leases" {
                without_lease_of_server(request, ours, real);
            }
        },
    },
    Explained {
        reason: "a watch of events from a version that etcd has not reached is to be repeated after a random time",
        hide: |request, ours, real| {
            if request.is_watch() && request.kind.starts_with("Event") {
                for answer in [ours, real] {
                    let details = answer.body.pointer_mut("/0/object/details");
                    if let Some(details) = details.and_then(Value::as_object_mut) {
                        details.remove("retryAfterSeconds");
                    }
                }
            }
        },
    },
];

/// Prefix of the name of kube-apiserver's own Lease.
const LEASE_OF_SERVER: &str = "apiserver-";

/// The resource version in an object and in a table.
const VERSIONS: [&str; 2] = [
    "/metadata/resourceVersion",
    "/rows/0/object/metadata/resourceVersion",
];

/// The number of a resource version, by order of appearance.
fn version(version: &Value) -> Option<u64> {
    let version = version.as_str()?;
    version.strip_prefix("<version ")?.strip_suffix('>')?.parse().ok()
}

/// Removes kube-apiserver's own Lease from a list or watch over all namespaces, as far as it was not removed by its namespace.
/// It is the first one, so pages end one object earlier.
fn without_lease_of_server(request: &Request, ours: &mut ServerResponse, real: &mut ServerResponse) {
    if let Some(Value::Array(rows)) = real.body.get_mut("rows") {
        let name = |row: &Value| row["cells"][0].as_str().unwrap_or_default().to_owned();
        rows.retain(|row| !name(row).starts_with(LEASE_OF_SERVER));
    }
    if let Value::Array(events) = &mut real.body {
        events.retain(|event| event["object"]["rows"] != json!([]));
    }
    let is_page = request.query.iter().any(|(name, _)| *name == "limit");
    if !is_page || !ours.code.is_success() || !real.code.is_success() {
        return;
    }
    let is_first = request.query.iter().all(|(name, _)| *name != "continue");
    for response in [&mut *ours, &mut *real] {
        if let Some(Value::Object(metadata)) = response.body.get_mut("metadata") {
            metadata.remove("continue");
            metadata.remove("remainingItemCount");
        }
    }
    for field in ["items", "rows"] {
        let lists = (ours.body.get_mut(field), real.body.get_mut(field));
        let (Some(Value::Array(ours)), Some(Value::Array(real))) = lists else {
            continue;
        };
        if !is_first {
            // The servers' tokens continue after different objects.
            ours.clear();
            real.clear();
        } else if ours.len() == real.len() + 1 {
            ours.pop();
        }
    }
}

/// Removes the bookmark at the end of a watch, unless it is the one after the initial events.
fn without_last_bookmark(events: &mut Value) {
    if let Value::Array(events) = events
        && let Some(last) = events.last()
        && last["type"] == "BOOKMARK"
        && !last.to_string().contains("k8s.io/initial-events-end")
    {
        events.pop();
    }
}

/// Removes each event of a watch whose object differs from that of its next event only in its version.
fn without_changes_of_versions(events: &mut Value) {
    let Some(events) = events.as_array_mut() else {
        return;
    };
    let unversioned = |event: &Value| {
        let mut object = event["object"].clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        object
    };
    let mut at = 0;
    while at < events.len() {
        let uid = &events[at]["object"]["metadata"]["uid"];
        let next = events[at + 1..]
            .iter()
            .find(|event| &event["object"]["metadata"]["uid"] == uid);
        let is_repeated = next.is_some_and(|next| {
            next["type"] == events[at]["type"] && unversioned(next) == unversioned(&events[at])
        });
        if is_repeated {
            events.remove(at);
        } else {
            at += 1;
        }
    }
}

/// Empties the descriptions of the columns of tables.
fn without_descriptions(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.contains_key("format") && object.contains_key("priority") {
                object.insert("description".to_owned(), "".into());
            }
            object.values_mut().for_each(without_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(without_descriptions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The known reason why the responses of the embedded server and of kube-apiserver differ, if any.
pub(crate) fn find(request: &Request, ours: &ServerResponse, real: &ServerResponse) -> Option<&'static str> {
    if ours.code.as_u16() == 501 {
        let name = ours.body["message"]
            .as_str()?
            .strip_suffix(NOT_IMPLEMENTED_SUFFIX)?;
        let mut named = NOT_IMPLEMENTED.into_iter();
        return named.find(|(known, _)| *known == name).map(|(_, reason)| reason);
    }
    let (mut ours, mut real) = (ours.clone(), real.clone());
    ALL.iter().find_map(|explained| {
        (explained.hide)(request, &mut ours, &mut real);
        (ours == real).then_some(explained.reason)
    })
}
