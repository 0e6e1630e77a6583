//! Validation of the volume sources of pods and PersistentVolumes.

use http::Method;
use serde_json::{Value, json};

use super::pod_validation::assert_invalid;
use super::{assert_fails, call, mk_server, table};

const PVS: &str = "/api/v1/persistentvolumes";

fn mk_pv(spec: Value) -> Value {
    let mut pv = json!({ "metadata": { "name": "p" }, "spec": {
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
    } });
    pv["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().cloned().unwrap());
    pv
}

/// The errors of kube-apiserver about a pod's volume, and about the spec of a PersistentVolume.
async fn assert_source_invalid(source: Value, of_pod: &[&str], of_pv: &[&str]) {
    let mut volume = source.clone();
    volume["name"] = "v".into();
    let with_path = |path: &str, errors: &[&str]| -> Vec<String> {
        errors.iter().map(|error| format!("{path}.{error}")).collect()
    };
    if !of_pod.is_empty() {
        let errors = with_path("spec.volumes[0]", of_pod);
        let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
        assert_invalid(json!({ "volumes": [volume] }), &errors).await;
    }
    if !of_pv.is_empty() {
        let errors = with_path("spec", of_pv);
        let message = match errors.as_slice() {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        };
        let response = call(&mk_server(1), Method::POST, PVS, &mk_pv(source)).await;
        let message = format!("PersistentVolume \"p\" is invalid: {message}");
        assert_fails(response, 422, "Invalid", &message);
    }
}

#[tokio::test(start_paused = true)]
async fn cloud_disks_and_storage_systems() {
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
                 end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    let storage_os = format!("storageos.volumeName: Invalid value: \"A\": {label}");
    let partition = "must be between 1 and 255, inclusive";
    let [gce, aws] = ["persistentDisk", "awsElasticBlockStore"]
        .map(|kind| format!("{kind}.partition: Invalid value: 256: {partition}"));
    let cases: [(Value, &[&str]); 7] = [
        (
            json!({ "gcePersistentDisk": { "pdName": "a", "partition": 256 } }),
            &[&gce],
        ),
        (
            json!({ "awsElasticBlockStore": { "volumeID": "a", "partition": 256 } }),
            &[&aws],
        ),
        (
            json!({ "azureFile": { "secretName": "s" } }),
            &["azureFile.shareName: Required value"],
        ),
        (
            json!({ "azureDisk": { "diskName": "a", "diskURI": "x", "cachingMode": "All", "kind": "Managed" } }),
            &[
                "azureDisk.cachingMode: Unsupported value: \"All\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\"",
                "azureDisk.diskURI: Unsupported value: \"x\": supported values: \
                 \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ],
        ),
        (
            json!({ "scaleIO": { "gateway": "g" } }),
            &[
                "scaleIO.system: Required value",
                "scaleIO.volumeName: Required value",
            ],
        ),
        (json!({ "storageos": { "volumeName": "A" } }), &[&storage_os]),
        (
            json!({ "vsphereVolume": {} }),
            &["vsphereVolume.volumePath: Required value"],
        ),
    ];
    for (source, errors) in cases {
        assert_source_invalid(source, errors, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn network_file_systems_and_block_devices() {
    let cases: [(Value, &[&str]); 9] = [
        (
            json!({ "nfs": {} }),
            &[
                "nfs.server: Required value",
                "nfs.path: Required value",
                "nfs.path: Invalid value: \"\": must be an absolute path",
            ],
        ),
        (
            json!({ "flocker": { "datasetName": "a/b", "datasetUUID": "u" } }),
            &[
                "flocker: Invalid value: \"resource\": datasetName and datasetUUID can not be specified simultaneously",
                "flocker.datasetName: Invalid value: \"a/b\": must not contain '/'",
            ],
        ),
        (
            json!({ "flocker": {} }),
            &["flocker: Required value: one of datasetName and datasetUUID is required"],
        ),
        (
            json!({ "rbd": {} }),
            &["rbd.monitors: Required value", "rbd.image: Required value"],
        ),
        (json!({ "cephfs": {} }), &["cephfs.monitors: Required value"]),
        (
            json!({ "quobyte": { "registry": "a:1,[b:2", "volume": "v" } }),
            &[
                "quobyte.registry: Invalid value: \"a:1,[b:2\": must be a host:port pair or multiple pairs separated by \
                 commas",
            ],
        ),
        (
            json!({ "fc": {} }),
            &["fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"],
        ),
        (
            json!({ "fc": { "targetWWNs": ["a"], "wwids": ["b"] } }),
            &[
                "fc.targetWWNs: Invalid value: [\"a\"]: targetWWNs and wwids can not be specified simultaneously",
                "fc.lun: Required value: lun is required if targetWWNs is specified",
            ],
        ),
        (
            json!({ "flexVolume": { "driver": "d", "options": { "a.k8s.io/b": "c" } } }),
            &[
                "flexVolume.options[a.k8s.io/b]: Invalid value: \"a.k8s.io/b\": kubernetes.io and k8s.io namespaces are \
                 reserved",
            ],
        ),
    ];
    for (source, errors) in cases {
        assert_source_invalid(source, errors, errors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn iscsi() {
    let long = "p".repeat(70);
    let iscsi = json!({ "targetPortal": long, "iqn": "iqn.2001-04.com.example:a:b", "initiatorName": "x", "lun": 256 });
    let too_long = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is \
                    specified.";
    let lun = "iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive";
    let (of_pod, of_pv) = (
        format!("name: Invalid value: \"v\": {too_long}"),
        format!("iscsi.targetportal: Invalid value: {long:?}: {too_long}"),
    );
    let cases: [(Value, &[&str], &[&str]); 2] = [
        (
            json!({ "iscsi": iscsi }),
            &[
                lun,
                "iscsi.initiatorname: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa",
                &of_pod,
            ],
            &[
                &of_pv,
                lun,
                "iscsi.initiatorname: Invalid value: \"x\": must be valid format",
            ],
        ),
        (
            json!({ "iscsi": { "targetPortal": "p", "iqn": "eui.0", "chapAuthSession": true } }),
            &[
                "iscsi.iqn: Invalid value: \"eui.0\": must be valid format",
                "iscsi.secretRef: Required value",
            ],
            &[
                "iscsi.iqn: Invalid value: \"eui.0\": must be valid format",
                "iscsi.secretRef: Required value",
            ],
        ),
    ];
    for (source, of_pod, of_pv) in cases {
        assert_source_invalid(source, of_pod, of_pv).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sources_that_differ_between_pods_and_persistent_volumes() {
    let cases: [(Value, &[&str], &[&str]); 4] = [
        (
            json!({ "cinder": { "volumeID": "a", "secretRef": { } } }),
            &["cinder.secretRef.name: Required value"],
            &[
                "cinder.secretRef.name: Required value",
                "cinder.secretRef.namespace: Required value",
            ],
        ),
        (
            json!({ "emptyDir": {}, "cephfs": { "monitors": ["m"] }, "downwardAPI": {} }),
            &[
                "cephFS: Forbidden: may not specify more than 1 volume type",
                "downwarAPI: Forbidden: may not specify more than 1 volume type",
            ],
            &[],
        ),
        (
            json!({ "gitRepo": { "repository": "r", "directory": "../a" } }),
            &["gitRepo.directory: Invalid value: \"../a\": must not contain '..'"],
            &[],
        ),
        (
            json!({ "csi": { "driver": "d", "nodePublishSecretRef": { "name": "a..b" } } }),
            &[
                "csi.name: Invalid value: \"a..b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                 characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex \
                 used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
            &[],
        ),
    ];
    for (source, of_pod, of_pv) in cases {
        assert_source_invalid(source, of_pod, of_pv).await;
    }
    let namespace = json!({ "glusterfs": { "endpoints": "e", "path": "p", "endpointsNamespace": "" } });
    let why = "glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid namespace \
               name";
    assert_source_invalid(namespace, &[], &[why]).await;
    let root = json!({ "hostPath": { "path": "/a/.." }, "persistentVolumeReclaimPolicy": "Recycle" });
    let why = [
        "hostPath.path: Invalid value: \"/a/..\": must not contain '..'",
        "persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
    ];
    assert_source_invalid(root, &[], &why).await;
}

#[tokio::test(start_paused = true)]
async fn files_of_volumes() {
    let mode = "must be a number between 0 and 0777 (octal), both inclusive";
    let wrong_mode = format!("secret.defaultMode: Invalid value: 512: {mode}");
    let item_mode = format!("configMap.items[0].mode: Invalid value: -1: {mode}");
    let cases: [(Value, &[&str]); 3] = [
        (
            json!({ "secret": { "secretName": "s", "defaultMode": 512, "items": [{ "key": "k", "path": "..a" }] } }),
            &[
                &wrong_mode,
                "secret.items[0].path: Invalid value: \"..a\": must not start with '..'",
            ],
        ),
        (
            json!({ "configMap": { "name": "c", "items": [{ "mode": -1, "path": "/a" }] } }),
            &[
                "configMap.items[0].key: Required value",
                "configMap.items[0].path: Invalid value: \"/a\": must be a relative path",
                &item_mode,
            ],
        ),
        (
            json!({ "downwardAPI": { "items": [
                { "path": "a" },
                { "path": "b", "fieldRef": { "fieldPath": "spec.nodeName" } },
                { "path": "c", "resourceFieldRef": { "resource": "limits.cpu" } },
            ] } }),
            &[
                "downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
                "downwardAPI.fieldRef.fieldPath: Unsupported value: \"spec.nodeName\": supported values: \
                 \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \
                 \"metadata.uid\"",
                "downwardAPI.resourceFieldRef.containerName: Required value",
            ],
        ),
    ];
    for (source, errors) in cases {
        assert_source_invalid(source, errors, &[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn projected_volumes() {
    let cases: [(Value, &[&str]); 3] = [
        (
            json!({ "projected": { "sources": [
                { "secret": { "name": "s", "items": [{ "key": "k", "path": "a" }] } },
                { "configMap": { "items": [{ "key": "k", "path": "a" }] } },
            ] } }),
            &[
                "projected.sources[1].configMap.name: Required value",
                "projected: Invalid value: \"\": conflicting duplicate paths",
            ],
        ),
        (
            json!({ "projected": { "sources": [{ "serviceAccountToken": { "path": "", "expirationSeconds": 1 } }] } }),
            &[
                "projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 1: may not specify a duration \
                 less than 10 minutes",
                "projected.path: Required value",
            ],
        ),
        (
            json!({ "projected": { "sources": [{ "secret": { "name": "s" }, "configMap": { "name": "c" } }] } }),
            &["projected.sources[0]: Forbidden: may not specify more than 1 volume type per source"],
        ),
    ];
    for (source, errors) in cases {
        assert_source_invalid(source, errors, &[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ephemeral_volumes() {
    let cases: [(Value, &[&str]); 1] = [(
        json!({ "ephemeral": { "volumeClaimTemplate": {
                "metadata": { "name": "a", "uid": "u" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
            } } }),
        &[
            "ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
            "ephemeral.volumeClaimTemplate.metadata.uID: Forbidden: cannot be set",
        ],
    )];
    for (source, errors) in cases {
        assert_source_invalid(source, errors, &[]).await;
    }
    let template = json!({ "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } });
    let spec = json!({ "volumes": [
        { "name": "v", "ephemeral": { "volumeClaimTemplate": template } },
        { "name": "w", "persistentVolumeClaim": { "claimName": "p-v" } },
    ] });
    let why = "spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: \"p-v\": must not reference a PVC that gets \
               created for an ephemeral volume";
    assert_invalid(spec, &[why]).await;
}

#[tokio::test(start_paused = true)]
async fn drops_projections_whose_feature_gates_are_off() {
    let sources = json!([
        { "clusterTrustBundle": { "path": "" } },
        { "podCertificate": { "keyType": "x" }, "secret": { "name": "s" } },
    ]);
    let pod = json!({ "metadata": { "name": "p" }, "spec": {
        "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "projected": { "sources": sources } }],
    } });
    let path = "/api/v1/namespaces/default/pods";
    let (_, created) = call(&mk_server(1), Method::POST, path, &pod).await;
    assert_eq!(
        created["spec"]["volumes"][0]["projected"]["sources"],
        json!([{}, { "secret": { "name": "s" } }])
    );
}

#[tokio::test(start_paused = true)]
async fn node_affinity_of_a_volume_may_get_new_labels() {
    let server = mk_server(1);
    let affinity = |key: &str| {
        let expression = json!({ "key": key, "operator": "In", "values": ["z"] });
        json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [expression] }] } })
    };
    let csi = json!({ "driver": "d", "volumeHandle": "h" });
    let beta = "failure-domain.beta.kubernetes.io/zone";
    let pv = mk_pv(json!({ "csi": csi, "nodeAffinity": affinity(beta) }));
    call(&server, Method::POST, PVS, &pv).await;
    for (key, code) in [("other", 422), ("topology.kubernetes.io/zone", 200), (beta, 422)] {
        let pv = mk_pv(json!({ "csi": csi, "nodeAffinity": affinity(key) }));
        let (found, response) = call(&server, Method::PUT, &format!("{PVS}/p"), &pv).await;
        assert_eq!(found, code, "{key}: {response}");
    }
}

#[tokio::test(start_paused = true)]
async fn annotations_of_persistent_volumes() {
    let server = mk_server(1);
    let annotated = |source: Value| {
        let mut pv = mk_pv(source);
        pv["metadata"]["annotations"] = json!({
            "volume.beta.kubernetes.io/mount-options": "ro",
            "volume.beta.kubernetes.io/storage-class": "gold",
        });
        pv
    };
    let csi = json!({ "csi": { "driver": "d", "volumeHandle": "h" }, "storageClassName": "silver" });
    let why = "PersistentVolume \"p\" is invalid: metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: \
               may not specify mount options for this volume type";
    assert_fails(
        call(&server, Method::POST, PVS, &annotated(csi)).await,
        422,
        "Invalid",
        why,
    );
    let nfs = json!({ "nfs": { "server": "s", "path": "/p" }, "storageClassName": "silver" });
    let (code, response) = call(&server, Method::POST, PVS, &annotated(nfs)).await;
    assert_eq!(code, 201, "{response}");
    assert_eq!(table(&server, PVS).await["rows"][0]["cells"][6], "gold");
}
