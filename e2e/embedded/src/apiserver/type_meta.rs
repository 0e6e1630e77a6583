//! The types of documents: checks `apiVersion` and `kind`.

use serde_json::Value;

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
/// Why the type of the object is unknown.
pub(crate) fn object(document: Value) -> Result<Object, String> {
    let document = match document {
        Value::Object(document) => document,
        Value::Null => Object::new(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(format!(
                "it must be an object, but is {}",
                schema::kind(&document)
            ));
        }
    };
    for name in ["apiVersion", "kind"] {
        let value = document.get(name).unwrap_or(&Value::Null);
        if !value.is_string() && !value.is_null() {
            return Err(format!("{name} must be a string, but is {}", schema::kind(value)));
        }
    }
    Ok(document)
}

/// Why a document of this kind is not an object of the expected type.
pub(crate) fn conversion_error(expected: &ObjectType, kind: &str, version: &str) -> Option<String> {
    // Both event APIs have the same objects.
    let is_event = kind == "Event" && expected.kind == kind && matches!(version, "v1" | "events.k8s.io/v1");
    let fits = kind == expected.kind && expected.accepts(version) || is_event;
    (!fits).then(|| {
        let expected_version = expected.api_version();
        format!(
            "{kind} of {version} is not {} of {expected_version}",
            expected.kind
        )
    })
}
