//! The deadline of a call, which gRPC sends as the time that is left.

use std::time::Duration;

use http::HeaderMap;

pub(crate) const HEADER: &str = "grpc-timeout";

/// The time that was left when the client sent the call; `None` without a deadline.
pub(crate) fn of(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get(HEADER)?.to_str().ok()?)
}

pub(crate) fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}
