//! What is left of a cluster of real nodes whose harness is killed: nothing.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use csi_e2e::nodes::{DRIVER, loop_devices};
use csi_e2e::wait::{self, Progress};
use csi_e2e::{kubeconfig, process};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use crate::env::{EXT4, PodSpec, STEP, create_claim};

/// Ends the harness with the scenario.
struct Harness(Child);

impl Drop for Harness {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Kills the program that started the nodes while one pod has a volume mounted and another a raw block volume, and waits
/// until processes, mounts, cgroups, loop devices and files are gone.
pub(crate) async fn nothing_survives_a_killed_harness() -> Result<()> {
    let child = Command::new(env!("CARGO_BIN_EXE_nodes"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start the nodes")?;
    let mut harness = Harness(child);
    let stderr = harness.0.stderr.take().context("stderr must be piped")?;
    let found = tokio::task::spawn_blocking(move || kubeconfig_of(BufReader::new(stderr)));
    let admin = found.await.context("read what the harness writes")??;
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

    harness.0.kill().context("kill the harness")?;
    // The reaper removes it last.
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
    let name = run.file_name().context("a run's directory must have a name")?;
    for hierarchy in fs::read_dir("/sys/fs/cgroup")?.flatten() {
        let cgroup = hierarchy.path().join(name);
        ensure!(!cgroup.exists(), "{} is left", cgroup.display());
    }
    Ok(())
}

/// The file that the harness names when the nodes are ready.
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
    create_claim(&Api::namespaced(client.clone(), "default"), "raw", EXT4, "Block").await?;
    let pods = Api::<Pod>::namespaced(client, "default");
    let source = json!({"csi": {"driver": DRIVER, "fsType": "ext4", "volumeAttributes": {"size": "256Mi"}}});
    let pod = PodSpec::new("web", "echo hello >/data/greeting");
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
