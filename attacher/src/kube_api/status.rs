//! The Status of a request that the API server rejected.

use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, response};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kube::core::Status;
use kube::core::response::StatusDetails;
use serde_json::Value;

/// Maximum Retry-After, as a longer one may come from a broken proxy.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(5 * 60);
/// The code of an overloaded API server.
pub(crate) const TOO_MANY_REQUESTS: u16 = 429;

/// The reason of a rejection without a Status, in kube's words: it may come from a proxy.
pub(super) const NO_STATUS: &str = "Failed to parse error data";

/// The Status in the body of a rejection, or one that quotes a body of another form. Its `retryAfterSeconds` includes the header
/// Retry-After, which kube's client drops: an overloaded API server answers in plain text with the header only.
pub(super) fn of_rejection(head: &response::Parts, body: &[u8]) -> Status {
    let is_status = |value: &Value| value["kind"] == "Status";
    let status = serde_json::from_slice(body).ok().filter(is_status);
    let status = status.and_then(|status| serde_json::from_value(status).ok());
    let mut status: Status =
        status.unwrap_or_else(|| Status::failure(String::from_utf8_lossy(body).trim(), NO_STATUS));
    status.code = head.status.as_u16();
    if let Some(wait) = retry_after(&head.headers) {
        let details = status.details.get_or_insert_with(|| StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    status
}

/// Retry-After: seconds, or a date relative to the response's Date, so that the clocks may differ (RFC 9110, section 5.6.7,
/// IMF-fixdate only).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let value = text(RETRY_AFTER)?.trim();
    let wait = if value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit exceeds the maximum.
        let seconds = value.parse().unwrap_or(u64::MAX);
        Duration::from_secs(seconds)
    } else {
        let date = |text: &str| -> Option<Timestamp> {
            let date = rfc2822::DateTimeParser::new().parse_timestamp(text);
            date.ok()
        };
        let from_now = date(value)?.duration_since(date(text(DATE)?)?);
        Duration::try_from(from_now).unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Response};

    use super::*;

    #[test]
    fn retry_after_is_the_longer_of_header_and_body() {
        let body = |seconds: u32| {
            format!(r#"{{"kind":"Status","message":"m","details":{{"retryAfterSeconds":{seconds}}}}}"#)
        };
        for (header, body, seconds) in [
            (None, "too many requests\n".to_owned(), 0),
            (None, body(9), 9),
            (Some("7"), "too many requests\n".to_owned(), 7),
            (Some("7"), body(9), 9),
            (Some("7"), body(5), 7),
        ] {
            let mut response = Response::builder().status(429);
            if let Some(header) = header {
                response = response.header(RETRY_AFTER, header);
            }
            let (head, ()) = response.body(()).unwrap().into_parts();
            let status = of_rejection(&head, body.as_bytes());
            assert_eq!(status.code, 429);
            assert!(["m", "too many requests"].contains(&&*status.message));
            let asked_for = status.details.map_or(0, |details| details.retry_after_seconds);
            assert_eq!(asked_for, seconds, "{header:?} {body}");
        }
    }

    #[test]
    fn seconds_and_dates_are_read() {
        let now = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (asked, seconds) in [
            ("0", Some(0)),
            ("7", Some(7)),
            (" 120 ", Some(120)),
            ("301", Some(300)),
            ("99999999999999999999999", Some(300)),
            ("Sun, 06 Nov 1994 08:51:07 GMT", Some(90)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("Mon, 07 Nov 1994 08:49:37 GMT", Some(300)),
            ("Sunday, 06-Nov-94 08:51:07 GMT", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            let mut headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(asked))]);
            headers.insert(DATE, HeaderValue::from_static(now));
            assert_eq!(retry_after(&headers), seconds.map(Duration::from_secs), "{asked}");
            if asked.contains(',') {
                headers.remove(DATE);
                assert_eq!(retry_after(&headers), None, "{asked}");
            }
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
