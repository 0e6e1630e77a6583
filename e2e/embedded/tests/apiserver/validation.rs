//! Validation of objects other than pods and volumes.

use http::Method;
use serde_json::{Value, json};

use super::{assert_fails, call, mk_server, patch};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

#[tokio::test(start_paused = true)]
async fn nodes() {
    let declared = "invalid feature name \"a\": must start with an UpperCamelCase segment, with subsequent segments separated by \
                    '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";
    let cases: [(Value, &[&str]); 5] = [
        (
            json!({ "metadata": { "annotations": { "scheduler.alpha.kubernetes.io/taints": "[{\"effect\":\"No\"}]" } } }),
            &[
                "metadata.annotations.scheduler.alpha.kubernetes.io/taints[0].key: Invalid value: \"\": name part must be \
                 non-empty",
                "metadata.annotations.scheduler.alpha.kubernetes.io/taints[0].key: Invalid value: \"\": name part must \
                 consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
                 (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                "metadata.annotations.scheduler.alpha.kubernetes.io/taints[0].effect: Unsupported value: \"No\": supported \
                 values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
            ],
        ),
        (
            json!({ "status": { "nodeInfo": { "swap": { "capacity": 0 } } } }),
            &["metadata.nodeSwapStatus.capacity: Invalid value: 0: must be greater than zero"],
        ),
        (
            json!({ "status": { "declaredFeatures": ["B", "a", "a"] } }),
            &[
                &format!("status.declaredFeatures[1]: Invalid value: \"a\": {declared}"),
                "status.declaredFeatures[2]: Duplicate value: \"a\"",
                &format!("status.declaredFeatures[2]: Invalid value: \"a\": {declared}"),
            ],
        ),
        (
            json!({ "status": { "declaredFeatures": ["B/c", "A"] } }),
            &["status.declaredFeatures[1]: Invalid value: \"A\": list must be sorted alphabetically"],
        ),
        (
            json!({ "spec": { "podCIDRs": ["10.0.0.1/24", "10.0.0.0/024", "::ffff:10.0.0.0/120", "10.0.0.0/33"] } }),
            &[
                "spec.podCIDRs[0]: Invalid value: \"10.0.0.1/24\": must not have bits set beyond the prefix length",
                "spec.podCIDRs[1]: Invalid value: \"10.0.0.0/024\": must not have leading 0s in IP or prefix length",
                "spec.podCIDRs[2]: Invalid value: \"::ffff:10.0.0.0/120\": must not have an IPv4-mapped IPv6 address",
                "spec.podCIDRs[3]: Invalid value: \"10.0.0.0/33\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or \
                 2001:db8::/64)",
                "spec.podCIDRs: Internal error: invalid PodCIDRs. failed to check with dual stack with error:invalid \
                 CIDR[3]: <nil> (invalid CIDR address: 10.0.0.0/33)",
                "spec.podCIDRs: Invalid value: \
                 [\"10.0.0.1/24\",\"10.0.0.0/024\",\"::ffff:10.0.0.0/120\",\"10.0.0.0/33\"]: may specify no more than one \
                 CIDR for each IP family",
            ],
        ),
    ];
    for (mut node, errors) in cases {
        node["metadata"]["name"] = "n".into();
        let errors = match errors {
            [error] => (*error).to_owned(),
            errors => format!("[{}]", errors.join(", ")),
        };
        let response = call(&mk_server(1), Method::POST, "/api/v1/nodes", &node).await;
        assert_fails(
            response,
            422,
            "Invalid",
            &format!("Node \"n\" is invalid: {errors}"),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_of_container_registries_are_json_objects() {
    let why = "data[.dockercfg]: Invalid value: \"<secret contents redacted>\"";
    let cases = [
        (
            "W10=",
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        ("eA==", "invalid character 'x' looking for beginning of value"),
        ("", "unexpected end of JSON input"),
    ];
    for (data, error) in cases {
        let secret = json!({
            "metadata": { "name": "s" }, "type": "kubernetes.io/dockercfg", "data": { ".dockercfg": data },
        });
        let response = call(
            &mk_server(1),
            Method::POST,
            "/api/v1/namespaces/default/secrets",
            &secret,
        )
        .await;
        assert_fails(
            response,
            422,
            "Invalid",
            &format!("Secret \"s\" is invalid: {why}: {error}"),
        );
    }
}

fn mk_claim(spec: Value) -> Value {
    let mut claim = json!({ "metadata": { "name": "c" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    } });
    claim["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().cloned().unwrap());
    claim
}

#[tokio::test(start_paused = true)]
async fn classes_in_annotations_of_claims_become_fields() {
    let path = format!("{CLAIMS}/c");
    let annotated = |class: Value| json!({ "metadata": { "annotations": { CLASS: class } } });
    let both = |class: Value, field: &str| {
        let mut document = annotated(class);
        document["spec"] = json!({ "storageClassName": field });
        document
    };
    let cases = [
        (annotated(json!("b")), 422),
        (annotated(Value::Null), 422),
        (both(json!("a"), "b"), 422),
        (both(Value::Null, "b"), 422),
        (both(json!("a"), "a"), 200),
        (both(Value::Null, "a"), 200),
    ];
    for (document, code) in cases {
        let server = mk_server(1);
        let mut claim = mk_claim(json!({}));
        claim["metadata"]["annotations"] = json!({ CLASS: "a" });
        call(&server, Method::POST, CLAIMS, &claim).await;
        let (found, response) = patch(&server, &path, "merge", &document).await;
        assert_eq!(found, code, "{document}: {response}");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_keep_an_applied_attributes_class() {
    let server = mk_server(1);
    let path = format!("{CLAIMS}/c");
    call(
        &server,
        Method::POST,
        CLAIMS,
        &mk_claim(json!({ "volumeAttributesClassName": "gold" })),
    )
    .await;
    let status = json!({ "status": { "phase": "Bound", "currentVolumeAttributesClassName": "gold" } });
    patch(&server, &format!("{path}/status"), "merge", &status).await;
    for (class, what) in [(json!(""), "empty string"), (Value::Null, "nil")] {
        let document = json!({ "spec": { "volumeAttributesClassName": class } });
        let message = format!(
            "PersistentVolumeClaim \"c\" is invalid: spec.volumeAttributesClassName: Forbidden: update to {what} is forbidden \
             when status.currentVolumeAttributesClassName is not nil"
        );
        assert_fails(
            patch(&server, &path, "merge", &document).await,
            422,
            "Invalid",
            &message,
        );
    }
}

#[tokio::test(start_paused = true)]
async fn claims_with_a_source_in_another_namespace_lose_it() {
    let source = json!({ "apiGroup": "example.com", "kind": "P", "name": "p", "namespace": "other" });
    let claim = mk_claim(json!({ "dataSourceRef": source }));
    let (code, created) = call(&mk_server(1), Method::POST, CLAIMS, &claim).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["spec"]["dataSourceRef"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn inline_volumes_may_have_any_attributes_class() {
    let volume = json!({
        "accessModes": ["ReadWriteOnce"], "csi": { "driver": "d", "volumeHandle": "h" }, "volumeAttributesClassName": "",
    });
    let attachment = json!({ "metadata": { "name": "a" }, "spec": {
        "attacher": "d", "nodeName": "n", "source": { "inlineVolumeSpec": volume },
    } });
    let (code, response) = call(&mk_server(1), Method::POST, super::ATTACHMENTS, &attachment).await;
    assert_eq!(code, 201, "{response}");
}
