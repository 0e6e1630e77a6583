//! Validation of updates of pods' statuses.

use http::Method;
use serde_json::{Value, json};

use super::{ApiServer, assert_fails, call, mk_pod, mk_server, patch};

const PODS: &str = "/api/v1/namespaces/default/pods";
const STATUS: &str = "/api/v1/namespaces/default/pods/p/status";

async fn mk_server_with_pod(spec: Value) -> ApiServer {
    let server = mk_server(1);
    let (code, response) = call(&server, Method::POST, PODS, &mk_pod("p", spec)).await;
    assert_eq!(code, 201, "{response}");
    server
}

async fn set_status(server: &ApiServer, status: Value) -> (u16, Value) {
    patch(server, STATUS, "merge", &json!({ "status": status })).await
}

fn container_status(name: &str, exit_code: Option<i64>) -> Value {
    let state = match exit_code {
        Some(exit_code) => json!({ "terminated": { "exitCode": exit_code } }),
        None => json!({ "running": {} }),
    };
    json!({ "name": name, "state": state, "ready": false, "restartCount": 0, "image": "i", "imageID": "" })
}

#[tokio::test(start_paused = true)]
async fn terminated_containers_restart_only_by_their_policy() {
    let container = |fields: Value| {
        let mut container = json!({ "name": "c", "image": "i" });
        container
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().cloned().unwrap());
        container
    };
    let rule = |action: &str| {
        let exit_codes = json!({ "operator": "In", "values": [3] });
        json!({ "restartPolicy": "Never", "restartPolicyRules": [{ "action": action, "exitCodes": exit_codes }] })
    };
    let cases = [
        ("Always", json!({}), 0, true),
        ("OnFailure", json!({}), 0, false),
        ("OnFailure", json!({}), 1, true),
        ("Never", json!({}), 1, false),
        ("Never", json!({ "restartPolicy": "OnFailure" }), 1, true),
        ("Always", json!({ "restartPolicy": "Never" }), 1, false),
        ("Always", rule("Restart"), 3, true),
        ("Always", rule("Restart"), 4, false),
        ("Never", rule("RestartAllContainers"), 0, true),
    ];
    for (policy, fields, exit_code, restarts) in cases {
        let spec = json!({ "restartPolicy": policy, "containers": [container(fields.clone())] });
        let server = mk_server_with_pod(spec).await;
        set_status(
            &server,
            json!({ "containerStatuses": [container_status("c", Some(exit_code))] }),
        )
        .await;
        let response = set_status(
            &server,
            json!({ "containerStatuses": [container_status("c", None)] }),
        )
        .await;
        if restarts {
            assert_eq!(response.0, 200, "{policy} {fields}: {}", response.1);
        } else {
            let why = "Pod \"p\" is invalid: status.containerStatuses[0].state: Forbidden: may not be transitioned to \
                       non-terminated state";
            assert_fails(response, 422, "Invalid", why);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn terminated_init_and_ephemeral_containers_do_not_restart() {
    let init = json!({ "name": "x", "image": "i" });
    let sidecar = json!({ "name": "s", "image": "i", "restartPolicy": "Always" });
    let server =
        mk_server_with_pod(json!({ "restartPolicy": "Never", "initContainers": [init, sidecar] })).await;
    let cases = [
        ("initContainerStatuses", "x", false),
        ("initContainerStatuses", "s", true),
        ("initContainerStatuses", "unknown", false),
        ("ephemeralContainerStatuses", "e", false),
    ];
    for (list, name, restarts) in cases {
        set_status(&server, json!({ list: [container_status(name, Some(1))] })).await;
        let (code, response) = set_status(&server, json!({ list: [container_status(name, None)] })).await;
        let expected = if restarts { 200 } else { 422 };
        assert_eq!(code, expected, "{name}: {response}");
        set_status(&server, json!({ list: null })).await;
    }
}

/// The errors of kube-apiserver about statuses of a pod whose container requests CPU.
async fn assert_invalid(cases: &[(Value, &[&str])]) {
    let requests = json!({ "requests": { "cpu": "1" } });
    let container = json!({ "name": "c", "image": "i", "resources": requests });
    let server = mk_server_with_pod(json!({ "containers": [container] })).await;
    for (status, errors) in cases {
        let errors: Vec<String> = errors.iter().map(|error| format!("status.{error}")).collect();
        let errors = match errors.as_slice() {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        };
        let message = format!("Pod \"p\" is invalid: {errors}");
        assert_fails(
            set_status(&server, status.clone()).await,
            422,
            "Invalid",
            &message,
        );
    }
}

#[tokio::test(start_paused = true)]
async fn generations_addresses_and_claims_are_validated() {
    let cases: [(Value, &[&str]); 4] = [
        (
            json!({ "observedGeneration": -1, "conditions": [{ "type": "Ready", "observedGeneration": -2 }] }),
            &[
                "conditions[0].observedGeneration: Invalid value: -2: must be a non-negative integer",
                "observedGeneration: Invalid value: -1: must be a non-negative integer",
            ],
        ),
        (
            json!({ "hostIP": "10.0.0.1", "hostIPs": [{ "ip": "10.0.0.02" }] }),
            &[
                "hostIPs[0].ip: Invalid value: \"10.0.0.02\": must be equal to `hostIP`",
                "hostIPs[0]: Invalid value: \"10.0.0.02\": must not have leading 0s",
            ],
        ),
        (
            json!({ "resourceClaimStatuses": [{ "name": "r" }] }),
            &[
                "resourceClaimStatuses[0].name: Invalid value: \"r\": must match the name of an entry in \
                 `spec.resourceClaims`",
            ],
        ),
        (
            json!({ "extendedResourceClaimStatus": { "requestMappings": [
                { "containerName": "x", "resourceName": "a", "requestName": "r" },
                { "containerName": "c", "resourceName": "a", "requestName": "r" },
            ] } }),
            &[
                "extendedResourceClaimStatus.requestMappings[0].containerName: Invalid value: \"x\": must match the name of \
                 an entry in spec.initContainers.name or spec.containers.name",
                "extendedResourceClaimStatus.requestMappings[1].resourceName: Invalid value: \"a\": must match the extended \
                 resource name of an entry in spec.initContainers.resources.requests or \
                 spec.containers.resources.requests",
                "extendedResourceClaimStatus.resourceClaimName: Required value",
            ],
        ),
    ];
    assert_invalid(&cases).await;
}

#[tokio::test(start_paused = true)]
async fn statuses_of_containers_are_validated() {
    let id = "must be between 0 and 2147483647, inclusive";
    let with = |fields: Value| {
        let mut status = container_status("c", None);
        status
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().cloned().unwrap());
        json!({ "containerStatuses": [status] })
    };
    let device = |fields: Value| with(json!({ "allocatedResourcesStatus": [fields] }));
    let cases: [(Value, &[&str]); 5] = [
        (
            with(json!({ "user": { "linux": { "uid": -1, "gid": 0, "supplementalGroups": [-2] } } })),
            &[
                &format!("containerStatuses[0].user.linux.uid: Invalid value: -1: {id}"),
                &format!("containerStatuses[0].user.linux.supplementalGroups[0]: Invalid value: -2: {id}"),
            ],
        ),
        (
            device(json!({ "name": "claim:r", "resources": [] })),
            &[
                "containerStatuses[0].allocatedResourcesStatus[0].name: Invalid value: \"claim:r\": must match one of the \
                 container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is \
                 empty",
            ],
        ),
        (
            device(json!({ "name": "a", "resources": [] })),
            &[
                "containerStatuses[0].allocatedResourcesStatus[0].name: Invalid value: \"a\": must match one of the \
                 container's resource requests",
            ],
        ),
        (
            device(json!({ "name": "cpu", "resources": [
                { "resourceID": "a", "health": "Healthy" }, { "resourceID": "a", "health": "Ill", "message": "" },
            ] })),
            &[
                "containerStatuses[0].allocatedResourcesStatus[0].resources[1].health: Unsupported value: \"Ill\": supported \
                 values: \"Healthy\", \"Unhealthy\", \"Unknown\"",
                "containerStatuses[0].allocatedResourcesStatus[0].resources[1].message: Required value: must be non-empty if \
                 specified",
                "containerStatuses[0].allocatedResourcesStatus[0].resources[1].resourceID: Duplicate value: \"a\"",
            ],
        ),
        (
            json!({ "ephemeralContainerStatuses": [{ "name": "e", "allocatedResourcesStatus": [{ "name": "a" }] }] }),
            &[
                "ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status",
            ],
        ),
    ];
    assert_invalid(&cases).await;
}

#[tokio::test(start_paused = true)]
async fn keeps_observed_generations_and_drops_disabled_fields() {
    let server = mk_server_with_pod(json!({})).await;
    let ready = json!({ "type": "Ready", "status": "True" });
    let mut observed = ready.clone();
    observed["observedGeneration"] = 1.into();
    set_status(
        &server,
        json!({ "observedGeneration": 1, "conditions": [observed] }),
    )
    .await;
    let volume_status = json!({ "image": { "imageRef": "i" } });
    let mount = json!({ "name": "v", "mountPath": "/v", "volumeStatus": volume_status });
    let mut container = container_status("c", None);
    container["volumeMounts"] = json!([mount]);
    let status = json!({
        "observedGeneration": null,
        "conditions": [ready],
        "containerStatuses": [container],
        "nodeAllocatableResourceClaimStatuses": [{ "resourceClaimName": "r" }],
    });
    let (code, pod) = set_status(&server, status).await;
    assert_eq!(code, 200, "{pod}");
    let status = &pod["status"];
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(status["conditions"][0]["observedGeneration"], 1);
    assert_eq!(
        status["containerStatuses"][0]["volumeMounts"][0]["volumeStatus"],
        Value::Null
    );
    assert_eq!(status["nodeAllocatableResourceClaimStatuses"], Value::Null);
}
