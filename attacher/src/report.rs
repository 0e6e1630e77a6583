//! Texts of errors and times, and consecutive failures.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::core::Status;
use serde::{Serialize, Serializer};
use tokio::time::Instant;

/// Consecutive failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OngoingFailure {
    /// Number of failures.
    pub times: u32,
    /// The first failure.
    #[serde(rename = "failing", serialize_with = "ago")]
    pub since: Instant,
    /// The last failure.
    #[serde(serialize_with = "ago")]
    pub last: Instant,
    /// The last error.
    #[serde(rename = "error")]
    pub why: Arc<str>,
}

// === impl OngoingFailure ===

impl OngoingFailure {
    pub(crate) fn new(why: &str) -> Self {
        let now = Instant::now();
        Self {
            times: 1,
            since: now,
            last: now,
            why: why.into(),
        }
    }

    pub(crate) fn again(&mut self, why: &str) {
        self.times = self.times.saturating_add(1);
        self.last = Instant::now();
        self.why = why.into();
    }
}

/// An error and all its sources on one line. The texts of our error types do not contain their source.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let own = match error.downcast_ref::<kube::Error>() {
            // kube prints the structure, with the message twice.
            Some(kube::Error::Api(status)) => {
                next = None;
                answered(status)
            }
            // The source has the text.
            Some(kube::Error::Service(_)) => continue,
            Some(_) | None => error.to_string(),
        };
        // Errors of other crates may contain their source.
        if text.is_empty() {
            text = own;
        } else if !text.ends_with(&own) {
            text.push_str(": ");
            text.push_str(&own);
        }
    }
    text
}

/// The message of a Status.
pub fn answered(status: &Status) -> String {
    let message = status.message.trim();
    let message = if message.is_empty() {
        "no explanation"
    } else {
        message
    };
    format!("{message} (HTTP {})", status.code)
}

/// An address without user and password.
pub fn address(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    // A password may contain an unescaped `@` or slash.
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}"),
        None => address.to_owned(),
    }
}

/// A time in Kubernetes' format, RFC 3339 in seconds.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Seconds, rounded to milliseconds.
pub(crate) fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1000.0
}

/// Serializes a time as the seconds since then.
pub(crate) fn ago<S: Serializer>(
    then: &(impl Into<Option<Instant>> + Copy),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let then: Option<Instant> = (*then).into();
    then.map(|then| seconds(then.elapsed())).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_user_and_password_of_an_address() {
        for (whole, shown) in [
            ("http://proxy:3128/", "http://proxy:3128/"),
            ("http://user:hunter2@proxy:3128", "http://***@proxy:3128"),
            ("user:hunter2@proxy", "***@proxy"),
            ("http://user:hun@ter/2@proxy/", "http://***@proxy/"),
            ("", ""),
        ] {
            assert_eq!(address(whole), shown);
        }
    }

    #[test]
    fn prints_message_and_code_of_a_status_once() {
        let status = |code, message: &str| Status {
            code,
            message: message.to_owned(),
            reason: "Forbidden".to_owned(),
            ..Status::default()
        };
        let api = |status: Status| kube::Error::Api(status.boxed());
        assert_eq!(
            chain(&api(status(403, "user u cannot"))),
            "user u cannot (HTTP 403)"
        );
        assert_eq!(chain(&api(status(503, " "))), "no explanation (HTTP 503)");
        let refused = kube::Error::Service(Box::new(std::io::Error::other("connection refused")));
        assert_eq!(chain(&refused), "connection refused");
    }
}
