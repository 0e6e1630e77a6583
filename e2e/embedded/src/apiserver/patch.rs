//! Applies patches to objects: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch.

mod operations;

use serde_json::{Map, Value};

use super::event_view;
use super::field::{FieldError, Path};
use super::go_format;
use super::object::Object;
use super::resource::Resource;
use super::schema::{self, Codec};
use super::status::Status;
use super::strategic;
use super::type_meta;
use super::write::decode_object;
use super::write_options::FieldValidation;

/// Maximum number of operations in a JSON patch.
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
        let mut document = Map::new();
        document.insert("apiVersion".into(), resource.api_version().into());
        document.insert("kind".into(), resource.kind_name.into());
        document.extend(view);
        let ignores_unknown = self.validation == FieldValidation::Ignore;
        // Go writes maps in the order of their keys.
        let patched = match self.kind {
            PatchType::Json | PatchType::Strategic if self.document.is_null() => Value::Object(document),
            PatchType::Json => {
                let mut document = self.json(document)?;
                document.sort_all_objects();
                document
            }
            // Kubernetes decodes the patch first only if it validates unknown fields.
            PatchType::Merge if ignores_unknown && self.document.is_array() => {
                let mut patch = self.document.clone();
                prune_lists(&mut patch, false);
                patch.sort_all_objects();
                patch
            }
            PatchType::Merge if self.document.is_null() || ignores_unknown && !self.document.is_object() => {
                return Err(Status::bad_request("Invalid JSON Patch"));
            }
            PatchType::Merge if !self.document.is_object() => return Err(self.no_object()),
            PatchType::Merge => {
                let mut document = Value::Object(document);
                let mut patch = self.document.clone();
                prune_lists(&mut patch, false);
                json_patch::merge(&mut document, &patch);
                document.sort_all_objects();
                document
            }
            PatchType::Strategic => self.strategic(resource, document)?,
        };
        self.decode(resource, patched)
    }

    fn json(&self, document: Object) -> Result<Value, Status> {
        let operations = self.operations()?;
        if operations.len() > OPERATIONS_LIMIT {
            let message = format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {OPERATIONS_LIMIT}, \
                 got {}",
                operations.len()
            );
            let mut status = Status::too_large(0);
            status.message = message;
            return Err(status);
        }
        let mut document = Value::Object(document);
        for operation in operations {
            operations::apply(&mut document, operation).ok_or_else(Status::unprocessable_patch)?;
        }
        Ok(document)
    }

    /// The operations of a JSON patch. Kubernetes decodes them first into a type of its own if it validates unknown
    /// fields; the library checks their members when it applies them.
    fn operations(&self) -> Result<&[Value], Status> {
        let (prefix, operation, list) = if self.validation == FieldValidation::Ignore {
            ("", "jsonpatch.Operation", "jsonpatch.Patch")
        } else {
            (
                "error decoding patch: ",
                "handlers.jsonPatchOp",
                "[]handlers.jsonPatchOp",
            )
        };
        let refuse = |found: &Value, target: String| {
            let found = go_format::kind(found);
            Status::bad_request(format!("{prefix}json: cannot unmarshal {found} into Go {target}"))
        };
        let Value::Array(operations) = &self.document else {
            return Err(refuse(&self.document, format!("value of type {list}")));
        };
        for found in operations.iter().filter(|operation| !operation.is_null()) {
            let Value::Object(members) = found else {
                return Err(refuse(found, format!("value of type {operation}")));
            };
            let mut texts = members
                .iter()
                .filter(|(name, _)| matches!(name.as_str(), "op" | "path" | "from"));
            if self.validation != FieldValidation::Ignore
                && let Some((name, value)) = texts.find(|(_, value)| !value.is_string() && !value.is_null())
            {
                return Err(refuse(
                    value,
                    format!("struct field jsonPatchOp.{name} of type string"),
                ));
            }
        }
        Ok(operations)
    }

    /// Unknown members of a JSON patch's operations.
    fn unknown_members(&self) -> Vec<String> {
        let operations = self.document.as_array().filter(|_| self.kind == PatchType::Json);
        let mut unknown = Vec::new();
        for (index, operation) in operations.into_iter().flatten().enumerate() {
            let names = operation.as_object().into_iter().flat_map(Map::keys);
            let extra = names.filter(|name| !matches!(name.as_str(), "op" | "path" | "from" | "value"));
            unknown.extend(extra.map(|name| format!("json patch unknown field \"[{index}].{name}\"")));
        }
        unknown
    }

    fn strategic(&self, resource: &Resource, document: Object) -> Result<Value, Status> {
        let Value::Object(patch) = self.document.clone() else {
            return Err(self.no_object());
        };
        let patched = strategic::apply(resource.schema, document, patch);
        patched.map(Value::Object).map_err(|error| match error {
            strategic::Error::Malformed(why) => Status::bad_request(why),
            strategic::Error::Other(why) => Status::unclassified(why),
        })
    }

    fn no_object(&self) -> Status {
        let found = go_format::kind(&self.document);
        let prefix = if self.kind == PatchType::Merge {
            "error decoding patch: "
        } else {
            ""
        };
        Status::bad_request(format!(
            "{prefix}json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
        ))
    }

    fn decode(&self, resource: &Resource, patched: Value) -> Result<(Object, Vec<String>), Status> {
        let shown = || match self.kind {
            PatchType::Strategic => go_format::value(&self.document),
            PatchType::Json | PatchType::Merge => patched.to_string(),
        };
        if self.kind == PatchType::Strategic {
            let named = ["apiVersion", "kind"]
                .into_iter()
                .filter_map(|name| patched.get(name));
            if let Some(why) = named.filter_map(schema::type_error_of_text).next() {
                return Err(Status::invalid_patch(shown(), why));
            }
        }
        let document = type_meta::object(patched.clone());
        let mut document = document.map_err(|why| Status::invalid_patch(shown(), why))?;
        let text = |name: &str| {
            document
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let mut unknown = self.unknown_members();
        if self.kind != PatchType::Strategic {
            let given = |name: &str, default: String| {
                Some(text(name))
                    .filter(|text| !text.is_empty())
                    .unwrap_or(default)
            };
            let version = given("apiVersion", resource.api_version());
            let kind = given("kind", resource.kind_name.to_owned());
            if let Some(why) = type_meta::conversion_error(&resource.into(), &kind, &version, &document) {
                return Err(Status::invalid_patch(shown(), why));
            }
            if text("apiVersion").is_empty() {
                // Kubernetes decodes into its internal type, which lacks these members.
                document.retain(|name, _| {
                    let is_known = matches!(name.as_str(), "apiVersion" | "kind");
                    if !is_known {
                        unknown.push(format!("unknown field {name:?}"));
                    }
                    is_known
                });
            }
        }
        let codec = match self.kind {
            PatchType::Strategic => Codec::Converter,
            PatchType::Json | PatchType::Merge => Codec::Json,
        };
        let decoded = decode_object(resource, document, codec).map_err(|why| match (self.kind, &patched) {
            // Kubernetes' converter follows the order of the structs' fields and reports the first error.
            (PatchType::Strategic, Value::Object(document)) => {
                let document = resource.schema.sorted(document.clone());
                decode_object(resource, document, codec).err().unwrap_or(why)
            }
            _ => why,
        });
        let (object, unknown_fields) = decoded.map_err(|why| Status::invalid_patch(shown(), why))?;
        unknown.extend(unknown_fields);
        if self.kind == PatchType::Strategic {
            // Kubernetes' converter sorts them.
            unknown.sort_unstable();
        }
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

/// Removes null members from objects in lists, as Kubernetes' merge patch library does.
fn prune_lists(value: &mut Value, in_list: bool) {
    match value {
        Value::Object(object) => {
            if in_list {
                object.retain(|_, value| !value.is_null());
            }
            object.values_mut().for_each(|value| prune_lists(value, in_list));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune_lists(item, true)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
