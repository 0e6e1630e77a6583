//! kubelet's reads and writes of its Node: volumesInUse, volumesAttached, heartbeat.

use std::collections::BTreeSet;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PatchParams;
use kube::runtime::watcher::{self, Event};
use tokio::time::{Instant, sleep};

use super::{IN_USE_RETRY, Kubelet, Report};
use crate::node;
use crate::volume::UniqueVolumeName;

// === impl Kubelet ===

impl Kubelet {
    pub(super) fn node_event(&mut self, event: watcher::Result<Event<Node>>) {
        let Ok(Event::InitApply(node) | Event::Apply(node)) = event else {
            return;
        };
        let status = node.status.clone().unwrap_or_default();
        self.node = node;
        // After a restore of etcd the Node may lack the last volumesInUse: write it again. A stale event also
        // repeats the write, which is harmless.
        let in_use: BTreeSet<_> = status.volumes_in_use.into_iter().flatten().collect();
        if self.stored_in_use.as_ref() != Some(&in_use) {
            self.stored_in_use = None;
        }
        let attached = status.volumes_attached.into_iter().flatten();
        let names = attached.map(|volume| volume.name);
        self.volumes.mark_volumes_as_reported_attached(names.collect());
    }

    /// Writes `volumesInUse` if it changed; one write at a time, so that they arrive in order.
    pub(super) fn store_in_use(&mut self) {
        if self.storing_in_use {
            return;
        }
        let in_use = self.volumes.volumes_in_use();
        let stored = self.stored_in_use.as_ref();
        if stored.is_some_and(|stored| stored.iter().eq(in_use.iter())) {
            return;
        }
        let in_use: BTreeSet<_> = in_use.into_iter().map(str::to_owned).collect();
        self.storing_in_use = true;
        let nodes = Api::<Node>::all(self.config.client.clone());
        let (name, known) = (self.config.name.clone(), self.node.clone());
        let stored = async move {
            store(&nodes, &name, known, &in_use).await;
            Report::InUseStored(in_use)
        };
        self.running.push(stored.boxed());
    }

    /// Renews the lease, and writes the conditions if a report of the node status is due.
    pub(super) fn beat(&mut self, due: Instant) {
        let (registration, node) = (self.registration.clone(), self.node.clone());
        // The node lifecycle controller may have changed the conditions.
        let is_ready = node::condition(&node, "Ready").is_some_and(|ready| ready.status == "True");
        let reports_status = due >= self.next_status_report || !is_ready;
        if reports_status {
            self.next_status_report = due + self.config.node_status_report_frequency;
        }
        let beaten = async move {
            let report = async {
                if reports_status {
                    registration.report_status(&node).await?;
                }
                Ok(())
            };
            let (renewed, reported) = futures::future::join(registration.renew_lease(), report).await;
            let failed = reported.is_err();
            for error in [renewed, reported].into_iter().filter_map(Result::err) {
                tracing::debug!(node = registration.name, %error, "heartbeat failed");
            }
            Report::HeartbeatEnded(failed)
        };
        self.running.push(beaten.boxed());
    }
}

/// Retries until the API server has stored the list, so that `stored_in_use` is never ahead of it. As upstream, the first try is
/// based on the informer's Node, and each other one on that of the API server.
async fn store(nodes: &Api<Node>, name: &str, mut known: Node, in_use: &BTreeSet<UniqueVolumeName>) {
    let new: Vec<_> = in_use.iter().cloned().collect();
    loop {
        let patch = node::status_patch("volumesInUse", volumes_in_use(&known), &new);
        match nodes.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(stored) if volumes_in_use(&stored).unwrap_or_default() == new => return,
            Ok(stored) => known = stored,
            Err(error) => {
                tracing::debug!(node = name, %error, "volumesInUse was not stored");
                sleep(IN_USE_RETRY).await;
                if let Ok(stored) = nodes.get(name).await {
                    known = stored;
                }
            }
        }
    }
}

fn volumes_in_use(node: &Node) -> Option<&[UniqueVolumeName]> {
    node.status.as_ref()?.volumes_in_use.as_deref()
}
