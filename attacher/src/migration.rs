//! CSI migration: volumes of in-tree plugins, as the CSI drivers know them that took over from the plugins.
//!
//! A PersistentVolume that names an EBS volume in the way of `kubernetes.io/aws-ebs` stays as it is for
//! ever, but the plugin is no longer part of Kubernetes. The attach/detach controller translates such a
//! source and makes a VolumeAttachment for the CSI driver; we translate it in the same way, or the driver
//! would be asked for another volume than Kubernetes means.
//!
//! One file a plugin. All of it is pure, and a test of the harness compares it with the Go translation
//! library on generated volumes, error texts included.

mod azure_disk;
mod azure_file;
mod cinder;
mod ebs;
mod gce_pd;
mod portworx;
mod vsphere;

use std::borrow::Cow;

pub use azure_disk::UnsupportedKind;
pub use azure_file::NoSecretNamespace;
pub use ebs::{MalformedId, UrlProblem};
pub use gce_pd::{Irreparable, UnknownRegion};

use crate::model::wire::VolumeObject;
use crate::model::{AccessModes, CsiSource, Driver, Untranslatable, Volume, VolumeSource, VolumeSpec};

/// Names the driver to which the PersistentVolume controller handed an in-tree volume.
const MIGRATED_TO_ANNOTATION: &str = "pv.kubernetes.io/migrated-to";

/// An in-tree plugin that a CSI driver took over from.
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

/// An in-tree volume as its CSI driver knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The source that takes the place of the in-tree one.
    pub source: CsiSource,
    /// How the volume may be accessed: not all plugins were as strict as CSI is.
    pub access_modes: AccessModes,
}

/// What is wrong with an in-tree volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An EBS volume id that looks like a URL but is none.
    #[error("failed to translate Kubernetes ID to EBS Volume ID {0}")]
    Ebs(#[from] MalformedId),
    /// Zones of a regional disk that make no region.
    #[error("failed to get region from zones: {0}")]
    GcePd(#[from] UnknownRegion),
    /// A kind of Azure disk that the CSI driver does not serve.
    #[error(transparent)]
    AzureDisk(#[from] UnsupportedKind),
    /// An Azure file share without a place for its secret.
    #[error(transparent)]
    AzureFile(#[from] NoSecretNamespace),
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

    /// Name of the CSI driver that took over.
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

/// Whether the driver of this name took over from an in-tree plugin.
pub fn is_migration_driver(name: &str) -> bool {
    Plugin::ALL.iter().any(|plugin| plugin.driver() == name)
}

/// The volume handle as the driver itself tells it, for a volume that is migrated (or inline, which only
/// migrated ones are). A translated handle may leave open what the in-tree source did not say and only the
/// node tells: a GCE disk's project and zone. The calls send it as it is, and the driver lists what it
/// made of it.
///
/// # Errors
///
/// The handle leaves something open, and the node id does not tell it.
pub fn repaired<'h>(driver: &str, handle: &'h str, node_id: &str) -> Result<Cow<'h, str>, Irreparable> {
    if driver == Plugin::GcePd.driver() {
        gce_pd::repaired(handle, node_id)
    } else {
        Ok(handle.into())
    }
}

/// Translates a PersistentVolume; `None` if it is not an in-tree volume that is migrated.
///
/// What is not about attaching (topology, the secrets of other calls) is left out.
pub fn translate(volume: &VolumeObject) -> Option<Result<Translation, Untranslatable>> {
    let spec = &volume.spec;
    // The API server ensures that there is at most one source.
    let (plugin, source) = if let Some(source) = &spec.aws_elastic_block_store {
        (Plugin::Ebs, ebs::translate(source).map_err(Fault::from))
    } else if let Some(source) = &spec.gce_persistent_disk {
        (
            Plugin::GcePd,
            gce_pd::translate(volume, source).map_err(Fault::from),
        )
    } else if let Some(source) = &spec.cinder {
        (Plugin::Cinder, Ok(cinder::translate(source)))
    } else if let Some(source) = &spec.azure_disk {
        (
            Plugin::AzureDisk,
            azure_disk::translate(source).map_err(Fault::from),
        )
    } else if let Some(source) = &spec.azure_file {
        (
            Plugin::AzureFile,
            azure_file::translate(volume, source).map_err(Fault::from),
        )
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
        AccessModes::from_names(access_modes)
    };
    Some(match source {
        Ok(source) => Ok(Translation { source, access_modes }),
        Err(fault) => Err(Untranslatable {
            driver: plugin.driver(),
            reason: fault.to_string(),
        }),
    })
}

/// Decodes a PersistentVolume, of whichever driver. An in-tree source is replaced by what it is translated to.
pub fn decode(object: VolumeObject, driver: &Driver) -> Volume {
    let deleting = object.metadata.is_deleting();
    let finalizer = object
        .metadata
        .finalizers()
        .iter()
        .any(|f| **f == *driver.finalizer);
    let translated = translate(&object);
    let left_in_tree =
        translated.is_some() && object.metadata.annotation(MIGRATED_TO_ANNOTATION) != Some(&*driver.name);
    let spec = migrated(VolumeSpec::from_wire(object.spec), translated);
    let (name, uid, version) = object.metadata.identity();
    Volume {
        name,
        uid,
        version,
        deleting,
        finalizer,
        left_in_tree,
        spec,
    }
}

/// The same volume with what its in-tree source was translated to, if it has one. That wins, as in the Go sidecar.
fn migrated(spec: VolumeSpec, translated: Option<Result<Translation, Untranslatable>>) -> VolumeSpec {
    match translated {
        None => spec,
        Some(Ok(Translation { source, access_modes })) => VolumeSpec {
            source: VolumeSource::Migrated(Box::new(source)),
            access_modes,
            ..spec
        },
        Some(Err(untranslatable)) => VolumeSpec {
            source: VolumeSource::Untranslatable(Box::new(untranslatable)),
            ..spec
        },
    }
}

#[cfg(test)]
mod tests;
