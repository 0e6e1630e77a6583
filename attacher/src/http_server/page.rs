//! One answer.

use http::StatusCode;

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The HTTP status.
    pub status: StatusCode,
    /// The `Content-Type`.
    pub content_type: &'static str,
    /// The text.
    pub text: String,
}

// === impl Page ===

impl Page {
    /// Plain text.
    pub fn plain(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            text: text.into(),
        }
    }
}
