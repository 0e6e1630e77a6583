//! Field errors of validation (`k8s.io/apimachinery/pkg/util/validation/field`).

use serde_json::{Value, json};

/// The path of a field, such as `spec.containers[0].name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(String);

/// A validation error of one field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    reason: &'static str,
    /// Path of the field.
    pub(crate) field: String,
    /// Text without the path.
    body: String,
}

/// The errors of a validation.
pub(crate) type Errors = Vec<FieldError>;

/// Error text of a changed immutable field.
pub(crate) const IMMUTABLE: &str = "field is immutable";

// === impl Path ===

impl Path {
    pub(crate) fn new(root: &str) -> Self {
        Self(root.to_owned())
    }

    #[must_use]
    pub(crate) fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            Self(name.to_owned())
        } else {
            Self(format!("{}.{name}", self.0))
        }
    }

    #[must_use]
    pub(crate) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    #[must_use]
    pub(crate) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

// === impl FieldError ===

impl FieldError {
    fn new(reason: &'static str, field: &Path, body: String) -> Self {
        Self {
            reason,
            field: field.0.clone(),
            body,
        }
    }

    fn with_detail(head: String, detail: &str) -> String {
        if detail.is_empty() {
            head
        } else {
            format!("{head}: {detail}")
        }
    }

    pub(crate) fn required(field: &Path, detail: &str) -> Self {
        Self::new(
            "FieldValueRequired",
            field,
            Self::with_detail("Required value".into(), detail),
        )
    }

    pub(crate) fn invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        let head = format!("Invalid value: {}", value.into());
        Self::new(
            "FieldValueInvalid",
            field,
            Self::with_detail(head, &detail.into()),
        )
    }

    pub(crate) fn not_supported(field: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        let head = format!("Unsupported value: {}", value.into());
        Self::new("FieldValueNotSupported", field, Self::with_detail(head, &detail))
    }

    pub(crate) fn forbidden(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(
            "FieldValueForbidden",
            field,
            Self::with_detail("Forbidden".into(), &detail.into()),
        )
    }

    pub(crate) fn duplicate(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(
            "FieldValueDuplicate",
            field,
            format!("Duplicate value: {}", value.into()),
        )
    }

    pub(crate) fn not_found(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(
            "FieldValueNotFound",
            field,
            format!("Not found: {}", value.into()),
        )
    }

    pub(crate) fn too_long(field: &Path, limit: usize) -> Self {
        let body = format!("Too long: may not be more than {limit} bytes");
        Self::new("FieldValueTooLong", field, body)
    }

    /// The entry in `details.causes`.
    pub(crate) fn cause(&self) -> Value {
        json!({ "reason": self.reason, "message": self.body, "field": self.field })
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.body)
    }
}

/// One text for several errors; each distinct one is named once.
pub(crate) fn aggregate(errors: &[FieldError]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if let [text] = texts.as_slice() {
        text.clone()
    } else {
        format!("[{}]", texts.join(", "))
    }
}
