//! Applies patches to objects: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch.

mod json_patch;

use serde_json::Value;

use super::event_view;
use super::field::{FieldError, Path};
use super::object::Object;
use super::resource::Resource;
use super::schema;
use super::status::Status;
use super::strategic;
use super::type_meta;
use super::write::decode_object;
use super::write_options::FieldValidation;

/// The kind of a patch, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' strategic merge patch.
    Strategic,
}

/// A patch.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) kind: PatchType,
    pub(crate) document: Value,
    pub(crate) validation: FieldValidation,
}

// === impl PatchType ===

impl PatchType {
    /// # Errors
    /// 415 if the content type is not a patch type; 501 for server-side apply.
    pub(crate) fn of_content_type(content_type: &str, has_manager: bool) -> Result<Self, Status> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/apply-patch+yaml" if has_manager => {
                Err(Status::not_implemented("server-side apply"))
            }
            "application/apply-patch+yaml" => {
                let field = Path::new("fieldManager");
                let error = FieldError::required(&field, "is required for apply patch");
                Err(Status::invalid_options("PatchOptions", &[error]))
            }
            _ => Err(Status::unsupported_patch_type()),
        }
    }
}

// === impl Patch ===

impl Patch {
    /// The patched object, decoded and defaulted, and warnings.
    pub(crate) fn apply(
        &self,
        resource: &Resource,
        object: &Object,
    ) -> Result<(Object, Vec<String>), Status> {
        let view = if resource.is_events_view() {
            event_view::from_core(resource, object.clone())
        } else {
            object.clone()
        };
        let mut document = Object::new();
        document.insert("apiVersion".into(), resource.api_version().into());
        document.insert("kind".into(), resource.kind_name.into());
        document.extend(view);
        let patched = match self.kind {
            // A patch of null changes nothing; a merge patch must be an object.
            PatchType::Json | PatchType::Strategic if self.document.is_null() => Value::Object(document),
            PatchType::Json => self.json(document)?,
            PatchType::Merge => {
                json_patch::merge(&mut document, self.object()?);
                Value::Object(document)
            }
            PatchType::Strategic => self.strategic(resource, document)?,
        };
        self.decode(resource, patched)
    }

    fn json(&self, document: Object) -> Result<Value, Status> {
        let is_text = |operation: &Object, name: &str| {
            let value = operation.get(name).unwrap_or(&Value::Null);
            value.is_string() || value.is_null()
        };
        // kube-apiserver decodes the members into a type of its own only if it reports unknown ones.
        let checks_members = self.validation != FieldValidation::Ignore;
        let is_operation = |value: &Value| match value {
            Value::Null => true,
            Value::Object(operation) => {
                !checks_members || ["op", "path", "from"].iter().all(|name| is_text(operation, name))
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
        };
        let operations = self.document.as_array();
        let operations = operations.filter(|operations| operations.iter().all(is_operation));
        let operations = operations.ok_or_else(|| Status::bad_request("the body is not a JSON patch"))?;
        let mut document = Value::Object(document);
        for operation in operations {
            json_patch::apply(&mut document, operation).ok_or_else(Status::unprocessable_patch)?;
        }
        Ok(document)
    }

    fn strategic(&self, resource: &Resource, document: Object) -> Result<Value, Status> {
        let patched = strategic::apply(resource.schema, document, self.object()?.clone());
        patched.map(Value::Object).map_err(|error| match error {
            strategic::Error::Malformed(why) => Status::bad_request(why),
            strategic::Error::Other(why) => Status::unclassified(why),
        })
    }

    fn object(&self) -> Result<&Object, Status> {
        self.document.as_object().ok_or_else(|| {
            let found = schema::kind(&self.document);
            Status::bad_request(format!("the patch must be an object, but is {found}"))
        })
    }

    fn decode(&self, resource: &Resource, patched: Value) -> Result<(Object, Vec<String>), Status> {
        let document = type_meta::object(patched).map_err(Status::invalid_patch)?;
        let text = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        // kube-apiserver decodes the result of a strategic merge patch as the type of the object, whatever its `kind` says.
        if self.kind != PatchType::Strategic
            && let Some(why) = type_meta::conversion_error(&resource.into(), kind, version)
        {
            return Err(Status::invalid_patch(why));
        }
        let (object, unknown) = decode_object(resource, document).map_err(Status::invalid_patch)?;
        match self.validation {
            FieldValidation::Strict if !unknown.is_empty() => Err(Status::invalid_patch(format!(
                "strict decoding error: {}",
                unknown.join(", ")
            ))),
            FieldValidation::Strict | FieldValidation::Ignore => Ok((object, Vec::new())),
            FieldValidation::Warn => Ok((object, unknown)),
        }
    }
}
