//! Throughput and memory of drivers: this one, and csi-driver-host-path if given.
//!
//! ```text
//! cargo build --release -p csi-mock-driver --bins --examples
//! target/release/examples/driver_rate --host-path /path/to/hostpathplugin
//! ```
//! The drivers run one after the other on a Unix socket, each measured over one connection. Publish and unpublish are counted
//! with 64 calls in flight, each for a separate volume. Then volumes are created up to each requested number, and listed.
//! Client and driver share the cores, so the CPU time of both is reported: if the sum equals the elapsed time of all cores,
//! the CPU is the limit.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi_proto::v1::{
    CapacityRange, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    ListVolumesRequest, VolumeCapability,
};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

/// Calls in flight.
const IN_FLIGHT: usize = 64;
/// The size of volumes.
const BYTES: i64 = 1 << 20;
/// Timeout until a driver listens.
const START: Duration = Duration::from_secs(20);
/// Ticks of CPU time per second on all supported platforms.
const TICKS: u64 = 100;
/// Larger than any page.
const LARGEST_ANSWER: usize = 1 << 30;

/// Measures drivers over a Unix socket.
#[derive(Parser)]
struct Args {
    /// csi-mock-driver. Default: the one in this program's target directory.
    #[arg(long)]
    ours: Option<PathBuf>,
    /// hostpathplugin of csi-driver-host-path, which is measured in the same run.
    #[arg(long)]
    host_path: Option<PathBuf>,
    /// Numbers of volumes at which they are listed, in ascending order.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 50_000, 100_000])]
    volumes: Vec<usize>,
    /// Number of volumes of host-path, which rewrites its whole state for each.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 2_000, 4_000])]
    host_path_volumes: Vec<usize>,
    /// Entries of a page of ListVolumes.
    #[arg(long, default_value_t = 1000)]
    page: i32,
    /// Duration of the publish calls, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// A driver under measurement.
struct Contender {
    name: &'static str,
    command: Command,
    node: &'static str,
    volumes: Vec<usize>,
    /// Entries of a page, or 0 for a driver that cannot page.
    page: i32,
}

/// A running driver, which is killed when dropped.
struct Running {
    child: Child,
    client: ControllerClient<Channel>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let directory = tempfile::tempdir()?;
    for contender in contenders(&args, directory.path())? {
        let name = contender.name;
        let measured = measure(contender, directory.path(), args.seconds).await;
        measured.with_context(|| format!("measure {name}"))?;
    }
    Ok(())
}

fn contenders(args: &Args, directory: &Path) -> Result<Vec<Contender>> {
    let endpoint = format!("--endpoint=unix://{}", directory.join(SOCKET).display());
    let ours = match &args.ours {
        Some(path) => path.clone(),
        None => beside_this("csi-mock-driver")?,
    };
    let mock = |name, flags: &[String]| {
        let mut command = Command::new(&ours);
        command.arg(&endpoint).arg("--nodes=1000").args(flags);
        Contender {
            name,
            command,
            node: "node-0",
            volumes: args.volumes.clone(),
            page: args.page,
        }
    };
    let state = directory.join("state");
    let mut all = vec![
        mock("ours, in memory", &[]),
        mock("ours, durable", &[format!("--state-dir={}", state.display())]),
    ];
    if let Some(path) = &args.host_path {
        let mut command = Command::new(path);
        let state = directory.join("host-path");
        command
            .arg(&endpoint)
            .args([
                "--nodeid=node-0",
                "--drivername=hostpath.csi.k8s.io",
                "--enable-attach",
                "-v=0",
            ])
            .arg(format!("--statedir={}", state.display()));
        all.push(Contender {
            name: "host-path",
            command,
            node: "node-0",
            volumes: args.host_path_volumes.clone(),
            page: 0,
        });
    }
    for directory in [state, directory.join("host-path")] {
        std::fs::create_dir_all(directory)?;
    }
    Ok(all)
}

async fn measure(contender: Contender, directory: &Path, seconds: u64) -> Result<()> {
    let Contender {
        name,
        command,
        node,
        volumes,
        page,
    } = contender;
    let mut driver = Running::start(command, &directory.join(SOCKET)).await?;
    let idle = driver.memory()?;
    say(&format!("{name}: {:.1} MB when idle", idle as f64 / 1e6))?;

    let handles = driver.create(0..IN_FLIGHT).await?;
    let window = Duration::from_secs(seconds);
    driver.publish(&handles, node, window / 5).await?;
    let (before, client_before) = (cpu_time(driver.child.id())?, cpu_time(std::process::id())?);
    let started = Instant::now();
    let calls = driver.publish(&handles, node, window).await?;
    let took = started.elapsed().as_secs_f64();
    let micros = |used: Duration| used.as_secs_f64() * 1e6 / calls as f64;
    say(&format!(
        "{name}: {:.0} publish and unpublish calls a second, {IN_FLIGHT} in flight; processor time of a call: \
         driver {:.0} us, client {:.0} us",
        calls as f64 / took,
        micros(cpu_time(driver.child.id())? - before),
        micros(cpu_time(std::process::id())? - client_before),
    ))?;

    let mut there = IN_FLIGHT;
    for size in volumes {
        ensure!(
            size > there,
            "--volumes: {size} must be more than the number of volumes before, {there}"
        );
        let started = Instant::now();
        driver.create(there..size).await?;
        let rate = (size - there) as f64 / started.elapsed().as_secs_f64();
        there = size;
        let memory = driver.memory()?;
        let started = Instant::now();
        let (listed, pages) = driver.list(page).await?;
        let took = started.elapsed();
        ensure!(listed == size, "{listed} of {size} volumes are listed");
        say(&format!(
            "{name}: {size} volumes: made {rate:.0} a second; listed in {took:.1?} ({pages} pages, {:.2} us a volume); \
             {:.1} MB, {:.0} bytes a volume",
            took.as_secs_f64() * 1e6 / size as f64,
            memory as f64 / 1e6,
            memory.saturating_sub(idle) as f64 / size as f64,
        ))?;
    }
    Ok(())
}

// === impl Running ===

impl Running {
    async fn start(mut command: Command, socket: &Path) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = child.spawn().with_context(|| format!("start {command:?}"))?;
        let deadline = Instant::now() + START;
        while UnixStream::connect(socket).await.is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            ensure!(Instant::now() < deadline, "{command:?} does not listen");
            // There is no event for the start of listening.
            sleep(Duration::from_millis(20)).await;
        }
        let channel = Endpoint::from_shared(format!("unix:{}", socket.display()))?
            .connect()
            .await?;
        let client = ControllerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER);
        Ok(Self { child, client })
    }

    /// Repeatedly publishes and unpublishes each volume, and counts the calls.
    async fn publish(&self, handles: &[String], node: &str, window: Duration) -> Result<usize> {
        let end = Instant::now() + window;
        let work = handles.iter().map(|handle| async move {
            let mut client = self.client.clone();
            let mut calls = 0;
            while Instant::now() < end {
                client.controller_publish_volume(publish(handle, node)).await?;
                client
                    .controller_unpublish_volume(unpublish(handle, node))
                    .await?;
                calls += 2;
            }
            anyhow::Ok(calls)
        });
        let counts = futures::future::try_join_all(work).await?;
        Ok(counts.into_iter().sum())
    }

    async fn create(&self, numbers: std::ops::Range<usize>) -> Result<Vec<String>> {
        let made = stream::iter(numbers).map(|number| async move {
            let answer = self.client.clone().create_volume(create(number)).await?;
            let volume = answer
                .into_inner()
                .volume
                .context("CreateVolume returned no volume")?;
            anyhow::Ok(volume.volume_id)
        });
        made.buffer_unordered(IN_FLIGHT).try_collect().await
    }

    /// Counts all volumes and the pages of the list.
    async fn list(&mut self, max_entries: i32) -> Result<(usize, usize)> {
        let (mut listed, mut pages, mut starting_token) = (0, 0, String::new());
        loop {
            let request = ListVolumesRequest {
                max_entries,
                starting_token,
            };
            let page = self.client.list_volumes(request).await?.into_inner();
            listed += page.entries.len();
            pages += 1;
            if page.next_token.is_empty() {
                return Ok((listed, pages));
            }
            starting_token = page.next_token;
        }
    }

    /// Current resident memory in bytes.
    fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kilobytes = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()
        });
        Ok(kilobytes.context("a process must have a size")? << 10)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if the process has exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// === functions ===

/// Name of the drivers' socket.
const SOCKET: &str = "csi.sock";

/// Processor time that a process has used.
fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields are counted after the command, which may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ").context("a process must have a command")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>().context("ticks must be numbers")?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS))
}

fn beside_this(program: &str) -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let built_into = this
        .parent()
        .and_then(Path::parent)
        .context("an example must lie in a target directory")?;
    let path = built_into.join(program);
    ensure!(
        path.exists(),
        "--ours: {} is not there: build it first",
        path.display()
    );
    Ok(path)
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn create(number: usize) -> CreateVolumeRequest {
    CreateVolumeRequest {
        // As long as a provisioner's names.
        name: format!("pvc-00000000-0000-0000-0000-{number:012}"),
        capacity_range: Some(CapacityRange {
            required_bytes: BYTES,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![capability()],
        ..CreateVolumeRequest::default()
    }
}

fn publish(handle: &str, node: &str) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: handle.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability()),
        ..ControllerPublishVolumeRequest::default()
    }
}

fn unpublish(handle: &str, node: &str) -> ControllerUnpublishVolumeRequest {
    ControllerUnpublishVolumeRequest {
        volume_id: handle.to_owned(),
        node_id: node.to_owned(),
        ..ControllerUnpublishVolumeRequest::default()
    }
}
