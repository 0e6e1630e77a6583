//! The network of real nodes: a network namespace that routes between them and to the API server.
//!
//! The control plane stays on loopback of the machine. Nodes and pods reach the API server at the address of the Service
//! `kubernetes`, where a proxy in the namespace listens; the API server reaches kubelets through its egress selector, a
//! proxy on a Unix socket. The machine's own network does not change.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::process::{Process, Run, Spec};
use crate::wait::{self, Progress};

/// Address of the Service `kubernetes`: the first of the service range. There is no kube-proxy.
pub(super) const API_SERVER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const API_SERVER_PORT: u16 = 443;
/// Timeout of a program's start in its namespaces.
const ENTERED: Duration = Duration::from_secs(30);

/// The network namespace that connects the nodes.
pub(super) struct Network {
    run: Arc<Run>,
    holder: Process,
    /// Proxies run until this is dropped.
    _stop: oneshot::Sender<()>,
    listener: Option<std::net::TcpListener>,
    api_server: Option<JoinHandle<()>>,
}

/// The addresses of a node, by its number from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses(pub(super) u8);

// === impl Addresses ===

impl Addresses {
    /// Of the node.
    pub(super) fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 123, self.0, 2)
    }

    /// Of its router.
    fn router(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 123, self.0, 1)
    }

    /// Of its pods.
    pub(super) fn pods(self) -> String {
        format!("10.124.{}.0/24", self.0)
    }
}

// === impl Network ===

impl Network {
    /// Creates the namespace; `egress` is the path for the socket of the API server's egress selector.
    pub(super) async fn start(run: &Arc<Run>, egress: &Path) -> Result<Self> {
        let spec = Spec::new("network", "unshare").args(["--net", "--", "sleep", "infinity"]);
        let holder = Process::spawn(run, spec)?;
        let namespace = PathBuf::from(format!("/proc/{}/ns/net", holder.pid()));
        let own = fs::read_link("/proc/self/ns/net").context("find this process's network")?;
        wait::poll(ENTERED, "the nodes' network namespace", || async {
            holder.ensure_alive()?;
            let entered = fs::read_link(&namespace).context("find the nodes' network")? != own;
            Ok(Progress::of(entered, || "unshare has not made it".to_owned()))
        })
        .await?;
        let egress = UnixListener::bind(egress).context("listen for the API server's egress")?;
        let egress = egress.into_std().context("hand the egress socket over")?;
        let (listening_tx, listening) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("nodes-network".to_owned())
            .spawn(move || {
                let runtime = enter(&namespace).and_then(|listener| {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    Ok((runtime.context("start a runtime")?, listener))
                });
                let (runtime, result) = match runtime {
                    Ok((runtime, listener)) => (Some(runtime), Ok(listener)),
                    Err(error) => (None, Err(error)),
                };
                drop(listening_tx.send(result));
                if let Some(runtime) = runtime {
                    runtime.block_on(async {
                        tokio::select! {
                            served = serve_egress(egress) => log(served),
                            _ = stopped => {}
                        }
                    });
                }
            })
            .context("start the thread of the nodes' network")?;
        let listener = listening
            .await
            .context("the thread of the nodes' network ended")??;
        let network = Self {
            run: Arc::clone(run),
            holder,
            _stop: stop,
            listener: Some(listener),
            api_server: None,
        };
        let batch = format!("link set lo up\naddress add {API_SERVER}/32 dev lo\n");
        network.ip(network.holder.pid(), &batch).await?;
        let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward";
        let pid = network.holder.pid();
        in_namespaces(run, pid, &["--net"], &["sh", "-c", forward], "").await?;
        Ok(network)
    }

    /// Forwards connections of nodes and pods to the API server at its `address` on the machine.
    pub(super) fn serve_api_server(&mut self, address: SocketAddr) -> Result<()> {
        let listener = self.listener.take().context("the API server is served already")?;
        let listener = TcpListener::from_std(listener).context("listen for the nodes")?;
        self.api_server = Some(tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((mut client, _)) => drop(tokio::spawn(async move {
                        // If the API server is down, the client's connection is closed.
                        if let Ok(mut server) = TcpStream::connect(address).await {
                            drop(copy_bidirectional(&mut client, &mut server).await);
                        }
                    })),
                    Err(error) => log(Err(error.into())),
                }
            }
        }));
        Ok(())
    }

    /// Connects the node with the init process `pid`.
    pub(super) async fn connect(&self, name: &str, addresses: Addresses, pid: u32) -> Result<()> {
        let (node, router, pods) = (addresses.node(), addresses.router(), addresses.pods());
        let batch = format!(
            "link add name {name} type veth peer name eth0 netns {pid}\naddress add {router}/24 dev {name}\nlink set {name} up\n"
        );
        self.ip(self.holder.pid(), &batch).await?;
        let inside = format!(
            "link set lo up\naddress add {node}/24 dev eth0\nlink set eth0 up\nroute add default via {router}\n"
        );
        self.ip(pid, &inside).await?;
        let route = format!("route add {pods} via {node}\n");
        self.ip(self.holder.pid(), &route).await
    }

    pub(super) async fn stop(&self) -> Result<()> {
        if let Some(task) = &self.api_server {
            task.abort();
        }
        self.holder.kill().await.map(drop)
    }

    /// Runs a batch of `ip` in the network namespace of a process.
    async fn ip(&self, pid: u32, batch: &str) -> Result<()> {
        let command = ["ip", "-batch", "-"];
        in_namespaces(&self.run, pid, &["--net"], &command, batch)
            .await
            .map(drop)
    }
}

/// Runs a command in namespaces of a process, and returns its output.
pub(super) async fn in_namespaces(
    run: &Run,
    pid: u32,
    namespaces: &[&str],
    command: &[&str],
    input: &str,
) -> Result<String> {
    let (marker, value) = run.marker();
    let mut child = Command::new("nsenter")
        .args(["--target", &pid.to_string()])
        .args(namespaces)
        .arg("--")
        .args(command)
        .env(marker, value)
        .kill_on_drop(true)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run nsenter")?;
    let mut stdin = child.stdin.take().expect("stdin must be piped");
    stdin
        .write_all(input.as_bytes())
        .await
        .context("write to a command")?;
    drop(stdin);
    let output = child.wait_with_output().await.context("read from a command")?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Moves this thread into the network namespace and listens there for connections to the API server.
fn enter(namespace: &Path) -> Result<std::net::TcpListener> {
    let file = File::open(namespace).context("open the nodes' network")?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .context("enter the nodes' network")?;
    // A socket belongs to the namespace in which it was created.
    let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, API_SERVER_PORT));
    let listener = listener.context("listen in the nodes' network")?;
    listener.set_nonblocking(true).context("set up a listener")?;
    Ok(listener)
}

/// Handles the API server's `CONNECT host:port` requests by connections in the nodes' network.
async fn serve_egress(listener: std::os::unix::net::UnixListener) -> Result<()> {
    let listener = UnixListener::from_std(listener).context("listen for the API server's egress")?;
    loop {
        let (client, _) = listener
            .accept()
            .await
            .context("accept the API server's egress")?;
        drop(tokio::spawn(async move { log(connect_egress(client).await) }));
    }
}

async fn connect_egress(client: UnixStream) -> Result<()> {
    let mut client = BufReader::new(client);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        let read = client.read_line(&mut request).await.context("read CONNECT")?;
        ensure!(read > 0, "the API server sent no whole CONNECT");
    }
    let target = request
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split(' ').next());
    let target = target.with_context(|| format!("{request:?} is no CONNECT"))?;
    match TcpStream::connect(target).await {
        Ok(mut server) => {
            client
                .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                .await
                .context("respond to CONNECT")?;
            drop(copy_bidirectional(&mut client, &mut server).await);
        }
        Err(error) => {
            let response = format!("HTTP/1.1 502 {error}\r\n\r\n");
            client
                .write_all(response.as_bytes())
                .await
                .context("respond to CONNECT")?;
        }
    }
    Ok(())
}

fn log(result: Result<()>) {
    if let Err(error) = result {
        tracing::debug!("nodes' network: {error:#}");
    }
}
