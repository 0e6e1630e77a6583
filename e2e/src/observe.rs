//! Observations of the contract from Kubernetes objects, calls and the array.

pub mod grpc;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use attacher_contract::Observation;
use attacher_contract::observation::{Attachment, Registration, Target, Volume};
use attacher_contract::world::World;
use csi_mock_driver::array::Array;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment, VolumeError};

/// The annotation with the node ID, which both attachers write.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// csi-attacher's annotation with the volume ID.
const VOLUME_HANDLE: &str = "external-attacher/volume-handle";

/// A version of a VolumeAttachment. `start`: the history's start.
pub fn attachment(attachment: &VolumeAttachment, finalizer: &str, start: Timestamp) -> Arc<Attachment> {
    let metadata = &attachment.metadata;
    let name = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    let annotation = |key: &str| {
        let annotations = metadata.annotations.as_ref()?;
        annotations.get(key).map(|value| value.as_str().into())
    };
    let message = |error: Option<&VolumeError>| {
        let error = error?;
        Some(error.message.clone().unwrap_or_default())
    };
    let status = attachment.status.as_ref();
    let since = |time: Timestamp| {
        let since = time.duration_since(start);
        Duration::try_from(since).unwrap_or_default()
    };
    Arc::new(Attachment {
        name: name(&metadata.name),
        uid: name(&metadata.uid),
        node: attachment.spec.node_name.as_str().into(),
        volume: name(&attachment.spec.source.persistent_volume_name),
        deleting: metadata.deletion_timestamp.as_ref().map(|time| since(time.0)),
        finalizer: metadata.finalizers.iter().flatten().any(|held| held == finalizer),
        node_id: annotation(NODE_ID),
        handle: annotation(VOLUME_HANDLE),
        attached: status.is_some_and(|status| status.attached),
        metadata: status
            .and_then(|status| status.attachment_metadata.clone())
            .unwrap_or_default(),
        attach_error: message(status.and_then(|status| status.attach_error.as_ref())),
        detach_error: message(status.and_then(|status| status.detach_error.as_ref())),
    })
}

/// A version of a CSI or in-tree EBS PersistentVolume; `None` for others.
pub fn volume(volume: &PersistentVolume, driver: &str, finalizer: &str) -> Option<Volume> {
    let spec = volume.spec.as_ref()?;
    let in_tree = spec.aws_elastic_block_store.as_ref();
    let csi = spec.csi.as_ref();
    let handle = csi
        .map(|csi| &csi.volume_handle)
        .or_else(|| in_tree.map(|source| &source.volume_id))?;
    let modes = spec.access_modes.iter().flatten();
    let finalizers = volume.metadata.finalizers.iter().flatten();
    Some(Volume {
        name: volume.metadata.name.as_deref().unwrap_or_default().into(),
        handle: handle.as_str().into(),
        foreign: csi.is_some_and(|csi| csi.driver != driver),
        single_node: modes
            .clone()
            .all(|mode| ["ReadWriteOnce", "ReadWriteOncePod"].contains(&mode.as_str())),
        deleting: volume.metadata.deletion_timestamp.is_some(),
        secret: csi.is_some_and(|csi| csi.controller_publish_secret_ref.is_some()),
        finalizers: finalizers.filter(|held| *held == finalizer).count(),
        request: None,
    })
}

/// The registration of a driver.
pub fn registration(csi_node: Option<&CSINode>, driver: &str) -> Registration {
    let Some(csi_node) = csi_node else {
        return Registration::NoCsiNode;
    };
    let mut drivers = csi_node.spec.drivers.iter();
    match drivers.find(|entry| entry.name == driver) {
        Some(entry) => Registration::Id(entry.node_id.as_str().into()),
        None => Registration::NoDriver,
    }
}

/// What the array has published and unpublished since the observations so far.
pub fn array_changes(array: &Array, known: &World) -> Vec<Observation> {
    let published: BTreeSet<Target> = array
        .volumes()
        .flat_map(|volume| {
            let id = volume.spec.id.to_string();
            let nodes: Vec<_> = volume.attachments.keys().map(ToString::to_string).collect();
            nodes.into_iter().map(move |node| Target::new(&id, &node))
        })
        .collect();
    let lost = known
        .published
        .keys()
        .filter(|target| !published.contains(target));
    let mut seen: Vec<_> = lost
        .map(|target| Observation::Array(target.clone(), false))
        .collect();
    let found = published
        .iter()
        .filter(|target| !known.published.contains_key(target));
    seen.extend(found.map(|target| Observation::Array(target.clone(), true)));
    seen
}
