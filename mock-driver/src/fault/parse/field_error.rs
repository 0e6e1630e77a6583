pub(in crate::fault) struct FieldError(pub(in crate::fault) String, pub(in crate::fault) String);

// === impl FieldError ===

impl FieldError {
    pub(in crate::fault) fn new(field: &str, reason: impl Into<String>) -> Self {
        Self(field.to_owned(), reason.into())
    }

    /// The first error in a table of conditions, fields and reasons.
    pub(in crate::fault) fn first<const N: usize>(mistakes: [(bool, &str, &str); N]) -> Result<(), Self> {
        let first = mistakes.into_iter().find(|(is_wrong, ..)| *is_wrong);
        first.map_or(Ok(()), |(_, field, reason)| Err(Self::new(field, reason)))
    }
}
