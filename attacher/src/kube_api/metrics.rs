//! Metrics of the requests to the API server, and failing watches.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, StatusCode, Uri};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};
use tokio::time::Instant;

use crate::metrics::{Scrape, counter, counters, histogram, histograms};
use crate::report::OngoingFailure;

/// Metrics of all clients. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    responses: IntCounterVec,
    seconds: HistogramVec,
    retries: IntCounter,
    /// Waits for `--kube-api-qps`.
    limited: Histogram,
    /// Requests without a response yet. A watch counts until its first byte.
    in_flight: usize,
    watches: BTreeMap<Cow<'static, str>, OngoingFailure>,
}

/// A running request. Dropping it counts it by its outcome.
#[derive(Debug)]
pub(super) struct Running {
    requests: Requests,
    verb: &'static str,
    resource: &'static str,
    begun: Instant,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    /// It timed out, or the attacher cancelled it.
    Canceled,
    Failed,
    Answered(StatusCode),
}

/// Plural, subresource and label. All others are `other`, so that unknown paths add no series.
const RESOURCES: &[(&str, &str, &str)] = &[
    ("csinodes", "", "csinodes"),
    ("events", "", "events"),
    ("leases", "", "leases"),
    ("persistentvolumeclaims", "", "persistentvolumeclaims"),
    ("persistentvolumes", "", "persistentvolumes"),
    ("secrets", "", "secrets"),
    ("subjectaccessreviews", "", "subjectaccessreviews"),
    ("tokenreviews", "", "tokenreviews"),
    ("volumeattachments", "", "volumeattachments"),
    ("volumeattachments", "status", "volumeattachments/status"),
];

const WATCH: &str = "watch";

const BOUNDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

// === impl Counts ===

impl Default for Counts {
    fn default() -> Self {
        Self {
            responses: counters(
                "csi_attacher_api_requests_total",
                "Total number of requests to the API server by verb, resource and HTTP status code (canceled: timed out or cancelled by the attacher, error: connection failed)",
                &["verb", "resource", "code"],
            ),
            seconds: histograms(
                "csi_attacher_api_request_duration_seconds",
                "Time from sending a request to the start of the API server's response",
                &["verb", "resource"],
                BOUNDS,
            ),
            retries: counter(
                "csi_attacher_api_retries_total",
                "Total number of requests that were retried because the API server answered 429 or 5xx, or not at all",
            ),
            limited: histogram(
                "csi_attacher_api_rate_limiter_duration_seconds",
                "Time that a request waited for the rate limit of --kube-api-qps before it was sent; empty without a limit",
                BOUNDS,
            ),
            in_flight: 0,
            watches: BTreeMap::new(),
        }
    }
}

// === impl Requests ===

impl Requests {
    pub(super) fn again(&self) {
        self.lock().retries.inc();
    }

    /// Counts a wait for `--kube-api-qps`, unless it is cancelled.
    pub(super) async fn limited(&self, wait: impl Future<Output = ()>) {
        let begun = Instant::now();
        wait.await;
        self.lock().limited.observe(begun.elapsed().as_secs_f64());
    }

    /// The watch of this resource failed; the next 2xx response to it ends that.
    pub(crate) fn watch_failed(&self, resource: Cow<'static, str>, why: &str) {
        let mut counts = self.lock();
        let failure = counts.watches.entry(resource);
        failure
            .and_modify(|failure| failure.again(why))
            .or_insert_with(|| OngoingFailure::new(why));
    }

    pub(crate) fn watches(&self) -> BTreeMap<Cow<'static, str>, OngoingFailure> {
        self.lock().watches.clone()
    }

    pub(crate) fn collect(&self, scrape: &Scrape) {
        let counts = self.lock();
        scrape.add(counts.responses.clone());
        scrape.add(counts.seconds.clone());
        scrape.add(counts.retries.clone());
        scrape.add(counts.limited.clone());
        scrape.gauge(
            "csi_attacher_api_requests_in_flight",
            "Number of requests without a response from the API server yet",
            counts.in_flight as f64,
        );
    }

    #[cfg(test)]
    pub(crate) fn count_one(&self, uri: &'static str, status: u16) {
        let uri = Uri::from_static(uri);
        let status = StatusCode::from_u16(status).expect("a test has a status");
        self.begin(&Method::GET, &uri).outcome = Outcome::Answered(status);
    }

    pub(super) fn begin(&self, method: &Method, uri: &Uri) -> Running {
        self.lock().in_flight += 1;
        let (verb, resource) = verb_and_resource(method, uri);
        Running {
            requests: self.clone(),
            verb,
            resource,
            begun: Instant::now(),
            outcome: Outcome::Canceled,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0
            .lock()
            .expect("nothing must panic while the counts are locked")
    }
}

// === impl Running ===

impl Drop for Running {
    fn drop(&mut self) {
        let mut counts = self.requests.lock();
        counts.in_flight -= 1;
        let code = match &self.outcome {
            Outcome::Canceled => "canceled",
            Outcome::Failed => "error",
            Outcome::Answered(status) => {
                if self.verb == WATCH && status.is_success() {
                    counts.watches.remove(self.resource);
                }
                status.as_str()
            }
        };
        let labels = [self.verb, self.resource, code];
        counts.responses.with_label_values(&labels).inc();
        let took = self.begun.elapsed().as_secs_f64();
        counts.seconds.with_label_values(&labels[..2]).observe(took);
    }
}

fn verb_and_resource(method: &Method, uri: &Uri) -> (&'static str, &'static str) {
    let (resource, named) = resource(uri.path());
    let verb = match *method {
        Method::GET if named => "get",
        Method::GET if is_watch(uri) => WATCH,
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    (verb, resource)
}

/// Whether a GET of this URI is a watch.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

/// The resource of a path, and whether the path names one object. The path of a gateway may precede the API's root.
pub(super) fn resource(path: &str) -> (&'static str, bool) {
    const OTHER: &str = "other";
    let Some((plural, mut parts)) = split(path) else {
        return (OTHER, false);
    };
    let named = parts.next().is_some();
    let subresource = parts.next().unwrap_or_default();
    let known = RESOURCES
        .iter()
        .find(|(p, s, _)| *p == plural && *s == subresource);
    (known.map_or(OTHER, |(_, _, label)| *label), named)
}

/// The resource in the plural, and the name of the object of a request.
pub(super) fn object(path: &str) -> Option<(&str, &str)> {
    let (plural, mut parts) = split(path)?;
    Some((plural, parts.next()?))
}

/// The resource in the plural, and the rest of the path.
fn split(path: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    // The root is followed by the version, or by group and version.
    let skipped = match parts.find(|part| matches!(*part, "api" | "apis")) {
        Some("api") => 1,
        Some(_) => 2,
        None => return None,
    };
    let mut parts = parts.skip(skipped);
    let mut plural = parts.next().unwrap_or_default();
    if plural == "namespaces" {
        let _namespace = parts.next();
        plural = parts.next().unwrap_or_default();
    }
    Some((plural, parts))
}

#[cfg(test)]
mod tests;
