//! Differences that are known and accepted. Everything else in which the servers differ is a bug of the embedded one.

use serde_json::Value;

use super::request::Request;
use super::server::Answer;

/// A known difference.
pub(crate) struct Explained {
    pub(crate) reason: &'static str,
    /// Removes the difference from both answers.
    hide: fn(&Request, &mut Answer, &mut Answer),
}

/// All known differences.
pub(crate) const ALL: &[Explained] = &[
    Explained {
        reason: "what the embedded API server does not implement is answered with 501",
        hide: |_, ours, real| {
            if ours.code.as_u16() == 501 {
                *ours = real.clone();
            }
        },
    },
    Explained {
        reason: "columns of tables have no description: the texts are documentation",
        hide: |_, ours, real| {
            without_descriptions(&mut ours.body);
            without_descriptions(&mut real.body);
        },
    },
    Explained {
        reason: "managedFields are not implemented: kube-apiserver stores a new version when an update changes them alone",
        hide: |request, ours, real| {
            let is_update = matches!(request.method.as_str(), "PUT" | "PATCH");
            if is_update && version(ours) < version(real) {
                ours.body["metadata"]["resourceVersion"] = real.body["metadata"]["resourceVersion"].clone();
            }
        },
    },
    Explained {
        reason: "the errors of immutable specs show no difference: it is one of Go's internal types",
        hide: |_, ours, real| {
            without_diffs(&mut ours.body);
            without_diffs(&mut real.body);
        },
    },
    Explained {
        reason: "errors show an empty map as null: the embedded API server decodes both alike",
        hide: |_, ours, real| {
            with_null(&mut ours.body);
            with_null(&mut real.body);
        },
    },
    Explained {
        reason: "errors of strategic merge patches show the patch as it was sent: in Go, the merge has changed it",
        hide: |request, ours, real| {
            if request.action.starts_with("PATCH strategic") {
                without_value(&mut ours.body, "patch: Invalid value: \"map[", "]\": ");
                without_value(&mut real.body, "patch: Invalid value: \"map[", "]\": ");
                without_value(&mut ours.body, "Invalid value: \"map[", "]\": ");
                without_value(&mut real.body, "Invalid value: \"map[", "]\": ");
            }
        },
    },
    Explained {
        reason: "errors of immutable specs show inline volumes of VolumeAttachments as JSON: it is one of Go's internal types",
        hide: |request, ours, real| {
            if request.kind == "VolumeAttachment" {
                without_value(&mut ours.body, "\"InlineVolumeSpec\":{", "},\"NodeName\":");
                without_value(&mut real.body, "\"InlineVolumeSpec\":{", "},\"NodeName\":");
            }
        },
    },
];

/// The number of the resource version, by order of appearance.
fn version(answer: &Answer) -> Option<u64> {
    let version = answer.body["metadata"]["resourceVersion"].as_str()?;
    version.strip_prefix("<version ")?.strip_suffix('>')?.parse().ok()
}

/// Replaces empty maps that errors show.
fn with_null(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace(" value: {}: ", " value: null: "),
        Value::Array(items) => items.iter_mut().for_each(with_null),
        Value::Object(object) => object.values_mut().for_each(with_null),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Empties the descriptions of the columns of tables.
fn without_descriptions(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.contains_key("format") && object.contains_key("priority") {
                object.insert("description".to_owned(), "".into());
            }
            object.values_mut().for_each(without_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(without_descriptions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Cuts what is between two texts out of the texts of an answer.
fn without_value(value: &mut Value, before: &str, after: &str) {
    match value {
        Value::String(text) => {
            let start = text.find(before).map(|at| at + before.len());
            if let Some(start) = start
                && let Some(length) = text[start..].find(after)
            {
                text.replace_range(start..start + length, "");
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| without_value(item, before, after)),
        Value::Object(object) => object
            .values_mut()
            .for_each(|value| without_value(value, before, after)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Cuts the difference of two specs out of the texts of an answer.
fn without_diffs(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(start) = text.find("\n@@") {
                let end = text.rfind('\n').unwrap_or(start);
                text.replace_range(start..end, "");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_diffs),
        Value::Object(object) => object.values_mut().for_each(without_diffs),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Why the answers of the embedded server and of kube-apiserver differ, if that is known.
pub(crate) fn find(request: &Request, ours: &Answer, real: &Answer) -> Option<&'static str> {
    let (mut ours, mut real) = (ours.clone(), real.clone());
    ALL.iter().find_map(|explained| {
        (explained.hide)(request, &mut ours, &mut real);
        (ours == real).then_some(explained.reason)
    })
}
