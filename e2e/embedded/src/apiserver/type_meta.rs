//! Checks `apiVersion` and `kind` of documents.

use super::go_format;
use super::object::Object;
use super::resource::{self, Resource};
use super::schema;

/// Checks that `apiVersion` and `kind` are strings.
///
/// # Errors
/// The error text of Go's decoder for the first one that is not.
pub(crate) fn check(document: &Object) -> Result<(), String> {
    let named = document
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), "apiVersion" | "kind"));
    for (name, value) in named {
        if !value.is_string() && !value.is_null() {
            let found = go_format::kind(value);
            return Err(format!(
                "json: cannot unmarshal {found} into Go struct field .{name} of type string"
            ));
        }
    }
    Ok(())
}

/// The error of Kubernetes' scheme if it cannot convert a document of this kind into an object of the
/// resource.
pub(crate) fn conversion_error(
    resource: &Resource,
    kind: &str,
    version: &str,
    document: &Object,
) -> Option<String> {
    let is_registered =
        |resource: &&Resource| resource.kind_name == kind && resource.api_version() == version;
    let Some(registered) = resource::all().iter().find(is_registered) else {
        return Some(format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
        ));
    };
    if registered.kind == resource.kind {
        return None;
    }
    // Kubernetes decodes before it converts.
    if let Err(error) = schema::decode(&registered.schema, document.clone(), schema::Codec::Json) {
        return Some(error);
    }
    let group = match resource.group.split('.').next() {
        None | Some("" | "events") => "core",
        Some(group) => group,
    };
    Some(format!(
        "converting (v1.{kind}) to ({group}.{}): unknown conversion",
        resource.kind_name
    ))
}
