//! Starts the HTTP servers of `--http-endpoint` and `--health-endpoint`.

use std::sync::{Arc, Mutex};

use axum::Router;
use futures::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Error, Task, Tasks};
use crate::args::Args;
use crate::controller::{Clock, Heartbeat};
use crate::csi::Calls;
use crate::http_server::{Auth, Tls, View, health_router, router, server};
use crate::kube_api::Clients;

/// Starts serving until `stop`, if a flag has an address, and returns the view that is served.
pub(super) async fn spawn(
    tasks: &mut Tasks,
    args: &Args,
    clock: Clock,
    clients: &Clients,
    calls: Calls,
    shutdown: &CancellationToken,
    stop: CancellationToken,
) -> Result<Arc<View>, Error> {
    let http = &args.http;
    let view = Arc::new(View {
        calls,
        requests: clients.counts.clone(),
        heartbeat: Heartbeat::default(),
        elects: args.election.enabled,
        election: Mutex::default(),
        state: Mutex::default(),
        shutdown: shutdown.clone(),
        started: Instant::now(),
        clock,
        metrics_path: http.metrics_path.clone(),
        serves_statusz: http.statusz,
    });
    if let Some(address) = &http.health_endpoint {
        let at = ("--health-endpoint", address.as_str());
        let router = health_router(view.clone());
        listen(tasks, Task::Health, at, router, None, stop.clone()).await?;
    }
    if let Some(at) = http.address() {
        let tls = http.has_tls().then(|| Tls::new(http.certificate()));
        let auth = http
            .http_auth
            .then(|| Auth::new(&clients.access, clients.counts.clone()));
        let router = router(view.clone(), auth);
        listen(tasks, Task::Http, at, router, tls.transpose()?, stop).await?;
    }
    Ok(view)
}

async fn listen(
    tasks: &mut Tasks,
    task: Task,
    (flag, address): (&'static str, &str),
    router: Router,
    tls: Option<Tls>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let listener = server::listen(address).await;
    let listener = listener.map_err(|source| Error::Listen(flag, address.to_owned(), source))?;
    tracing::info!(flag, address, tls = tls.is_some(), "serving HTTP");
    let serving = server::serve(listener, router, tls.map(Arc::new), stop);
    tasks.spawn(task, serving.map(Ok));
    Ok(())
}
