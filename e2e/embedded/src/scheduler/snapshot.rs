//! Snapshots of the informers' stores.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::filter::Snapshot;
use crate::informer::key_of;
use crate::informers::Informers;

// === impl Snapshot ===

impl Snapshot {
    /// A snapshot of the informers' stores.
    pub(super) fn of(informers: &Informers, assumed: &BTreeMap<String, String>) -> Self {
        let name = |meta: &ObjectMeta| meta.name.clone().unwrap_or_default();
        Self {
            nodes: informers.nodes.list(),
            pods: informers.pods.list(),
            claims: informers
                .claims
                .list()
                .into_iter()
                .map(|claim| (key_of(&*claim), claim))
                .collect(),
            volumes: informers.volumes.list(),
            classes: informers
                .classes
                .list()
                .into_iter()
                .map(|class| (name(&class.metadata), class))
                .collect(),
            csi_nodes: informers
                .csi_nodes
                .list()
                .into_iter()
                .map(|node| (name(&node.metadata), node))
                .collect(),
            csi_drivers: informers
                .csi_drivers
                .list()
                .into_iter()
                .map(|driver| (name(&driver.metadata), driver))
                .collect(),
            attachments: informers.attachments.list(),
            capacities: informers.capacities.list(),
            assumed: assumed.clone(),
        }
    }
}
