//! Annotations of pods that have a meaning.

use http::Method;
use serde_json::{Value, json};

use super::{assert_fails, call, mk_server, patch};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

fn mk_pod(annotations: Value, spec: Value) -> Value {
    let mut pod = json!({ "metadata": { "name": "p", "annotations": annotations }, "spec": spec });
    pod["spec"]["containers"] = json!([{ "name": "c", "image": "i", "securityContext": spec["context"] }]);
    pod["spec"].as_object_mut().unwrap().remove("context");
    pod
}

/// The errors of kube-apiserver about annotations of a pod.
async fn assert_invalid(cases: &[(Value, Value, &[&str])]) {
    for (annotations, spec, errors) in cases {
        let errors = match errors {
            [error] => (*error).to_owned(),
            errors => format!("[{}]", errors.join(", ")),
        };
        let pod = mk_pod(annotations.clone(), spec.clone());
        let response = call(&mk_server(1), Method::POST, PODS, &pod).await;
        assert_fails(
            response,
            422,
            "Invalid",
            &format!("Pod \"p\" is invalid: {errors}"),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn of_mirror_pods_tolerations_and_deletion_costs_are_validated() {
    let cases: [(Value, Value, &[&str]); 5] = [
        (
            json!({ MIRROR: "x" }),
            json!({}),
            &[
                "metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror pod \
               annotation is set",
            ],
        ),
        (
            json!({ TOLERATIONS: "[" }),
            json!({}),
            &[
                "metadata.annotations: Invalid value: \"scheduler.alpha.kubernetes.io/tolerations\": unexpected end of JSON \
               input",
            ],
        ),
        (
            json!({ TOLERATIONS: "{}" }),
            json!({}),
            &[
                "metadata.annotations: Invalid value: \"scheduler.alpha.kubernetes.io/tolerations\": json: cannot unmarshal \
               object into Go value of type []core.Toleration",
            ],
        ),
        (
            json!({ TOLERATIONS: r#"[{"Key":"a","operator":"Is"}]"# }),
            json!({}),
            &[
                "metadata.annotations.scheduler.alpha.kubernetes.io/tolerations[0].operator: Unsupported value: \"Is\": \
               supported values: \"Equal\", \"Exists\"",
            ],
        ),
        (
            json!({ DELETION_COST: "+1" }),
            json!({}),
            &[
                "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+1\": must be a 32bit \
               integer",
            ],
        ),
    ];
    assert_invalid(&cases).await;
}

#[tokio::test(start_paused = true)]
async fn of_seccomp_profiles_are_validated() {
    let seccomp = "container.seccomp.security.alpha.kubernetes.io/c";
    let cases: [(Value, Value, &[&str]); 4] = [
        (
            json!({ "seccomp.security.alpha.kubernetes.io/pod": "other" }),
            json!({}),
            &[
                "metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value: \"other\": must be a valid \
               seccomp profile",
            ],
        ),
        (
            json!({ seccomp: "localhost//a/../b" }),
            json!({}),
            &[
                "metadata.annotations.container.seccomp.security.alpha.kubernetes.io/c: Invalid value: \"/a/../b\": must be \
                 a relative path",
                "metadata.annotations.container.seccomp.security.alpha.kubernetes.io/c: Invalid value: \"/a/../b\": must \
                 not contain '..'",
            ],
        ),
        (
            json!({ "seccomp.security.alpha.kubernetes.io/pod": "unconfined" }),
            json!({ "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } } }),
            &[
                "spec.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match",
            ],
        ),
        (
            json!({ seccomp: "localhost/a" }),
            json!({ "context": { "seccompProfile": { "type": "Localhost", "localhostProfile": "b" } } }),
            &[
                "spec.containers[0].securityContext.seccompProfile.localhostProfile: Forbidden: seccomp profile in annotation \
               and field must match",
            ],
        ),
    ];
    assert_invalid(&cases).await;
    let valid = json!({
        DELETION_COST: "-5",
        TOLERATIONS: "[]",
        "seccomp.security.alpha.kubernetes.io/pod": "docker/default",
    });
    let spec = json!({ "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } } });
    let (code, response) = call(&mk_server(1), Method::POST, PODS, &mk_pod(valid, spec)).await;
    assert_eq!(code, 201, "{response}");
}

#[tokio::test(start_paused = true)]
async fn of_mirror_pods_do_not_change() {
    let server = mk_server(1);
    let pod = mk_pod(json!({ MIRROR: "x" }), json!({ "nodeName": "n" }));
    let (_, created) = call(&server, Method::POST, PODS, &pod).await;
    assert_eq!(created["spec"]["volumes"], Value::Null);
    let path = format!("{PODS}/p");
    let set = |value: Value| json!({ "metadata": { "annotations": { MIRROR: value } } });
    let why = "Pod \"p\" is invalid: metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not remove or update \
               mirror pod annotation";
    for value in [json!("y"), Value::Null] {
        assert_fails(
            patch(&server, &path, "merge", &set(value)).await,
            422,
            "Invalid",
            why,
        );
    }
    let cases = [
        (json!({ "serviceAccountName": "default" }), "service accounts"),
        (json!({ "imagePullSecrets": [{ "name": "s" }] }), "secrets"),
        (
            json!({ "volumes": [{ "name": "v", "secret": { "secretName": "s" } }] }),
            "secrets",
        ),
    ];
    for (mut spec, what) in cases {
        spec["nodeName"] = "n".into();
        let response = call(&server, Method::POST, PODS, &mk_pod(json!({ MIRROR: "x" }), spec)).await;
        let why = format!("pods \"p\" is forbidden: a mirror pod may not reference {what}");
        assert_fails(response, 403, "Forbidden", &why);
    }
}
