//! The loop that feeds the [`ControllerState`] and carries out its jobs.
//!
//! All jobs are futures of this one task: thousands wait for a slow driver at the cost of a few
//! hundred bytes each, and nothing is spawned.

mod heartbeat;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::controller::Controller;
use crate::controller::reconcile;
use crate::controller::state::{ControllerState, Event, lock};
use crate::csi::{ConnectionState, ControllerClient};
use crate::kube_api::Cluster;
pub use heartbeat::Heartbeat;

/// See the module.
pub struct EventLoop<K, D> {
    /// The core.
    pub state: Arc<Mutex<ControllerState>>,
    /// Who carries out jobs.
    pub worker: Controller<K, D>,
    /// What the watches see.
    pub events: mpsc::Receiver<Event>,
    /// The state of the driver's connection.
    pub link: watch::Receiver<ConnectionState>,
    /// How often everything is looked at again, and what waits is tried at once (`--resync`); zero for
    /// never.
    pub resync: Duration,
    /// Where it is told that the loop moves.
    pub pulse: Heartbeat,
    /// How long jobs may go on after a shutdown was asked for (`--shutdown-grace`).
    pub grace: Duration,
}

/// How many events are taken in one go, so that a burst of them does not keep jobs from starting.
const EVENTS_AT_ONCE: usize = 256;
/// How many finished jobs are, so that those that follow one another without end do not keep events waiting.
const REPORTS_AT_ONCE: usize = 256;

// === impl EventLoop ===

impl<K: Cluster, D: ControllerClient> EventLoop<K, D> {
    /// Works until `shutdown`, then finishes what is under way. What is cut off at the end of the grace is still under
    /// way for the state.
    ///
    /// # Cancellation
    ///
    /// Like a crash of the process: repaired by the next one.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            state,
            worker,
            mut events,
            mut link,
            resync,
            pulse,
            grace,
        } = self;
        let mut running = FuturesUnordered::new();
        driver_back(&state, &mut link);
        let mut resyncs = resyncs(resync);
        loop {
            pulse.beat(Instant::now());
            // Each turn takes in both what was seen and what is done, so that neither a flood of events nor
            // one of finished jobs keeps the other waiting, and the next attach with it.
            take_in(&mut events, &state, &worker);
            let next_start = {
                let mut state = lock(&state);
                state.tell(now());
                let synced = state.listed().all();
                while let Some(job) = synced.then(|| state.start(now())).flatten() {
                    running.push(worker.run(job));
                }
                state.next_start()
            };
            let next_beat = Instant::now() + Heartbeat::PERIOD;
            let due = next_start.map_or(next_beat, |start| next_beat.min(start.into()));
            let mut due = pin!(tokio::time::sleep_until(due));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(report) = running.next(), if !running.is_empty() => {
                    // Jobs lock the state themselves, so it must not be held while they are polled.
                    lock(&state).finish(report, now());
                    for _ in 1..REPORTS_AT_ONCE {
                        let Some(Some(report)) = running.next().now_or_never() else { break };
                        lock(&state).finish(report, now());
                    }
                }
                Ok(()) = link.changed() => {
                    driver_back(&state, &mut link);
                }
                event = events.recv() => {
                    // The watches never end; the supervisor ends us if one does.
                    let Some(event) = event else { break };
                    handle(std::iter::once(event), &state, &worker);
                }
                () = &mut due => {}
                _ = resyncs.tick() => lock(&state).handle(Event::Resync),
            }
        }
        worker.drain();
        tracing::info!(
            running = running.len(),
            "no new work; finishing what is under way"
        );
        let finished = tokio::time::timeout(
            grace,
            running.by_ref().for_each(|report| {
                lock(&state).finish(report, now());
                std::future::ready(())
            }),
        );
        if finished.await.is_err() {
            tracing::warn!(
                left = running.len(),
                "not all work was finished in time; the next process takes it up"
            );
        }
    }
}

/// Takes in what the watches have seen by now, as much as is taken at once.
fn take_in<K: Cluster, D: ControllerClient>(
    events: &mut mpsc::Receiver<Event>,
    state: &Mutex<ControllerState>,
    worker: &Controller<K, D>,
) {
    let mut seen = std::iter::from_fn(|| events.try_recv().ok())
        .take(EVENTS_AT_ONCE)
        .peekable();
    if seen.peek().is_some() {
        handle(seen, state, worker);
    }
}

fn handle<K: Cluster, D: ControllerClient>(
    seen: impl Iterator<Item = Event>,
    state: &Mutex<ControllerState>,
    worker: &Controller<K, D>,
) {
    let (findings, now_synced) = {
        let mut state = lock(state);
        let synced = state.listed().all();
        for event in seen {
            state.handle(event);
        }
        (state.take_findings(), !synced && state.listed().all())
    };
    if now_synced {
        tracing::info!("all lists are complete; work starts");
    }
    for finding in &findings {
        reconcile::tell(finding);
        worker.announce_finding(finding);
    }
}

/// Tells the state of the driver that can be called now.
fn driver_back(state: &Mutex<ControllerState>, link: &mut watch::Receiver<ConnectionState>) {
    if let Some(session) = link.borrow_and_update().session() {
        lock(state).handle(Event::DriverBack(session.capabilities));
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

/// The clock of the state; follows tokio's paused clock.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
