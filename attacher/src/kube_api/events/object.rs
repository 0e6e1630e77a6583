//! Events as the API server takes them.

use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::ledger::Write;
use crate::report::time;

/// The request that makes an Event, or lets the one that is there count further.
pub(super) fn request(
    write: &Write,
    component: &str,
    instance: &str,
) -> Result<http::Request<Vec<u8>>, kube::Error> {
    let collection = format!("/api/v1/namespaces/{}/events", write.namespace());
    let request = if write.is_new() {
        http::Request::post(collection)
            .header(CONTENT_TYPE, "application/json")
            .body(created(write, component, instance).to_string().into_bytes())
    } else {
        http::Request::patch(format!("{collection}/{}", write.name()))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(counted(write).to_string().into_bytes())
    };
    request.map_err(kube::Error::HttpError)
}

fn created(write: &Write, component: &str, instance: &str) -> Value {
    let regarding = &write.notice.regarding;
    let mut object = json!({
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "name": regarding.name,
        "uid": regarding.uid.0,
    });
    if let Some(namespace) = &regarding.namespace {
        object["namespace"] = json!(namespace);
    }
    let kind = if write.reason().is_warning() {
        "Warning"
    } else {
        "Normal"
    };
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": write.name(), "namespace": write.namespace() },
        "involvedObject": object,
        "reason": write.reason().name(),
        "message": write.notice.message,
        "type": kind,
        "source": { "component": component, "host": instance },
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": time(write.first),
        "lastTimestamp": time(write.last),
        "count": write.count,
    })
}

fn counted(write: &Write) -> Value {
    json!({
        "message": write.notice.message,
        "lastTimestamp": time(write.last),
        "count": write.count,
    })
}
