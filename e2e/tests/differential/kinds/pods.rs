//! Pods.

use serde_json::json;

use super::{Kind, Row, kind};

/// Fields of the spec and of the status that a component of the path reads, and some that it does not.
const ROWS: &[Row] = &[
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i"}],[{"name":"c","image":"j"}],[{"name":"c","image":"i:v1","resources":{"requests":{"cpu":"100m","memory":"1Gi"}}}],[{"name":"d","image":"i:latest","imagePullPolicy":"Never"}],[{"name":"c","image":"i","env":[{"name":"A","value":"b"}],"ports":[{"containerPort":80,"protocol":"TCP"}]}]]"#,
        r#"[[],null,[{"name":"","image":"i"}],[{"name":"c"}],[{"name":"c","image":"i"},{"name":"c","image":"i"}],[{"name":"Not Valid","image":"i"}],[{"name":"c","image":"i","volumeMounts":[{"name":"missing","mountPath":"/x"}]}],[{"name":"c","image":"i","volumeDevices":[{"name":"missing","devicePath":"/x"}]}],[{"name":"c","image":7}],{}]"#,
    ),
    (
        "/spec/initContainers",
        r#"[[{"name":"x","image":"i"}]]"#,
        r#"[[{"name":"c","image":"i"}],[{"name":"x"}],[{"name":"X","image":"i"}]]"#,
    ),
    (
        "/spec/volumes",
        r#"[[{"name":"v","persistentVolumeClaim":{"claimName":"a"}}],[{"name":"v","emptyDir":{}}],[{"name":"v","csi":{"driver":"csi.example.com"}},{"name":"w","secret":{"secretName":"a"}}],[{"name":"v"}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}}}],[{"name":"v","hostPath":{"path":"/x"}}],[]]"#,
        r#"[[{"name":""}],[{"name":"v","persistentVolumeClaim":{"claimName":""}}],[{"name":"v","emptyDir":{}},{"name":"v","emptyDir":{}}],[{"name":"v","emptyDir":{},"hostPath":{"path":"/x"}}],[{"name":"v","csi":{"driver":""}}],[{"name":"Not Valid","emptyDir":{}}],[{"name":"v","ephemeral":{}}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":[]}}}}],"v"]"#,
    ),
    ("/spec/nodeName", r#"["a","b"]"#, r#"["Not_Valid",7]"#),
    (
        "/spec/nodeSelector",
        r#"[{"zone":"z1"},{}]"#,
        r#"[{"zone":"not valid"},{"-":"x"},[]]"#,
    ),
    (
        "/spec/restartPolicy",
        r#"["Always","Never","OnFailure"]"#,
        r#"["Sometimes"]"#,
    ),
    ("/spec/terminationGracePeriodSeconds", "[0,30,5]", r#"["5"]"#),
    ("/spec/hostNetwork", "[true,false]", r#"["x"]"#),
    (
        "/spec/tolerations",
        r#"[[{"key":"a","operator":"Exists"}],[{"operator":"Exists"}],[{"key":"a","value":"b","effect":"NoExecute","tolerationSeconds":5}]]"#,
        r#"[[{"key":"","operator":"Equal"}],[{"key":"a","operator":"Is"}],[{"key":"a","operator":"Exists","value":"x"}],[{"key":"a","effect":"Never"}],[{"key":"a","tolerationSeconds":5}],[7]]"#,
    ),
    ("/spec/schedulerName", r#"["other","default-scheduler"]"#, "[7]"),
    (
        "/spec/affinity",
        r#"[{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In","values":["z1"]}]}]}}},null]"#,
        r#"[{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[]}}}]"#,
    ),
    (
        "/status/phase",
        r#"["Running","Succeeded","Failed","Pending"]"#,
        r#"[7,[]]"#,
    ),
    (
        "/status/conditions",
        r#"[[{"type":"Ready","status":"True"}],[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"m"},{"type":"Ready","status":"False","lastTransitionTime":"2020-01-01T00:00:00Z"}],[]]"#,
        r#"[[{"type":7}],{}]"#,
    ),
    ("/status/message", r#"["text"]"#, "[7]"),
    ("/status/reason", r#"["Evicted"]"#, "[{}]"),
    (
        "/status/startTime",
        r#"["2020-01-01T00:00:00Z",null]"#,
        r#"["now"]"#,
    ),
    (
        "/status/containerStatuses",
        r#"[[{"name":"c","ready":true,"restartCount":0,"image":"i","imageID":"x","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}}],[]]"#,
        r#"[[{"name":7}],{}]"#,
    ),
];

pub(super) fn kinds() -> Vec<Kind> {
    let base = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    vec![Kind {
        namespaced: true,
        selectable: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ..kind("", "Pod", "pods", base, ROWS)
    }]
}
