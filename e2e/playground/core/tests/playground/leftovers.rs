//! A cluster that the playground did not start has the same objects after it as before.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use csi_e2e::control_plane::{ControlPlane, Options};
use csi_e2e::kubeconfig;
use csi_e2e::process::Run;
use csi_e2e::toolchain::{Settings, Toolchain};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use super::program;

pub(crate) fn existing_cluster_is_clean_afterwards() -> Result<(), Failed> {
    let runtime = tokio::runtime::Runtime::new()?;
    Ok(runtime
        .block_on(on_control_plane())
        .map_err(|error| format!("{error:#}"))?)
}

async fn on_control_plane() -> Result<()> {
    let settings = Settings::of_test();
    let run = Run::start()?;
    let options = Options {
        scheduler: true,
        ..Options::default()
    };
    let plane = ControlPlane::start(&run, &Toolchain::new(&run, settings), &options).await?;
    let kubeconfig = plane.kubeconfig();
    let client = kubeconfig::client(kubeconfig).await?;
    let before = objects(&client).await?;

    interrupt(kubeconfig)?;
    let left: Vec<_> = objects(&client).await?.difference(&before).cloned().collect();
    ensure!(left.is_empty(), "left after an interrupt: {left:?}");

    let ended = playground(kubeconfig, "--once")?.status()?;
    ensure!(ended.success(), "--once after an interrupted run: {ended}");
    let left: Vec<_> = objects(&client).await?.difference(&before).cloned().collect();
    ensure!(left.is_empty(), "left after --once: {left:?}");

    plane.stop().await?;
    run.finish().await
}

/// Runs the playground, and interrupts it while a volume is mounted.
fn interrupt(kubeconfig: &Path) -> Result<()> {
    let mut child = playground(kubeconfig, "--plain")?
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().context("no stdout")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    ensure!(lines.any(|line| line.contains("pod web runs")), "no pod ran");
    let pid = Pid::from_raw(child.id().cast_signed()).context("no pid")?;
    kill_process(pid, Signal::INT)?;
    lines.for_each(drop);
    let ended = child.wait()?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}

fn playground(kubeconfig: &Path, flag: &str) -> Result<Command> {
    let mut command = program()?;
    command
        .args([flag, "--cluster", "kubeconfig"])
        .env("KUBECONFIG", kubeconfig);
    Ok(command)
}

/// Kind and name of the cluster-scoped objects.
async fn objects(client: &Client) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    found.extend(names::<Namespace>(client).await?);
    found.extend(names::<Node>(client).await?);
    found.extend(names::<PersistentVolume>(client).await?);
    found.extend(names::<ClusterRole>(client).await?);
    found.extend(names::<ClusterRoleBinding>(client).await?);
    found.extend(names::<CSIDriver>(client).await?);
    found.extend(names::<CSINode>(client).await?);
    found.extend(names::<VolumeAttachment>(client).await?);
    Ok(found)
}

async fn names<K>(client: &Client) -> Result<Vec<String>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects = Api::<K>::all(client.clone()).list(&ListParams::default()).await?;
    let name = |object: &K| format!("{} {}", K::kind(&()), object.name_any());
    Ok(objects.iter().map(name).collect())
}
