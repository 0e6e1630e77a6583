//! Metrics of the calls to the driver, and the state of the connection.
//!
//! A tower layer around the driver's channel counts every call by its method (the request's path) and the code of its
//! trailers.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use prometheus::HistogramVec;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tower::{BoxError, Service};

use super::code::{CallError, Code};
use crate::grpc::readable;
use crate::leader_election::{Fenced, Leadership};
use crate::metrics::{Scrape, histograms};
use crate::migration::is_migration_driver;
use crate::model::Capabilities;

/// Metrics of all sessions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    driver: Option<DriverLabels>,
    seconds: HistogramVec,
    connection: ConnectionStats,
}

#[derive(Clone, Debug)]
struct DriverLabels {
    name: Arc<str>,
    /// Whether its series have the label `migrated`.
    migrates: bool,
}

/// The history of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionStats {
    pub(crate) driver: Option<Arc<str>>,
    /// As of the last connection.
    pub(crate) capabilities: Option<Capabilities>,
    pub(crate) up: bool,
    /// The last change of `up`.
    pub(crate) since: Option<Instant>,
    /// Number of connections so far.
    pub(crate) opened: u64,
    /// Error of the last attempt, if that failed.
    pub(crate) last_failure: Option<String>,
}

/// What the layer cannot see of a call, as an extension of its request.
#[derive(Clone, Debug)]
struct CallInfo {
    deadline: Instant,
    migrated: bool,
    /// Checked when the call is sent: it may be queued until the driver's limit of streams allows one more.
    fence: Option<Leadership>,
}

/// A channel with metrics.
#[derive(Clone, Debug)]
pub(super) struct Metered<S> {
    inner: S,
    calls: Calls,
}

/// A running call. Dropping it counts as DeadlineExceeded or Canceled, never as a success.
#[derive(Debug)]
struct Running {
    calls: Calls,
    method: Arc<str>,
    info: Option<CallInfo>,
    begun: Instant,
    ended: bool,
}

/// The response's body, whose trailers have the code.
struct MeteredBody {
    inner: Body,
    running: Running,
}

/// Label of calls before GetPluginInfo, as in the Go sidecar.
const UNKNOWN_DRIVER: &str = "unknown-driver";

const GRPC_STATUS: &str = "grpc-status";

/// Bucket bounds of csi-lib-utils.
const BOUNDS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// A request with a deadline for driver and layer. It is sent only while `fence` leads.
pub(super) fn timed<Q>(
    message: Q,
    timeout: Duration,
    migrated: bool,
    fence: Option<&Leadership>,
) -> (tonic::Request<Q>, Instant) {
    let deadline = Instant::now() + timeout;
    let mut request = tonic::Request::new(message);
    request.set_timeout(timeout);
    let fence = fence.filter(|leadership| leadership.is_elected()).cloned();
    request.extensions_mut().insert(CallInfo {
        deadline,
        migrated,
        fence,
    });
    (request, deadline)
}

// === impl Counts ===

impl Default for Counts {
    fn default() -> Self {
        Self {
            driver: None,
            seconds: histograms(
                "csi_sidecar_operations_seconds",
                "Container Storage Interface operation duration with gRPC error code status total",
                &["driver_name", "grpc_status_code", "method_name", "migrated"],
                BOUNDS,
            ),
            connection: ConnectionStats::default(),
        }
    }
}

// === impl Calls ===

impl Calls {
    pub(super) fn count<S>(&self, inner: S) -> Metered<S> {
        let calls = self.clone();
        Metered { inner, calls }
    }

    /// Labels the following calls with this driver.
    pub(crate) fn serve(&self, name: &Arc<str>) {
        self.lock().driver = Some(DriverLabels {
            name: name.clone(),
            migrates: is_migration_driver(name),
        });
    }

    pub(super) fn connected(&self, driver: &Arc<str>, capabilities: Capabilities) {
        let connection = &mut self.lock().connection;
        connection.driver = Some(driver.clone());
        connection.capabilities = Some(capabilities);
        connection.up = true;
        connection.since = Some(Instant::now());
        connection.opened += 1;
        connection.last_failure = None;
    }

    pub(super) fn disconnected(&self) {
        let connection = &mut self.lock().connection;
        connection.up = false;
        connection.since = Some(Instant::now());
    }

    pub(super) fn not_connected(&self, why: String) {
        self.lock().connection.last_failure = Some(why);
    }

    pub(crate) fn connection(&self) -> ConnectionStats {
        self.lock().connection.clone()
    }

    /// Adds the metrics to `scrape`.
    pub(crate) fn collect(&self, scrape: &Scrape) {
        let counts = self.lock();
        scrape.add(counts.seconds.clone());
        scrape.gauge(
            "csi_attacher_driver_connected",
            "Whether the CSI driver is connected",
            f64::from(u8::from(counts.connection.up)),
        );
        scrape.counter(
            "csi_attacher_driver_reconnects_total",
            "Total number of reconnects to the CSI driver after its connection was lost",
            counts.connection.opened.saturating_sub(1) as f64,
        );
    }

    /// Counts a successful call.
    #[cfg(test)]
    pub(crate) fn count_one(&self, method: &'static str) {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static(method);
        self.begin(&request).end(tonic::Code::Ok.into());
    }

    #[cfg(test)]
    pub(crate) fn connect_one(&self) {
        self.lock().connection.up = true;
    }

    fn begin(&self, request: &Request<Body>) -> Running {
        Running {
            calls: self.clone(),
            method: request.uri().path().into(),
            info: request.extensions().get().cloned(),
            begun: Instant::now(),
            ended: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0
            .lock()
            .expect("nothing must panic while the counts are locked")
    }
}

// === impl Running ===

impl Running {
    fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let took = self.begun.elapsed();
        let counts = self.calls.lock();
        let (driver, migrates) = match &counts.driver {
            Some(served) => (&*served.name, served.migrates),
            None => (UNKNOWN_DRIVER, false),
        };
        let migrated = match self.info.as_ref().is_some_and(|info| info.migrated) {
            _ if !migrates => "",
            true => "true",
            false => "false",
        };
        counts
            .seconds
            .with_label_values(&[driver, code.name(), &*self.method, migrated])
            .observe(took.as_secs_f64());
    }

    /// Ends with the code in headers or trailers; a response without one has failed.
    fn end_with(&mut self, headers: &HeaderMap) {
        let status = Status::from_header_map(headers)
            .unwrap_or_else(|| Status::internal("the response ended without a status"));
        self.end(Code::from(status.code()));
    }

    fn fail_with(&mut self, status: &Status) {
        self.end(CallError::from(status.clone()).code);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let late = self
            .info
            .as_ref()
            .is_some_and(|info| Instant::now() >= info.deadline);
        self.end(Code::from(if late {
            tonic::Code::DeadlineExceeded
        } else {
            tonic::Code::Cancelled
        }));
    }
}

// === impl Metered ===

impl<S> Service<Request<Body>> for Metered<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.inner
            .poll_ready(cx)
            .map_err(|error| Status::from_error(error.into()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut running = self.calls.begin(&request);
        let fence = running.info.as_ref().and_then(|info| info.fence.clone());
        let request = match fence {
            Some(leadership) => request.map(|body| Body::new(Fenced::new(body, Some(leadership)))),
            None => request,
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(|error| {
                let status = Status::from_error(error.into());
                running.fail_with(&status);
                status
            })?;
            let answer = readable(answer);
            // A response of headers alone is a failure.
            if answer.headers().contains_key(GRPC_STATUS) {
                running.end_with(answer.headers());
            }
            Ok(answer.map(|inner| Body::new(MeteredBody { inner, running })))
        })
    }
}

// === impl MeteredBody ===

impl hyper::body::Body for MeteredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.running.end_with(trailers);
                }
            }
            Some(Err(status)) => self.running.fail_with(status),
            None => self.running.end_with(&HeaderMap::new()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
