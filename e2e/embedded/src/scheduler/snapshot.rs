//! Snapshots of the informers' stores.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;

use super::filter::Snapshot;
use crate::informer::key_of;
use crate::informers::Informers;

// === impl Snapshot ===

impl Snapshot {
    /// A snapshot of the informers' stores.
    pub(super) fn of(informers: &Informers, assumed: &BTreeMap<String, String>) -> Self {
        let claims = informers.claims.list().into_iter();
        Self {
            nodes: informers.nodes.list(),
            pods: informers.pods.list(),
            claims: claims.map(|claim| (key_of(&*claim), claim)).collect(),
            volumes: informers.volumes.list(),
            classes: by_name(informers.classes.list()),
            csi_nodes: by_name(informers.csi_nodes.list()),
            csi_drivers: by_name(informers.csi_drivers.list()),
            attachments: informers.attachments.list(),
            capacities: informers.capacities.list(),
            assumed: assumed.clone(),
        }
    }
}

fn by_name<K: ResourceExt>(objects: Vec<Arc<K>>) -> BTreeMap<String, Arc<K>> {
    let objects = objects.into_iter();
    objects.map(|object| (object.name_any(), object)).collect()
}
