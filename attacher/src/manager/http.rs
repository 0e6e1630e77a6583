//! Starts the HTTP server of `--http-endpoint`.

use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Error, Task, Tasks};
use crate::args::Args;
use crate::controller::{Clock, Heartbeat};
use crate::csi::Calls;
use crate::http_server::{View, router, server};
use crate::kube_api::Clients;

/// Starts serving until `stop`, if a flag has an address, and returns the view that is served.
///
/// # Errors
///
/// When the address is unusable.
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
    let (flag, address) = match (&http.endpoint, &http.metrics_address) {
        (Some(address), _) => ("--http-endpoint", address),
        (None, Some(address)) => ("--metrics-address", address),
        (None, None) => return Ok(view),
    };
    let listener = server::listen(address).await;
    let listener = listener.map_err(|source| Error::Listen(flag, address.clone(), source))?;
    tracing::info!(%address, metrics = http.metrics_path, "serving HTTP");
    let router = router(view.clone());
    tasks.spawn(Task::Http, server::serve(listener, router, stop).map(Ok));
    Ok(view)
}
