//! Runs a driver: starts, names and joins its tasks.
//!
//! Shutdown order: the socket is removed, running calls get until a deadline to end, the state database is written. A task
//! that ends before the shutdown, or a failed write of the database, ends the driver with an error. A second signal cancels
//! the running calls and only bounds the cleanup of the node; a third one ends the process at once.
//!
//! While work of the process goes on, it holds its locks: those are released when all work has ended, else with the process.

use std::any::Any;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::registration::registration_server::RegistrationServer;
use futures::Stream;
use tokio::task::JoinError;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::JoinMap;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Server;
use tower_http::catch_panic::CatchPanic;

use crate::admin;
use crate::driver::abandoned;
use crate::driver::node_devices::LAST_STEP;
use crate::driver::{Driver, OpenError, Settings};
use crate::error_chain;
use crate::fault::{Exit, FaultFile};
use crate::proxy::Proxy;
use crate::proxy::relay::{Relay, RelayError};
use crate::service;
use crate::socket::authority::MAX_HEADER_LIST;
use crate::socket::{BindError, Connection, Listener};

use self::args::{Args, value};
use self::signals::Signals;

pub mod args;
pub mod clean;
mod ready;
pub mod replay;
mod signals;

/// Maximum number of concurrent calls per connection; more wait in the client. Without a limit, the HTTP/2 layer closes the
/// connection in a burst of some thousand calls.
const MAX_STREAMS: u32 = 1000;

/// Interval of retries for a lock that another process holds.
const LOCK_RETRY: Duration = Duration::from_millis(200);

/// Maximum time of one step on devices and files after a second signal, and of the cleanup of the node that follows.
const LAST_STEP_OF_ABORT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum Error {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("--endpoint")]
    Bind(#[source] BindError),
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error(transparent)]
    Admin(#[from] admin::BindError),
    #[error("--ready-file: cannot write {}", path.display())]
    ReadyFile { path: PathBuf, source: io::Error },
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
    #[error("--state-dir: cannot write the state database")]
    StateLost(#[source] Arc<io::Error>),
    #[error("cannot serve connections")]
    Transport(#[source] tonic::transport::Error),
    #[error("task \"{0}\" ended by itself")]
    TaskEnded(&'static str),
    #[error("a task panicked")]
    TaskPanicked(#[source] JoinError),
    #[error("exiting, as a fault rule or the admin API requires: {0}")]
    Ordered(Exit),
    #[error("--registration-dir")]
    RegistrationBind(#[source] BindError),
    #[error("kubelet rejected the plugin registration: {0}")]
    Refused(String),
    #[error("second signal: exiting without waiting for in-flight calls")]
    Aborted,
}

/// The driver's tasks by name.
type Tasks = JoinMap<&'static str, Result<(), Error>>;

/// Runs the driver until SIGTERM or SIGINT; a second signal cancels running calls, a third one the cleanup of the node.
///
/// # Errors
/// The driver cannot start, or ends without a signal.
pub async fn run(args: Args) -> Result<(), Error> {
    for note in &args.notes {
        tracing::warn!("{note}");
    }
    if args.faults.proxy_endpoint.is_given() {
        return relay(&args).await;
    }
    let ready_file = value::given(&args.ready_file);
    let unusable = |source| {
        let path = args.ready_file.clone();
        Error::ReadyFile { path, source }
    };
    if let Some(file) = &ready_file {
        ready::remove(file).map_err(unusable)?;
    }
    let mut signals = Signals::new(args.stop_on_stdin_eof).map_err(Error::Signals)?;
    let check = || match args.faults.listen_after {
        Duration::ZERO => Listener::check(&args.endpoint),
        _ => Ok(()),
    };
    let opened = tokio::select! {
        biased;
        () = signals.next() => return Ok(()),
        opened = open(args.settings(), args.lock_timeout, &check) => opened,
    };
    let (driver, faults) = opened?;
    tracing::info!(seed = driver.faults.seed.0, "random seed");
    // Before they exist: a killed process cannot note them.
    driver.note_paths(args.endpoint.path(), Some(&args.admin.admin_endpoint));
    let listener = match args.faults.listen_after {
        Duration::ZERO => Listener::bind(&args.endpoint).map_err(Error::Bind)?,
        late => {
            driver.socket_control.take_away(Some(late));
            Listener::later(&args.endpoint)
        }
    };
    let admin = args.admin.bind().await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        driver = driver.settings.name,
        socket = %listener.path().display(),
        "serving"
    );
    let admin_endpoint = admin.as_ref().map(admin::Server::endpoint);
    let write = |file| ready::write(file, &driver.settings.name, listener.path(), admin_endpoint);
    let mut ready = ready_file.as_deref().map(write).transpose().map_err(unusable)?;
    let stop = CancellationToken::new();
    {
        let mut serving = pin!(serve(
            driver.clone(),
            faults,
            listener,
            admin,
            stop.clone(),
            args.shutdown_grace
        ));
        loop {
            tokio::select! {
                biased;
                result = &mut serving => return result,
                () = signals.next() => {
                    if stop.is_cancelled() {
                        break;
                    }
                    tracing::info!("stopping");
                    // Before the next driver, which may write it, gets the locks.
                    drop(ready.take());
                    stop.cancel();
                }
            }
        }
    }
    tracing::warn!("second signal: cancelling running calls");
    tokio::select! {
        biased;
        () = abort(&driver) => {}
        () = signals.next() => {}
    }
    Err(Error::Aborted)
}

/// Cleans up after the tasks of a driver were dropped, in bounded time.
async fn abort(driver: &Driver) {
    driver.socket_control.cut_all();
    let limit = 2 * LAST_STEP_OF_ABORT;
    match time::timeout(limit, driver.leave(LAST_STEP_OF_ABORT)).await {
        Ok(true) => driver.close(),
        Ok(false) => {}
        Err(_) => tracing::warn!(
            ?limit,
            "mounts and devices of this node remain until the next start"
        ),
    }
}

/// Opens a driver. Waits for the lock of a process that it replaces, such as that of the previous pod.
async fn open(
    settings: Settings,
    lock_timeout: Duration,
    check: &impl Fn() -> Result<(), BindError>,
) -> Result<(Arc<Driver>, Option<FaultFile>), OpenError> {
    let deadline = Instant::now() + lock_timeout;
    let mut is_logged = false;
    loop {
        match Driver::open_if(settings.clone(), check) {
            Err(error) if error.is_in_use() && Instant::now() < deadline => {
                if !std::mem::replace(&mut is_logged, true) {
                    let error = error_chain(&error);
                    tracing::warn!(error, timeout = ?lock_timeout, "waiting for the lock");
                }
                time::sleep(LOCK_RETRY).await;
            }
            opened => return opened,
        }
    }
}

/// Serves a driver until `stop`, then gives running calls `grace` to end.
///
/// # Errors
/// It ends before `stop`.
pub async fn serve(
    driver: Arc<Driver>,
    faults: Option<FaultFile>,
    listener: Listener,
    admin: Option<admin::Server>,
    stop: CancellationToken,
    grace: Duration,
) -> Result<(), Error> {
    driver.sweep().await;
    let registration = match &driver.registrar {
        Some(registrar) => Some(Listener::bind(&registrar.socket().into()).map_err(Error::RegistrationBind)?),
        None => None,
    };
    driver.recover().await;
    abandoned::undo_all_and_log().await;
    let mut tasks = start(&driver, faults, listener, admin, &stop);
    if let (Some(registrar), Some(registration)) = (&driver.registrar, registration) {
        let incoming = registration.incoming(Arc::default());
        let service = RegistrationServer::from_arc(registrar.clone());
        tasks.spawn("registration", answer_calls(service, incoming, &stop));
    }

    let result = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        cause = driver.state_failed() => Err(Error::StateLost(cause)),
        how = driver.exit.requested() => {
            // As in a crash, there is no grace period.
            driver.socket_control.cut_all();
            tasks.shutdown().await;
            if driver.leave(LAST_STEP).await {
                driver.close();
            }
            return Err(Error::Ordered(how));
        }
        reason = driver.registration_failed() => Err(Error::Refused(reason)),
        Some((task, ended)) = tasks.join_next() => ended
            .unwrap_or_else(|panic| Err(Error::TaskPanicked(panic)))
            .and(Err(Error::TaskEnded(task))),
    };
    stop.cancel();
    if time::timeout(grace, finish(&driver, &mut tasks)).await.is_err() {
        tracing::warn!(grace = ?grace, calls = driver.work.len(), "running calls did not end in time, cut off");
        tasks.shutdown().await;
    }
    if driver.leave(LAST_STEP).await {
        driver.close();
    }
    result
}

fn start(
    driver: &Arc<Driver>,
    faults: Option<FaultFile>,
    listener: Listener,
    admin: Option<admin::Server>,
    stop: &CancellationToken,
) -> Tasks {
    let mut tasks = Tasks::new();
    let incoming = listener.incoming(driver.socket_control.clone());
    match driver.settings.proxy_to.clone() {
        Some(to) => {
            let proxy = Proxy::new(driver.clone(), to);
            tasks.spawn("server", answer_calls(proxy, incoming, stop));
        }
        None => tasks.spawn("server", answer_calls(service::services(driver), incoming, stop)),
    }
    if let Some(file) = faults {
        let (driver, stop) = (driver.clone(), stop.clone());
        tasks.spawn("faults", async move {
            let follow = file.follow(&driver.faults, driver.journal.as_deref());
            stop.run_until_cancelled(follow).await;
            Ok(())
        });
    }
    if driver.remote.is_some() {
        let (driver, stop) = (driver.clone(), stop.clone());
        tasks.spawn("array", async move {
            let result = driver.follow_array(stop).await;
            result.map_err(|error| OpenError::from(error).into())
        });
    }
    if let Some(admin) = admin {
        let (driver, stop) = (driver.clone(), stop.clone());
        tasks.spawn("admin", async move {
            if let Err(error) = admin.serve(driver, stop).await {
                tracing::error!(%error, "the admin API failed");
            }
            Ok(())
        });
    }
    tasks
}

fn answer_calls<S, I>(
    services: S,
    incoming: I,
    stop: &CancellationToken,
) -> impl Future<Output = Result<(), Error>> + use<S, I>
where
    I: Stream<Item = io::Result<Connection>> + Send + 'static,
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let server = Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_LIST)
        .serve_with_incoming_shutdown(
            CatchPanic::custom(services, panicked),
            incoming,
            stop.clone().cancelled_owned(),
        );
    async move { server.await.map_err(Error::Transport) }
}

/// The response of a call that panicked; otherwise its client would get a reset stream.
fn panicked(_: Box<dyn Any + Send>) -> http::Response<Body> {
    let error = crate::driver::error::Error::Broken;
    Status::new(error.code(), error.message()).into_http()
}

/// Runs a relay between two sockets instead of a driver until a signal.
async fn relay(args: &Args) -> Result<(), Error> {
    let (clients, drivers) = (&args.endpoint, &args.faults.proxy_endpoint);
    let mut signals = Signals::new(args.stop_on_stdin_eof).map_err(Error::Signals)?;
    let relay = Relay::bind(clients, drivers).await?;
    tracing::info!(clients = %clients.path().display(), %drivers, "passing bytes between connections");
    tokio::select! {
        biased;
        () = signals.next() => Ok(()),
        () = relay.run() => Ok(()),
    }
}

/// Waits for the server's last call and for operations whose clients have disconnected.
async fn finish(driver: &Driver, tasks: &mut Tasks) {
    while tasks.join_next().await.is_some() {}
    driver.work.close();
    driver.work.wait().await;
}

#[cfg(test)]
mod tests;
