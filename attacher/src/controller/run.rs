//! The control loop: feeds events to the [`ControllerState`](super::state::ControllerState) and polls the syncs of the items that
//! it starts.
//!
//! All syncs are futures of one task, and nothing is spawned.

use std::pin::pin;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::state::Event;
use super::{Controller, Heartbeat};
use crate::csi::{ConnectionState, ControllerClient};
use crate::kube_api::Cluster;
use crate::leader_election::Leadership;

/// Parameters of [`Controller::run`].
pub struct RunOptions {
    /// Events of the watches and of reconcile.
    pub events: mpsc::Receiver<Event>,
    /// The state of the driver's connection.
    pub connection: watch::Receiver<ConnectionState>,
    /// Syncs start only while this replica leads.
    pub leadership: Leadership,
    /// `--resync`: period in which all objects are enqueued, ignoring backoff; zero disables it.
    pub resync: Duration,
    /// Beats in each iteration; stopped when the loop ends.
    pub heartbeat: Heartbeat,
    /// `--shutdown-grace`: maximum time of running syncs after the shutdown begins.
    pub shutdown_grace: Duration,
}

/// Maximum events per iteration, so that a burst of events does not delay the start of syncs.
const EVENTS_AT_ONCE: usize = 256;
/// Maximum results per iteration, so that short syncs do not delay events.
const RESULTS_AT_ONCE: usize = 256;

// === impl Controller ===

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Runs until `shutdown`, then waits for running syncs. Items whose syncs exceed the grace period remain in the state
    /// as running.
    ///
    /// # Cancellation
    ///
    /// Like a crash of the process: the next process recovers.
    pub async fn run(&self, options: RunOptions, shutdown: CancellationToken) {
        let RunOptions {
            mut events,
            mut connection,
            leadership,
            resync,
            heartbeat,
            shutdown_grace,
        } = options;
        let mut running = FuturesUnordered::new();
        self.driver_connected(&mut connection);
        let mut resyncs = resyncs(resync);
        let mut backfills = tokio::time::interval(Heartbeat::PERIOD);
        backfills.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            heartbeat.beat(Instant::now());
            // Each iteration handles events, results and a reconnect, so that a flood of one does not delay the others. A
            // result of the driver's previous process must not be written after its reconnect.
            if connection.has_changed().unwrap_or(false) {
                self.driver_connected(&mut connection);
            }
            self.handle(std::iter::from_fn(|| events.try_recv().ok()).take(EVENTS_AT_ONCE));
            let leads = leadership.check().is_ok();
            let next_start = {
                let mut state = self.state();
                let starts = leads && state.caches_synced.all();
                while let Some(item) = starts.then(|| state.start(now())).flatten() {
                    running.push(async move {
                        let result = self.sync(&item).await;
                        (item, result)
                    });
                }
                // Without leadership no timer is needed, as nothing can start.
                state.queue.next_advance().filter(|_| starts)
            };
            let next_beat = Instant::now() + Heartbeat::PERIOD;
            let due = next_start.map_or(next_beat, |start| next_beat.min(start.into()));
            let mut due = pin!(tokio::time::sleep_until(due));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some((item, result)) = running.next(), if !running.is_empty() => {
                    // Syncs lock the state themselves, so it must not be locked while they are polled.
                    self.state().finish(&item, result, now());
                    for _ in 1..RESULTS_AT_ONCE {
                        let Some(Some((item, result))) = running.next().now_or_never() else { break };
                        self.state().finish(&item, result, now());
                    }
                }
                Ok(()) = connection.changed() => self.driver_connected(&mut connection),
                event = events.recv() => {
                    // The watches never end; the manager stops this task if one does.
                    let Some(event) = event else { break };
                    self.handle(std::iter::once(event));
                }
                () = leadership.begun(), if !leads => {}
                () = &mut due => {}
                _ = backfills.tick() => self.state().backfill(),
                _ = resyncs.tick() => self.state().handle(Event::Resync),
            }
        }
        // The drain is bounded by its grace period.
        heartbeat.stop();
        // From now on syncs begin no call; see `unless_draining`.
        self.draining.cancel();
        tracing::info!(
            running = running.len(),
            "shutting down; waiting for running syncs"
        );
        let finished = tokio::time::timeout(
            shutdown_grace,
            running.by_ref().for_each(|(item, result)| {
                self.state().finish(&item, result, now());
                std::future::ready(())
            }),
        );
        if finished.await.is_err() {
            tracing::warn!(
                left = running.len(),
                "the grace period ended before all syncs did; the next process completes them"
            );
        }
    }

    fn handle(&self, events: impl Iterator<Item = Event>) {
        let (findings, now_synced) = {
            let mut state = self.state();
            let synced = state.caches_synced.all();
            for event in events {
                state.handle(event);
            }
            (state.take_findings(), !synced && state.caches_synced.all())
        };
        if now_synced {
            tracing::info!("caches synced, starting workers");
        }
        for finding in &findings {
            self.announce_finding(finding);
        }
    }

    /// Stores the driver's capabilities if it is connected, and enqueues the items that wait for it.
    fn driver_connected(&self, connection: &mut watch::Receiver<ConnectionState>) {
        // The watch must not be borrowed while the state is locked.
        let capabilities = connection
            .borrow_and_update()
            .as_ref()
            .map(|session| session.capabilities);
        if let Some(capabilities) = capabilities {
            self.state().handle(Event::DriverConnected(capabilities));
        }
    }
}

/// Ticks each `period`, the first time after one.
fn resyncs(period: Duration) -> Interval {
    const NEVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    let period = if period.is_zero() { NEVER } else { period };
    let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The state's clock; follows tokio's paused clock.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn resyncs_after_each_period_and_never_if_it_is_zero() {
        let period = Duration::from_secs(600);
        let begin = Instant::now();
        let mut ticks = resyncs(period);
        for times in 1..=3 {
            ticks.tick().await;
            assert_eq!(begin.elapsed(), times * period);
        }
        let mut never = resyncs(Duration::ZERO);
        let year = Duration::from_secs(60 * 60 * 24 * 364);
        assert!(tokio::time::timeout(year, never.tick()).await.is_err());
    }
}
