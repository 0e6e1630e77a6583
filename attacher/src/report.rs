//! How errors and times are told.

use jiff::Timestamp;

/// An error and all its causes on one line. The variants of our error types leave their source out
/// of their own text, so that nothing is said twice here.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Other crates are not as careful.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// A time as Kubernetes writes it: RFC 3339, in seconds.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
