//! Applies patches to objects: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch.

use serde_json::{Map, Value};

use super::event_view;
use super::go_format;
use super::object::Object;
use super::resource::Resource;
use super::status::Status;
use super::strategic;
use super::write::decode_object;

/// Most operations in a JSON patch.
const OPERATIONS_LIMIT: usize = 10_000;

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

/// What happens with unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// They are dropped.
    Ignore,
    /// They are dropped, and the answer has a warning for each.
    Warn,
    /// They are an error.
    Strict,
}

/// A patch.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) kind: PatchType,
    pub(crate) document: Value,
    pub(crate) validation: FieldValidation,
}

/// Content types of patches, as the error for another one names them.
pub(crate) const CONTENT_TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

// === impl PatchType ===

impl PatchType {
    /// # Errors
    /// 415 if the content type is none of a patch; 501 for server-side apply.
    pub(crate) fn of_content_type(content_type: &str) -> Result<Self, Status> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Err(Status::not_implemented("server-side apply")),
            _ => Err(Status::unsupported_media_type(&CONTENT_TYPES)),
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
            event_view::from_core(object.clone())
        } else {
            object.clone()
        };
        let mut document = Map::new();
        document.insert("apiVersion".into(), resource.api_version().into());
        document.insert("kind".into(), resource.kind_name.into());
        document.extend(view);
        let patched = match self.kind {
            PatchType::Json => self.json(document)?,
            PatchType::Merge => {
                let mut document = Value::Object(document);
                json_patch::merge(&mut document, &self.document);
                document
            }
            PatchType::Strategic => self.strategic(resource, document)?,
        };
        self.decode(resource, patched)
    }

    fn json(&self, document: Object) -> Result<Value, Status> {
        let parsed: Result<json_patch::Patch, _> = serde_json::from_value(self.document.clone());
        let patch = parsed.map_err(|_| self.undecodable())?;
        if patch.0.len() > OPERATIONS_LIMIT {
            let message = format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {OPERATIONS_LIMIT}, \
                 got {}",
                patch.0.len()
            );
            let mut status = Status::too_large(0);
            status.message = message;
            return Err(status);
        }
        let mut document = Value::Object(document);
        for operation in patch.0 {
            // Go's library adds what an operation of another kind may not: members of a missing parent it refuses,
            // too, but a missing member is removed and replaced with an error of the same class.
            json_patch::patch(&mut document, &[operation]).map_err(|_| Status::unprocessable_patch())?;
        }
        Ok(document)
    }

    fn undecodable(&self) -> Status {
        let found = match &self.document {
            Value::Array(operations) => {
                let unknown = operations
                    .iter()
                    .find_map(|operation| operation.get("op")?.as_str());
                let known = ["add", "remove", "replace", "move", "copy", "test"];
                if unknown.is_none_or(|op| !known.contains(&op)) || operations.iter().all(Value::is_object) {
                    return Status::unprocessable_patch();
                }
                "string"
            }
            Value::Object(_) => "object",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            Value::Null => "null",
        };
        Status::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
        ))
    }

    fn strategic(&self, resource: &Resource, document: Object) -> Result<Value, Status> {
        let Value::Object(patch) = self.document.clone() else {
            return Err(self.no_object());
        };
        let mut document = document;
        strategic::apply(&resource.schema, &mut document, patch).map_err(|error| match error {
            strategic::Error::Malformed(why) => Status::bad_request(why),
            strategic::Error::Other(why) => Status::unclassified(why),
        })?;
        Ok(Value::Object(document))
    }

    fn no_object(&self) -> Status {
        let found = match &self.document {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            Value::Null | Value::Object(_) => "null",
        };
        Status::bad_request(format!(
            "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
        ))
    }

    fn decode(&self, resource: &Resource, patched: Value) -> Result<(Object, Vec<String>), Status> {
        let shown = || match self.kind {
            PatchType::Strategic => go_format::value(&self.document),
            PatchType::Json | PatchType::Merge => patched.to_string(),
        };
        let Value::Object(document) = patched.clone() else {
            return Err(Status::invalid_patch(
                shown(),
                "the patched document is no object",
            ));
        };
        let decoded = decode_object(resource, document);
        let (object, unknown) = decoded.map_err(|why| Status::invalid_patch(shown(), why))?;
        match self.validation {
            FieldValidation::Strict if !unknown.is_empty() => {
                let why = format!("strict decoding error: {}", unknown.join(", "));
                Err(Status::invalid_patch(shown(), why))
            }
            FieldValidation::Strict | FieldValidation::Ignore => Ok((object, Vec::new())),
            FieldValidation::Warn => Ok((object, unknown)),
        }
    }
}
