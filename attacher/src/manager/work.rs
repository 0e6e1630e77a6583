//! Starts the tasks of one driver: watches, reconcile and controller.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Error, Service, Task, Tasks};
use crate::args::Args;
use crate::controller::reconcile::Reconciler;
use crate::controller::state::{ControllerState, Event, lock};
use crate::controller::{Controller, RunOptions};
use crate::csi::Caller;
use crate::informer::{Change, reflector};
use crate::kube_api::ApiServer;
use crate::kube_api::events::Recorder;
use crate::leader_election::Leadership;
use crate::model::Driver;
use crate::workqueue::{Backoff, Limits};

/// The capacity of the channel between watches and controller.
const EVENTS: usize = 1024;

impl Service {
    /// Starts watches, reconciler and controller. The controller's task ends after `shutdown`, when its syncs have ended; the state
    /// then contains those that were interrupted.
    pub(super) fn spawn_work(
        &self,
        tasks: &mut Tasks,
        driver: Driver,
        leadership: &Leadership,
        recorder: Recorder,
        state: &Arc<Mutex<ControllerState>>,
        shutdown: CancellationToken,
    ) {
        let (args, connection) = (&self.args, &self.connection);
        self.view.work_begins(state.clone());
        let (events_tx, events) = mpsc::channel(EVENTS);
        let shared = Arc::new(driver.clone());
        self.spawn_watches(tasks, &shared, leadership, state, &events_tx);
        let mut csi = Caller::new(connection.clone(), args.timeout, leadership.clone());
        csi.max_logged = args.max_grpc_log_length;
        let reconciler = Reconciler {
            state: state.clone(),
            csi: csi.clone(),
            driver: driver.clone(),
            connection: connection.clone(),
            events_tx,
            interval: args.reconcile_sync,
            max_entries: args.max_entries,
        };
        let (leads, stop_reconciling) = (leadership.clone(), shutdown.clone());
        tasks.spawn(Task::Reconcile, async move {
            leads.begun().await;
            reconciler.run(stop_reconciling).await;
            Ok(())
        });
        let cluster = ApiServer::new(&self.clients, leadership.clone(), shared);
        let mut controller = Controller::new(cluster, csi, driver, state.clone(), self.pod.clock);
        controller.recorder = recorder;
        controller.error_codes = args.error_codes();
        controller.assume_unpublished_after = args.assume_unpublished_after;
        let options = RunOptions {
            events,
            connection: connection.clone(),
            leadership: leadership.clone(),
            resync: args.resync,
            heartbeat: self.view.heartbeat.clone(),
            shutdown_grace: args.shutdown_grace,
        };
        tasks.spawn(Task::Controller, async move {
            controller.run(options, shutdown).await;
            Ok(())
        });
    }

    fn spawn_watches(
        &self,
        tasks: &mut Tasks,
        driver: &Arc<Driver>,
        leadership: &Leadership,
        state: &Arc<Mutex<ControllerState>>,
        events_tx: &mpsc::Sender<Event>,
    ) {
        let clients = &self.clients;
        let changes = reflector::attachments(clients, driver.clone(), fastrand::u64(..));
        let attachments = forward(state.clone(), events_tx.clone(), changes, Event::Attachments);
        let leads = leadership.clone();
        tasks.spawn(Task::Attachments, async move {
            // Only a list that starts after the election contains all writes of earlier leaders. Volumes and nodes, which
            // leaders rarely write, are listed before.
            leads.begun().await;
            attachments.await
        });
        let changes = reflector::volumes(clients, driver.clone(), fastrand::u64(..));
        let volumes = forward(state.clone(), events_tx.clone(), changes, Event::Volumes);
        tasks.spawn(Task::Volumes, volumes);
        let changes = reflector::nodes(clients, driver.clone(), fastrand::u64(..));
        let nodes = forward(state.clone(), events_tx.clone(), changes, Event::Nodes);
        tasks.spawn(Task::Nodes, nodes);
    }
}

pub(super) fn limits(args: &Args) -> Limits {
    Limits {
        attach: args.attach_concurrency.unwrap_or(args.worker_threads).get(),
        detach: args.detach_concurrency.unwrap_or(args.worker_threads).get(),
        volume: args.worker_threads.get(),
        driver_calls: args.max_driver_calls,
        adaptive: args.adaptive_concurrency,
    }
}

pub(super) fn new_state(args: &Args) -> ControllerState {
    let backoff = Backoff {
        start: args.retry_interval_start,
        max: args.retry_interval_max,
    };
    ControllerState::new(
        limits(args),
        backoff,
        fastrand::u64(..),
        Instant::now().into_std(),
    )
}

/// Forwards a reflector's events to the controller.
async fn forward<T>(
    state: Arc<Mutex<ControllerState>>,
    events_tx: mpsc::Sender<Event>,
    changes: impl futures::Stream<Item = Change<T>>,
    event: fn(Change<T>) -> Event,
) -> Result<(), Error> {
    let mut changes = std::pin::pin!(changes);
    while let Some(change) = changes.next().await {
        if let Change::ReplaceStarted = change {
            // Handled before the events in the channel: the reflector lists when it is polled next.
            lock(&state).handle(event(Change::RelistStarting));
        }
        if events_tx.send(event(change)).await.is_err() {
            // The controller ended, and the manager stops this task.
            std::future::pending::<()>().await;
        }
    }
    Ok(())
}
