//! Pods and their subresources.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{assert_fails, call, mk_pod, mk_server};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(start_paused = true)]
async fn binding_checks_uid_version_and_scheduling_gates() {
    let server = mk_server(1);
    let gates = json!({ "schedulingGates": [{ "name": "example.com/g" }] });
    for pod in [mk_pod("p", json!({})), mk_pod("gated", gates)] {
        assert_eq!(call(&server, Method::POST, PODS, &pod).await.0, 201);
    }
    let bind = |name: &'static str, metadata: Value, target: Value| {
        let server = server.clone();
        async move {
            let mut binding = json!({ "metadata": metadata, "target": target });
            binding["metadata"]["name"] = name.into();
            call(&server, Method::POST, &format!("{PODS}/{name}/binding"), &binding).await
        }
    };
    let node = json!({ "kind": "Node", "name": "n" });
    let (_, stored) = call(&server, Method::GET, &format!("{PODS}/p"), &Value::Null).await;
    let uid = stored["metadata"]["uid"].as_str().unwrap();
    let version = stored["metadata"]["resourceVersion"].as_str().unwrap();
    for (precondition, message) in [
        (
            json!({ "uid": "u" }),
            format!("UID in precondition: u, UID in object meta: {uid}"),
        ),
        (
            json!({ "resourceVersion": "1" }),
            format!("ResourceVersion in precondition: 1, ResourceVersion in object meta: {version}"),
        ),
    ] {
        let message = format!(
            "Operation cannot be fulfilled on pods \"p\": StorageError: invalid object, Code: 4, Key: \
             /registry/pods/default/p, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {message}"
        );
        assert_fails(
            bind("p", precondition, node.clone()).await,
            409,
            "Conflict",
            &message,
        );
    }
    assert_fails(
        bind("gated", json!({}), node.clone()).await,
        409,
        "Conflict",
        "Operation cannot be fulfilled on pods/binding \"gated\": pod gated has non-empty .spec.schedulingGates",
    );
    let (code, response) = bind("p", json!({}), json!({ "kind": "Pod" })).await;
    let message = "[target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\", target.name: \
                   Required value]";
    assert_eq!((code, response["message"].as_str()), (500, Some(message)));
    let current = json!({ "uid": uid, "resourceVersion": version });
    assert_eq!(bind("p", current, node).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn pods_get_the_topology_labels_of_their_node() {
    let server = mk_server(1);
    let labels =
        json!({ "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "o" });
    let node = json!({ "metadata": { "name": "n", "labels": labels } });
    call(&server, Method::POST, "/api/v1/nodes", &node).await;
    let (_, created) = call(
        &server,
        Method::POST,
        PODS,
        &mk_pod("here", json!({ "nodeName": "n" })),
    )
    .await;
    let topology = json!({ "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r" });
    assert_eq!(created["metadata"]["labels"], topology);
    call(&server, Method::POST, PODS, &mk_pod("bound", json!({}))).await;
    let binding = json!({
        "metadata": { "name": "bound", "labels": { "from": "binding" } },
        "target": { "kind": "Node", "name": "n" },
    });
    let (code, _) = call(&server, Method::POST, &format!("{PODS}/bound/binding"), &binding).await;
    assert_eq!(code, 201);
    let (_, bound) = call(&server, Method::GET, &format!("{PODS}/bound"), &Value::Null).await;
    let mut expected = topology;
    expected["from"] = "binding".into();
    assert_eq!(bound["metadata"]["labels"], expected);
}

#[tokio::test(start_paused = true)]
async fn eviction_checks_name_and_resource_version() {
    let server = mk_server(1);
    call(&server, Method::POST, PODS, &mk_pod("p", json!({}))).await;
    let evict = |eviction: Value| {
        let server = server.clone();
        async move { call(&server, Method::POST, &format!("{PODS}/p/eviction"), &eviction).await }
    };
    assert_fails(
        evict(json!({ "metadata": { "name": "q" } })).await,
        400,
        "BadRequest",
        "name in URL does not match name in Eviction object",
    );
    let (_, pod) = call(&server, Method::GET, &format!("{PODS}/p"), &Value::Null).await;
    let version = pod["metadata"]["resourceVersion"].as_str().unwrap();
    let with_version = |version: &str| {
        let preconditions = json!({ "resourceVersion": version });
        json!({ "metadata": { "name": "p" }, "deleteOptions": { "preconditions": preconditions } })
    };
    let message = format!(
        "Operation cannot be fulfilled on Pod \"p\": the ResourceVersion in the precondition (1) does not match the \
         ResourceVersion in record ({version}). The object might have been modified"
    );
    assert_fails(evict(with_version("1")).await, 409, "Conflict", &message);
    assert_eq!(evict(with_version(version)).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn admits_subresources_before_validation() {
    let server = mk_server(1);
    let namespaces = "/api/v1/namespaces";
    call(
        &server,
        Method::POST,
        namespaces,
        &json!({ "metadata": { "name": "old" } }),
    )
    .await;
    call(
        &server,
        Method::DELETE,
        &format!("{namespaces}/old"),
        &Value::Null,
    )
    .await;
    let terminating = |resource: &str| {
        format!(
            "{resource} \"x\" is forbidden: unable to create new content in namespace old because it is being terminated"
        )
    };
    for (resource, subresource) in [
        ("pods", "binding"),
        ("pods", "eviction"),
        ("serviceaccounts", "token"),
    ] {
        let create = |namespace: &str, metadata: Value| {
            let server = server.clone();
            let path = format!("{namespaces}/{namespace}/{resource}/x/{subresource}");
            async move { call(&server, Method::POST, &path, &json!({ "metadata": metadata })).await }
        };
        let missing = "namespaces \"none\" not found";
        assert_fails(create("none", json!({})).await, 404, "NotFound", missing);
        assert_fails(
            create("old", json!({})).await,
            403,
            "Forbidden",
            &terminating(resource),
        );
        assert_fails(
            create("none", json!({ "namespace": "other" })).await,
            400,
            "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request",
        );
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_eviction_does_not_write() {
    let server = mk_server(1);
    call(
        &server,
        Method::POST,
        PODS,
        &mk_pod("p", json!({ "nodeName": "n" })),
    )
    .await;
    let path = format!("{PODS}/p");
    let eviction = json!({ "metadata": { "name": "p" } });
    let mut evicted = Vec::new();
    for _ in 0..2 {
        let (code, _) = call(&server, Method::POST, &format!("{path}/eviction"), &eviction).await;
        assert_eq!(code, 201);
        evicted.push(call(&server, Method::GET, &path, &Value::Null).await);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!(evicted[0].1["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(evicted[0], evicted[1]);
}
