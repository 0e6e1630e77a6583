//! What is served at `--http-endpoint`: metrics, health, and a status page for people.
//!
//! Everything is looked up when it is asked for; nothing here is kept up to date. It only reads, and
//! what it shows comes from counts, names and messages that never hold a secret.
//!
//! - [`View`]: what there is to look at, filled by the supervisor as it comes to be.
//! - [`health`]: who is alive, ready, and leading.
//! - [`status`] and `statusz`: the state in full, as JSON and as text.
//! - [`server`]: HTTP, bounded in connections and in time.

pub mod health;
mod page;
mod scrape;
pub mod server;
pub mod status;
mod statusz;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::controller::state::{self, ControllerState, Stats};
use crate::controller::{Clock, Heartbeat};
use crate::csi::Calls;
use crate::kube_api::Requests;
use crate::leader_election::Leadership;
pub use page::Page;

/// What there is to look at.
pub struct View {
    /// What the driver was called for.
    pub calls: Calls,
    /// What the API server was asked.
    pub requests: Requests,
    /// Liveness of the control loop.
    pub heartbeat: Heartbeat,
    /// Whether there is a leader election.
    pub elects: bool,
    /// Where we stand in it, while we take part.
    pub election: Mutex<Option<Leadership>>,
    /// Cancelled when the process is to end.
    pub shutdown: CancellationToken,
    /// When the process started.
    pub started: Instant,
    /// What time it is.
    pub clock: Clock,
    /// Path of the metrics.
    pub metrics_path: String,
    /// `--statusz`.
    pub serves_statusz: bool,
    /// The core, while there is a driver to work for.
    pub state: Mutex<Option<Arc<Mutex<ControllerState>>>>,
}

/// Version of this program.
pub const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

// === impl View ===

impl View {
    /// The answer to a GET of this path and query, if there is such a page.
    pub fn page(&self, path: &str, query: &str) -> Option<Page> {
        if path == self.metrics_path {
            return Some(scrape::page(self));
        }
        match path {
            "/healthz" => Some(health::alive(self)),
            "/readyz" => Some(health::ready(self)),
            "/healthz/leader-election" => health::leading(self),
            "/statusz" if self.serves_statusz => Some(statusz::page(self, query)),
            _ => None,
        }
    }

    /// There is something to work on.
    pub fn work_begins(&self, state: Arc<Mutex<ControllerState>>) {
        *locked(&self.state) = Some(state);
    }

    /// The leader election begins.
    pub fn election_begins(&self, election: Leadership) {
        *locked(&self.election) = Some(election);
    }

    /// Work and election are over, until they begin again.
    pub fn work_ends(&self) {
        *locked(&self.state) = None;
        *locked(&self.election) = None;
        self.heartbeat.stop();
    }

    fn stats(&self, most: usize) -> Option<Stats> {
        let state = locked(&self.state).clone()?;
        let state = state::lock(&state);
        Some(state.stats(Instant::now().into_std(), most))
    }

    fn election(&self) -> Option<Leadership> {
        locked(&self.election).clone()
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
