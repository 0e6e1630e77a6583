//! SSH access to the nodes, for tests that stop and start kubelet: a bastion outside the nodes that handles the
//! commands for all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use csi_e2e::nodes::{RealNode, RealNodes};
use csi_e2e::process::{Process, Spec};
use csi_e2e::wait::{self, Progress};

/// Timeout of the bastion's start.
const READY: Duration = Duration::from_secs(60);

/// A bastion that runs until it is dropped.
pub(crate) struct Ssh {
    pub(crate) bastion: Process,
    /// Address of the bastion.
    pub(crate) address: String,
    /// File with the private key of its clients.
    pub(crate) key: PathBuf,
    _kubelets: JoinSet<()>,
}

// === impl Ssh ===

impl Ssh {
    /// Starts the bastion `program` with its files in `dir`.
    pub(crate) async fn start(nodes: &RealNodes, program: &Path, dir: &Path) -> Result<Self> {
        let socket = dir.join("kubelets.sock");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("listen at {}", socket.display()))?;
        let mut kubelets = JoinSet::new();
        kubelets.spawn(serve(listener, nodes.nodes().to_vec()));
        let (address, key) = (dir.join("bastion"), dir.join("id_ed25519"));
        let mut spec = Spec::new("ssh", program)
            .arg(format!("--kubelets={}", socket.display()))
            .arg(format!("--address={}", address.display()))
            .arg(format!("--key={}", key.display()));
        for node in nodes.nodes() {
            spec = spec.arg(format!(
                "--node={},{},{}",
                node.name(),
                node.address(),
                node.init()?
            ));
        }
        let bastion = Process::spawn(nodes.run(), spec)?;
        let address = wait::poll(READY, "the SSH bastion to listen", || async {
            bastion.ensure_alive()?;
            Ok(match std::fs::read_to_string(&address) {
                Ok(address) => Progress::Reached(address),
                Err(error) => Progress::Pending(error.to_string()),
            })
        })
        .await?;
        Ok(Self {
            bastion,
            address,
            key,
            _kubelets: kubelets,
        })
    }
}

/// Handles one line per connection, a node and a systemctl verb, and responds with an exit code and a text.
async fn serve(listener: UnixListener, nodes: Vec<Arc<RealNode>>) {
    while let Ok((connection, _)) = listener.accept().await {
        if let Err(error) = serve_command(connection, &nodes).await {
            tracing::warn!(error = format!("{error:#}"), "systemctl failed");
        }
    }
}

async fn serve_command(mut connection: UnixStream, nodes: &[Arc<RealNode>]) -> Result<()> {
    let mut line = String::new();
    BufReader::new(&mut connection)
        .read_line(&mut line)
        .await
        .context("read a command")?;
    let response = match systemctl(line.trim(), nodes).await {
        Ok(text) => format!("0 {text}"),
        Err(error) => format!("1 {error:#}"),
    };
    connection
        .write_all(response.as_bytes())
        .await
        .context("respond to a command")
}

async fn systemctl(command: &str, nodes: &[Arc<RealNode>]) -> Result<&'static str> {
    let (name, verb) = command.split_once(' ').context("a command has two words")?;
    let node = nodes.iter().find(|node| node.name() == name);
    let node = node.with_context(|| format!("there is no node {name}"))?;
    match (verb, node.runs_kubelet()) {
        ("start", false) => node.start_kubelet().map(|()| ""),
        ("stop", true) => node.kill_kubelet().await.map(|()| ""),
        ("start" | "stop", _) => Ok(""),
        // The suite only reads ActiveState.
        ("show", true) => Ok("active"),
        ("show", false) => Ok("inactive"),
        _ => bail!("systemctl {verb} is not served"),
    }
}
