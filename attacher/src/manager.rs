//! The supervisor: the only place that spawns, names and joins tasks, and that reads the world's
//! clocks, signals and randomness. The parts of it say where the API server is (`config`) and put the
//! pieces of the work together (`work`).
//!
//! Start: driver first, because our finalizer and our choice of objects carry its name; then the
//! watches and the election; then, when we lead and all lists are complete, work. Stop: no new work,
//! work under way ends within `--shutdown-grace`, the lease is given back if it did, then everything else. A task
//! that ends before that ends the process. Where there is an election, a driver that stays away ends the
//! term, and the next one starts with the driver's return (docs/adr/0043-lease-release-without-driver.md).

pub(crate) mod config;
mod election;
mod http;
mod tasks;
mod work;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::controller::state::ControllerState;
use crate::csi::{ConnectionManager, ConnectionState, Lost, Session};
use crate::http_server::View;
use crate::kube_api::{Clients, ConnectError, RateLimit};
use crate::leader_election::{self, Leadership};
use crate::model::Driver;
use crate::report::chain;
use crate::trace::Exporter;
use tasks::Tasks;

/// Why the attacher ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `--kubeconfig` cannot be used.
    #[error("--kubeconfig {path:?} cannot be used")]
    Kubeconfig {
        /// The flag's value.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// There is no `--kubeconfig` and no cluster around us.
    #[error("not running in a cluster: give --kubeconfig with the path of a kubeconfig file")]
    NoCluster(#[source] kube::config::InClusterError),
    /// The API server cannot be talked to at all.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nobody can listen where metrics and health are to be served.
    #[error("{flag}: cannot listen at {address:?}")]
    Listen {
        /// The flag.
        flag: &'static str,
        /// Its value.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The signals that are to stop us cannot be received.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    /// There is no driver that we could serve.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// There is no name that we could stand for election with.
    #[error(transparent)]
    Identity(#[from] leader_election::IdentityError),
    /// We led, and do no longer. Whoever restarts us starts a standby.
    #[error("stopped leading: {0}")]
    StoppedLeading(#[from] leader_election::Lost),
    /// A task ended that must not.
    #[error("the task {0} ended unexpectedly")]
    Task(Task),
    /// A second signal came before the first was obeyed.
    #[error("stopped by a second signal before all work was finished")]
    Aborted,
}

/// The tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Keeps the driver connected.
    Connection,
    /// Serves metrics, health and status.
    Http,
    /// Watches VolumeAttachments.
    Attachments,
    /// Watches PersistentVolumes.
    Volumes,
    /// Watches CSINodes.
    Nodes,
    /// Takes part in the leader election.
    Election,
    /// Asks the driver where its volumes are.
    Reconcile,
    /// Does the work.
    Controller,
    /// Sends Events.
    Events,
}

/// Runs the attacher until SIGTERM or SIGINT, and sends the traces of its work.
///
/// # Errors
///
/// When it ended for any other reason than a signal, or a second one cut it short.
pub async fn run(args: Args, traces: Option<Exporter>) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let mut signalled = async move || {
        tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let shutdown = CancellationToken::new();
    let mut serving = std::pin::pin!(traced(serve(args, shutdown.clone()), traces));
    tokio::select! {
        biased;
        result = &mut serving => return result,
        signal = signalled() => tracing::info!(signal, "shutting down"),
    }
    shutdown.cancel();
    tokio::select! {
        biased;
        result = serving => result,
        _ = signalled() => Err(Error::Aborted),
    }
}

/// Sends traces for as long as `serving` goes on, however that ends, and then what is left of them.
async fn traced(
    serving: impl Future<Output = Result<(), Error>>,
    traces: Option<Exporter>,
) -> Result<(), Error> {
    let Some(exporter) = traces else {
        return serving.await;
    };
    let over = CancellationToken::new();
    let serving = async {
        let result = serving.await;
        over.cancel();
        result
    };
    let ((), result) = futures::join!(exporter.run(over.clone()), serving);
    result
}

async fn serve(args: Args, shutdown: CancellationToken) -> Result<(), Error> {
    let rate = args.kube_api.rate().map(RateLimit::new);
    let config = config::read(&args).await?;
    let clients = Clients::new(&config, rate)?;
    let mut tasks = Tasks::default();
    let (keeper, link) = ConnectionManager::new(args.csi_address.clone(), args.timeout);
    let view = http::view(&args, &clients, &keeper, &shutdown);
    let stop_http = CancellationToken::new();
    http::spawn(&mut tasks, &args, view.clone(), stop_http.clone()).await?;
    let stop_connection = CancellationToken::new();
    let stop = stop_connection.clone();
    tasks.spawn(Task::Connection, async move { Ok(keeper.run(stop).await?) });

    let service = Service {
        args,
        config,
        clients,
        link,
        view,
        shutdown,
    };
    loop {
        let session = tokio::select! {
            biased;
            () = service.shutdown.cancelled() => break,
            session = first_session(service.link.clone()) => session,
        };
        let Some(session) = session else {
            let ended = tasks.join(Task::Connection).await;
            return Err(ended.err().unwrap_or(Error::Task(Task::Connection)));
        };
        let term = service.term(&mut tasks, &session).await?;
        // Of a task that ended while another one was joined: a lost lease must not lead to a new candidacy.
        if let Some(error) = tasks.take_error() {
            return Err(error);
        }
        match term {
            Term::Over => break,
            Term::Vacated => {}
        }
    }
    // Work is over; the watches hold nothing that must be saved.
    stop_connection.cancel();
    let connection_ended = tasks.join(Task::Connection).await;
    // Served to the last, so that the end can be watched.
    stop_http.cancel();
    tasks.join(Task::Http).await?;
    tasks.shutdown().await;
    connection_ended
}

/// What outlives the terms.
struct Service {
    args: Args,
    config: kube::Config,
    clients: Clients,
    link: watch::Receiver<ConnectionState>,
    view: Arc<View>,
    shutdown: CancellationToken,
}

/// How a term ended: from the driver's being there to the end of all work for it.
enum Term {
    /// We are to end.
    Over,
    /// The driver stayed away, and somebody else may lead.
    Vacated,
}

// === impl Service ===

impl Service {
    async fn term(&self, tasks: &mut Tasks, session: &Session) -> Result<Term, Error> {
        let (args, clients) = (&self.args, &self.clients);
        let driver = Driver::new(&session.name, session.capabilities, &args.default_fs_type);
        tracing::info!(driver = %driver.name, finalizer = %driver.finalizer, "serving");
        let leads = Arc::new(OnceLock::new());
        let (stop_election, stop_events) = (CancellationToken::new(), CancellationToken::new());
        let recorder = work::events(tasks, clients, &driver, leads.clone(), stop_events.clone());
        let leadership = if args.election.enabled {
            let (config, recorder, stop) = (self.config.clone(), recorder.clone(), stop_election.clone());
            election::spawn(tasks, args, config, &driver, recorder, &self.view, stop)?
        } else {
            Leadership::unopposed()
        };
        let leadership = leads.get_or_init(|| leadership).clone();
        let (link, view) = (self.link.clone(), &self.view);
        let stop_work = self.shutdown.child_token();
        let stops = stop_work.clone();
        let state = work::spawn(
            tasks, args, clients, link, driver, leadership, recorder, view, stops,
        );
        let worked = tokio::select! {
            biased;
            worked = supervise(tasks, &self.shutdown) => worked.map(|()| Term::Over),
            () = self.driver_stays_away() => Ok(Term::Vacated),
        };
        match &worked {
            // Only now may somebody else begin.
            Ok(Term::Over) => election::end(tasks, &stop_election, &state).await?,
            Ok(Term::Vacated) => {
                let patience = args.election.lease_duration.as_secs();
                tracing::warn!(
                    "no CSI driver for {patience} s: giving up the lease, so that a replica whose driver answers can lead"
                );
                // What only waits for the driver ends at once, and what it may still be at gets its grace.
                stop_work.cancel();
                tasks.join(Task::Controller).await?;
                abandon(tasks, &stop_election, &state).await;
                for task in [Task::Attachments, Task::Volumes, Task::Nodes] {
                    tasks.stop(task).await;
                }
                self.view.work_ends();
            }
            // Whoever lost the lease has none to give back.
            Err(Error::StoppedLeading(_)) => {}
            Err(_) => abandon(tasks, &stop_election, &state).await,
        }
        if worked.is_ok() {
            // That we lead no more is the last thing to tell.
            stop_events.cancel();
            tasks.join(Task::Events).await?;
        }
        worked
    }

    /// Ends when there has been no driver for as long as others wait for a leader that is silent, if there are
    /// others and we are not about to end anyway.
    async fn driver_stays_away(&self) {
        if !self.args.election.enabled {
            return std::future::pending().await;
        }
        let mut link = self.link.clone();
        loop {
            if link.wait_for(|link| link.session().is_none()).await.is_err() {
                // The connection's task is over.
                return std::future::pending().await;
            }
            // A value, since the link's keeper would wait for whoever held the link itself.
            let back = async { link.wait_for(|link| link.session().is_some()).await.is_ok() };
            match tokio::time::timeout(self.args.election.lease_duration, back).await {
                Ok(true) => {}
                Err(_) if !self.shutdown.is_cancelled() => return,
                Ok(false) | Err(_) => return std::future::pending().await,
            }
        }
    }
}

/// Waits for the end of work. Any other task that ends before it is a fault of ours, the loss of the
/// driver, or of leadership: then the work stops where it is.
async fn supervise(tasks: &mut Tasks, shutdown: &CancellationToken) -> Result<(), Error> {
    match tasks.join_next().await {
        Some((Task::Controller, Ok(()))) if shutdown.is_cancelled() => Ok(()),
        Some((task, Ok(()))) => Err(Error::Task(task)),
        Some((_, Err(error))) => Err(error),
        None => Ok(()),
    }
}

/// Stops the work where it is, as a crash would, and gives the lease back if none was under way: nobody is to wait
/// for a process that knows that it is ending.
async fn abandon(tasks: &mut Tasks, stop_election: &CancellationToken, state: &Mutex<ControllerState>) {
    for task in [Task::Controller, Task::Reconcile] {
        tasks.stop(task).await;
    }
    if let Err(error) = election::end(tasks, stop_election, state).await {
        tracing::warn!(error = chain(&error), "the election did not end well");
    }
}

/// The first session; `None` if there never will be one, which the connection's task explains.
async fn first_session(mut link: watch::Receiver<ConnectionState>) -> Option<Arc<Session>> {
    let link = link.wait_for(|link| link.session().is_some()).await.ok()?;
    link.session().cloned()
}

// === impl Task ===

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connection => "connection",
            Self::Http => "HTTP server",
            Self::Attachments => "watch of VolumeAttachments",
            Self::Volumes => "watch of PersistentVolumes",
            Self::Nodes => "watch of CSINodes",
            Self::Election => "leader election",
            Self::Reconcile => "reconcile",
            Self::Controller => "controller",
            Self::Events => "sending of Events",
        })
    }
}
