//! Validation: fields that a component of the path reads are checked, others are not.

use http::Method;
use serde_json::{Value, json};

use super::{ATTACHMENTS, call, mk_attachment, mk_pod, mk_server, patch};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const PODS: &str = "/api/v1/namespaces/default/pods";
const STORAGE: &str = "/apis/storage.k8s.io/v1";

fn mk_claim(spec: Value) -> Value {
    let spec_of_claim =
        json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    with(
        json!({ "metadata": { "name": "c" }, "spec": spec_of_claim }),
        spec,
    )
}

fn mk_volume(spec: Value) -> Value {
    let csi = json!({ "driver": "d", "volumeHandle": "h" });
    let spec_of_volume =
        json!({ "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "csi": csi });
    with(
        json!({ "metadata": { "name": "v" }, "spec": spec_of_volume }),
        spec,
    )
}

fn with(mut object: Value, spec: Value) -> Value {
    let fields = spec.as_object().cloned().unwrap();
    object["spec"].as_object_mut().unwrap().extend(fields);
    object
}

fn mk_attachment_with(spec: Value) -> Value {
    with(mk_attachment("a"), spec)
}

/// The fields that the errors of an invalid object name.
fn fields(response: &Value) -> Vec<&str> {
    let causes = response["details"]["causes"].as_array();
    let causes = causes.unwrap_or_else(|| panic!("{response} must have causes"));
    causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
#[expect(clippy::too_many_lines, reason = "one row for each rule")]
async fn refuses_what_components_cannot_read() {
    let nodes = "/api/v1/nodes";
    let volumes = "/api/v1/persistentvolumes";
    let pod = |spec: Value| mk_pod("p", spec);
    let mount = |volume: &str| json!([{ "name": "c", "image": "i", "volumeMounts": [{ "name": volume, "mountPath": "/m" }] }]);
    let device =
        json!([{ "name": "c", "image": "i", "volumeDevices": [{ "name": "v", "devicePath": "/d" }] }]);
    let cases = [
        (PODS, pod(json!({ "containers": [] })), "spec.containers"),
        (
            PODS,
            pod(json!({ "containers": [{ "name": "C", "image": "i" }] })),
            "spec.containers[0].name",
        ),
        (
            PODS,
            pod(json!({ "containers": [{ "name": "c" }] })),
            "spec.containers[0].image",
        ),
        (
            PODS,
            pod(json!({ "initContainers": [{ "name": "c", "image": "i" }] })),
            "spec.initContainers[0].name",
        ),
        (
            PODS,
            pod(json!({ "containers": mount("v") })),
            "spec.containers[0].volumeMounts[0].name",
        ),
        (
            PODS,
            pod(json!({ "containers": device, "volumes": [{ "name": "v", "emptyDir": {} }] })),
            "spec.containers[0].volumeDevices[0].name",
        ),
        (
            PODS,
            pod(json!({ "volumes": [{ "name": "v", "emptyDir": {}, "hostPath": { "path": "/" } }] })),
            "spec.volumes[0].emptyDir",
        ),
        (
            PODS,
            pod(json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "" } }] })),
            "spec.volumes[0].persistentVolumeClaim.claimName",
        ),
        (
            PODS,
            pod(json!({ "volumes": [{ "name": "v", "csi": {} }] })),
            "spec.volumes[0].csi.driver",
        ),
        (
            PODS,
            pod(json!({ "volumes": [{ "name": "v", "ephemeral": {} }] })),
            "spec.volumes[0].ephemeral.volumeClaimTemplate",
        ),
        (PODS, pod(json!({ "nodeName": "N" })), "spec.nodeName"),
        (
            PODS,
            pod(json!({ "nodeSelector": { "-": "x" } })),
            "spec.nodeSelector",
        ),
        (
            PODS,
            pod(json!({ "tolerations": [{ "key": "a", "operator": "Is" }] })),
            "spec.tolerations[0].operator",
        ),
        (
            PODS,
            pod(json!({ "schedulingGates": [{ "name": "a b" }] })),
            "spec.schedulingGates[0].name",
        ),
        (
            PODS,
            pod(json!({ "restartPolicy": "Sometimes" })),
            "spec.restartPolicy",
        ),
        (CLAIMS, mk_claim(json!({ "accessModes": [] })), "spec.accessModes"),
        (
            CLAIMS,
            mk_claim(json!({ "resources": {} })),
            "spec.resources.requests.storage",
        ),
        (
            CLAIMS,
            mk_claim(json!({ "selector": { "matchExpressions": [{ "key": "a", "operator": "Is" }] } })),
            "spec.selector.matchExpressions[0].operator",
        ),
        (
            volumes,
            mk_volume(json!({ "capacity": { "storage": "0" } })),
            "spec.capacity[storage]",
        ),
        (
            volumes,
            mk_volume(json!({ "csi": { "driver": "d" } })),
            "spec.csi.volumeHandle",
        ),
        (volumes, mk_volume(json!({ "csi": null })), ""),
        (
            volumes,
            mk_volume(json!({ "hostPath": { "path": "/" } })),
            "spec.csi",
        ),
        (
            volumes,
            mk_volume(json!({ "nodeAffinity": { "required": {} } })),
            "spec.nodeAffinity.required.nodeSelectorTerms",
        ),
        (
            volumes,
            mk_volume(json!({ "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"] })),
            "spec.accessModes",
        ),
        (
            nodes,
            json!({ "metadata": { "name": "n" }, "spec": { "taints": [{ "key": "a", "effect": "No" }] } }),
            "spec.taints[0].effect",
        ),
        (
            nodes,
            json!({ "metadata": { "name": "n", "finalizers": ["a"] } }),
            "metadata.finalizers[0]",
        ),
        (
            ATTACHMENTS,
            mk_attachment_with(json!({ "attacher": "not valid" })),
            "spec.attacher",
        ),
        (
            ATTACHMENTS,
            mk_attachment_with(
                json!({ "source": { "inlineVolumeSpec": { "accessModes": ["ReadWriteOnce"] } } }),
            ),
            "spec.source.inlineVolumeSpec.csi",
        ),
        (
            &format!("{STORAGE}/csinodes"),
            json!({ "metadata": { "name": "n" }, "spec": { "drivers": [{ "name": "d", "nodeID": "" }] } }),
            "spec.drivers[0].nodeID",
        ),
        (
            &format!("{STORAGE}/csidrivers"),
            json!({ "metadata": { "name": "d" }, "spec": { "fsGroupPolicy": "Other" } }),
            "spec.fsGroupPolicy",
        ),
        (
            &format!("{STORAGE}/storageclasses"),
            json!({ "metadata": { "name": "s" }, "provisioner": "" }),
            "provisioner",
        ),
        (
            "/api/v1/namespaces/default/secrets",
            json!({ "metadata": { "name": "s" }, "data": { "a/b": "" } }),
            "data[a/b]",
        ),
    ];
    for (path, object, field) in cases {
        let (code, response) = call(&mk_server(1), Method::POST, path, &object).await;
        assert_eq!(
            (code, &response["reason"]),
            (422, &json!("Invalid")),
            "{object}: {response}"
        );
        let field = if field.is_empty() { "spec" } else { field };
        assert!(
            fields(&response).contains(&field),
            "{field} is not refused: {response}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn accepts_fields_that_no_component_reads() {
    let probe = json!({ "httpGet": { "port": 0 }, "periodSeconds": -1 });
    let container = json!({
        "name": "c", "image": " i", "livenessProbe": probe, "ports": [{ "containerPort": 0 }], "env": [{ "name": "" }],
        "securityContext": { "runAsUser": -1, "windowsOptions": { "hostProcess": true } },
        "resources": { "limits": { "disk": "1" } },
    });
    let pod = mk_pod(
        "p",
        json!({
            "containers": [container], "dnsPolicy": "Other", "hostAliases": [{ "ip": "x" }], "serviceAccountName": "none",
            "volumes": [{ "name": "v", "iscsi": { "targetPortal": "", "iqn": "x", "lun": 256 } }],
        }),
    );
    let server = mk_server(1);
    let (code, response) = call(&server, Method::POST, PODS, &pod).await;
    assert_eq!(code, 201, "{response}");
    let (code, response) = patch(
        &server,
        &format!("{PODS}/p"),
        "merge",
        &json!({ "spec": { "unknown": 1 } }),
    )
    .await;
    assert_eq!(code, 200, "unknown fields are dropped: {response}");
    let strict = format!("{PODS}/p?fieldValidation=Strict");
    let (code, _) = patch(&server, &strict, "merge", &json!({ "spec": { "unknown": 1 } })).await;
    assert_eq!(code, 422, "and refused on request");
}

#[tokio::test(start_paused = true)]
async fn updates_of_pods_change_images_and_add_tolerations() {
    let server = mk_server(1);
    let toleration = json!({ "key": "a", "operator": "Exists" });
    let pod = mk_pod(
        "p",
        json!({ "tolerations": [toleration], "schedulingGates": [{ "name": "g" }] }),
    );
    call(&server, Method::POST, PODS, &pod).await;
    for (spec, code) in [
        (json!({ "containers": [{ "name": "c", "image": "j" }] }), 200),
        (json!({ "containers": [{ "name": "d", "image": "j" }] }), 422),
        (
            json!({ "containers": [{ "name": "c", "image": "j" }, { "name": "d", "image": "j" }] }),
            422,
        ),
        (
            json!({ "tolerations": [toleration, { "key": "b", "operator": "Exists" }] }),
            200,
        ),
        (json!({ "tolerations": [] }), 422),
        (
            json!({ "schedulingGates": [{ "name": "g" }, { "name": "h" }] }),
            422,
        ),
        (json!({ "schedulingGates": [] }), 200),
        (json!({ "nodeName": "n" }), 422),
    ] {
        let (found, response) = patch(&server, &format!("{PODS}/p"), "merge", &json!({ "spec": spec })).await;
        assert_eq!(found, code, "{spec}: {response}");
    }
}

#[tokio::test(start_paused = true)]
async fn sources_of_volumes_and_specs_of_attachments_do_not_change() {
    let server = mk_server(1);
    call(
        &server,
        Method::POST,
        "/api/v1/persistentvolumes",
        &mk_volume(json!({})),
    )
    .await;
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let expand = json!({ "name": "s", "namespace": "n" });
    for (path, spec, code) in [
        (
            "/api/v1/persistentvolumes/v",
            json!({ "csi": { "volumeHandle": "other" } }),
            422,
        ),
        (
            "/api/v1/persistentvolumes/v",
            json!({ "csi": { "controllerExpandSecretRef": expand } }),
            200,
        ),
        (
            "/api/v1/persistentvolumes/v",
            json!({ "csi": { "controllerExpandSecretRef": null } }),
            422,
        ),
        (
            "/api/v1/persistentvolumes/v",
            json!({ "capacity": { "storage": "2Gi" } }),
            200,
        ),
        (&format!("{ATTACHMENTS}/a"), json!({ "nodeName": "other" }), 422),
    ] {
        let (found, response) = patch(&server, path, "merge", &json!({ "spec": spec })).await;
        assert_eq!(found, code, "{spec}: {response}");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_get_only_the_class_of_their_annotation() {
    for (class, code) in [("b", 422), ("a", 200)] {
        let server = mk_server(1);
        let mut claim = mk_claim(json!({}));
        claim["metadata"]["annotations"] = json!({ CLASS: "a" });
        call(&server, Method::POST, CLAIMS, &claim).await;
        let document = json!({ "spec": { "storageClassName": class } });
        let (found, response) = patch(&server, &format!("{CLAIMS}/c"), "merge", &document).await;
        assert_eq!(found, code, "{document}: {response}");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_keep_an_applied_attributes_class() {
    let server = mk_server(1);
    let path = format!("{CLAIMS}/c");
    let claim = mk_claim(json!({ "volumeAttributesClassName": "gold" }));
    call(&server, Method::POST, CLAIMS, &claim).await;
    let status = json!({ "status": { "phase": "Bound", "currentVolumeAttributesClassName": "gold" } });
    patch(&server, &format!("{path}/status"), "merge", &status).await;
    for class in [json!(""), Value::Null] {
        let document = json!({ "spec": { "volumeAttributesClassName": class } });
        let (code, response) = patch(&server, &path, "merge", &document).await;
        assert_eq!(code, 422);
        assert_eq!(fields(&response), ["spec.volumeAttributesClassName"]);
    }
}
