//! Calls ListVolumes periodically and passes the result to the [`ControllerState`].
//!
//! A round is bound to one connection: a restarted driver may misread an earlier token. Each page has a deadline of its own,
//! so an array of any size can be listed, but an endless list is aborted (docs/adr/0014-reconcile.md). Any error skips the
//! round.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::v1::ListVolumesRequest;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::controller::state::{ControllerState, Event, Round, lock};
use crate::csi::{CallError, ConnectionState, ControllerClient};
use crate::model::Driver;
use crate::plan::reconcile::ListVolumesResult;
use crate::report::chain;

/// See the module.
pub struct Reconciler<D> {
    /// Receives the results.
    pub state: Arc<Mutex<ControllerState>>,
    /// Lists the volumes.
    pub csi: D,
    /// The driver of the volumes.
    pub driver: Driver,
    /// The state of the driver's connection.
    pub connection: watch::Receiver<ConnectionState>,
    /// Receives the results, in order with all other events.
    pub events_tx: mpsc::Sender<Event>,
    /// The time from the end of one round to the next (`--reconcile-sync`).
    pub interval: Duration,
    /// Maximum entries per page; 0 leaves it to the driver (`--max-entries`).
    pub max_entries: i32,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("ListVolumes failed")]
    Call(#[source] CallError),
    #[error("the driver gave out the ListVolumes token {0:?} again, so its list has no end")]
    RepeatedToken(String),
    #[error(
        "the driver gave out {EMPTY_PAGES} pages of ListVolumes in a row without a volume, so its list has no end"
    )]
    OnlyTokens,
    #[error("the driver's list (ListVolumes) had not come to an end after {0:?}")]
    TooLong(Duration),
    #[error("the driver's connection changed during ListVolumes")]
    OtherSession,
}

/// Detects a cycle of tokens (Brent's algorithm): keeps one token, and replaces it after 1, 2, 4, 8, ... others.
#[derive(Debug, Default)]
struct CycleDetector {
    kept: String,
    seen: u64,
    next: u64,
}

/// Consecutive empty pages after which a list counts as endless. A driver that filters pages may return some empty ones.
const EMPTY_PAGES: u32 = 1000;
/// Minimum timeout of a whole list.
const LIST_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Timeout of a whole list in reconcile intervals, if that is longer.
const LIST_TIMEOUT_INTERVALS: u32 = 10;

/// The delay after a round that could not start, for example before the caches are synced.
const IDLE: Duration = Duration::from_millis(100);

// === impl Reconciler ===

impl<D: ControllerClient> Reconciler<D> {
    /// Reconciles until `shutdown`, then waits to be dropped.
    ///
    /// The first round starts with the first sync, the next one `interval` after the end of the last, or as soon as the
    /// driver is reconnected: a restarted driver may have lost attachments.
    ///
    /// # Cancellation
    ///
    /// The state keeps the start of the round, and begins no other one.
    pub async fn run(mut self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.rounds()).await;
        std::future::pending::<()>().await;
    }

    async fn rounds(&mut self) {
        loop {
            let lists = |connection: &ConnectionState| {
                connection.as_ref().is_some_and(|session| {
                    session.capabilities.publish && session.capabilities.list_published
                })
            };
            // The connection manager ended, and this task is about to be dropped.
            if self.connection.wait_for(lists).await.is_err() {
                return;
            }
            let pause = if self.round().await {
                self.interval.max(IDLE)
            } else {
                IDLE
            };
            tokio::select! {
                biased;
                changed = self.connection.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Runs one round. Returns whether it could start.
    pub async fn round(&mut self) -> bool {
        let result = lock(&self.state).begin_reconcile(&self.driver);
        let Some(mut volumes) = result else { return false };
        let began = Instant::now();
        let mut listed = 0;
        let result = if volumes.is_empty() {
            // The call's result could not be used.
            Ok(())
        } else {
            self.list_all(&mut volumes, &mut listed).await
        };
        let round = Round {
            ended: Instant::now().into_std(),
            took: began.elapsed(),
            listed,
        };
        let event = match result {
            Ok(()) => Event::VolumesListed(volumes, round),
            Err(error) => {
                let why = chain(&error);
                tracing::warn!(error = why, "reconcile round failed");
                Event::ListVolumesFailed(round, why.into())
            }
        };
        // Without a receiver the controller has ended, and the manager is about to stop this task.
        self.events_tx.send(event).await.ok();
        true
    }

    /// Reads the driver's whole list into `volumes`, and counts its entries.
    async fn list_all(&mut self, volumes: &mut ListVolumesResult, listed: &mut u64) -> Result<(), Error> {
        let longest = self
            .interval
            .saturating_mul(LIST_TIMEOUT_INTERVALS)
            .max(LIST_TIMEOUT);
        let mut connection = self.connection.clone();
        tokio::select! {
            biased;
            _ = connection.changed() => Err(Error::OtherSession),
            result = tokio::time::timeout(longest, self.list(volumes, listed)) => {
                result.unwrap_or(Err(Error::TooLong(longest)))
            }
        }
    }

    async fn list(&self, volumes: &mut ListVolumesResult, listed: &mut u64) -> Result<(), Error> {
        let mut starting_token = String::new();
        let mut cycle = CycleDetector::default();
        let mut empty = 0;
        loop {
            let request = ListVolumesRequest {
                max_entries: self.max_entries,
                starting_token,
            };
            let page = self.csi.list(request).await.map_err(Error::Call)?;
            let before = *listed;
            for entry in &page.entries {
                let Some(volume) = &entry.volume else { continue };
                let status = entry.status.as_ref();
                volumes.add_entry(
                    &volume.volume_id,
                    status.map(|status| &*status.published_node_ids),
                );
                *listed += 1;
            }
            if page.next_token.is_empty() {
                return Ok(());
            }
            if cycle.closes_with(&page.next_token) {
                return Err(Error::RepeatedToken(page.next_token));
            }
            empty = if *listed == before { empty + 1 } else { 0 };
            if empty == EMPTY_PAGES {
                return Err(Error::OnlyTokens);
            }
            starting_token = page.next_token;
        }
    }
}

// === impl CycleDetector ===

impl CycleDetector {
    fn closes_with(&mut self, token: &str) -> bool {
        if self.kept == token {
            return true;
        }
        self.seen += 1;
        if self.seen > self.next {
            self.next = self.seen * 2;
            token.clone_into(&mut self.kept);
        }
        false
    }
}

#[cfg(test)]
mod tests;
