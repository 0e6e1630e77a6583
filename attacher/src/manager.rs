//! Starts, names and joins all tasks, and injects clocks, signals and randomness.
//!
//! Start: the driver first, whose name decides our finalizer and the selected objects; then the watches and the election;
//! then, when this replica leads and the caches are synced, the syncs. Stop: no new syncs; running ones end within
//! `--shutdown-grace`; the lease is released if they did; then everything else ends. A task that ends earlier ends the
//! process. With an election, the loss of the driver for a lease duration ends the term, and its return begins the next one
//! (docs/adr/0043-lease-release-without-driver.md).

pub(crate) mod config;
mod election;
mod environment;
mod http;
mod tasks;
mod work;

use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::controller::state::{ControllerState, lock};
use crate::csi::{Connect, ConnectionManager, ConnectionState, DriverChanged, Session};
use crate::http_server::{TlsError, View};
use crate::kube_api::events::Recorder;
use crate::kube_api::{Clients, ConnectError, RateLimit};
use crate::leader_election::{self, IdentityError, Leadership};
use crate::model::Driver;
use crate::plan::Orphan;
use crate::report::chain;
use crate::trace::Exporter;
pub use environment::{Environment, Pod};
use tasks::Tasks;

/// The error that ended the process.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum Error {
    #[error("--kubeconfig {0:?} cannot be used: {1}")]
    Kubeconfig(String, String),
    #[error("not running in a cluster: give --kubeconfig with the path of a kubeconfig file")]
    NoCluster(#[source] kube::config::InClusterError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{0}: cannot listen at {1:?}")]
    Listen(&'static str, String, #[source] std::io::Error),
    #[error("--http-endpoint has no certificate")]
    Tls(#[from] TlsError),
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    #[error(transparent)]
    DriverChanged(#[from] DriverChanged),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Leadership was lost. The restarted process is a standby.
    #[error("Stopped leading: {0}")]
    StoppedLeading(#[from] leader_election::LeadershipLost),
    #[error("the task {0} ended unexpectedly")]
    Task(&'static str),
    #[error("stopped by a second signal before all work was finished")]
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Connection,
    Http,
    Health,
    Attachments,
    Volumes,
    Nodes,
    Election,
    Reconcile,
    Controller,
    Events,
}

/// Runs the attacher until SIGTERM or SIGINT, and sends the traces of its work.
///
/// # Errors
///
/// When it ended for any other reason than one signal.
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
    let serving = async {
        let environment = Environment::of_process(&args).await?;
        serve(args, environment, shutdown.clone()).await
    };
    let mut serving = std::pin::pin!(traced(serving, traces));
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

/// Exports traces while `serving` runs, and the rest afterwards.
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

/// Runs the attacher in `environment` until `shutdown`. Dropping the future is a crash. Seeds come from [`fastrand`]'s
/// generator of this thread.
///
/// # Errors
///
/// When it ended for any other reason.
pub async fn serve<C: Connect>(
    args: Args,
    environment: Environment<C>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let Environment { access, driver, pod } = environment;
    let rate = args.kube_api.rate().map(RateLimit::new);
    let clients = Clients::new(&access, rate);
    let mut tasks = Tasks::default();
    let (connection_manager, connection) = ConnectionManager::new(driver, args.timeout);
    let (calls, stop_http) = (connection_manager.calls(), CancellationToken::new());
    let stop = stop_http.clone();
    let view = http::spawn(&mut tasks, &args, pod.clock, &clients, calls, &shutdown, stop).await?;
    let stop_connection = CancellationToken::new();
    let stop = stop_connection.clone();
    tasks.spawn(Task::Connection, async move {
        Ok(connection_manager.run(stop).await?)
    });

    let service = Service {
        args,
        pod,
        clients,
        connection,
        view,
        shutdown,
    };
    let mut orphans = Vec::new();
    loop {
        let connection = service.connection.clone();
        let Some(session) = next_session(&mut tasks, connection, &service.shutdown).await? else {
            break;
        };
        let term = service.term(&mut tasks, &session, orphans).await?;
        match next_term(&mut tasks, term)? {
            Some(left) => orphans = left,
            None => break,
        }
    }
    // All syncs have ended; the watches have no state to save.
    stop_connection.cancel();
    let connection_ended = tasks.join(Task::Connection).await;
    // The HTTP servers end last, so that the shutdown is observable.
    stop_http.cancel();
    tasks.join(Task::Http).await?;
    tasks.join(Task::Health).await?;
    tasks.shutdown().await;
    connection_ended
}

/// The parts that outlive a term.
struct Service {
    args: Args,
    pod: Pod,
    clients: Clients,
    connection: watch::Receiver<ConnectionState>,
    view: Arc<View>,
    shutdown: CancellationToken,
}

/// The end of a term, which begins when the driver is connected.
enum Term {
    /// The process shuts down.
    Over,
    /// The driver stayed disconnected, so the lease was released and another replica may lead. Only this process knows the orphans
    /// that are left.
    DriverLost(Vec<Arc<Orphan>>),
}

// === impl Service ===

impl Service {
    /// Serves the driver, and first the orphans of the term before.
    async fn term(
        &self,
        tasks: &mut Tasks,
        session: &Session,
        orphans: Vec<Arc<Orphan>>,
    ) -> Result<Term, Error> {
        let args = &self.args;
        let driver = Driver::new(&session.name, session.capabilities, &args.default_fs_type);
        let limits = work::limits(args);
        tracing::info!(
            driver = %driver.name,
            finalizer = %driver.finalizer,
            attaches = limits.attach,
            detaches = limits.detach,
            repairs = limits.repair(),
            max_driver_calls = limits.driver_calls,
            "serving"
        );
        let (recorder, publisher) = Recorder::new(
            self.clients.events.clone(),
            format!("csi-attacher/{}", driver.name),
            self.pod.host_name.clone(),
        );
        let stop_election = CancellationToken::new();
        let leadership = if args.election.enabled {
            self.spawn_election(tasks, &driver, recorder.clone(), stop_election.clone())?
        } else {
            Leadership::unopposed()
        };
        let stop_events = CancellationToken::new();
        let publish = publisher.run(leadership.clone(), stop_events.clone());
        tasks.spawn(Task::Events, publish.map(Ok));
        let stop_work = self.shutdown.child_token();
        let mut state = work::new_state(args);
        for orphan in &orphans {
            state.resume_orphan(orphan);
        }
        let state = Arc::new(Mutex::new(state));
        self.spawn_work(tasks, driver, &leadership, recorder, &state, stop_work.clone());
        let is_driver_lost = tokio::select! {
            biased;
            worked = supervise(tasks, &self.shutdown) => worked.map(|()| false),
            () = self.driver_stays_away() => Ok(true),
        };
        let term = match is_driver_lost {
            // Another replica may lead only from now on.
            Ok(false) => election::end(tasks, &stop_election, &state)
                .await
                .map(|()| Term::Over)?,
            Ok(true) => {
                let lease_duration = args.election.lease_duration.as_secs();
                tracing::warn!(
                    "no CSI driver for {lease_duration} s: releasing the lease, so that a replica with a working driver can lead"
                );
                // Syncs that wait for the driver end at once; calls that it may still execute get the grace period.
                stop_work.cancel();
                tasks.join(Task::Controller).await?;
                abandon(tasks, &stop_election, &state).await?;
                for task in [Task::Attachments, Task::Volumes, Task::Nodes] {
                    tasks.stop(task).await;
                }
                self.view.work_ends();
                Term::DriverLost(lock(&state).orphans())
            }
            // A lost lease cannot be released.
            Err(error @ Error::StoppedLeading(_)) => return Err(error),
            Err(error) => {
                if let Err(error) = abandon(tasks, &stop_election, &state).await {
                    tracing::warn!(error = chain(&error), "cannot end the leader election");
                }
                return Err(error);
            }
        };
        // The Event of the lost leadership is the last one.
        stop_events.cancel();
        tasks.join(Task::Events).await?;
        Ok(term)
    }

    /// Ends when the driver has been disconnected for a lease duration, if there is an election and no shutdown.
    async fn driver_stays_away(&self) {
        if !self.args.election.enabled {
            return std::future::pending().await;
        }
        let mut connection = self.connection.clone();
        loop {
            if connection.wait_for(Option::is_none).await.is_err() {
                // The connection manager ended.
                return std::future::pending().await;
            }
            // A value, as a borrow would block the connection manager.
            let back = async { connection.wait_for(Option::is_some).await.is_ok() };
            match tokio::time::timeout(self.args.election.lease_duration, back).await {
                Ok(true) => {}
                Err(_) if !self.shutdown.is_cancelled() => return,
                Ok(false) | Err(_) => return std::future::pending().await,
            }
        }
    }
}

/// The orphans for another term, if one follows. A lost lease, or any other failure of a task during the last term, must not lead to
/// a new candidacy.
fn next_term(tasks: &mut Tasks, term: Term) -> Result<Option<Vec<Arc<Orphan>>>, Error> {
    match (tasks.take_error(), term) {
        (Some(error), _) => Err(error),
        (None, Term::DriverLost(orphans)) => Ok(Some(orphans)),
        (None, Term::Over) => Ok(None),
    }
}

/// Waits for the controller. Any other task that ends earlier did so for an internal error or the loss of driver or
/// leadership: then the controller is stopped.
async fn supervise(tasks: &mut Tasks, shutdown: &CancellationToken) -> Result<(), Error> {
    match tasks.join_next().await {
        Some((Task::Controller, Ok(()))) if shutdown.is_cancelled() => Ok(()),
        Some(ended) => Err(unexpected_end(ended)),
        None => Ok(()),
    }
}

/// The error of a task that ended before the shutdown.
fn unexpected_end((task, result): (Task, Result<(), Error>)) -> Error {
    result.err().unwrap_or(Error::Task(task.name()))
}

/// Stops the controller like a crash, and releases the lease if no sync was running, so that other replicas need not wait
/// for its expiry.
async fn abandon(
    tasks: &mut Tasks,
    stop_election: &CancellationToken,
    state: &Mutex<ControllerState>,
) -> Result<(), Error> {
    for task in [Task::Controller, Task::Reconcile] {
        tasks.stop(task).await;
    }
    election::end(tasks, stop_election, state).await
}

/// Waits for a connection to the driver; `None` if the process shuts down first. A task that ends meanwhile ends the process.
async fn next_session(
    tasks: &mut Tasks,
    mut connection: watch::Receiver<ConnectionState>,
    shutdown: &CancellationToken,
) -> Result<Option<Arc<Session>>, Error> {
    let connected = async {
        let session = connection
            .wait_for(Option::is_some)
            .await
            .map(|session| session.clone());
        match session {
            Ok(session) => session,
            // The connection manager's task has ended, and has the cause.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(None),
        Some(ended) = tasks.join_next() => Err(unexpected_end(ended)),
        session = connected => Ok(session),
    }
}

// === impl Task ===

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Http => "HTTP server",
            Self::Health => "HTTP server of health",
            Self::Attachments => "watch of VolumeAttachments",
            Self::Volumes => "watch of PersistentVolumes",
            Self::Nodes => "watch of CSINodes",
            Self::Election => "leader election",
            Self::Reconcile => "reconcile",
            Self::Controller => "controller",
            Self::Events => "sending of Events",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lease is lost while the controller ends.
    pub(super) async fn lose_lease(tasks: &mut Tasks) {
        let lost = leader_election::LeadershipLost::Taken {
            lease: "ns/lease".to_owned(),
            holder: "other".to_owned(),
        };
        tasks.spawn(Task::Election, async { Err(lost.into()) });
        tasks.spawn(Task::Controller, async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(())
        });
        assert!(tasks.join(Task::Controller).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_ends_while_the_driver_is_awaited_ends_the_process() {
        let (shutdown, (connection_tx, connection)) = (CancellationToken::new(), watch::channel(None));
        let wait = async |tasks: &mut Tasks| {
            let session = next_session(tasks, connection.clone(), &shutdown);
            tokio::time::timeout(std::time::Duration::from_secs(3600), session).await
        };
        let mut tasks = Tasks::default();
        tasks.spawn(Task::Connection, std::future::pending());
        assert!(wait(&mut tasks).await.is_err(), "it waits for the driver");
        tasks.spawn(Task::Http, async { Ok(()) });
        let ended = wait(&mut tasks).await;
        assert!(matches!(ended, Ok(Err(Error::Task("HTTP server")))), "{ended:?}");
        // The end of a task that was noticed while another one was joined.
        lose_lease(&mut tasks).await;
        let ended = wait(&mut tasks).await;
        assert!(matches!(ended, Ok(Err(Error::StoppedLeading(_)))), "{ended:?}");
        connection_tx.send_replace(Some(Arc::new(Session::disconnected("d.example"))));
        assert!(matches!(wait(&mut tasks).await, Ok(Ok(Some(_)))));
        shutdown.cancel();
        assert!(matches!(wait(&mut tasks).await, Ok(Ok(None))));
    }

    #[tokio::test]
    async fn runs_no_further_election_if_a_task_ended() {
        let mut tasks = Tasks::default();
        let lost = || Term::DriverLost(Vec::new());
        assert!(matches!(next_term(&mut tasks, lost()), Ok(Some(_))));
        assert!(matches!(next_term(&mut tasks, Term::Over), Ok(None)));
        lose_lease(&mut tasks).await;
        let next = next_term(&mut tasks, lost());
        assert!(matches!(next, Err(Error::StoppedLeading(_))), "{next:?}");
    }
}
