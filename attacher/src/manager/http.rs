//! Starts the HTTP server of `--http-endpoint`.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Error, Task, Tasks};
use crate::args::Args;
use crate::controller::Heartbeat;
use crate::csi::Calls;
use crate::http_server::{View, router, server};
use crate::kube_api::Clients;

/// The view that the HTTP server renders.
pub(super) fn view(
    args: &Args,
    clock: fn() -> Timestamp,
    clients: &Clients,
    calls: Calls,
    shutdown: &CancellationToken,
) -> Arc<View> {
    Arc::new(View {
        calls,
        requests: clients.counts.clone(),
        heartbeat: Heartbeat::default(),
        elects: args.election.enabled,
        election: Mutex::default(),
        state: Mutex::default(),
        shutdown: shutdown.clone(),
        started: Instant::now(),
        clock,
        metrics_path: args.http.metrics_path.clone(),
        serves_statusz: args.http.statusz,
    })
}

/// Starts serving `view` until `stop`, if a flag has an address.
///
/// # Errors
///
/// When the address is unusable.
pub(super) async fn spawn(
    tasks: &mut Tasks,
    args: &Args,
    view: Arc<View>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let http = &args.http;
    let (flag, address) = match (&http.endpoint, &http.metrics_address) {
        (Some(address), _) => ("--http-endpoint", address),
        (None, Some(address)) => ("--metrics-address", address),
        (None, None) => return Ok(()),
    };
    let listener = server::listen(address).await;
    let listener = listener.map_err(|source| Error::Listen(flag, address.clone(), source))?;
    tracing::info!(%address, metrics = http.metrics_path, "serving HTTP");
    tasks.spawn(Task::Http, async move {
        server::serve(listener, router(view), stop).await;
        Ok(())
    });
    Ok(())
}
