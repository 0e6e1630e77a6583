//! Deadlines and retries of single requests.

use std::time::Duration;

use kube::core::Status;
use tokio::time::{Instant, sleep, timeout_at};

use super::request_limiter::{RequestKind, RequestLimiter};
use super::{Error, attempt};
use crate::leader_election::Leadership;
use crate::report::chain;

/// Deadline of a request with its retries, without the wait for the limiter. A driver call before it does not count.
const DEADLINE: Duration = Duration::from_secs(30);
/// Timeout of an attempt. A busy API server queues requests for up to 15 s, and an abandoned one would queue again. Pings
/// detect a dead connection sooner.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
const TOO_MANY_REQUESTS: u16 = 429;
const INITIAL_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// A longer Retry-After is waited in the workqueue, as a waiting request holds a lane slot and the lock of its publish target.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Sends an idempotent request until it has a final response or its deadline passes.
///
/// Retried are 429, 5xx and requests without a response; a Retry-After of more than a second (at most five minutes) fails with
/// [`Error::Refused`]. Each attempt waits for the limiter, which rejects writes while we do not lead. A write without a
/// response is abandoned when leadership ends.
pub(super) async fn until_answered<T, F>(
    limiter: &RequestLimiter,
    kind: RequestKind,
    mut request: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut deadline = Instant::now() + DEADLINE;
    let mut pause = INITIAL_BACKOFF;
    loop {
        let arrived = Instant::now();
        let permit = limiter.acquire(kind).await?;
        deadline += arrived.elapsed();
        let until = deadline.min(Instant::now() + ATTEMPT_TIMEOUT);
        let fence = limiter.fence(kind);
        // A request's state has several kilobytes: on the heap it exists only while the attempt runs.
        let attempt = Box::pin(attempt::attempt(fence, request()));
        let mut failure = match timely(fence, until, attempt).await {
            Some((Ok(answer), _)) => return Ok(answer),
            Some((Err(error), retry_after)) => Failure::from(error).waiting(retry_after),
            None => Failure::again(Error::Unanswered("no answer from the API server in time".into())),
        };
        drop(permit);
        let Some(retry_after) = failure.retry_after else {
            return Err(failure.error);
        };
        if retry_after > MAX_WAIT {
            if let Error::Refused {
                retry_after: after, ..
            } = &mut failure.error
            {
                *after = Some(retry_after);
            }
            return Err(failure.error);
        }
        let wait = retry_after.max(pause);
        let resume = Instant::now() + wait;
        if resume >= deadline {
            return Err(failure.error);
        }
        tracing::debug!(error = %failure.error, ?wait, "retrying a request to the API server");
        limiter.counts().again();
        sleep(wait).await;
        pause = (pause * 2).min(MAX_BACKOFF);
    }
}

/// The response, if it arrives in time and before leadership ends.
async fn timely<T>(fence: Option<&Leadership>, until: Instant, answer: impl Future<Output = T>) -> Option<T> {
    let fallen = async {
        match fence {
            Some(leadership) => leadership.ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        answer = timeout_at(until, answer) => answer.ok(),
        () = fallen => None,
    }
}

struct Failure {
    error: Error,
    /// The least delay of the retry; none if the error is final.
    retry_after: Option<Duration>,
}

// === impl Failure ===

impl Failure {
    fn again(error: Error) -> Self {
        Self {
            error,
            retry_after: Some(Duration::ZERO),
        }
    }

    /// Not retried before `least`.
    fn waiting(mut self, least: Option<Duration>) -> Self {
        if let (Some(wait), Some(least)) = (&mut self.retry_after, least) {
            *wait = (*wait).max(least);
        }
        self
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = &error {
            return Self::from_status(status);
        }
        // A lost request or response. A body that does not parse was cut off.
        Self::again(Error::Unanswered(chain(&error).into()))
    }
}

impl Failure {
    fn from_status(status: &Status) -> Self {
        let message = || status.message.as_str().into();
        let refused = || Error::Refused {
            status: status.code,
            message: message(),
            retry_after: None,
        };
        let details = status.details.as_ref();
        let concerns_uid = || {
            details.is_some_and(|details| details.causes.iter().any(|cause| cause.field == "metadata.uid"))
        };
        let (error, retry_after) = match status.code {
            // A load balancer may return 404, too, and the volume of an absent VolumeAttachment is unpublished.
            404 if status.reason != "NotFound" => (refused(), Some(Duration::ZERO)),
            404 => (Error::NotFound(message()), None),
            422 if concerns_uid() => (Error::Replaced(message()), None),
            code @ (409 | 429 | 500..=599) => {
                // Usually also in the header; an overloaded API server answers in plain text with the header only.
                let seconds = details.map_or(0, |details| details.retry_after_seconds);
                let least = u32::from(code == TOO_MANY_REQUESTS);
                let wait = Duration::from_secs(seconds.max(least).into());
                (refused(), Some(wait.min(attempt::MAX_RETRY_AFTER)))
            }
            _ => (refused(), None),
        };
        Self { error, retry_after }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;
    use serde_json::json;

    use super::super::Requests;
    use super::*;
    use crate::args::kube_api::Rate;
    use crate::kube_api::RateLimit;
    use crate::kube_api::request_limiter::Priority;
    use crate::leader_election::Leadership;

    fn status(code: u16, reason: &str, details: serde_json::Value) -> Failure {
        let details: StatusDetails = serde_json::from_value(details).unwrap();
        let status = Status {
            code,
            reason: reason.into(),
            message: "m".into(),
            details: Some(details),
            ..Status::default()
        };
        kube::Error::Api(status.boxed()).into()
    }

    #[test]
    fn classifies_responses() {
        let plain = || json!({});
        let uid = || json!({ "causes": [{ "field": "metadata.uid" }] });
        let busy = || json!({ "retryAfterSeconds": 7 });
        let seconds = Duration::from_secs;
        let refused = |status| Error::Refused {
            status,
            message: "m".into(),
            retry_after: None,
        };
        for (failure, error, again) in [
            (
                status(404, "NotFound", plain()),
                Error::NotFound("m".into()),
                None,
            ),
            (
                status(404, "Failed to parse error data", plain()),
                refused(404),
                Some(seconds(0)),
            ),
            (status(422, "Invalid", uid()), Error::Replaced("m".into()), None),
            (status(422, "Invalid", plain()), refused(422), None),
            (status(403, "Forbidden", plain()), refused(403), None),
            (status(409, "Conflict", plain()), refused(409), Some(seconds(0))),
            (
                status(429, "TooManyRequests", plain()),
                refused(429),
                Some(seconds(1)),
            ),
            (
                status(429, "TooManyRequests", busy()),
                refused(429),
                Some(seconds(7)),
            ),
            (
                status(503, "ServiceUnavailable", plain()),
                refused(503),
                Some(seconds(0)),
            ),
        ] {
            assert_eq!((&failure.error, failure.retry_after), (&error, again));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn retries_requests_without_response_until_the_deadline() {
        let begin = Instant::now();
        let mut attempts = 0;
        let limiter = RequestLimiter::new(None, Leadership::unopposed(), Requests::default());
        let error = until_answered(&limiter, RequestKind::Read, || {
            attempts += 1;
            std::future::pending::<Result<(), kube::Error>>()
        })
        .await
        .unwrap_err();
        assert!(matches!(error, Error::Unanswered(_)));
        assert_eq!(attempts, 2);
        assert!(begin.elapsed() <= DEADLINE);
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_retry_a_write_after_leadership_ended() {
        let limiter = RequestLimiter::new(
            None,
            Leadership::until(Instant::now() + ATTEMPT_TIMEOUT / 2),
            Requests::default(),
        );
        let mut attempts = 0;
        let error = until_answered(&limiter, RequestKind::Write(Priority::Low), || {
            attempts += 1;
            std::future::pending::<Result<(), kube::Error>>()
        });
        assert!(matches!(error.await, Err(Error::NotLeading(_))));
        assert_eq!(attempts, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_excludes_the_wait_for_the_limiter() {
        let begin = Instant::now();
        let limiter = RequestLimiter::new(
            Some(RateLimit::new(Rate { qps: 0.01, burst: 1 })),
            Leadership::unopposed(),
            Requests::default(),
        );
        let requests = (0..4).map(|_| {
            until_answered(&limiter, RequestKind::Write(Priority::High), || async {
                sleep(ATTEMPT_TIMEOUT / 2).await;
                Ok(())
            })
        });
        let answers = futures::future::join_all(requests).await;
        assert_eq!(answers, vec![Ok(()); 4]);
        // Three waited 100 s each for the one before.
        assert_eq!(begin.elapsed().as_secs(), 300 + (ATTEMPT_TIMEOUT / 2).as_secs());
    }
}
