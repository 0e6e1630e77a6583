//! A user's own claim: the playground's StorageClass provisions its volume, and a pod runs with it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::kubeconfig;
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::program;

const STEP_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn gets_a_volume() -> Result<(), Failed> {
    let runtime = tokio::runtime::Runtime::new()?;
    Ok(runtime
        .block_on(claim_and_pod())
        .map_err(|error| format!("{error:#}"))?)
}

async fn claim_and_pod() -> Result<()> {
    let mut child = program()?
        .args(["--plain", "--web"])
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().context("no stdout")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let kubeconfig = lines.find_map(|line| {
        let (_, rest) = line.split_once("--kubeconfig ")?;
        rest.split_whitespace().next().map(PathBuf::from)
    });
    let ran = match kubeconfig {
        Some(kubeconfig) => {
            // The class exists from here on.
            ensure!(
                lines.any(|line| line.contains("StorageClass playground-mock")),
                "no StorageClass"
            );
            let reader = std::thread::spawn(move || lines.for_each(drop));
            let ran = pod_runs(&kubeconfig).await;
            kill_process(
                Pid::from_raw(child.id().cast_signed()).context("no pid")?,
                Signal::INT,
            )?;
            drop(reader.join());
            ran
        }
        None => Err(anyhow::anyhow!("the playground names no kubeconfig")),
    };
    let ended = child.wait()?;
    ran?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}

async fn pod_runs(kubeconfig: &std::path::Path) -> Result<()> {
    let client = kubeconfig::client(kubeconfig).await?;
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "mine"},
        "spec": {
            "storageClassName": "playground-mock", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "mine"},
        "spec": {
            "containers": [{"name": "main", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}],
        },
    }))?;
    let post = PostParams::default();
    Api::<PersistentVolumeClaim>::namespaced(client.clone(), "default")
        .create(&post, &claim)
        .await?;
    let pods = Api::<Pod>::namespaced(client, "default");
    pods.create(&post, &pod).await?;
    wait::for_object(&pods, "mine", STEP_TIMEOUT, "the pod to run", |pod| {
        let status = pod.and_then(|pod| pod.status.as_ref());
        match status.and_then(|status| status.phase.as_deref()) {
            Some("Running") => Progress::Reached(()),
            phase => Progress::Pending(format!("its phase is {phase:?}")),
        }
    })
    .await
}
