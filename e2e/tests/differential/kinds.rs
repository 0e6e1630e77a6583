//! The kinds whose requests are generated: a valid object of each, and values of its fields, valid and invalid ones.

mod core;
mod events;
mod pods;
mod storage;

use std::sync::LazyLock;

use serde_json::Value;

/// A resource and its objects.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
    pub(crate) has_status: bool,
    /// A valid object without a name.
    pub(crate) base: Value,
    pub(crate) fields: Vec<Field>,
    /// Fields that a field selector may name.
    pub(crate) selectable: &'static [&'static str],
}

/// Values of a field.
pub(crate) struct Field {
    /// A JSON pointer without indexes.
    pub(crate) pointer: &'static str,
    pub(crate) valid: Vec<Value>,
    pub(crate) invalid: Vec<Value>,
}

/// A field with the valid and the invalid values as JSON arrays.
type Row = (&'static str, &'static str, &'static str);

/// All kinds.
pub(crate) static ALL: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let mut kinds = storage::kinds();
    kinds.extend(core::kinds());
    kinds.extend(pods::kinds());
    kinds.extend(events::kinds());
    kinds
});

/// Names of objects; few, so that requests concern the same objects.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c.d"];

/// Name of the object that a sequence creates last; it sorts after all others.
pub(crate) const LAST_NAME: &str = "zz";

/// Metadata, besides name and namespace.
pub(crate) static METADATA: LazyLock<Vec<Field>> = LazyLock::new(|| {
    fields(&[
        (
            "/metadata/labels",
            r#"[{"app":"x"},{"app":"y","tier":"t"},{},null,{"example.com/a":""}]"#,
            r#"[{"-a":"x"},{"app":"not valid"},{"A/b/c":"x"},{"app":7},[],"app",{"":"x"},{"UPPER.com/a":"x"}]"#,
        ),
        (
            "/metadata/annotations",
            r#"[{"note":"any text"},{"example.com/Note":"x"},{}]"#,
            r#"[{"a b":"x"},{"note":{}},{"/x":""},7]"#,
        ),
        (
            "/metadata/finalizers",
            r#"[["example.com/a"],["example.com/a","example.com/b"],[]]"#,
            r#"[["a"],["UPPER/x"],[7],"example.com/a",["example.com/"],["a/b/c"]]"#,
        ),
        (
            "/metadata/ownerReferences",
            r#"[[{"apiVersion":"v1","kind":"Node","name":"a","uid":"u1"}],[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u2","controller":true,"blockOwnerDeletion":true}],[]]"#,
            r#"[[{"apiVersion":"v1","kind":"Node","name":"a"}],[{"kind":"Node","name":"a","uid":"u"}],[{"apiVersion":"","kind":"","name":"","uid":""}],[{"apiVersion":"v1","kind":"Event","name":"a","uid":"u"}],[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u","controller":true},{"apiVersion":"v1","kind":"Pod","name":"b","uid":"v","controller":true}],{}]"#,
        ),
        (
            "/metadata/deletionTimestamp",
            r#"["2020-01-01T00:00:00Z",null]"#,
            r#"["yesterday",7]"#,
        ),
        (
            "/metadata/creationTimestamp",
            r#"["2020-01-01T00:00:00Z",null]"#,
            r#"["",{}]"#,
        ),
        ("/metadata/generation", "[1,3]", r#"[-1,"1",1.5]"#),
        ("/metadata/selfLink", r#"["/self"]"#, "[7]"),
        ("/metadata/deletionGracePeriodSeconds", "[0,5]", r#"["5"]"#),
    ])
});

// === impl Kind ===

impl Kind {
    /// Name in the table of results.
    pub(crate) fn shown_name(&self) -> &'static str {
        if self.group == "events.k8s.io" {
            "Event (events.k8s.io)"
        } else {
            self.name
        }
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            "v1".to_owned()
        } else {
            format!("{}/v1", self.group)
        }
    }

    /// Path of the collection; of a namespaced kind in `namespace`, or in all namespaces if it is empty.
    pub(crate) fn collection(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{}/v1", self.group)
        };
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{namespace}/{}", self.plural)
        } else {
            format!("{root}/{}", self.plural)
        }
    }
}

/// The kind of a resource.
pub(crate) fn find(group: &str, plural: &str) -> &'static Kind {
    let mut found = ALL.iter();
    found
        .find(|kind| kind.group == group && kind.plural == plural)
        .expect("the kind must be in the table")
}

fn fields(rows: &[Row]) -> Vec<Field> {
    let values = |text: &str| match serde_json::from_str(text) {
        Ok(Value::Array(values)) => values,
        other => panic!("{text} must be a JSON array: {other:?}"),
    };
    let field = |&(pointer, valid, invalid): &Row| Field {
        pointer,
        valid: values(valid),
        invalid: values(invalid),
    };
    rows.iter().map(field).collect()
}

/// A kind of a group, whose resource is `plural`.
fn kind(group: &'static str, name: &'static str, plural: &'static str, base: Value, rows: &[Row]) -> Kind {
    Kind {
        name,
        group,
        plural,
        namespaced: false,
        has_status: rows.iter().any(|(pointer, ..)| pointer.starts_with("/status")),
        base,
        fields: fields(rows),
        selectable: &[],
    }
}
