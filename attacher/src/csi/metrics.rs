//! Metrics of the calls to the driver, and the state of the connection.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prometheus::HistogramVec;
use serde::{Serialize, Serializer};
use tokio::time::Instant;

use super::code::{CallError, Code};
use crate::metrics::{Scrape, histograms};
use crate::migration::is_migration_driver;
use crate::model::Capabilities;
use crate::report::ago;

/// Metrics of all sessions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    /// The label `driver_name`.
    driver: Option<Arc<str>>,
    seconds: HistogramVec,
    connection: ConnectionStats,
}

/// The history of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConnectionStats {
    #[serde(rename = "name")]
    pub(crate) driver: Option<Arc<str>>,
    /// As of the last connection.
    #[serde(serialize_with = "names")]
    pub(crate) capabilities: Option<Capabilities>,
    #[serde(rename = "connected")]
    pub(crate) up: bool,
    /// The last change of `up`.
    #[serde(serialize_with = "ago")]
    pub(crate) since: Option<Instant>,
    pub(crate) reconnects: u64,
    /// Error of the last attempt, if that failed.
    pub(crate) last_failure: Option<String>,
}

/// A running call. Dropping it counts it by its code.
#[derive(Debug)]
struct Running<'c> {
    calls: &'c Calls,
    method: &'static str,
    migrated: bool,
    begun: Instant,
    deadline: Instant,
    /// None: dropped, which is DeadlineExceeded or Canceled, never a success.
    code: Option<Code>,
}

/// Label of calls before GetPluginInfo, as in the Go sidecar.
const UNKNOWN_DRIVER: &str = "unknown-driver";

/// Maximum difference of two timers for one deadline: many runtimes count in milliseconds.
const TIMER_ERROR: Duration = Duration::from_millis(5);

/// Bucket bounds of csi-lib-utils.
const BOUNDS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

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
    /// Sends a call with a deadline, which a local timer enforces too, and counts its result. `method` is the request's path.
    pub(super) async fn send<Q, A, F>(
        &self,
        method: &'static str,
        mut request: tonic::Request<Q>,
        timeout: Duration,
        migrated: bool,
        send: impl FnOnce(tonic::Request<Q>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        request.set_timeout(timeout);
        let begun = Instant::now();
        let mut running = Running {
            calls: self,
            method,
            migrated,
            begun,
            deadline: begun + timeout,
            code: None,
        };
        let result = match tokio::time::timeout_at(running.deadline, send(request)).await {
            Ok(response) => response.map(tonic::Response::into_inner).map_err(|status| {
                let error = CallError::from(status);
                // The driver ends the call at the same deadline, and its answer may arrive before our timer fires.
                let is_due = Instant::now() + TIMER_ERROR >= running.deadline;
                if is_due && error.is_cut_off() {
                    CallError::deadline_exceeded()
                } else {
                    error
                }
            }),
            Err(_) => Err(CallError::deadline_exceeded()),
        };
        let code = result.as_ref().err().map(|error| error.code);
        running.code = Some(code.unwrap_or(tonic::Code::Ok.into()));
        result
    }

    pub(crate) fn serve(&self, name: &Arc<str>) {
        self.lock().driver = Some(name.clone());
    }

    pub(super) fn connected(&self, driver: &Arc<str>, capabilities: Capabilities) {
        let connection = &mut self.lock().connection;
        connection.driver = Some(driver.clone());
        connection.capabilities = Some(capabilities);
        connection.up = true;
        connection.reconnects += u64::from(connection.since.is_some());
        connection.since = Some(Instant::now());
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
            counts.connection.reconnects as f64,
        );
    }

    /// Counts a successful call.
    #[cfg(test)]
    pub(crate) fn count_one(&self, method: &'static str) {
        let now = Instant::now();
        drop(Running {
            calls: self,
            method,
            migrated: false,
            begun: now,
            deadline: now,
            code: Some(tonic::Code::Ok.into()),
        });
    }

    #[cfg(test)]
    pub(crate) fn connect_one(&self) {
        self.lock().connection.up = true;
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0
            .lock()
            .expect("nothing must panic while the counts are locked")
    }
}

fn names<S: Serializer>(capabilities: &Option<Capabilities>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(capabilities.iter().flat_map(Capabilities::names))
}

// === impl Running ===

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let dropped = if now >= self.deadline {
            tonic::Code::DeadlineExceeded
        } else {
            tonic::Code::Cancelled
        };
        let code = self.code.unwrap_or(dropped.into());
        let counts = self.calls.lock();
        let driver = counts.driver.as_deref().unwrap_or(UNKNOWN_DRIVER);
        let migrated = match self.migrated {
            _ if !is_migration_driver(driver) => "",
            true => "true",
            false => "false",
        };
        counts
            .seconds
            .with_label_values(&[driver, code.name(), self.method, migrated])
            .observe(now.duration_since(self.begun).as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
