//! Sends single requests, with their deadlines and retries.

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use kube::client::Body;
use kube::core::Status;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};
use tower::ServiceExt as _;

use super::client::ApiService;
use super::request_limiter::{RequestKind, RequestLimiter};
use super::status::{MAX_RETRY_AFTER, TOO_MANY_REQUESTS};
use super::{Error, metrics};
use crate::report::chain;
use crate::trace;

/// Timeout of an attempt. A busy API server queues requests for up to 15 s, and an abandoned one would queue again. Pings
/// detect a dead connection sooner.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// The codes of a Status with which the API server rejects the content of a request, and will always do so. Everything else may
/// end: 401 and 403 with credentials and permissions, 409 with the conflict, 404 and 408 may come from a proxy.
pub(super) const FINAL: [u16; 3] = [400, 413, 422];
const INITIAL_BACKOFF: Duration = Duration::from_millis(50);
/// Time after the first attempt in which `send` retries, not counting waits for the limiter. The workqueue retries later,
/// because a request holds a lane slot and the lock of its publish target.
const RETRY_TIME: Duration = Duration::from_secs(5);
/// Maximum Retry-After that a request waits for here.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Marks a request for one version of an object: a conflict is final.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfOneVersion;

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Minimum delay of the retry; `None` if the error is final.
    retry_after: Option<Duration>,
}

/// Sends an idempotent request until it has a final response. The last attempt starts at most five seconds after the first.
///
/// Retried are all but [`FINAL`] answers, 401, 403, and conflicts of [`OfOneVersion`]; a Retry-After of more than a second (at
/// most five minutes) fails with [`Error::Rejected`]. Each attempt waits for the limiter, which rejects writes while we do not
/// lead. A write without a response is abandoned when leadership ends.
pub(super) async fn send<T: DeserializeOwned>(
    service: &ApiService,
    limiter: &RequestLimiter,
    kind: RequestKind,
    request: Request<Vec<u8>>,
) -> Result<T, Error> {
    let request = request.map(Bytes::from);
    let answer = async {
        let mut last_attempt = Instant::now() + RETRY_TIME;
        let mut pause = INITIAL_BACKOFF;
        loop {
            let arrived = Instant::now();
            let permit = limiter.acquire(kind).await?;
            last_attempt += arrived.elapsed();
            let until = Instant::now() + ATTEMPT_TIMEOUT;
            let mut failure = match attempt(service, limiter, kind, request.clone(), until).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            drop(permit);
            let is_outdated =
                failure.error.is_conflict() && request.extensions().get::<OfOneVersion>().is_some();
            let Some(least) = failure.retry_after.filter(|_| !is_outdated) else {
                return Err(failure.error);
            };
            if least > MAX_WAIT {
                if let Error::Rejected { retry_after, .. } = &mut failure.error {
                    *retry_after = Some(least);
                }
                return Err(failure.error);
            }
            let wait = least.max(pause);
            if Instant::now() + wait > last_attempt {
                if let RequestKind::Write(_) = kind {
                    // The caller must get the lost lease as the cause, not the API server's error.
                    limiter.leadership.check()?;
                }
                return Err(failure.error);
            }
            let (method, path, wait_seconds) = (request.method(), request.uri().path(), wait.as_secs_f64());
            tracing::debug!(error = %failure.error, %method, path, wait_seconds, "retrying a request to the API server");
            limiter.counts.again();
            sleep(wait).await;
            pause *= 2;
        }
    };
    let (resource, _) = metrics::resource(request.uri().path());
    let name = format!("{} {resource}", request.method());
    trace::request(&name, answer, Error::status).await
}

pub(super) async fn attempt<T: DeserializeOwned>(
    service: &ApiService,
    limiter: &RequestLimiter,
    kind: RequestKind,
    request: Request<Bytes>,
    until: Instant,
) -> Result<T, Failure> {
    let path = request.uri().path().to_owned();
    let mut request = request.map(Body::from);
    let ended = async {
        match kind {
            RequestKind::Write(_) => limiter.leadership.ended().await,
            RequestKind::Read => std::future::pending().await,
        }
    };
    if let RequestKind::Write(_) = kind {
        request.extensions_mut().insert(limiter.leadership.clone());
    }
    let answer = async {
        let response = service.http.clone().oneshot(request).await;
        let (head, body) = response.map_err(|error| chain(&*error))?.into_parts();
        let body = body.collect().await.map_err(|error| chain(&*error))?;
        Ok::<_, String>((head.status, body.to_bytes()))
    };
    let answer = tokio::select! {
        biased;
        answer = timeout_at(until, answer) => answer.ok(),
        () = ended => None,
    };
    let (status, body) = match answer {
        Some(Ok(answer)) => answer,
        Some(Err(why)) => return Err(Failure::unanswered(why)),
        None => {
            return Err(Failure::unanswered(format!(
                "no response from the API server at {} in time",
                service.server
            )));
        }
    };
    if status.is_client_error() || status.is_server_error() {
        let status = serde_json::from_slice(&body);
        let status = status.expect("the client must have made a Status of the body");
        return Err(Failure::rejected(&status, &path));
    }
    serde_json::from_slice(&body).map_err(|error| {
        // It may have been cut off. serde's message may quote it, and it may be a Secret.
        let (line, column) = (error.line(), error.column());
        Failure::unanswered(format!(
            "the API server's response cannot be decoded at line {line}, column {column}"
        ))
    })
}

// === impl Failure ===

impl Failure {
    /// The request or its response was lost.
    fn unanswered(why: String) -> Self {
        Self {
            error: Error::Unanswered(why.into()),
            retry_after: Some(Duration::ZERO),
        }
    }

    /// The API server, or a proxy before it, rejected the request to `path`.
    fn rejected(status: &Status, path: &str) -> Self {
        let message = || status.message.as_str().into();
        let rejected = || Error::Rejected {
            status: status.code,
            message: message(),
            retry_after: None,
        };
        let details = status.details.as_ref();
        let concerns_uid = || {
            details.is_some_and(|details| details.causes.iter().any(|cause| cause.field == "metadata.uid"))
        };
        // A proxy may return 404, too, and the volume of an absent VolumeAttachment is unpublished.
        let names_object = || {
            let object = metrics::object(path);
            details.is_some_and(|details| Some((&*details.kind, &*details.name)) == object)
        };
        let (error, retry_after) = match status.code {
            404 if status.reason == "NotFound" && names_object() => (Error::NotFound(message()), None),
            422 if concerns_uid() => (Error::Replaced(message()), None),
            code if FINAL.contains(&code) && status.reason == super::status::NO_STATUS => {
                return Self::unanswered(format!("{code} without a Status: {}", status.message));
            }
            code if FINAL.contains(&code) => (rejected(), None),
            // Neither credentials nor permissions come back at once.
            401 | 403 => (rejected(), None),
            code @ (409 | 429 | 500..=599) => {
                let seconds = details.map_or(0, |details| details.retry_after_seconds);
                let least = u32::from(code == TOO_MANY_REQUESTS);
                let wait = Duration::from_secs(seconds.max(least).into());
                (rejected(), Some(wait.min(MAX_RETRY_AFTER)))
            }
            _ => (rejected(), Some(Duration::ZERO)),
        };
        Self { error, retry_after }
    }
}

#[cfg(test)]
mod tests;
