//! Kinds of storage.

use serde_json::json;

use super::{Kind, Row, kind};

const GROUP: &str = "storage.k8s.io";

pub(super) fn kinds() -> Vec<Kind> {
    vec![
        volume_attachment(),
        persistent_volume(),
        persistent_volume_claim(),
        storage_class(),
        csi_node(),
        csi_driver(),
        csi_storage_capacity(),
    ]
}

fn volume_attachment() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/spec/attacher",
            r#"["csi.example.com","b"]"#,
            r#"["",7,null,"not valid","-x"]"#,
        ),
        ("/spec/nodeName", r#"["a","b"]"#, r#"["",{},"Not_Valid","-"]"#),
        (
            "/spec/source",
            r#"[{"persistentVolumeName":"a"},{"persistentVolumeName":"b"},{"inlineVolumeSpec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"csi":{"driver":"d","volumeHandle":"h"}}}]"#,
            r#"[{},null,{"persistentVolumeName":""},{"persistentVolumeName":"a","inlineVolumeSpec":{"accessModes":["ReadWriteOnce"],"csi":{"driver":"d","volumeHandle":"h"}}},"a",{"inlineVolumeSpec":{"accessModes":["ReadWriteOnce"]}},{"inlineVolumeSpec":{"csi":{"driver":"","volumeHandle":""}}}]"#,
        ),
        ("/status/attached", "[true,false]", r#"["yes",1]"#),
        (
            "/status/attachmentMetadata",
            r#"[{"device":"x"},{}]"#,
            r#"[{"device":7},[]]"#,
        ),
        (
            "/status/attachError",
            r#"[{"message":"failed","time":"2020-01-01T00:00:00Z"},{"message":"failed","errorCode":8},null,{}]"#,
            r#"[{"message":7},{"time":"now"},{"errorCode":-1,"message":"m"},{"errorCode":"8"}]"#,
        ),
        (
            "/status/detachError",
            r#"[{"message":"failed","time":"2020-01-01T00:00:00Z"},null]"#,
            r#"["failed"]"#,
        ),
    ];
    let base = json!({
        "spec": { "attacher": "csi.example.com", "nodeName": "a", "source": { "persistentVolumeName": "a" } },
        "status": { "attached": false },
    });
    kind(GROUP, "VolumeAttachment", "volumeattachments", base, ROWS)
}

const VOLUME_ROWS: &[Row] = &[
    (
        "/spec/capacity",
        r#"[{"storage":"1Gi"},{"storage":"2Gi"},{"storage":"1024Mi"},{"storage":"1500m"}]"#,
        r#"[{},null,{"storage":"0"},{"storage":"-1Gi"},{"storage":"1 Gi"},{"storage":"1Gi","cpu":"1"},{"cpu":"1"},[]]"#,
    ),
    (
        "/spec/accessModes",
        r#"[["ReadWriteOnce"],["ReadOnlyMany","ReadWriteMany"],["ReadWriteOncePod"]]"#,
        r#"[[],null,["Write"],["ReadWriteOncePod","ReadWriteOnce"],"ReadWriteOnce",[7]]"#,
    ),
    (
        "/spec/persistentVolumeReclaimPolicy",
        r#"["Retain","Delete","Recycle",""]"#,
        r#"["Keep",7]"#,
    ),
    (
        "/spec/csi",
        r#"[{"driver":"csi.example.com","volumeHandle":"h"},{"driver":"csi.example.com","volumeHandle":"h","fsType":"ext4","readOnly":true,"volumeAttributes":{"a":"b"},"controllerPublishSecretRef":{"name":"a","namespace":"default"}},{"driver":"csi.example.com","volumeHandle":"other"}]"#,
        r#"[{},null,{"driver":"","volumeHandle":"h"},{"driver":"d"},{"driver":"not valid","volumeHandle":"h"},{"driver":"d","volumeHandle":7},{"driver":"d","volumeHandle":"h","controllerPublishSecretRef":{"name":"a"}},{"driver":"d","volumeHandle":"h","nodeStageSecretRef":{"namespace":"a"}},{"driver":"d","volumeHandle":"h","controllerExpandSecretRef":{}}]"#,
    ),
    (
        "/spec/claimRef",
        r#"[{"namespace":"default","name":"a"},{"kind":"PersistentVolumeClaim","namespace":"default","name":"b","uid":"u"},null]"#,
        r#"["a",{"name":7}]"#,
    ),
    ("/spec/storageClassName", r#"["","a","b"]"#, r#"["Not Valid",7]"#),
    (
        "/spec/volumeMode",
        r#"["Filesystem","Block"]"#,
        r#"["Blocks",""]"#,
    ),
    ("/spec/mountOptions", r#"[["ro"],["a","b"]]"#, r#"[[7],"ro"]"#),
    (
        "/spec/volumeAttributesClassName",
        r#"["gold"]"#,
        r#"["Not Valid",""]"#,
    ),
    (
        "/spec/nodeAffinity",
        r#"[{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In","values":["z1"]}]}]}},{"required":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]}]}},null]"#,
        r#"[{},{"required":{}},{"required":{"nodeSelectorTerms":[]}},{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"Is"}]}]}},{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In"}]}]}},{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"Exists","values":["a"]}]}]}},{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"Gt","values":["a"]}]}]}},{"required":{"nodeSelectorTerms":[{"matchFields":[{"key":"x","operator":"In","values":["a"]}]}]}},{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"-","operator":"In","values":["not valid"]}]}]}}]"#,
    ),
    (
        "/status/phase",
        r#"["Available","Bound","Released","Failed","Pending"]"#,
        r#"["Unknown",7]"#,
    ),
    ("/status/message", r#"["text",""]"#, "[7]"),
    ("/status/reason", r#"["Reason"]"#, "[[]]"),
    (
        "/status/lastPhaseTransitionTime",
        r#"["2020-01-01T00:00:00Z",null]"#,
        r#"["now"]"#,
    ),
];

fn persistent_volume() -> Kind {
    let base = json!({
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": "csi.example.com", "volumeHandle": "h" },
        },
    });
    kind("", "PersistentVolume", "persistentvolumes", base, VOLUME_ROWS)
}

const CLAIM_ROWS: &[Row] = &[
    (
        "/spec/accessModes",
        r#"[["ReadWriteOnce"],["ReadOnlyMany"],["ReadWriteOncePod"]]"#,
        r#"[[],null,["Write"],["ReadWriteOncePod","ReadWriteMany"],"ReadWriteOnce"]"#,
    ),
    (
        "/spec/resources",
        r#"[{"requests":{"storage":"1Gi"}},{"requests":{"storage":"2Gi"}},{"requests":{"storage":"1Gi"},"limits":{"storage":"3Gi"}}]"#,
        r#"[{},null,{"requests":{}},{"requests":{"storage":"0"}},{"requests":{"storage":"-1"}},{"requests":{"storage":"x"}},{"requests":{"cpu":"1"}},[]]"#,
    ),
    ("/spec/volumeName", r#"["","a","b"]"#, r#"[7]"#),
    (
        "/spec/storageClassName",
        r#"["","a","b",null]"#,
        r#"["Not Valid",7]"#,
    ),
    (
        "/spec/volumeMode",
        r#"["Filesystem","Block",null]"#,
        r#"["Blocks",""]"#,
    ),
    (
        "/spec/selector",
        r#"[{"matchLabels":{"a":"b"}},{"matchExpressions":[{"key":"a","operator":"Exists"}]},null]"#,
        r#"[{"matchLabels":{"a":"not valid"}},{"matchExpressions":[{"key":"a","operator":"Is"}]},{"matchExpressions":[{"key":"a","operator":"In"}]},{"matchExpressions":[{"key":"-","operator":"DoesNotExist","values":["x"]}]},[]]"#,
    ),
    (
        "/spec/volumeAttributesClassName",
        r#"["gold","silver",null]"#,
        r#"["Not Valid"]"#,
    ),
    (
        "/status/currentVolumeAttributesClassName",
        r#"["gold",null]"#,
        "[7]",
    ),
    ("/spec/volumeAttributesClassName", r#"["",null,"gold"]"#, "[7]"),
    ("/status/phase", r#"["Bound","Lost","Pending"]"#, r#"[7]"#),
    (
        "/status/capacity",
        r#"[{"storage":"1Gi"},{"storage":"2Gi"},{}]"#,
        r#"[{"storage":"-1"},{"storage":"x"},[]]"#,
    ),
    ("/status/accessModes", r#"[["ReadWriteOnce"],[]]"#, r#"["x"]"#),
    (
        "/status/conditions",
        r#"[[{"type":"Resizing","status":"True"}],[{"type":"Resizing","status":"False","reason":"R","lastTransitionTime":"2020-01-01T00:00:00Z"},{"type":"FileSystemResizePending","status":"True"}],[]]"#,
        r#"[[{"type":7}],{}]"#,
    ),
    (
        "/status/allocatedResources",
        r#"[{"storage":"1Gi"},null]"#,
        r#"[{"storage":"-1Gi"}]"#,
    ),
];

fn persistent_volume_claim() -> Kind {
    let base = json!({
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    Kind {
        namespaced: true,
        ..kind(
            "",
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            base,
            CLAIM_ROWS,
        )
    }
}

fn storage_class() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/provisioner",
            r#"["csi.example.com","b"]"#,
            r#"["",7,"not valid",null]"#,
        ),
        (
            "/parameters",
            r#"[{"type":"fast"},{"type":"slow","a":"b"},null]"#,
            r#"[{"":"x"},{"type":7},[]]"#,
        ),
        (
            "/reclaimPolicy",
            r#"["Delete","Retain"]"#,
            r#"["Recycle","Keep",""]"#,
        ),
        ("/mountOptions", r#"[["ro"],[]]"#, r#"["ro"]"#),
        ("/allowVolumeExpansion", "[true,false,null]", r#"["yes"]"#),
        (
            "/volumeBindingMode",
            r#"["Immediate","WaitForFirstConsumer",null]"#,
            r#"["Later"]"#,
        ),
        (
            "/allowedTopologies",
            r#"[[{"matchLabelExpressions":[{"key":"zone","values":["z1","z2"]}]}],[]]"#,
            r#"[[{"matchLabelExpressions":[{"key":"zone"}]}],[{"matchLabelExpressions":[{"key":"-","values":["a"]}]}]]"#,
        ),
        (
            "/metadata/annotations",
            r#"[{"storageclass.kubernetes.io/is-default-class":"true"},{"storageclass.kubernetes.io/is-default-class":"false"},{"storageclass.beta.kubernetes.io/is-default-class":"true"}]"#,
            "[7]",
        ),
    ];
    kind(
        GROUP,
        "StorageClass",
        "storageclasses",
        json!({ "provisioner": "csi.example.com" }),
        ROWS,
    )
}

fn csi_node() -> Kind {
    const ROWS: &[Row] = &[(
        "/spec/drivers",
        r#"[[],[{"name":"csi.example.com","nodeID":"n","topologyKeys":["zone"]}],[{"name":"csi.example.com","nodeID":"n","topologyKeys":null,"allocatable":{"count":3}},{"name":"b","nodeID":"m"}],[{"name":"b","nodeID":"m","topologyKeys":["zone","region"],"allocatable":{}}]]"#,
        r#"[[{"name":"","nodeID":"n"}],[{"name":"b","nodeID":""}],[{"name":"b","nodeID":"n"},{"name":"b","nodeID":"m"}],[{"name":"b","nodeID":"n","topologyKeys":["zone","zone"]}],[{"name":"b","nodeID":"n","topologyKeys":["-"]}],[{"name":"b","nodeID":"n","allocatable":{"count":-1}}],[{"name":"not valid","nodeID":"n"}],[7],{},null]"#,
    )];
    kind(
        GROUP,
        "CSINode",
        "csinodes",
        json!({ "spec": { "drivers": [] } }),
        ROWS,
    )
}

fn csi_driver() -> Kind {
    const ROWS: &[Row] = &[
        ("/spec/attachRequired", "[true,false,null]", r#"["yes",1]"#),
        ("/spec/podInfoOnMount", "[true,false]", r#"["yes"]"#),
        ("/spec/storageCapacity", "[true,false]", "[0]"),
        (
            "/spec/volumeLifecycleModes",
            r#"[["Persistent"],["Ephemeral","Persistent"],[]]"#,
            r#"[["Other"],"Persistent",["Persistent","Persistent"]]"#,
        ),
        (
            "/spec/fsGroupPolicy",
            r#"["File","None","ReadWriteOnceWithFSType"]"#,
            r#"["Other",""]"#,
        ),
        (
            "/spec/tokenRequests",
            r#"[[{"audience":"a"}],[{"audience":"a","expirationSeconds":3600},{"audience":""}],[]]"#,
            r#"[[{"audience":"a"},{"audience":"a"}],[{"audience":"a","expirationSeconds":1}],[{"audience":"a","expirationSeconds":5000000000}],[7]]"#,
        ),
        ("/spec/requiresRepublish", "[true,false]", r#"["no"]"#),
        ("/spec/seLinuxMount", "[true,false]", "[{}]"),
        (
            "/spec/nodeAllocatableUpdatePeriodSeconds",
            "[10,60,null]",
            r#"[9,0,-1,"10"]"#,
        ),
        ("/spec/serviceAccountTokenInSecrets", "[true,false,null]", "[7]"),
    ];
    kind(GROUP, "CSIDriver", "csidrivers", json!({ "spec": {} }), ROWS)
}

fn csi_storage_capacity() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/nodeTopology",
            r#"[{"matchLabels":{"zone":"z1"}},{"matchExpressions":[{"key":"zone","operator":"In","values":["z1"]}]},{},null]"#,
            r#"[{"matchExpressions":[{"key":"zone","operator":"Is"}]},{"matchLabels":{"-":"x"}},7]"#,
        ),
        ("/storageClassName", r#"["a","b"]"#, r#"["","Not Valid",7]"#),
        ("/capacity", r#"["1Gi","2Gi","0",null]"#, r#"["-1","x",[]]"#),
        ("/maximumVolumeSize", r#"["1Gi","500Mi",null]"#, r#"["-1","x"]"#),
    ];
    let base = json!({ "storageClassName": "a", "capacity": "1Gi" });
    Kind {
        namespaced: true,
        ..kind(GROUP, "CSIStorageCapacity", "csistoragecapacities", base, ROWS)
    }
}
