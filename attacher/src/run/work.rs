//! What works once there is a driver to serve: the watches, the engine between them, and the dispatcher
//! that carries out what the engine asks for.

use std::sync::{Arc, Mutex, OnceLock};

use futures::StreamExt;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Error, Task, Tasks};
use crate::admin::View;
use crate::args::Args;
use crate::cluster::events::Recorder;
use crate::cluster::{self, ApiServer, Clients};
use crate::csi::{Caller, Link};
use crate::dispatch::Dispatcher;
use crate::engine::{Engine, Event};
use crate::lease::{self, Leadership};
use crate::model::Driver;
use crate::queue::{Backoff, Limits};
use crate::reconcile::Reconciler;
use crate::worker::Worker;

/// Events that may wait between the watches and the engine. A watch that is ahead by more waits.
const EVENTS: usize = 1024;

/// Starts all of it. The dispatcher's task ends when work is over after the shutdown that `view` knows of.
#[expect(
    clippy::too_many_arguments,
    reason = "all that the supervisor made meets here, once"
)]
pub(super) fn spawn(
    tasks: &mut Tasks,
    args: &Args,
    clients: &Clients,
    link: watch::Receiver<Link>,
    driver: Driver,
    leadership: Leadership,
    recorder: Recorder,
    view: &View,
) {
    let shutdown = view.shutdown.clone();
    let shared = Arc::new(driver.clone());
    let (events_tx, events) = mpsc::channel(EVENTS);
    let (attachments_tx, volumes_tx, nodes_tx) = (events_tx.clone(), events_tx.clone(), events_tx.clone());
    let changes = cluster::attachments(&clients.watches, shared.clone());
    let leads = leadership.clone();
    tasks.spawn(Task::Attachments, async move {
        // Not before: only a list that is made when nobody else works any more shows all that earlier
        // leaders did. Volumes and nodes, which leaders hardly touch, are kept ready meanwhile.
        leads.begun().await;
        pump(changes.map(Event::Attachments), attachments_tx).await
    });
    let changes = cluster::volumes(&clients.watches, shared.clone());
    tasks.spawn(Task::Volumes, pump(changes.map(Event::Volumes), volumes_tx));
    let changes = cluster::nodes(&clients.watches, shared.clone());
    tasks.spawn(Task::Nodes, pump(changes.map(Event::Nodes), nodes_tx));

    let limits = Limits {
        attach: args.attach_concurrency.unwrap_or(args.worker_threads).get(),
        detach: args.detach_concurrency.unwrap_or(args.worker_threads).get(),
        volume: args.worker_threads.get(),
    };
    let backoff = Backoff {
        start: args.retry_interval_start,
        max: args.retry_interval_max,
    };
    let engine = Arc::new(Mutex::new(Engine::new(limits, backoff, fastrand::u64(..))));
    view.work_begins(engine.clone());
    let reconciler = Reconciler {
        engine: engine.clone(),
        csi: Caller::new(link.clone(), args.timeout, leadership.clone())
            .logging_at_most(args.max_grpc_log_length),
        driver: driver.clone(),
        link: link.clone(),
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
    let worker = Worker::new(
        ApiServer::new(clients, leadership.clone(), shared),
        Caller::new(link.clone(), args.timeout, leadership).logging_at_most(args.max_grpc_log_length),
        driver,
        engine.clone(),
        Timestamp::now,
    )
    .telling(recorder)
    .telling_codes(args.features.error_codes);
    let dispatcher = Dispatcher {
        engine,
        worker,
        events,
        link,
        resync: args.resync,
        pulse: view.pulse.clone(),
        grace: args.shutdown_grace,
    };
    tasks.spawn(Task::Dispatch, async move {
        dispatcher.run(shutdown).await;
        Ok(())
    });
}

/// Starts to send Events, while we lead by what will be known of that, and says who takes them.
pub(super) fn events(
    tasks: &mut Tasks,
    clients: &Clients,
    driver: &Driver,
    leads: Arc<OnceLock<Leadership>>,
    stop: CancellationToken,
) -> Recorder {
    // The name of the pod; it has no other meaning than to say which replica it was.
    let host = lease::host_name().unwrap_or_default();
    let (recorder, publisher) = Recorder::new(
        clients.requests.clone(),
        format!("csi-attacher/{}", driver.name),
        host,
        move || leads.get().is_some_and(|leadership| leadership.check().is_ok()),
    );
    tasks.spawn(Task::Events, async move {
        publisher.run(stop).await;
        Ok(())
    });
    recorder
}

async fn pump(
    events: impl futures::Stream<Item = Event>,
    events_tx: mpsc::Sender<Event>,
) -> Result<(), Error> {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        if events_tx.send(event).await.is_err() {
            // The dispatcher is gone, and this task with it.
            std::future::pending::<()>().await;
        }
    }
    Ok(())
}
