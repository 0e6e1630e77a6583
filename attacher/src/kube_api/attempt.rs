//! Context of an attempt at a request, shared with the connection.
//!
//! kube's client between the two passes neither the leadership down nor the response's headers up. The task that awaits a
//! request also polls the connection's part of it, so both use a task-local.

use std::cell::Cell;
use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use jiff::Timestamp;
use jiff::fmt::rfc2822;

use crate::leader_election::{Fenced, Leadership};

/// One attempt at a request.
#[derive(Debug)]
struct Attempt {
    fence: Option<Leadership>,
    retry_after: Cell<Option<Duration>>,
}

tokio::task_local! {
    static ATTEMPT: Attempt;
}

/// Maximum Retry-After, as a longer one may come from a broken proxy.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(5 * 60);

/// Executes `request`, which is sent only while `fence` leads. Returns its result and the response's Retry-After.
pub(crate) async fn attempt<T>(
    fence: Option<&Leadership>,
    request: impl Future<Output = T>,
) -> (T, Option<Duration>) {
    let attempt = Attempt {
        fence: fence.cloned(),
        retry_after: Cell::new(None),
    };
    let request = async {
        let result = request.await;
        (result, ATTEMPT.with(|attempt| attempt.retry_after.get()))
    };
    ATTEMPT.scope(attempt, request).await
}

/// Sends a request with `send`, fenced by its attempt if it has one, and stores Retry-After there. The task that awaits the
/// attempt must poll this.
pub(crate) async fn sent<Q, A, E, F>(
    request: Request<Q>,
    send: impl FnOnce(Request<Fenced<Q>>) -> F,
) -> Result<Response<A>, E>
where
    F: Future<Output = Result<Response<A>, E>>,
{
    let fence = ATTEMPT.try_with(|attempt| attempt.fence.clone());
    let fence = fence.ok().flatten();
    let response = send(request.map(|body| Fenced::new(body, fence))).await?;
    let status = response.status();
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        let retry_after = retry_after(response.headers());
        // A request outside of an attempt ignores it.
        ATTEMPT
            .try_with(|attempt| attempt.retry_after.set(retry_after))
            .ok();
    }
    Ok(response)
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
mod tests;
