//! Events of both API groups.

use serde_json::json;

use super::{Kind, Row, kind};

const SELECTABLE: &[&str] = &[
    "regarding.name",
    "reportingController",
    "involvedObject.kind",
    "involvedObject.name",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

pub(super) fn kinds() -> Vec<Kind> {
    vec![core(), events()]
}

fn core() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/involvedObject",
            r#"[{"kind":"Pod","namespace":"$ns","name":"a"},{"kind":"Pod","namespace":"$ns","name":"b","uid":"u","fieldPath":"spec"}]"#,
            r#"[{},{"kind":"Pod","namespace":"default","name":"a"},{"kind":"Node","name":"a"},"a"]"#,
        ),
        ("/reason", r#"["FailedAttachVolume","Other",""]"#, "[7]"),
        ("/message", r#"["text",""]"#, "[[]]"),
        (
            "/source",
            r#"[{"component":"attachdetach-controller"},{"component":"kubelet","host":"a"}]"#,
            r#"["x"]"#,
        ),
        ("/firstTimestamp", r#"["2020-01-01T00:00:00Z",null]"#, r#"["x"]"#),
        ("/lastTimestamp", r#"["2020-01-01T00:00:05Z",null]"#, "[7]"),
        ("/count", "[1,2]", r#"["1",1.5]"#),
        ("/type", r#"["Normal","Warning",""]"#, r#"[7,"Error"]"#),
        (
            "/eventTime",
            r#"["2020-01-01T00:00:00.000000Z",null]"#,
            r#"["now"]"#,
        ),
        (
            "/series",
            r#"[{"count":2,"lastObservedTime":"2020-01-01T00:00:00.000000Z"},null]"#,
            r#"[{"count":"2"},7]"#,
        ),
        ("/action", r#"["Attach",""]"#, "[7]"),
        ("/related", r#"[{"kind":"Node","name":"a"},null]"#, "[7]"),
        (
            "/reportingComponent",
            r#"["attachdetach-controller","example.com/x",""]"#,
            r#"["not valid",7]"#,
        ),
        ("/reportingInstance", r#"["a-1",""]"#, "[7]"),
    ];
    let base = json!({ "involvedObject": { "kind": "Pod", "namespace": "$ns", "name": "a" } });
    Kind {
        namespaced: true,
        selectable: SELECTABLE,
        ..kind("", "Event", "events", base, ROWS)
    }
}

fn events() -> Kind {
    const ROWS: &[Row] = &[
        (
            "/eventTime",
            r#"["2020-01-01T00:00:00.000000Z"]"#,
            r#"[null,"now",7]"#,
        ),
        (
            "/series",
            r#"[{"count":2,"lastObservedTime":"2020-01-01T00:00:00.000000Z"},null]"#,
            r#"[{"count":1,"lastObservedTime":"2020-01-01T00:00:00.000000Z"},{"count":2,"lastObservedTime":null},{}]"#,
        ),
        (
            "/reportingController",
            r#"["example.com/controller","controller"]"#,
            r#"["","not valid",7]"#,
        ),
        ("/reportingInstance", r#"["i-1"]"#, r#"["",7]"#),
        ("/action", r#"["Attach"]"#, r#"["",7]"#),
        ("/reason", r#"["FailedAttachVolume"]"#, r#"["",[]]"#),
        (
            "/regarding",
            r#"[{"kind":"Pod","namespace":"$ns","name":"a"},{"kind":"Pod","namespace":"$ns","name":"b","uid":"u"}]"#,
            r#"[{},{"kind":"Node","name":"a"},{"kind":"Pod","namespace":"default","name":"a"}]"#,
        ),
        ("/related", r#"[{"kind":"Node","name":"a"},null]"#, "[7]"),
        ("/note", r#"["text",""]"#, "[7]"),
        ("/type", r#"["Normal","Warning"]"#, r#"["Error","",7]"#),
        ("/deprecatedCount", "[0,3]", r#"["1"]"#),
        ("/deprecatedSource", r#"[{"component":"x"},null]"#, r#"["x"]"#),
        (
            "/deprecatedFirstTimestamp",
            r#"["2020-01-01T00:00:00Z",null]"#,
            "[7]",
        ),
    ];
    let base = json!({
        "eventTime": "2020-01-01T00:00:00.000000Z",
        "reportingController": "example.com/controller",
        "reportingInstance": "i-1",
        "action": "Attach",
        "reason": "FailedAttachVolume",
        "regarding": { "kind": "Pod", "namespace": "$ns", "name": "a" },
        "type": "Normal",
    });
    Kind {
        namespaced: true,
        selectable: SELECTABLE,
        ..kind("events.k8s.io", "Event", "events", base, ROWS)
    }
}
