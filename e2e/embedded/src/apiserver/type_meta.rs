//! The types of documents: checks `apiVersion` and `kind`.

use std::fmt::Display;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::Binding;
use k8s_openapi::api::policy::v1::Eviction;
use serde_json::Value;

use super::go_format;
use super::object::Object;
use super::resource::{self, Resource};
use super::schema::{self, Struct};

/// A type in Kubernetes' scheme.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectType {
    group: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) schema: &'static Struct,
}

// === impl ObjectType ===

impl ObjectType {
    pub(crate) fn of<K: k8s_openapi::Resource>() -> Self {
        Self {
            group: K::GROUP,
            kind: K::KIND,
            schema: schema::of(K::GROUP, K::KIND),
        }
    }

    pub(crate) fn api_version(&self) -> String {
        resource::group_version(self.group)
    }

    /// Whether a document of this kind may have the version.
    pub(crate) fn accepts(&self, version: &str) -> bool {
        version == self.api_version() || (self.kind == "Eviction" && version == "policy/v1beta1")
    }

    /// Package of the internal type; both event APIs share one.
    fn internal_package(&self) -> &'static str {
        match self.group.split('.').next() {
            None | Some("" | "events") => "core",
            Some(group) => group,
        }
    }
}

impl From<&Resource> for ObjectType {
    fn from(resource: &Resource) -> Self {
        Self {
            group: resource.group,
            kind: resource.kind_name,
            schema: resource.schema,
        }
    }
}

// === functions ===

/// The object in a document, whose `apiVersion` and `kind` must be strings.
///
/// # Errors
/// The error text of the step in which Kubernetes' decoder determines the type.
pub(crate) fn object(document: Value) -> Result<Object, String> {
    let document = match document {
        Value::Object(document) => document,
        // Go decodes null into a struct without changing it.
        Value::Null => Object::new(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(not_determined(go_format::no_struct(&document)));
        }
    };
    let mut named = document
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), "apiVersion" | "kind"));
    if let Some((name, value)) = named.find(|(_, value)| !value.is_string() && !value.is_null()) {
        let found = go_format::kind(value);
        return Err(not_determined(format!(
            "json: cannot unmarshal {found} into Go struct field .{name} of type string"
        )));
    }
    Ok(document)
}

/// The error of Go's JSON decoder for a document in which it does not find `apiVersion` and `kind`.
pub(crate) fn not_determined(why: impl Display) -> String {
    format!("couldn't get version/kind; json parse error: {why}")
}

/// The error of Kubernetes' scheme for a kind that it does not have.
pub(crate) fn not_registered(kind: &str, version: &str) -> String {
    format!("no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\"")
}

/// The error of Kubernetes' scheme if it cannot convert a document of this kind into an object of the
/// expected type.
pub(crate) fn conversion_error(
    expected: &ObjectType,
    kind: &str,
    version: &str,
    document: &Object,
) -> Option<String> {
    let of_subresources = [
        ObjectType::of::<Binding>(),
        ObjectType::of::<Eviction>(),
        ObjectType::of::<TokenRequest>(),
    ];
    let mut types = resource::all()
        .iter()
        .map(ObjectType::from)
        .chain(of_subresources);
    let Some(registered) = types.find(|found| found.kind == kind && found.accepts(version)) else {
        return Some(not_registered(kind, version));
    };
    let package = expected.internal_package();
    if registered.kind == expected.kind && registered.internal_package() == package {
        return None;
    }
    // Kubernetes decodes before it converts.
    if let Err(error) = schema::decode(registered.schema, document.clone(), schema::Codec::Json) {
        return Some(error);
    }
    let short = version.rsplit('/').next().unwrap_or_default();
    Some(format!(
        "converting ({short}.{kind}) to ({package}.{}): unknown conversion",
        expected.kind
    ))
}
