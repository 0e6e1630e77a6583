//! Nodes, leases, secrets, service accounts and namespaces.

use serde_json::json;

use super::{Kind, Row, kind};

pub(super) fn kinds() -> Vec<Kind> {
    vec![node(), lease(), secret(), service_account(), namespace()]
}

const NODE_ROWS: &[Row] = &[
    ("/spec/unschedulable", "[true,false]", r#"["yes"]"#),
    ("/spec/providerID", r#"["p://1","p://2",""]"#, "[7]"),
    (
        "/spec/taints",
        r#"[[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}],[{"key":"a","effect":"NoSchedule"},{"key":"a","effect":"NoExecute"}],[]]"#,
        r#"[[{"key":"","effect":"NoSchedule"}],[{"key":"a","effect":"Never"}],[{"key":"a"}],[{"key":"a","effect":"NoSchedule"},{"key":"a","effect":"NoSchedule"}],[{"key":"a","value":"not valid","effect":"NoSchedule"}],[7]]"#,
    ),
    (
        "/status/capacity",
        r#"[{"cpu":"4","memory":"1Gi"},{"pods":"110"}]"#,
        r#"[{"cpu":"x"},{"cpu":"-1"},{"not valid":"1"},[]]"#,
    ),
    (
        "/status/allocatable",
        r#"[{"cpu":"4","attachable-volumes-csi-x":"3"},{}]"#,
        r#"[{"cpu":"-1"}]"#,
    ),
    (
        "/status/conditions",
        r#"[[{"type":"Ready","status":"True"}],[{"type":"Ready","status":"Unknown","reason":"Lost","lastHeartbeatTime":"2020-01-01T00:00:00Z"}],[{"type":"Ready","status":"False"},{"type":"DiskPressure","status":"False"}],[]]"#,
        r#"[[{"type":7}],{},[7]]"#,
    ),
    (
        "/status/volumesInUse",
        r#"[["kubernetes.io/csi/d^h"],["x","y"],[]]"#,
        r#"["x",[7]]"#,
    ),
    (
        "/status/volumesAttached",
        r#"[[{"name":"kubernetes.io/csi/d^h","devicePath":""}],[{"name":"x","devicePath":"/dev/x"},{"name":"y","devicePath":""}],[]]"#,
        r#"[[{"name":7}],{}]"#,
    ),
    (
        "/status/addresses",
        r#"[[{"type":"InternalIP","address":"10.0.0.1"}],[{"type":"Hostname","address":"a"},{"type":"InternalIP","address":"10.0.0.2"}]]"#,
        r#"[[7]]"#,
    ),
    ("/status/phase", r#"["Running"]"#, "[7]"),
    (
        "/status/runtimeHandlers",
        r#"[[{"name":"","features":{}}],[]]"#,
        "[7]",
    ),
    (
        "/metadata/labels",
        r#"[{"node-role.kubernetes.io/b":"","node-role.kubernetes.io/a":"","kubernetes.io/role":"a"}]"#,
        "[7]",
    ),
    (
        "/status/nodeInfo",
        r#"[{"kubeletVersion":"v1.37.0","machineID":"m"}]"#,
        r#"[{"machineID":7},[]]"#,
    ),
];

fn node() -> Kind {
    Kind {
        selectable: &["spec.unschedulable"],
        ..kind("", "Node", "nodes", json!({}), NODE_ROWS)
    }
}

fn lease() -> Kind {
    const ROWS: &[Row] = &[
        ("/spec/holderIdentity", r#"["a","b",null]"#, "[7]"),
        ("/spec/leaseDurationSeconds", "[15,30]", r#"[0,-1,"15",1.5]"#),
        (
            "/spec/acquireTime",
            r#"["2020-01-01T00:00:00.000000Z","2020-01-01T00:00:00.123456Z",null]"#,
            r#"["now",7]"#,
        ),
        (
            "/spec/renewTime",
            r#"["2020-01-01T00:00:01.000000Z","2020-01-01T00:00:02.500000Z"]"#,
            r#"["2020-01-01"]"#,
        ),
        ("/spec/leaseTransitions", "[0,1,7]", "[-1]"),
    ];
    Kind {
        namespaced: true,
        ..kind(
            "coordination.k8s.io",
            "Lease",
            "leases",
            json!({ "spec": {} }),
            ROWS,
        )
    }
}

fn secret() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/data",
            r#"[{"key":"dmFsdWU="},{"key":"","other":"b3RoZXI="},{},null]"#,
            r#"[{"key":"not base64"},{"not valid":"dg=="},{"key":7},[],{"":"dg=="}]"#,
        ),
        (
            "/stringData",
            r#"[{"key":"text"},{"more":"x"},null]"#,
            r#"[{"key":7},{"a/b":"x"}]"#,
        ),
        ("/type", r#"["Opaque","example.com/x",""]"#, "[7]"),
        ("/immutable", "[true,false,null]", r#"["yes"]"#),
    ];
    Kind {
        namespaced: true,
        selectable: &["type"],
        ..kind(
            "",
            "Secret",
            "secrets",
            json!({ "data": { "key": "dmFsdWU=" } }),
            ROWS,
        )
    }
}

fn service_account() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/secrets",
            r#"[[{"name":"a"}],[{"name":"a"},{"name":"b"}],[]]"#,
            r#"[{},[7]]"#,
        ),
        (
            "/imagePullSecrets",
            r#"[[{"name":"a"}],[{"name":"a"},{"name":"b"}],[]]"#,
            r#"[["a"],7]"#,
        ),
        ("/automountServiceAccountToken", "[true,false,null]", r#"["yes"]"#),
    ];
    Kind {
        namespaced: true,
        ..kind("", "ServiceAccount", "serviceaccounts", json!({}), ROWS)
    }
}

fn namespace() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/spec/finalizers",
            r#"[["kubernetes"],[],["example.com/x"]]"#,
            r#"[["a"],7]"#,
        ),
        ("/status/phase", r#"["Active","Terminating"]"#, r#"["Other",7]"#),
        (
            "/status/conditions",
            r#"[[{"type":"NamespaceDeletionContentFailure","status":"True","lastTransitionTime":"2020-01-01T00:00:00Z"}],[]]"#,
            r#"[[{"type":7}]]"#,
        ),
    ];
    Kind {
        selectable: &["status.phase"],
        ..kind("", "Namespace", "namespaces", json!({}), ROWS)
    }
}
