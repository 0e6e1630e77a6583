//! Deadlines and repeats of single requests.

use std::time::Duration;

use kube::core::Status;
use tokio::time::{Instant, sleep, timeout_at};

use super::request_limiter::{RequestKind, RequestLimiter};
use super::{Error, attempt};
use crate::leader_election::Leadership;
use crate::report::chain;

/// How long one request may take in all, its repeats included and its time in line not. A request's
/// deadline is its own: a slow driver call leaves the write that follows it all the time it needs.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long one attempt may take before its answer counts as lost. An API server that is busy keeps requests in
/// line for up to 15 s: one that is given up before would go to the end of the line again. That a connection is dead
/// is noticed sooner, by its pings.
const ATTEMPT: Duration = Duration::from_secs(20);
const TOO_MANY_REQUESTS: u16 = 429;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that asks for more time than this gets it from the workqueue: a request that waits keeps a place in its lane
/// and the lock of its publish target.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Sends a request that may be repeated until it is answered or its deadline passes.
///
/// An answer that says "not now" (429, 5xx) or none at all is repeated; one that asks for more than a second
/// (Retry-After, up to five minutes) fails with [`Error::Throttled`]; any other answer is final. Each attempt passes the limiter again. No write
/// passes it while we do not lead, and one that has not been answered when we cease to is given up.
pub(super) async fn until_answered<T, F>(
    limiter: &RequestLimiter,
    kind: RequestKind,
    mut request: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut deadline = Instant::now() + DEADLINE;
    let mut pause = FIRST_PAUSE;
    loop {
        let arrived = Instant::now();
        let place = limiter.acquire(kind).await?;
        deadline += arrived.elapsed();
        let until = deadline.min(Instant::now() + ATTEMPT);
        let fence = limiter.fence(kind);
        // A request's state is several kilobytes. In a box it takes no room in those who stand in line, of
        // whom there may be thousands.
        let attempt = Box::pin(attempt::attempt(fence, request()));
        let failure = match timely(fence, until, attempt).await {
            Some((Ok(answer), _)) => return Ok(answer),
            Some((Err(error), asked_for)) => Failure::from(error).waiting(asked_for),
            None => Failure::again(Error::Unanswered("no answer from the API server in time".into())),
        };
        drop(place);
        let Some(asked_for) = failure.again else {
            return Err(failure.error);
        };
        if asked_for > LONGEST_RETRY_AFTER {
            return Err(failure.error.throttled(asked_for));
        }
        let wait = asked_for.max(pause);
        let resume = Instant::now() + wait;
        if resume >= deadline {
            return Err(failure.error);
        }
        tracing::debug!(error = %failure.error, ?wait, "request to the API server is tried again");
        limiter.counts().again();
        sleep(wait).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The answer, if it comes until that time and before `fence` falls.
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
    /// Whether another attempt is worth it, and how long the server asked to wait for that.
    again: Option<Duration>,
}

// === impl Error ===

impl Error {
    /// The same, with the time that the API server asked for.
    fn throttled(self, after: Duration) -> Self {
        if let Self::Refused { status, message } = self {
            return Self::Throttled {
                status,
                message,
                after,
            };
        }
        self
    }
}

// === impl Failure ===

impl Failure {
    fn again(error: Error) -> Self {
        Self {
            error,
            again: Some(Duration::ZERO),
        }
    }

    /// The same, not to be tried again before what the server `asked_for`.
    fn waiting(mut self, asked_for: Option<Duration>) -> Self {
        if let (Some(wait), Some(asked_for)) = (&mut self.again, asked_for) {
            *wait = (*wait).max(asked_for);
        }
        self
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = &error {
            return Self::from_status(status);
        }
        // Everything else happened on the way there or back. A body that does not parse is one that
        // was cut off.
        Self::again(Error::Unanswered(chain(&error).into()))
    }
}

impl Failure {
    fn from_status(status: &Status) -> Self {
        let message = status.message.as_str().into();
        let details = status.details.as_ref();
        let concerns_uid = || {
            details.is_some_and(|details| details.causes.iter().any(|cause| cause.field == "metadata.uid"))
        };
        match status.code {
            // Only the API server's own word counts. A load balancer says 404 too, and what is taken
            // for gone would be unpublished.
            404 if status.reason != "NotFound" => Self::again(Error::Refused { status: 404, message }),
            404 => Self {
                error: Error::NotFound(message),
                again: None,
            },
            422 if concerns_uid() => Self {
                error: Error::Replaced(message),
                again: None,
            },
            code @ (409 | 429 | 500..=599) => {
                // The same as in the answer's header, as a rule; an overloaded API server answers in plain
                // text, with the header alone.
                let asked_for = details.map_or(0, |details| details.retry_after_seconds);
                let least = u32::from(code == TOO_MANY_REQUESTS);
                let error = Error::Refused {
                    status: code,
                    message,
                };
                Self {
                    error,
                    again: Some(Duration::from_secs(asked_for.max(least).into()).min(attempt::LONGEST)),
                }
            }
            code => Self {
                error: Error::Refused {
                    status: code,
                    message,
                },
                again: None,
            },
        }
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
    fn answers_are_told_apart() {
        let plain = || json!({});
        let uid = || json!({ "causes": [{ "field": "metadata.uid" }] });
        let busy = || json!({ "retryAfterSeconds": 7 });
        let seconds = Duration::from_secs;
        let refused = |status| Error::Refused {
            status,
            message: "m".into(),
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
            assert_eq!((&failure.error, failure.again), (&error, again));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_is_asked_for_again_until_the_deadline() {
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
    async fn a_write_is_not_tried_again_when_we_lead_no_longer() {
        let limiter = RequestLimiter::new(
            None,
            Leadership::until(Instant::now() + ATTEMPT / 2),
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
    async fn time_in_line_is_no_part_of_the_deadline() {
        let begin = Instant::now();
        let limiter = RequestLimiter::new(
            Some(RateLimit::new(Rate { qps: 0.01, burst: 1 })),
            Leadership::unopposed(),
            Requests::default(),
        );
        let requests = (0..4).map(|_| {
            until_answered(&limiter, RequestKind::Write(Priority::High), || async {
                sleep(ATTEMPT / 2).await;
                Ok(())
            })
        });
        let answers = futures::future::join_all(requests).await;
        assert_eq!(answers, vec![Ok(()); 4]);
        // Three waited 100 s each for the one before.
        assert_eq!(begin.elapsed().as_secs(), 300 + (ATTEMPT / 2).as_secs());
    }
}
