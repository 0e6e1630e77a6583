//! Errors as text.

/// The error and its causes on one line. Libraries often repeat the cause in their own text.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let own = error.to_string();
        if !text.ends_with(&own) {
            text = format!("{text}: {own}");
        }
        next = error.source();
    }
    text
}
