//! Pods and their subresources.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{assert_fails, call, mk_pod, mk_server, patch};

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
async fn refuses_pods_that_admission_rejects() {
    let server = mk_server(1);
    for (spec, message) in [
        (
            json!({ "runtimeClassName": "x" }),
            "pod rejected: RuntimeClass \"x\" not found",
        ),
        (
            json!({ "overhead": { "cpu": "1" } }),
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            json!({ "preemptionPolicy": "Never" }),
            "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller \
             computed PreemptLowerPriority from the given PriorityClass name",
        ),
    ] {
        assert_fails(
            call(&server, Method::POST, PODS, &mk_pod("p", spec)).await,
            403,
            "Forbidden",
            &format!("pods \"p\" is forbidden: {message}"),
        );
    }
    for level in ["baseline", "restricted"] {
        let labels = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": level } } });
        patch(&server, "/api/v1/namespaces/default", "merge", &labels).await;
        assert_fails(
            call(&server, Method::POST, PODS, &mk_pod("p", json!({}))).await,
            501,
            "NotImplemented",
            "Pod Security admission is not implemented by the embedded API server",
        );
    }
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
async fn issues_tokens_for_ten_minutes_at_least() {
    let server = mk_server(1);
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    for (seconds, code) in [(599, 422), (600, 201)] {
        let request = json!({ "spec": { "audiences": [], "expirationSeconds": seconds } });
        let response = call(&server, Method::POST, path, &request).await;
        assert_eq!(response.0, code, "{seconds}: {}", response.1);
    }
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

#[tokio::test(start_paused = true)]
async fn validates_class_names_of_pods() {
    let server = mk_server(1);
    let unnamed = mk_pod("p", json!({ "runtimeClassName": "" }));
    let (code, response) = call(&server, Method::POST, PODS, &unnamed).await;
    assert_eq!(
        (code, response["message"].as_str()),
        (500, Some("resource name may not be empty"))
    );
    call(&server, Method::POST, PODS, &mk_pod("p", json!({}))).await;
    for field in ["priorityClassName", "runtimeClassName"] {
        let body = json!({ "spec": { field: "Not_Valid" } });
        let (code, response) = patch(&server, &format!("{PODS}/p"), "merge", &body).await;
        let fields: Vec<&Value> = response["details"]["causes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cause| &cause["field"])
            .collect();
        assert_eq!(
            (code, fields),
            (422, vec![&json!(format!("spec.{field}")), &json!("spec")])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn validates_fields_of_containers() {
    let server = mk_server(1);
    let env = |source: Value| json!({ "env": [{ "name": "A", "valueFrom": source }] });
    let mount = |mut fields: Value| {
        fields["name"] = "v".into();
        fields["mountPath"] = "/v".into();
        json!({ "volumeMounts": [fields] })
    };
    let cases = [
        (
            json!({ "lifecycle": { "preStop": {} } }),
            "lifecycle.preStop: Required value: must specify a handler type",
        ),
        (
            json!({ "lifecycle": { "preStop": { "sleep": { "seconds": 31 } } } }),
            "lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than \
             terminationGracePeriodSeconds (30)",
        ),
        (
            env(json!({ "secretKeyRef": { "name": "a" } })),
            "env[0].valueFrom.secretKeyRef.key: Required value",
        ),
        (
            env(json!({ "fieldRef": { "fieldPath": "spec.x" } })),
            "env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.x\": error converting fieldPath: field label \
             not supported: spec.x",
        ),
        (
            json!({ "envFrom": [{}] }),
            "envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
        ),
        (
            json!({ "envFrom": [{ "secretRef": {} }] }),
            "envFrom[0].secretRef.name: Required value",
        ),
        (
            json!({ "ports": [{ "name": "Web", "containerPort": 80 }] }),
            "ports[0].name: Invalid value: \"Web\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens \
             (-)",
        ),
        (
            json!({ "ports": [{ "containerPort": 1, "hostPort": 9 }, { "containerPort": 2, "hostPort": 9 }] }),
            "ports[1].hostPort: Duplicate value: \"TCP//9\"",
        ),
        (
            mount(json!({ "subPath": "/a" })),
            "volumeMounts.subPath: Invalid value: \"/a\": must be a relative path",
        ),
        (
            mount(json!({ "mountPropagation": "Bidirectional" })),
            "volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged \
             containers",
        ),
    ];
    for (mut container, error) in cases {
        container["name"] = "c".into();
        container["image"] = "i".into();
        let spec = json!({ "containers": [container], "volumes": [{ "name": "v", "emptyDir": {} }] });
        assert_fails(
            call(&server, Method::POST, PODS, &mk_pod("p", spec)).await,
            422,
            "Invalid",
            &format!("Pod \"p\" is invalid: spec.containers[0].{error}"),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn drops_fields_of_disabled_features() {
    let server = mk_server(1);
    let hook = json!({ "sleep": { "seconds": 1 } });
    let cases = [
        (json!({ "stopSignal": "SIGUSR1" }), Value::Null),
        (
            json!({ "stopSignal": "SIGUSR1", "preStop": hook }),
            json!({ "preStop": hook }),
        ),
        (json!({}), json!({})),
    ];
    for (at, (lifecycle, stored)) in cases.into_iter().enumerate() {
        let container = json!({ "name": "c", "image": "i", "lifecycle": lifecycle });
        let spec = json!({ "containers": [container], "schedulingGroup": { "podGroupName": "g" } });
        let (_, pod) = call(&server, Method::POST, PODS, &mk_pod(&format!("p{at}"), spec)).await;
        let spec = &pod["spec"];
        assert_eq!(spec["containers"][0]["lifecycle"], stored);
        assert_eq!(spec["schedulingGroup"], Value::Null);
    }
}

#[tokio::test(start_paused = true)]
async fn merges_values_of_label_keys_into_selectors() {
    let server = mk_server(1);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let term = json!({
        "topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["a", "missing"], "mismatchLabelKeys": ["b"],
    });
    let constraint = json!({
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["a"],
        "labelSelector": { "matchExpressions": [{ "key": "b", "operator": "Exists" }] },
    });
    let mut pod = mk_pod(
        "p",
        json!({
            "topologySpreadConstraints": [constraint],
            "affinity": {
                "podAffinity": { required: [term] },
                "podAntiAffinity": { preferred: [{ "weight": 1, "podAffinityTerm": term }] },
            },
        }),
    );
    pod["metadata"]["labels"] = json!({ "a": "1", "b": "2" });
    let (code, created) = call(&server, Method::POST, PODS, &pod).await;
    assert_eq!(code, 201, "{created}");
    let spec = &created["spec"];
    let of_a = json!({ "key": "a", "operator": "In", "values": ["1"] });
    let not_of_b = json!({ "key": "b", "operator": "NotIn", "values": ["2"] });
    let of_term = json!({ "matchExpressions": [of_a, not_of_b] });
    assert_eq!(
        spec["affinity"]["podAffinity"][required][0]["labelSelector"],
        of_term
    );
    let weighted = &spec["affinity"]["podAntiAffinity"][preferred][0];
    assert_eq!(weighted["podAffinityTerm"]["labelSelector"], of_term);
    assert_eq!(
        spec["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"],
        json!([{ "key": "b", "operator": "Exists" }, of_a])
    );
}

#[tokio::test(start_paused = true)]
async fn completes_resources_of_pods() {
    let server = mk_server(1);
    let cases = [
        (json!({}), json!({}), json!({}), "BestEffort"),
        (
            json!({ "limits": { "cpu": "2", "memory": "2Gi" } }),
            json!({ "requests": { "cpu": "1" } }),
            json!({ "limits": { "cpu": "2", "memory": "2Gi" }, "requests": { "cpu": "1", "memory": "2Gi" } }),
            "Burstable",
        ),
        (
            json!({ "limits": { "cpu": "2", "memory": "2Gi" } }),
            json!({ "limits": { "hugepages-2Mi": "4Mi", "cpu": "2" } }),
            json!({
                "limits": { "cpu": "2", "memory": "2Gi", "hugepages-2Mi": "4Mi" },
                "requests": { "cpu": "2", "memory": "2Gi", "hugepages-2Mi": "4Mi" },
            }),
            "Guaranteed",
        ),
        (
            json!({ "requests": { "cpu": "2" } }),
            json!({ "requests": { "memory": "1Gi" } }),
            json!({ "requests": { "cpu": "2" } }),
            "Burstable",
        ),
        (
            Value::Null,
            json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "memory": "1073741824" } }),
            Value::Null,
            "Guaranteed",
        ),
    ];
    for (at, (resources, of_container, stored, class)) in cases.into_iter().enumerate() {
        let container = json!({ "name": "c", "image": "i", "resources": of_container });
        let spec = json!({ "resources": resources, "containers": [container] });
        let (code, pod) = call(&server, Method::POST, PODS, &mk_pod(&format!("p{at}"), spec)).await;
        assert_eq!(code, 201, "{pod}");
        assert_eq!(pod["spec"]["resources"], stored);
        assert_eq!(pod["status"]["qosClass"], class);
    }
}
