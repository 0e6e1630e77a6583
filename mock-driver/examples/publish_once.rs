//! One ControllerPublishVolume for `mock-driver/scripts/count-path`: starts the driver that `CSI_MOCK_DRIVER_BIN` names,
//! opens a connection, publishes a volume (with `--idle` none), and ends the driver by SIGTERM, so that an instrumented
//! one writes its profile.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi_proto::v1::{ControllerPublishVolumeRequest, VolumeCapability};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;

/// Limit of each step.
const STEP: Duration = Duration::from_secs(30);

/// The client's preface of HTTP/2 and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let is_idle = std::env::args().nth(1).is_some_and(|arg| arg == "--idle");
    let program = std::env::var_os("CSI_MOCK_DRIVER_BIN").context("CSI_MOCK_DRIVER_BIN is not set")?;
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("csi.sock");
    let mut driver = Command::new(program)
        .arg(format!("--endpoint=unix://{}", socket.display()))
        .arg(format!(
            "--journal={}",
            directory.path().join("journal").display()
        ))
        .arg("--volumes=1")
        .spawn()
        .context("start the driver")?;
    let run = timeout(STEP, run(&socket, is_idle))
        .await
        .context("the driver does not respond");
    let end = end(&mut driver);
    run??;
    end
}

async fn run(socket: &Path, is_idle: bool) -> Result<()> {
    let mut connection = loop {
        match UnixStream::connect(socket).await {
            Ok(connection) => break connection,
            // No event announces that a socket accepts connections.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    };
    // The server has accepted the connection when its first frame arrives.
    connection.write_all(PREFACE).await?;
    connection
        .read_exact(&mut [0; 9])
        .await
        .context("open a connection")?;
    if is_idle {
        return Ok(());
    }
    let channel = Endpoint::from_shared(format!("unix:{}", socket.display()))?
        .connect()
        .await?;
    let request = ControllerPublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        node_id: "node-0".to_owned(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        ..ControllerPublishVolumeRequest::default()
    };
    ControllerClient::new(channel)
        .controller_publish_volume(request)
        .await?;
    Ok(())
}

fn end(driver: &mut Child) -> Result<()> {
    let pid = i32::try_from(driver.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.context("the driver's process id")?, Signal::TERM)?;
    let status = driver.wait()?;
    ensure!(status.success(), "the driver ended with {status}");
    Ok(())
}
