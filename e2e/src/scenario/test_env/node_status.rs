//! Checks of `node.status.volumesAttached`, which the attach/detach controller reports.

use std::collections::BTreeSet;
use std::pin::pin;

use anyhow::{Context, Result};
use embedded_cluster::volume::unique_volume_name;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{STEP_TIMEOUT, TestEnv, TestVolume};
use crate::wait::{self, Progress};

/// Every state of one node's `volumesAttached`, with the resourceVersion of the Node.
pub struct VolumesAttached {
    driver: String,
    states: watch::Receiver<Vec<(u64, BTreeSet<String>)>>,
    _task: JoinSet<()>,
}

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Waits until the node's `volumesAttached` has these volumes of the driver and no others.
    pub async fn wait_for_volumes_attached(&self, node: usize, volumes: &[&TestVolume]) -> Result<()> {
        let name = |volume: &&TestVolume| unique_volume_name(self.driver.name(), &volume.handle);
        let wanted: BTreeSet<_> = volumes.iter().map(name).collect();
        let node = self.node(node).name();
        let nodes = Api::<Node>::all(self.client());
        let what = format!("volumesAttached of {node} to be {wanted:?}");
        wait::for_object(&nodes, node, STEP_TIMEOUT, &what, |node| {
            let attached = node.map(volumes_attached).unwrap_or_default();
            Progress::of(attached == wanted, || format!("it is {attached:?}"))
        })
        .await
    }

    /// Records the node's `volumesAttached` from now on.
    pub async fn follow_volumes_attached(&self, node: usize) -> Result<VolumesAttached> {
        let api = Api::<Node>::all(self.client());
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.node(node).name()));
        let (states_tx, mut states) = watch::channel(Vec::new());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut nodes = pin!(watcher(api, config).default_backoff().applied_objects());
            while let Some(node) = nodes.next().await {
                let Ok(node) = node else { continue };
                let version = node
                    .metadata
                    .resource_version
                    .as_deref()
                    .and_then(|version| version.parse().ok());
                let state = (version.unwrap_or_default(), volumes_attached(&node));
                states_tx.send_modify(|states: &mut Vec<_>| states.push(state));
            }
        });
        let first = timeout(STEP_TIMEOUT, states.wait_for(|states| !states.is_empty())).await;
        first
            .context("the watch of a node began too late")?
            .context("the watch of a node ended")?;
        Ok(VolumesAttached {
            driver: self.driver.name().to_owned(),
            states,
            _task: task,
        })
    }
}

// === impl VolumesAttached ===

impl VolumesAttached {
    /// Waits until the volume's history (listed or not) equals `wanted`.
    pub async fn wait_for(&self, volume: &TestVolume, wanted: &[bool]) -> Result<()> {
        let name = unique_volume_name(&self.driver, &volume.handle);
        let mut states = self.states.clone();
        let seen = states.wait_for(|states| listed(states, &name).starts_with(wanted));
        let seen = timeout(STEP_TIMEOUT, seen).await.map(|seen| seen.map(drop));
        seen.with_context(|| format!("{name} was not listed as {wanted:?}: {:?}", self.states.borrow()))?
            .context("the watch of a node ended")
    }

    /// The volume's history: whether it was listed, one value per change.
    pub fn history(&self, volume: &TestVolume) -> Vec<bool> {
        let name = unique_volume_name(&self.driver, &volume.handle);
        listed(&self.states.borrow(), &name)
    }

    /// The resourceVersion of the first Node that no longer lists the volume.
    pub fn first_removal(&self, volume: &TestVolume) -> Option<u64> {
        let name = unique_volume_name(&self.driver, &volume.handle);
        let states = self.states.borrow();
        let mut removed = states.iter().skip_while(|(_, volumes)| !volumes.contains(&name));
        removed
            .find(|(_, volumes)| !volumes.contains(&name))
            .map(|(version, _)| *version)
    }
}

fn listed(states: &[(u64, BTreeSet<String>)], name: &str) -> Vec<bool> {
    let mut listed: Vec<_> = states.iter().map(|(_, volumes)| volumes.contains(name)).collect();
    listed.dedup();
    listed
}

fn volumes_attached(node: &Node) -> BTreeSet<String> {
    let attached = node
        .status
        .as_ref()
        .and_then(|status| status.volumes_attached.as_ref());
    attached
        .into_iter()
        .flatten()
        .map(|volume| volume.name.clone())
        .collect()
}
