//! Ephemeral containers and their subresource.

use http::Method;
use serde_json::{Value, json};

use super::pod_validation::assert_invalid;
use super::{ApiServer, assert_fails, call, mk_server, patch};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEBUGGERS: &str = "/api/v1/namespaces/default/pods/p/ephemeralcontainers";

/// A server with a pod.
async fn mk_server_with_pod(metadata: Value, spec: Value) -> ApiServer {
    let server = mk_server(1);
    let mut pod = json!({ "metadata": metadata, "spec": spec });
    pod["metadata"]["name"] = "p".into();
    pod["spec"]["containers"] = json!([{ "name": "c", "image": "i" }]);
    let (code, response) = call(&server, Method::POST, PODS, &pod).await;
    assert_eq!(code, 201, "{response}");
    server
}

/// Adds containers in a strategic merge patch, as `kubectl debug` does.
async fn add(server: &ApiServer, containers: Value) -> (u16, Value) {
    let document = json!({ "spec": { "ephemeralContainers": containers } });
    patch(server, DEBUGGERS, "strategic-merge", &document).await
}

#[tokio::test(start_paused = true)]
async fn are_added_through_the_subresource_only() {
    let server = mk_server_with_pod(json!({}), json!({})).await;
    let debugger = json!([{ "name": "d", "image": "i", "targetContainerName": "c" }]);
    let (code, pod) = add(&server, debugger.clone()).await;
    assert_eq!(code, 200, "{pod}");
    assert_eq!(pod["metadata"]["generation"], 2);
    let added = &pod["spec"]["ephemeralContainers"][0];
    assert_eq!(added["terminationMessagePolicy"], "File");
    assert_eq!(call(&server, Method::GET, DEBUGGERS, &Value::Null).await.1, pod);
    let mut changed = pod.clone();
    changed["metadata"]["labels"] = json!({ "a": "b" });
    changed["spec"]["containers"][0]["image"] = "j".into();
    let (code, unchanged) = call(&server, Method::PUT, DEBUGGERS, &changed).await;
    assert_eq!((code, &unchanged), (200, &pod));
    let removal = json!({ "spec": { "ephemeralContainers": null } });
    let (code, response) = patch(&server, &format!("{PODS}/p"), "merge", &removal).await;
    let field = &response["details"]["causes"][0]["field"];
    assert_eq!((code, field), (422, &json!("spec")), "{response}");
    let errors = ["spec.ephemeralContainers: Forbidden: cannot be set on create"];
    assert_invalid(json!({ "ephemeralContainers": debugger }), &errors).await;
}

#[tokio::test(start_paused = true)]
async fn need_the_service_account() {
    let server = mk_server_with_pod(json!({}), json!({})).await;
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    assert_eq!(call(&server, Method::DELETE, account, &Value::Null).await.0, 200);
    let (code, response) = add(&server, json!([{ "name": "d", "image": "i" }])).await;
    assert_eq!(code, 403, "{response}");
    let message = response["message"].as_str().unwrap_or_default();
    assert!(
        message.ends_with("looking up service account default/default: serviceaccount \"default\" not found"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn are_not_changed_or_removed() {
    let server = mk_server_with_pod(json!({}), json!({})).await;
    add(&server, json!([{ "name": "d", "image": "i" }])).await;
    let cases = [
        (json!([{ "name": "d", "image": "j" }]), "changed"),
        (json!([{ "name": "e", "image": "i" }]), "removed"),
    ];
    for (containers, what) in cases {
        let document = json!({ "spec": { "ephemeralContainers": containers } });
        let message = format!(
            "Pod \"p\" is invalid: spec.ephemeralContainers: Forbidden: existing ephemeral containers \"d\" may not be \
             {what}\n"
        );
        assert_fails(
            patch(&server, DEBUGGERS, "merge", &document).await,
            422,
            "Invalid",
            &message,
        );
    }
}

#[tokio::test(start_paused = true)]
async fn are_validated() {
    let volumes = json!([{ "name": "v", "emptyDir": {} }]);
    let server = mk_server_with_pod(json!({}), json!({ "volumes": volumes })).await;
    let mount = json!({ "name": "v", "mountPath": "/v", "subPath": "a" });
    let set = "Forbidden: cannot be set for an Ephemeral Container";
    let cases: [(Value, &[&str]); 4] = [
        (
            json!({ "name": "c", "image": "i " }),
            &[
                "image: Invalid value: \"i \": must not have leading or trailing whitespace",
                "name: Duplicate value: \"c\"",
            ],
        ),
        (
            json!({ "name": "d", "image": "i", "targetContainerName": "x" }),
            &["targetContainerName: Not found: \"x\""],
        ),
        (
            json!({ "name": "d", "image": "i", "ports": [{ "containerPort": 1 }], "lifecycle": {},
                "resources": { "limits": { "cpu": "1" } } }),
            &[
                &format!("ports: {set}"),
                &format!("resources: {set}"),
                &format!("lifecycle: {set}"),
            ],
        ),
        (
            json!({ "name": "d", "image": "i", "volumeMounts": [mount] }),
            &[&format!("volumeMounts[0].subPath: {set}")],
        ),
    ];
    for (container, errors) in cases {
        let errors: Vec<String> = errors
            .iter()
            .map(|error| format!("spec.ephemeralContainers[0].{error}"))
            .collect();
        let errors = match errors.as_slice() {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        };
        let message = format!("Pod \"p\" is invalid: {errors}");
        assert_fails(add(&server, json!([container])).await, 422, "Invalid", &message);
    }
}

#[tokio::test(start_paused = true)]
async fn are_not_added_to_mirror_pods() {
    let mirror = json!({ "annotations": { "kubernetes.io/config.mirror": "x" } });
    let server = mk_server_with_pod(mirror, json!({ "nodeName": "n" })).await;
    assert_fails(
        add(&server, json!([{ "name": "d", "image": "i" }])).await,
        422,
        "Invalid",
        "Pod \"p\" is invalid: : Forbidden: static pods do not support ephemeral containers",
    );
}
