//! CSI migration: translation of in-tree volume sources to CSI sources.
//!
//! Kubernetes keeps in-tree sources in PersistentVolumes, but its in-tree plugins are removed: the attach/detach controller
//! translates such a source and creates a VolumeAttachment for the CSI driver. The attacher must translate it identically, so
//! `e2e/tests/migration_matches_go` compares it with csi-translation-lib, error texts included, but those of URLs. One file per plugin.

mod azure_disk;
mod azure_file;
mod cinder;
mod ebs;
mod gce_pd;
mod portworx;
mod vsphere;

use std::borrow::Cow;

use kube::{Resource as _, ResourceExt as _};

pub use crate::model::handle::{Irreparable, UnknownRegion};
use crate::model::wire::{self, VolumeObject};
use crate::model::{CsiSource, Driver, NoCsiSource, Volume, VolumeSpec};

/// Names the driver to which the PersistentVolume controller handed an in-tree volume.
const MIGRATED_TO_ANNOTATION: &str = "pv.kubernetes.io/migrated-to";

/// An in-tree plugin that a CSI driver replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plugin {
    /// `kubernetes.io/aws-ebs`.
    Ebs,
    /// `kubernetes.io/gce-pd`.
    GcePd,
    /// `kubernetes.io/cinder`.
    Cinder,
    /// `kubernetes.io/azure-disk`.
    AzureDisk,
    /// `kubernetes.io/azure-file`.
    AzureFile,
    /// `kubernetes.io/vsphere-volume`.
    Vsphere,
    /// `kubernetes.io/portworx-volume`.
    Portworx,
}

/// A translated in-tree volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The CSI source.
    pub source: CsiSource,
    /// The access modes, which not all plugins applied as strictly as CSI does.
    pub access_modes: Vec<String>,
}

/// The error of an in-tree volume that cannot be translated, with csi-translation-lib's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({0})")]
    EbsVolumeId(String),
    #[error("failed to get region from zones: {0}")]
    GcePdRegion(#[from] UnknownRegion),
    #[error("kind({0}) is not supported in csi migration")]
    AzureDiskKind(String),
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    AzureFileSecretNamespace,
}

// === impl Plugin ===

impl Plugin {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ebs,
        Self::GcePd,
        Self::Cinder,
        Self::AzureDisk,
        Self::AzureFile,
        Self::Vsphere,
        Self::Portworx,
    ];

    /// Name of the CSI driver.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Ebs => "ebs.csi.aws.com",
            Self::GcePd => "pd.csi.storage.gke.io",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::AzureFile => "file.csi.azure.com",
            Self::Vsphere => "csi.vsphere.vmware.com",
            Self::Portworx => "pxd.portworx.com",
        }
    }
}

/// Whether the driver of this name replaced an in-tree plugin.
pub fn is_migration_driver(name: &str) -> bool {
    Plugin::ALL.iter().any(|plugin| plugin.driver() == name)
}

/// The volume handle in ListVolumes of a migrated (or inline, and so migrated) volume. A translated handle may lack a GCE
/// disk's project and zone, which the driver completes from the node, as this does from the node id.
///
/// # Errors
///
/// If the handle is incomplete and the node id does not complete it.
pub fn repaired<'h>(driver: &str, handle: &'h str, node_id: &str) -> Result<Cow<'h, str>, Irreparable> {
    if driver == Plugin::GcePd.driver() {
        gce_pd::repaired(handle, node_id)
    } else {
        Ok(handle.into())
    }
}

/// Translates a PersistentVolume as far as attaching needs it; `None` if its source is not a migrated in-tree one.
pub fn translate(volume: &VolumeObject) -> Option<Result<Translation, NoCsiSource>> {
    let spec = &volume.spec;
    // The API server ensures that there is at most one source.
    let (plugin, source) = if let Some(source) = &spec.aws_elastic_block_store {
        (Plugin::Ebs, ebs::translate(source))
    } else if let Some(source) = &spec.gce_persistent_disk {
        (Plugin::GcePd, gce_pd::translate(volume, source))
    } else if let Some(source) = &spec.cinder {
        (Plugin::Cinder, Ok(cinder::translate(source)))
    } else if let Some(source) = &spec.azure_disk {
        (Plugin::AzureDisk, azure_disk::translate(source))
    } else if let Some(source) = &spec.azure_file {
        (Plugin::AzureFile, azure_file::translate(volume, source))
    } else if let Some(source) = &spec.vsphere_volume {
        (Plugin::Vsphere, Ok(vsphere::translate(source)))
    } else if let Some(source) = &spec.portworx_volume {
        (Plugin::Portworx, Ok(portworx::translate(volume, source)))
    } else {
        return None;
    };
    let access_modes = spec.access_modes.as_deref().unwrap_or_default();
    let access_modes = if plugin == Plugin::GcePd {
        gce_pd::access_modes(access_modes)
    } else {
        access_modes.to_vec()
    };
    Some(match source {
        Ok(source) => Ok(Translation {
            source: CsiSource {
                driver: plugin.driver().to_owned(),
                ..source
            },
            access_modes,
        }),
        Err(fault) => Err(NoCsiSource::Untranslatable {
            driver: plugin.driver(),
            reason: fault.to_string(),
        }),
    })
}

/// Decodes a PersistentVolume of any driver, with its in-tree source translated.
pub fn decode(object: VolumeObject, driver: &Driver) -> Volume {
    let created = object.meta().creation_timestamp.as_ref().map(|time| time.0);
    let deleting = object.meta().deletion_timestamp.is_some();
    let finalizer = object.finalizers().iter().any(|f| **f == *driver.finalizer);
    let translated = translate(&object);
    let migrated_to = object.annotations().get(MIGRATED_TO_ANNOTATION);
    let left_in_tree = translated.is_some() && migrated_to.is_none_or(|name| **name != *driver.name);
    let mut spec = VolumeSpec::from_wire(*object.spec);
    // A translated source has precedence over a CSI source, as in the Go sidecar.
    if let Some(translated) = translated {
        spec.migrated = true;
        spec.csi = translated.map(|Translation { source, access_modes }| {
            spec.access_modes = access_modes;
            source
        });
    }
    let (name, uid, version) = wire::identity(object.metadata);
    Volume {
        name,
        uid,
        version,
        created,
        deleting,
        finalizer,
        left_in_tree,
        spec,
    }
}

#[cfg(test)]
mod tests;
