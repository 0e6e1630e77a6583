//! Compares the tables of objects in states that random requests seldom reach, and lists that are always empty.

use anyhow::Result;
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use super::generator::{JSON, TABLE, request};
use super::kinds::{self, Kind};
use super::request::{Body, Request};
use super::session::Session;

/// Specs and statuses of pods, as JSON.
const PODS: [(&str, &str); 9] = [
    (
        r#"{"readinessGates":[{"conditionType":"example.com/a"},{"conditionType":"example.com/b"}]}"#,
        r#"{"phase":"Running","conditions":[{"type":"example.com/b","status":"True"}]}"#,
    ),
    (
        r#"{"containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]}"#,
        r#"{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"a","state":{"terminated":{"exitCode":0,"reason":"Completed"}}},{"name":"b","ready":true,"state":{"running":{}}}]}"#,
    ),
    (
        r#"{"containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]}"#,
        r#"{"phase":"Running","containerStatuses":[{"name":"a","state":{"terminated":{"exitCode":0,"reason":"Completed"}}},{"name":"b","ready":true,"state":{"running":{}}}]}"#,
    ),
    (
        r#"{"containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]}"#,
        r#"{"phase":"Running","containerStatuses":[{"name":"a","state":{"terminated":{"exitCode":0,"reason":"Completed"}}},{"name":"b","state":{"terminated":{"exitCode":137,"signal":9}}}]}"#,
    ),
    (
        "{}",
        r#"{"phase":"Running","containerStatuses":[{"name":"c","restartCount":3,"state":{"terminated":{"exitCode":2}},"lastState":{"terminated":{"exitCode":1,"finishedAt":"2020-01-01T00:00:00Z"}}}]}"#,
    ),
    (
        r#"{"initContainers":[{"name":"x","image":"i"},{"name":"s","image":"i","restartPolicy":"Always"}]}"#,
        r#"{"phase":"Pending","initContainerStatuses":[{"name":"x","restartCount":2,"state":{"running":{}},"lastState":{"terminated":{"exitCode":1,"finishedAt":"2020-01-01T00:00:00Z"}}},{"name":"s","state":{"waiting":{"reason":"PodInitializing"}}}]}"#,
    ),
    (
        r#"{"initContainers":[{"name":"x","image":"i"}]}"#,
        r#"{"phase":"Pending","initContainerStatuses":[{"name":"x","state":{"terminated":{"exitCode":137,"signal":9}}}]}"#,
    ),
    (
        r#"{"initContainers":[{"name":"x","image":"i"}]}"#,
        r#"{"phase":"Pending","conditions":[{"type":"Initialized","status":"True"}],"containerStatuses":[{"name":"c","ready":true,"state":{"running":{}}}],"initContainerStatuses":[{"name":"x","restartCount":2,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}"#,
    ),
    (
        r#"{"initContainers":[{"name":"x","image":"i"},{"name":"s","image":"i","restartPolicy":"Always"}]}"#,
        r#"{"phase":"Running","initContainerStatuses":[{"name":"x","restartCount":2,"state":{"terminated":{"exitCode":0,"reason":"Completed"}}},{"name":"s","restartCount":1,"started":true,"ready":true,"state":{"running":{}}}],"containerStatuses":[{"name":"c","ready":true,"state":{"running":{}}}]}"#,
    ),
];

/// The differences as texts.
pub(crate) async fn differences(real: Client) -> Result<Vec<String>> {
    let pods = kinds::find("", "pods");
    let volumes = kinds::find("", "persistentvolumes");
    let claims = kinds::find("", "persistentvolumeclaims");
    let leases = kinds::find("coordination.k8s.io", "leases");
    let mut requests = Vec::new();
    for (number, (spec, status)) in PODS.iter().enumerate() {
        let name = format!("p{number}");
        requests.push(create(pods, &name, serde_json::from_str(spec)?));
        let status: Value = serde_json::from_str(status)?;
        requests.push(patch_status(pods, &name, json!({ "status": status })));
    }
    let class = json!({ "volume.beta.kubernetes.io/storage-class": "fast" });
    for kind in [volumes, claims] {
        requests.push(create(kind, "classy", json!({})));
        let metadata = json!({ "metadata": { "annotations": class } });
        requests.push(patch_status(kind, "classy", metadata));
    }
    let empty_class = json!({ "volumeAttributesClassName": "" });
    requests.push(create(claims, "unclassed", empty_class));
    requests.push(create(leases, "a", json!({})));
    for (kind, namespace) in [(pods, "$ns"), (volumes, ""), (claims, "$ns"), (leases, "")] {
        for include in ["None", "Metadata"] {
            let mut table = request(kind, "LIST", Method::GET, kind.collection(namespace));
            table.accept = TABLE;
            table.query.push(("includeObject", include.to_owned()));
            requests.push(table.clone());
            table.query.push(("limit", "1".to_owned()));
            requests.push(table);
        }
    }
    for plural in ["limitranges", "resourcequotas"] {
        for path in [
            format!("/api/v1/namespaces/$ns/{plural}"),
            format!("/api/v1/{plural}"),
        ] {
            requests.push(request(pods, "LIST", Method::GET, path));
        }
    }
    let compared = Session::new(real)
        .send(&[pods, volumes, claims, leases], &requests)
        .await?;
    let differences = compared.differences.iter();
    let shown = differences.map(|found| found.shown("of tables", &requests[found.index], &[]));
    Ok(shown.collect())
}

/// Creates a valid object with these fields of its spec.
fn create(kind: &Kind, name: &str, spec: Value) -> Request {
    let mut object = kind.base.clone();
    object["metadata"] = json!({ "name": name });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    let mut request = request(kind, "POST", Method::POST, kind.collection("$ns"));
    request.content_type = JSON;
    request.body = Body::Json(object);
    request
}

fn patch_status(kind: &Kind, name: &str, patch: Value) -> Request {
    let path = format!("{}/{name}/status", kind.collection("$ns"));
    let mut request = request(kind, "PATCH merge status", Method::PATCH, path);
    request.content_type = "application/merge-patch+json";
    request.body = Body::Json(patch);
    request
}
