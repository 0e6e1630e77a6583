//! How many publish calls a second a running driver answers over one connection.
//!
//! ```text
//! csi-mock-driver --endpoint /tmp/csi.sock --volumes 10000 --nodes 100 &
//! cargo run --release --example publish_rate -- /tmp/csi.sock 64 200000
//! ```
//! The arguments are the socket, the calls in flight and the calls in all. Each worker attaches a
//! volume of its own and then detaches it, over and over; both are counted.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};
use csi_proto::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

/// The driver's default number of nodes, so that any driver will do.
const NODES: usize = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let socket = args.next().context("first argument: the driver's socket")?;
    let in_flight: usize = args.next().context("second argument: calls in flight")?.parse()?;
    let calls: usize = args.next().context("third argument: calls in all")?.parse()?;

    let channel = Endpoint::from_shared(format!("unix:{socket}"))?.connect().await?;
    let left = Arc::new(AtomicUsize::new(calls / 2));
    let mut workers = JoinSet::new();
    let start = Instant::now();
    for number in 0..in_flight {
        workers.spawn(work(ControllerClient::new(channel.clone()), number, left.clone()));
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    let took = start.elapsed();
    let rate = calls as f64 / took.as_secs_f64();
    writeln!(
        std::io::stdout(),
        "{calls} calls, {in_flight} in flight, {took:.2?}: {rate:.0} calls/s"
    )?;
    Ok(())
}

async fn work(mut client: ControllerClient<Channel>, number: usize, left: Arc<AtomicUsize>) -> Result<()> {
    let volume_id = format!("vol-{number}");
    let node_id = format!("node-{}", number % NODES);
    let capability = VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    };
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
        .is_ok()
    {
        let publish = ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: node_id.clone(),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        client.controller_publish_volume(publish).await?;
        let unpublish = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: node_id.clone(),
            ..Default::default()
        };
        client.controller_unpublish_volume(unpublish).await?;
    }
    Ok(())
}
