//! A field that is wrong.

/// A field and what is wrong with it.
pub(in crate::fault) struct FieldError(pub(in crate::fault) String, pub(in crate::fault) String);

// === impl FieldError ===

impl FieldError {
    pub(super) fn new(field: &str, reason: impl Into<String>) -> Self {
        Self(field.to_owned(), reason.into())
    }
}
