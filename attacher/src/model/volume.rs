//! A PersistentVolume or an inline volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolumeSpec};

use super::{Driver, SecretRef, Uid, Version};

/// One PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether it has our finalizer.
    pub finalizer: bool,
    /// Whether it is an in-tree volume whose annotation `migrated-to` does not name our driver. The PersistentVolume controller
    /// sets it on provisioned volumes only, but we attach the others too.
    pub left_in_tree: bool,
    /// `spec`.
    pub spec: VolumeSpec,
}

/// `PersistentVolumeSpec`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpec {
    /// The source.
    pub source: VolumeSource,
    /// `accessModes`.
    pub access_modes: AccessModes,
    /// `volumeMode: Block`.
    pub block: bool,
    /// `mountOptions`.
    pub mount_options: Vec<String>,
}

/// The source of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VolumeSource {
    /// A CSI volume of any driver.
    Csi(Box<CsiSource>),
    /// A translated in-tree volume.
    Migrated(Box<CsiSource>),
    /// An in-tree volume that cannot be translated.
    Untranslatable(Box<Untranslatable>),
    /// Anything else.
    #[default]
    Other,
}

/// An in-tree volume that cannot be translated. The text is the Go sidecar's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to translate in tree pv to CSI: {reason}")]
pub struct Untranslatable {
    /// Name of the CSI driver.
    pub driver: &'static str,
    /// csi-translation-lib's error.
    pub reason: String,
}

/// `CSIPersistentVolumeSource`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiSource {
    /// Name of the driver.
    pub driver: String,
    /// CSI `volume_id`.
    pub handle: Arc<str>,
    /// `readOnly`.
    pub read_only: bool,
    /// `fsType`, empty when absent.
    pub fs_type: String,
    /// CSI `volume_context`.
    pub attributes: BTreeMap<String, String>,
    /// `controllerPublishSecretRef`.
    pub publish_secret: Option<SecretRef>,
}

/// A set of access modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessModes {
    /// ReadWriteOnce.
    pub read_write_once: bool,
    /// ReadOnlyMany.
    pub read_only_many: bool,
    /// ReadWriteMany.
    pub read_write_many: bool,
    /// ReadWriteOncePod.
    pub read_write_once_pod: bool,
}

// === impl Volume ===

impl Volume {
    /// Whether the volume is `driver`'s, or has our finalizer, which must be removed.
    pub fn concerns(&self, driver: &Driver) -> bool {
        self.finalizer || self.spec.driver() == Some(&*driver.name)
    }
}

// === impl VolumeSpec ===

impl VolumeSpec {
    pub(crate) fn from_wire(object: PersistentVolumeSpec) -> Self {
        Self {
            source: object
                .csi
                .map_or(VolumeSource::Other, |csi| VolumeSource::Csi(csi.into())),
            access_modes: AccessModes::from_names(object.access_modes.as_deref().unwrap_or_default()),
            block: object.volume_mode.as_deref() == Some("Block"),
            mount_options: object.mount_options.unwrap_or_default(),
        }
    }

    /// The CSI source, translated if necessary.
    pub fn csi(&self) -> Option<&CsiSource> {
        match &self.source {
            VolumeSource::Csi(csi) | VolumeSource::Migrated(csi) => Some(csi),
            VolumeSource::Untranslatable(_) | VolumeSource::Other => None,
        }
    }

    /// Name of the volume's CSI driver.
    pub fn driver(&self) -> Option<&str> {
        match &self.source {
            VolumeSource::Csi(csi) | VolumeSource::Migrated(csi) => Some(&csi.driver),
            VolumeSource::Untranslatable(volume) => Some(volume.driver),
            VolumeSource::Other => None,
        }
    }

    /// Whether it is an in-tree volume.
    pub fn is_migrated(&self) -> bool {
        match &self.source {
            VolumeSource::Migrated(_) | VolumeSource::Untranslatable(_) => true,
            VolumeSource::Csi(_) | VolumeSource::Other => false,
        }
    }
}

// === impl CsiSource ===

impl From<CSIPersistentVolumeSource> for Box<CsiSource> {
    fn from(object: CSIPersistentVolumeSource) -> Self {
        Self::new(CsiSource {
            driver: object.driver,
            handle: object.volume_handle.into(),
            read_only: object.read_only.unwrap_or_default(),
            fs_type: object.fs_type.unwrap_or_default(),
            attributes: object.volume_attributes.unwrap_or_default(),
            publish_secret: object.controller_publish_secret_ref.map(|secret| SecretRef {
                namespace: secret.namespace.unwrap_or_default().into(),
                name: secret.name.unwrap_or_default().into(),
            }),
        })
    }
}

// === impl AccessModes ===

impl AccessModes {
    /// Parses the API's names. Unknown names are ignored; the attacher refuses a volume without known modes, as the Go sidecar
    /// does.
    pub fn from_names(names: &[String]) -> Self {
        let has = |mode: &str| names.iter().any(|name| name == mode);
        Self {
            read_write_once: has("ReadWriteOnce"),
            read_only_many: has("ReadOnlyMany"),
            read_write_many: has("ReadWriteMany"),
            read_write_once_pod: has("ReadWriteOncePod"),
        }
    }
}
