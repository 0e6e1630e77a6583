//! Applies patches to objects: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch.

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
        let document = Value::Object(document);
        let patched = match self.kind {
            PatchType::Json => self.json(document)?,
            PatchType::Merge => self.merge(document)?,
            PatchType::Strategic => self.strategic(resource, document)?,
        };
        self.decode(resource, patched)
    }

    fn json(&self, mut document: Value) -> Result<Value, Status> {
        let patch: json_patch::Patch = serde_json::from_value(self.document.clone())
            .map_err(|error| Status::bad_request(format!("the body is not a JSON patch: {error}")))?;
        json_patch::patch(&mut document, &patch).map_err(|_| Status::unprocessable_patch())?;
        Ok(document)
    }

    fn merge(&self, mut document: Value) -> Result<Value, Status> {
        if !self.document.is_object() {
            return Err(self.no_object());
        }
        json_patch::merge(&mut document, &self.document);
        Ok(document)
    }

    fn strategic(&self, resource: &Resource, document: Value) -> Result<Value, Status> {
        let (Value::Object(document), Value::Object(patch)) = (document, self.document.clone()) else {
            return Err(self.no_object());
        };
        let patched = strategic::apply(resource.schema, document, patch);
        patched.map(Value::Object).map_err(|error| match error {
            strategic::Error::Malformed(why) => Status::bad_request(why),
            strategic::Error::Other(why) => Status::unclassified(why),
        })
    }

    fn no_object(&self) -> Status {
        let found = schema::kind(&self.document);
        Status::bad_request(format!("the patch must be an object, but is {found}"))
    }

    fn decode(&self, resource: &Resource, patched: Value) -> Result<(Object, Vec<String>), Status> {
        let document = type_meta::object(patched).map_err(Status::invalid_patch)?;
        let text = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        if let Some(why) = type_meta::conversion_error(&resource.into(), kind, version) {
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
