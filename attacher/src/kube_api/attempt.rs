//! What an attempt at a request and the connection under it must tell each other.
//!
//! kube's client stands between the two and lets nothing through: the connection does not learn who may
//! write and until when, and an answer's headers do not come back. But the task that awaits a request also polls
//! what the connection does for it, so both see the same task-local.

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
    asked_for: Cell<Option<Duration>>,
}

tokio::task_local! {
    static ATTEMPT: Attempt;
}

/// The longest Retry-After that is honoured: a longer one may come from a broken proxy, and pods wait.
pub(crate) const LONGEST: Duration = Duration::from_secs(5 * 60);

/// Carries out `request`, which `fence` must allow until it is sent. Returns, beside its result, how long
/// the server asked us to wait before the next one.
pub(crate) async fn attempt<T>(
    fence: Option<&Leadership>,
    request: impl Future<Output = T>,
) -> (T, Option<Duration>) {
    let attempt = Attempt {
        fence: fence.cloned(),
        asked_for: Cell::new(None),
    };
    let request = async {
        let result = request.await;
        (result, ATTEMPT.with(|attempt| attempt.asked_for.get()))
    };
    ATTEMPT.scope(attempt, request).await
}

/// Sends a request by `send`, under the conditions of the attempt that it belongs to, if to any, and takes
/// in its answer. The task that awaits the attempt must poll this.
pub(crate) async fn sent<Q, A, E, F>(
    request: Request<Q>,
    send: impl FnOnce(Request<Fenced<Q>>) -> F,
) -> Result<Response<A>, E>
where
    F: Future<Output = Result<Response<A>, E>>,
{
    let fence = ATTEMPT.try_with(|attempt| attempt.fence.clone());
    let fence = fence.ok().flatten();
    let answer = send(request.map(|body| Fenced::new(body, fence))).await?;
    let status = answer.status();
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        let asked_for = asked_for(answer.headers());
        // A request that is no attempt has its own way to wait.
        ATTEMPT.try_with(|attempt| attempt.asked_for.set(asked_for)).ok();
    }
    Ok(answer)
}

/// What `Retry-After` says: seconds, or a date, which counts from that of the answer, so that the
/// clocks need not agree. Of dates only the form that servers are to send is read (RFC 9110, section 5.6.7).
fn asked_for(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let asked_for = text(RETRY_AFTER)?.trim();
    let wait = if asked_for.bytes().all(|byte| byte.is_ascii_digit()) {
        // What does not fit is longer than any that we obey.
        let seconds = asked_for.parse().unwrap_or(u64::MAX);
        Duration::from_secs(seconds)
    } else {
        let date = |text: &str| -> Option<Timestamp> {
            let date = rfc2822::DateTimeParser::new().parse_timestamp(text);
            date.ok()
        };
        let from_now = date(asked_for)?.duration_since(date(text(DATE)?)?);
        Duration::try_from(from_now).unwrap_or_default()
    };
    Some(wait.min(LONGEST))
}

#[cfg(test)]
mod tests;
