//! Warnings for clients that write objects.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{ApiServer, mk_pod, mk_server};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The texts of the warnings about a request, which must succeed.
async fn warnings(server: &ApiServer, method: Method, path: &str, body: &Value) -> Vec<String> {
    let content_type = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type);
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    let response = server.clone().oneshot(request).await.unwrap();
    assert!(response.status().is_success(), "{body}");
    let headers = response.headers().get_all("warning").iter();
    let text = |header: &http::HeaderValue| {
        let header = header.to_str().unwrap().strip_prefix("299 - \"").unwrap();
        header.strip_suffix('"').unwrap().replace("\\\"", "\"")
    };
    headers.map(text).collect()
}

async fn assert_pod_warns(spec: Value, expected: &[&str]) {
    assert_eq!(
        warnings(&mk_server(1), Method::POST, PODS, &mk_pod("p", spec.clone())).await,
        expected,
        "{spec}"
    );
}

#[tokio::test(start_paused = true)]
async fn about_node_labels_and_selectors_of_pods() {
    let expression = |key: &str, value: &str| json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": [value] }] });
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let spread =
        json!({ "maxSkew": 1, "topologyKey": "beta.kubernetes.io/os", "whenUnsatisfiable": "DoNotSchedule" });
    let cases: [(Value, &[&str]); 4] = [
        (
            json!({ "nodeSelector": { "beta.kubernetes.io/arch": "a" } }),
            &[
                "spec.nodeSelector[beta.kubernetes.io/arch]: deprecated since v1.14; use \"kubernetes.io/arch\" instead",
            ],
        ),
        (
            json!({ "affinity": { "nodeAffinity": {
                required: { "nodeSelectorTerms": [expression("app.kubernetes.io/created-by", "a")] },
                preferred: [{ "weight": 1, "preference": expression("node-role.kubernetes.io/master", "-") }],
            } } }),
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].\
                 matchExpressions[0].key: app.kubernetes.io/created-by is deprecated since v1.9",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.\
                 matchExpressions[0].key: node-role.kubernetes.io/master is use \"node-role.kubernetes.io/control-plane\" \
                 instead",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.\
                 matchExpressions[0].values[0]: - is invalid, a valid label must be an empty string or consist of \
                 alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
                 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
                 '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ],
        ),
        (
            json!({ "topologySpreadConstraints": [spread] }),
            &[
                "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/os is deprecated since v1.14; use \
                 \"kubernetes.io/os\" instead",
                "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            ],
        ),
        (
            json!({ "affinity": {
                "podAffinity": { required: [{ "topologyKey": "z" }] },
                "podAntiAffinity": { preferred: [{ "weight": 1, "podAffinityTerm": { "topologyKey": "z" } }] },
            } }),
            &[
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null \
                 labelSelector results in matching no pod",
                "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.\
                 labelSelector: a null labelSelector results in matching no pod",
            ],
        ),
    ];
    for (spec, expected) in cases {
        assert_pod_warns(spec, expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn about_containers_of_pods() {
    let container = |mut fields: Value| {
        fields["name"] = "c".into();
        fields["image"] = "i".into();
        json!({ "containers": [fields] })
    };
    let port = |port: i64, fields: Value| {
        let mut entry = json!({ "containerPort": port });
        entry
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().cloned().unwrap());
        entry
    };
    let path = "spec.containers[0]";
    let cases: [(Value, &[&str]); 6] = [
        (
            container(json!({ "resources": { "requests": { "memory": "1500m" } } })),
            &[
                "spec.containers[0].resources.requests[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
            ],
        ),
        (
            container(json!({ "env": [
                { "name": "A", "value": "a" }, { "name": "A", "value": "$(A):b" }, { "name": "A", "value": "b" },
            ] })),
            &[
                "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            ],
        ),
        (
            container(json!({ "ports": [port(80, json!({ "hostIP": "10.0.0.1" }))] })),
            &[
                "spec.containers[0].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP \
                 HostIP:10.0.0.1}",
            ],
        ),
        (
            container(
                json!({ "ports": [port(80, json!({})), port(80, json!({})), port(80, json!({ "hostPort": 1 }))] }),
            ),
            &[
                &format!("{path}.ports[1]: duplicate port definition with {path}.ports[0]"),
                &format!("{path}.ports[2]: overlapping port definition with {path}.ports[0]"),
                &format!("{path}.ports[2]: overlapping port definition with {path}.ports[1]"),
            ],
        ),
        (
            container(json!({ "ports": [
                port(80, json!({ "hostPort": 1 })), port(80, json!({ "hostPort": 1, "hostIP": "10.0.0.1" })),
            ] })),
            &[&format!(
                "{path}.ports[1]: dangerously ambiguous port definition with {path}.ports[0]"
            )],
        ),
        (
            json!({
                "containers": [{ "name": "c", "image": "i", "ports": [port(80, json!({ "name": "a" }))] }],
                "initContainers": [{ "name": "x", "image": "i", "ports": [port(81, json!({ "name": "a" }))] }],
            }),
            &[
                "spec.containers[0].ports[0]: duplicate port name \"a\" with spec.initContainers[0].ports[0], services and \
                 probes that select ports by name will use spec.initContainers[0].ports[0]",
            ],
        ),
    ];
    for (spec, expected) in cases {
        assert_pod_warns(spec, expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn about_volumes_and_addresses_of_pods() {
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = "v".into();
        json!({ "volumes": [volume] })
    };
    let items = |paths: &[&str]| {
        let item = |path: &&str| json!({ "key": "k", "path": path });
        paths.iter().map(item).collect::<Value>()
    };
    let cases: [(Value, &[&str]); 7] = [
        (
            volume(json!({ "gitRepo": { "repository": "r" } })),
            &["spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"],
        ),
        (
            volume(json!({ "storageos": { "volumeName": "a" } })),
            &["spec.volumes[0].storageOS: deprecated in v1.22, non-functional in v1.25+"],
        ),
        (
            volume(
                json!({ "scaleIO": { "gateway": "g", "system": "s", "volumeName": "v", "secretRef": { "name": "a" } } }),
            ),
            &["spec.volumes[0].scaleIO: deprecated in v1.16, non-functional in v1.22+"],
        ),
        (
            volume(json!({ "secret": { "secretName": "s", "items": items(&["a", "a/b/", "ab"]) } })),
            &["volume \"v\" (Secret \"s\"): overlapping paths: \"a/b\" with \"a\""],
        ),
        (
            volume(json!({ "projected": { "sources": [
                {}, { "configMap": { "name": "c", "items": items(&["a"]) } },
                { "serviceAccountToken": { "path": "a/t" } },
            ] } })),
            &[
                "volume \"v\" (Projected) has no sources provided",
                "volume \"v\" (Projected): overlapping paths: \"a/t\" (ServiceAccountToken) with \"a\" (ConfigMap \"c\")",
            ],
        ),
        (
            json!({ "hostAliases": [{ "ip": "10.0.0.1" }, { "ip": "10.0.0.1" }, { "ip": "FD00::1" }],
                "imagePullSecrets": [{ "name": "s" }, { "name": "s" }, {}] }),
            &[
                "spec.hostAliases[1].ip: duplicate ip \"10.0.0.1\"",
                "spec.imagePullSecrets[1].name: duplicate name \"s\"",
                "spec.imagePullSecrets[2].name: invalid empty name \"\"",
                "spec.hostAliases[2].ip: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
            ],
        ),
        (json!({ "dnsConfig": { "nameservers": ["10.0.0.1"] } }), &[]),
    ];
    for (spec, expected) in cases {
        assert_pod_warns(spec, expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn about_names_and_annotations_of_pods() {
    let annotations = json!({
        "scheduler.alpha.kubernetes.io/critical-pod": "",
        "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
    });
    let pod = json!({
        "metadata": { "name": "p.q", "annotations": annotations },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let expected = [
        "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
         recommended: [must not contain dots]",
        "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \
         \"priorityClassName\" field instead",
        "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \
         \"seccompProfile\" field instead",
    ];
    let server = mk_server(1);
    assert_eq!(warnings(&server, Method::POST, PODS, &pod).await, expected);
    let path = format!("{PODS}/p.q/status");
    let status = json!({ "status": { "podIP": "FD00::1" } });
    let expected = [
        "status.podIPs[0].ip: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
    ];
    assert_eq!(warnings(&server, Method::PATCH, &path, &status).await, expected);
}

/// The warnings of kube-apiserver about new objects.
async fn assert_warn(cases: Vec<(String, Value, Vec<String>)>) {
    for (path, mut object, expected) in cases {
        object["metadata"]["name"] = "a".into();
        let server = mk_server(1);
        assert_eq!(
            warnings(&server, Method::POST, &path, &object).await,
            expected,
            "{path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn about_volumes_claims_and_classes() {
    let beta_zone = "failure-domain.beta.kubernetes.io/zone";
    let deprecated = "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead";
    let expression = |values: &str| json!({ "key": beta_zone, values: ["z"], "operator": "In" });
    let term = json!({ "matchExpressions": [expression("values")] });
    let class = "volume.beta.kubernetes.io/storage-class";
    let class_warning = format!(
        "metadata.annotations[{class}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
    );
    let storage = "/apis/storage.k8s.io/v1";
    let namespace = "/api/v1/namespaces/default";
    let cases = vec![
        (
            "/api/v1/persistentvolumes".to_owned(),
            json!({ "metadata": { "annotations": { class: "a" } }, "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "rbd": { "monitors": ["m"], "image": "i" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } },
            } }),
            vec![
                class_warning.clone(),
                format!(
                    "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: {beta_zone} is {deprecated}"
                ),
                "spec.rbd: deprecated in v1.28, non-functional in v1.31+".to_owned(),
            ],
        ),
        (
            format!("{namespace}/persistentvolumeclaims"),
            json!({ "metadata": { "annotations": { class: "a" } }, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1500m" } },
            } }),
            vec![
                class_warning,
                "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer".to_owned(),
            ],
        ),
        (
            format!("{storage}/storageclasses"),
            json!({ "provisioner": "p", "allowedTopologies": [
                { "matchLabelExpressions": [{ "key": beta_zone, "values": ["z"] }] },
            ] }),
            vec![format!("allowedTopologies[0].matchLabelExpressions[0].key: {deprecated}")],
        ),
        (
            format!("{storage}/namespaces/default/csistoragecapacities"),
            json!({ "storageClassName": "a", "nodeTopology": { "matchLabels": { beta_zone: "z" } } }),
            vec![format!("nodeTopology.matchLabels.{beta_zone}: {deprecated}")],
        ),
    ];
    assert_warn(cases).await;
}

#[tokio::test(start_paused = true)]
async fn about_nodes_secrets_and_service_accounts() {
    let namespace = "/api/v1/namespaces/default";
    let mountable = "kubernetes.io/enforce-mountable-secrets";
    let cases = vec![
        (
            "/api/v1/nodes".to_owned(),
            json!({ "spec": { "externalID": "e", "podCIDRs": ["FD00::/64"] } }),
            vec![
                "spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned(),
                "spec.podCIDRs[0]: IPv6 CIDR value \"FD00::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")"
                    .to_owned(),
            ],
        ),
        (
            format!("{namespace}/secrets"),
            json!({ "type": "kubernetes.io/tls", "data": { "tls.crt": "eA==", "tls.key": "" } }),
            vec!["tls: failed to find any PEM data in certificate input".to_owned()],
        ),
        (
            format!("{namespace}/serviceaccounts"),
            json!({ "metadata": { "annotations": { mountable: "true" } } }),
            vec![format!(
                "metadata.annotations[{mountable}]: deprecated in v1.32+; prefer separate namespaces to isolate access to \
                 mounted secrets"
            )],
        ),
    ];
    assert_warn(cases).await;
}
