//! Clean-up of a cluster of real nodes after its harness is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use csi_e2e::nodes::{DRIVER, loop_devices};
use csi_e2e::wait::{self, Progress};
use csi_e2e::{kubeconfig, process};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use procfs::process::all_processes;
use procfs::{Current, Uptime};
use serde_json::json;

use crate::env::{EXT4, PodSpec, STEP, WRITE, create_claim};
use crate::shared_nodes::Prepared;

/// Kills the harness when dropped.
struct Harness(Child);

impl Drop for Harness {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Kills the program that started the nodes while one pod has a volume mounted and another a raw block volume, and waits
/// until processes, namespaces, mounts, cgroups, loop devices and files are gone.
pub(crate) async fn nothing_survives_a_killed_harness(prepared: Prepared) -> Result<()> {
    prepared.run.finish().await?;
    let child = Command::new(env!("CARGO_BIN_EXE_nodes"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start the nodes")?;
    let mut harness = Harness(child);
    let stderr = harness.0.stderr.take().context("stderr must be piped")?;
    let found = tokio::task::spawn_blocking(move || kubeconfig_of(BufReader::new(stderr)));
    let admin = found.await.context("read the harness's output")??;
    let run = admin
        .ancestors()
        .nth(2)
        .context("the kubeconfig must lie in the run's directory")?;

    run_pods(kubeconfig::client(&admin).await?).await?;
    let devices = loop_devices(run)?;
    let backing = |device: &Path| {
        let name = device.file_name().unwrap_or_default();
        fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()
    };
    let before: Vec<_> = devices.iter().map(|device| backing(device)).collect();
    ensure!(
        before.len() == 3 && before.iter().all(Option::is_some),
        "each volume must have a loop device, and the raw block volume one of kubelet's: {devices:?}"
    );
    ensure!(
        !process::processes_of(run)?.is_empty(),
        "processes must be found by the run's directory"
    );
    let namespaces = namespaces_below(harness.0.id())?;
    // The cgroups of each node, pod and container.
    ensure!(namespaces.len() >= 10, "the nodes' namespaces are {namespaces:?}");
    let killed_at = ticks_since_boot()?;

    harness.0.kill().context("kill the harness")?;
    // The reaper removes the run's directory last.
    let what = format!("{} to be removed", run.display());
    wait::poll(STEP, &what, || async {
        Ok(Progress::of(!run.exists(), || "it is left".to_owned()))
    })
    .await?;
    for (device, before) in devices.iter().zip(&before) {
        ensure!(
            backing(device) != *before,
            "{} is left with {before:?}",
            device.display()
        );
    }
    let processes = process::processes_of(run)?;
    ensure!(processes.is_empty(), "processes are left: {processes:?}");
    // The machine's init process still has to reap the killed processes.
    wait::poll(STEP, "the nodes' namespaces to have no process", || async {
        let members = members_of(&namespaces, killed_at)?;
        Ok(Progress::of(members.is_empty(), || {
            format!("{members:?} are left")
        }))
    })
    .await?;
    let name = run.file_name().context("a run's directory must have a name")?;
    for hierarchy in fs::read_dir("/sys/fs/cgroup")?.flatten() {
        let cgroup = hierarchy.path().join(name);
        ensure!(!cgroup.exists(), "{} is left", cgroup.display());
    }
    Ok(())
}

/// Namespaces of a process, by kind and inode.
type Namespaces = BTreeSet<(&'static str, u64)>;

/// The namespaces of the process's descendants that differ from ours. The processes of containers are descendants of their
/// node's init process.
fn namespaces_below(ancestor: u32) -> Result<Namespaces> {
    let parents: BTreeMap<_, _> = all_processes()
        .context("list processes")?
        .flatten()
        .filter_map(|process| Some((process.pid, process.stat().ok()?.ppid)))
        .collect();
    let ancestor = i32::try_from(ancestor).context("process ids are 32 bits")?;
    let descends = |pid: i32| {
        let mut ancestors = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        ancestors.any(|pid| pid == ancestor)
    };
    let descendants = parents.keys().copied().filter(|pid| descends(*pid));
    let mut namespaces: Namespaces = descendants
        .flat_map(|pid| namespaces_of(&pid.to_string()))
        .collect();
    for own in namespaces_of("self") {
        namespaces.remove(&own);
    }
    Ok(namespaces)
}

/// The namespaces of a process; empty if it has exited.
fn namespaces_of(process: &str) -> Namespaces {
    let inode = |kind: &'static str| {
        let file = fs::metadata(format!("/proc/{process}/ns/{kind}")).ok()?;
        Some((kind, file.ino()))
    };
    ["pid", "mnt", "net"].into_iter().filter_map(inode).collect()
}

/// The processes in these namespaces that were started before this time. The kernel reuses inodes, so a process that was
/// started later may be in a new namespace.
fn members_of(namespaces: &Namespaces, before: u64) -> Result<Vec<String>> {
    let mut members = Vec::new();
    for process in all_processes().context("list processes")?.flatten() {
        let Ok(stat) = process.stat() else {
            continue;
        };
        let of_process = namespaces_of(&process.pid.to_string());
        if stat.starttime < before && !of_process.is_disjoint(namespaces) {
            members.push(format!("{} {} {of_process:?}", stat.pid, stat.comm));
        }
    }
    Ok(members)
}

/// The current time in the unit of a process's start time.
fn ticks_since_boot() -> Result<u64> {
    let uptime = Uptime::current().context("read the uptime")?.uptime_duration();
    let ticks = u128::from(procfs::ticks_per_second()) * uptime.as_millis() / 1000;
    u64::try_from(ticks).context("count ticks")
}

/// The kubeconfig's path, which the harness prints when the nodes are ready.
fn kubeconfig_of(stderr: impl BufRead) -> Result<PathBuf> {
    let mut written = Vec::new();
    for line in stderr.lines() {
        let line = line.context("read a line")?;
        let named = line
            .split_once("--kubeconfig ")
            .and_then(|(_, rest)| rest.split(' ').next());
        if let Some(path) = named {
            return Ok(path.into());
        }
        written.push(line);
    }
    anyhow::bail!("the harness ended: {}", written.join("\n"))
}

async fn run_pods(client: Client) -> Result<()> {
    let claims = Api::namespaced(client.clone(), "default");
    create_claim(&claims, "raw", EXT4, "Block", "ReadWriteOnce").await?;
    let pods = Api::<Pod>::namespaced(client, "default");
    let source = json!({"csi": {"driver": DRIVER, "fsType": "ext4", "volumeAttributes": {"size": "256Mi"}}});
    let pod = PodSpec::new("web", WRITE);
    let mounted = pod.volume("data", source, json!({"mountPath": "/data"}));
    let raw = PodSpec::new("raw", "true").device("raw");
    for pod in [&mounted, &raw] {
        let pod = serde_json::from_value(pod.object()).context("write a pod")?;
        let created = pods.create(&PostParams::default(), &pod).await;
        created.context("create a pod")?;
    }
    for name in ["web", "raw"] {
        let what = format!("pod {name} to run");
        wait::for_object(&pods, name, STEP, &what, |pod| {
            let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
            Progress::of(status.phase.as_deref() == Some("Running"), || {
                format!("{:?}", status.conditions)
            })
        })
        .await?;
    }
    Ok(())
}
