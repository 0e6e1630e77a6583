//! gRPC clients of other languages against every socket of the mock driver: grpc-go, dialling as kubelet and
//! as the sidecars do, and grpcio, which is gRPC's C core (Python, C++, Ruby, PHP). Both send the path of the
//! socket as `:authority`.
//!
//! grpcio comes from PyPI. `CSI_E2E_PYTHON` names an interpreter that has it, instead of `python3`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::{Process, Spec, stdout_of, stop_in_reverse, wait_until_listening};
use csi_e2e::test_binary::{self, TestBinary};
use csi_e2e::toolchain::Peer;
use tokio::process::Command;
use verdict::Requirement::{Grpcio, RealComponents};

/// Maximum time for a driver to listen, and to exit.
const DEADLINE: Duration = Duration::from_secs(20);
/// Timeout of a client, whose calls take milliseconds.
const CLIENT: Duration = Duration::from_secs(60);

const DRIVER: &str = "clients.csi.local";
/// Calls GetPluginInfo or GetInfo on each given socket.
const GRPCIO_CLIENT: &str = include_str!("client.py");

/// A driver that registers itself, and a fault proxy in front of it.
struct Drivers {
    processes: Vec<Process>,
    binary: PathBuf,
    dir: PathBuf,
}

fn main() -> Result<ExitCode> {
    test_binary::main(|binary| {
        vec![
            binary.trial("grpc_go_reaches_every_socket", &[RealComponents], grpc_go),
            binary.trial(
                "proxy_passes_calls_of_grpc_go_unchanged",
                &[RealComponents],
                grpc_go_on_both_sides,
            ),
            binary.trial("grpcio_reaches_every_socket", &[Grpcio], grpcio),
        ]
    })
}

async fn grpc_go(harness: &TestBinary) -> Result<()> {
    let drivers = Drivers::start(harness, "go").await?;
    ensure!(
        !drivers.is_ready().await?,
        "the driver must not be ready before kubelet has registered it"
    );
    let client = harness.toolchain.peer(Peer::GrpcClients).await?;
    for (service, socket) in drivers.sockets() {
        let printed = output(Command::new(&client).arg(service).arg(&socket)).await?;
        for dialler in ["kubelet", "sidecar"] {
            let line = format!("{dialler} {service} {DRIVER}");
            let calls = printed.lines().filter(|other| *other == line).count();
            ensure!(
                calls == 3,
                "{}: 3 lines \"{line}\" expected:\n{printed}",
                socket.display()
            );
        }
    }
    ensure!(
        drivers.is_ready().await?,
        "the driver must be ready after kubelet has registered it"
    );
    stop_in_reverse(&drivers.processes, DEADLINE).await
}

/// Metadata, trailers, status details, compression, streams, unknown methods, deadlines and cancellations with grpc-go on
/// both sides: the same with and without the fault proxy in between.
async fn grpc_go_on_both_sides(harness: &TestBinary) -> Result<()> {
    let peer = harness.toolchain.peer(Peer::GrpcProxied).await?;
    let binary = harness.toolchain.csi_mock_driver().await?;
    let dir = harness.run.subdir("proxied")?;
    let (server, proxy) = (dir.join("server.sock"), dir.join("proxy.sock"));
    let behind = Spec::new("server", &peer)
        .arg("serve")
        .arg(server.display().to_string());
    let behind = Process::spawn(&harness.run, behind)?;
    behind
        .while_alive(wait_until_listening(&server, DEADLINE))
        .await?;
    let front = Spec::new("proxy", &binary)
        .arg(format!("--endpoint={}", proxy.display()))
        .arg(format!("--proxy-to={}", server.display()));
    let front = Process::spawn(&harness.run, front)?;
    front.while_alive(wait_until_listening(&proxy, DEADLINE)).await?;
    let direct = output(Command::new(&peer).arg("call").arg(&server)).await?;
    let proxied = output(Command::new(&peer).arg("call").arg(&proxy)).await?;
    ensure!(direct.lines().count() >= 18, "too few calls:\n{direct}");
    ensure!(
        direct == proxied,
        "without proxy:\n{direct}\nwith proxy:\n{proxied}"
    );
    front.stop(DEADLINE).await?;
    behind.stop(DEADLINE).await?;
    Ok(())
}

async fn grpcio(harness: &TestBinary) -> Result<()> {
    let python = harness.toolchain.settings().python.clone();
    let python = python.unwrap_or_else(|| "python3".into());
    let drivers = Drivers::start(harness, "grpcio").await?;
    for (service, socket) in drivers.sockets() {
        let printed = output(
            Command::new(&python)
                .args(["-c", GRPCIO_CLIENT, service])
                .arg(&socket),
        )
        .await?;
        ensure!(
            printed == format!("{DRIVER}\n").repeat(3),
            "{}: {printed}",
            socket.display()
        );
    }
    stop_in_reverse(&drivers.processes, DEADLINE).await
}

/// Output of a client.
async fn output(command: &mut Command) -> Result<String> {
    tokio::time::timeout(CLIENT, stdout_of(command))
        .await
        .context("the client hangs")?
}

// === impl Drivers ===

impl Drivers {
    async fn start(harness: &TestBinary, name: &str) -> Result<Self> {
        let mut drivers = Self {
            processes: Vec::new(),
            binary: harness.toolchain.csi_mock_driver().await?,
            dir: harness.run.subdir(name)?,
        };
        let path = |file: &str| drivers.dir.join(file).display().to_string();
        let driver = Spec::new("driver", &drivers.binary)
            .arg(format!("--endpoint={}", path("csi.sock")))
            .arg(format!("--driver-name={DRIVER}"))
            .arg("--node-id=node-0")
            .arg("--devices=emulated")
            .arg(format!("--media-dir={}", path("media")))
            .arg(format!("--registration-dir={}", path("")))
            .arg(format!("--admin-endpoint={}", path("admin.sock")));
        let proxy = Spec::new("proxy", &drivers.binary)
            .arg(format!("--endpoint={}", path("proxy.sock")))
            .arg(format!("--proxy-to={}", path("csi.sock")));
        let registration = format!("{DRIVER}-reg.sock");
        for (spec, sockets) in [
            (driver, &["csi.sock", registration.as_str()][..]),
            (proxy, &["proxy.sock"]),
        ] {
            let process = Process::spawn(&harness.run, spec)?;
            for socket in sockets {
                process
                    .while_alive(wait_until_listening(&drivers.dir.join(socket), DEADLINE))
                    .await?;
            }
            drivers.processes.push(process);
        }
        Ok(drivers)
    }

    /// The sockets, each with its service.
    fn sockets(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("csi", self.dir.join("csi.sock")),
            ("csi", self.dir.join("proxy.sock")),
            ("registration", self.dir.join(format!("{DRIVER}-reg.sock"))),
        ]
    }

    /// Result of a readiness probe.
    async fn is_ready(&self) -> Result<bool> {
        let endpoint = format!("--admin-endpoint={}", self.dir.join("admin.sock").display());
        let probe = Command::new(&self.binary)
            .args(["ctl", &endpoint, "ready"])
            .output()
            .await?;
        match probe.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => anyhow::bail!("ctl ready: {}", String::from_utf8_lossy(&probe.stderr)),
        }
    }
}
