//! The attacher's rules, applied to the objects of a snapshot: a volume's driver and handle (CSI migration included),
//! and which VolumeAttachments the attacher refuses. It calls the attacher's code, so that explanations cannot differ
//! from the attacher's behaviour.

use std::sync::Arc;

use csi_attacher::model::{self, Capabilities, Driver};
pub(crate) use csi_attacher::model::{CsiSource, SecretRef};
pub(crate) use csi_attacher::plan::Refusal;
use csi_attacher::plan::{self, AttachInputs};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The CSI source of a volume, as its driver names it.
pub(crate) fn csi_source(volume: &PersistentVolume) -> Option<CsiSource> {
    to_volume(volume, &driver("")).spec.csi.ok()
}

/// The driver of a volume, by its CSI source or by CSI migration.
pub(crate) fn driver_of(volume: &PersistentVolume) -> Option<String> {
    to_volume(volume, &driver("")).spec.driver().map(str::to_owned)
}

/// Whether the volume may be attached to several nodes.
pub(crate) fn is_multi_node(volume: &PersistentVolume) -> bool {
    to_volume(volume, &driver("")).spec.is_multi_node()
}

/// The CSI source of a volume that is specified on the VolumeAttachment itself.
pub(crate) fn inline_csi_source(attachment: &VolumeAttachment) -> Option<CsiSource> {
    let inline = attachment.spec.source.inline_volume_spec.as_ref()?;
    let spec = PersistentVolumeSpec {
        csi: inline.csi.clone(),
        ..PersistentVolumeSpec::default()
    };
    csi_source(&PersistentVolume {
        spec: Some(spec),
        ..PersistentVolume::default()
    })
}

/// The finalizer that the driver's attacher puts on VolumeAttachments and PersistentVolumes.
pub(crate) fn finalizer(driver_name: &str) -> String {
    driver(driver_name).finalizer.to_string()
}

/// The lease by which the replicas of the driver's attacher elect a leader.
pub(crate) fn lease_name(driver_name: &str) -> String {
    // Both names are sanitized by the same rule.
    finalizer(driver_name).replace("external-attacher/", "external-attacher-leader-")
}

/// The reason why the attacher refuses to attach or detach; `None` if it does not.
pub(crate) fn refusal(
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
    node: Option<&CSINode>,
) -> Option<Refusal> {
    let driver = driver(&attachment.spec.attacher);
    let attachment = model::Attachment::from_wire(wire(attachment)?, &driver)?;
    let inputs = AttachInputs {
        attachment: Arc::new(attachment),
        volume: volume.map(|volume| Arc::new(to_volume(volume, &driver))),
        node: node.and_then(|node| Some(Arc::new(model::Node::from_wire(wire(node)?, &driver)))),
    };
    plan::refusal(&inputs, &driver)
}

/// The API server does not store the driver's capabilities; the rules that depend on them refuse nothing.
fn driver(name: &str) -> Driver {
    let capabilities = Capabilities {
        publish: true,
        ..Capabilities::default()
    };
    Driver::new(name, capabilities, "")
}

fn to_volume(volume: &PersistentVolume, driver: &Driver) -> model::Volume {
    csi_attacher::migration::decode(wire(volume).unwrap_or_default(), driver)
}

/// The part of an object that the attacher decodes.
fn wire<W: DeserializeOwned>(object: &impl Serialize) -> Option<W> {
    serde_json::from_value(serde_json::to_value(object).ok()?).ok()
}
