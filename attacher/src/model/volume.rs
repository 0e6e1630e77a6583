//! A PersistentVolume, or the inline specification of one, as far as attaching needs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::wire::{CsiSourceObject, SecretReferenceObject, VolumeObject, VolumeSpecObject};
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
    /// Whether our finalizer is on it.
    pub finalizer: bool,
    /// What the volume is.
    pub spec: VolumeSpec,
}

/// `PersistentVolumeSpec`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Where the volume comes from.
    pub source: VolumeSource,
    /// How it may be accessed.
    pub access_modes: AccessModes,
    /// Whether it is a raw block device (`volumeMode: Block`).
    pub block: bool,
    /// `mountOptions`.
    pub mount_options: Vec<String>,
}

/// The source of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VolumeSource {
    /// A CSI volume, of whichever driver.
    Csi(Box<CsiSource>),
    /// Anything else.
    #[default]
    Other,
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
    /// Converts an object whatever its driver.
    pub fn from_wire(object: VolumeObject, driver: &Driver) -> Self {
        let deleting = object.metadata.is_deleting();
        let finalizer = object
            .metadata
            .finalizers()
            .iter()
            .any(|f| **f == *driver.finalizer);
        let spec = VolumeSpec::from_wire(object.spec);
        let (name, uid, version) = object.metadata.identity();
        Self {
            name,
            uid,
            version,
            deleting,
            finalizer,
            spec,
        }
    }

    /// Whether `driver`'s attacher has anything to do with this volume: it is the driver's, or our
    /// finalizer is on it and must one day come off.
    pub fn concerns(&self, driver: &Driver) -> bool {
        self.finalizer
            || match &self.spec.source {
                VolumeSource::Csi(csi) => *csi.driver == *driver.name,
                VolumeSource::Other => false,
            }
    }
}

// === impl VolumeSpec ===

impl VolumeSpec {
    pub(super) fn from_wire(object: VolumeSpecObject) -> Self {
        Self {
            source: object
                .csi
                .map_or(VolumeSource::Other, |csi| VolumeSource::Csi(csi.into())),
            access_modes: AccessModes::from_names(&object.access_modes),
            block: object.volume_mode.as_deref() == Some("Block"),
            mount_options: object.mount_options,
        }
    }

    /// The CSI source, if it is one.
    pub fn csi(&self) -> Option<&CsiSource> {
        match &self.source {
            VolumeSource::Csi(csi) => Some(csi),
            VolumeSource::Other => None,
        }
    }
}

// === impl CsiSource ===

impl From<CsiSourceObject> for Box<CsiSource> {
    fn from(object: CsiSourceObject) -> Self {
        Self::new(CsiSource {
            driver: object.driver,
            handle: object.volume_handle.into(),
            read_only: object.read_only,
            fs_type: object.fs_type.unwrap_or_default(),
            attributes: object.volume_attributes,
            publish_secret: object.controller_publish_secret_ref.map(
                |SecretReferenceObject { name, namespace }| SecretRef {
                    namespace: namespace.into(),
                    name: name.into(),
                },
            ),
        })
    }
}

// === impl AccessModes ===

impl AccessModes {
    /// Reads the names of the API. A name that we do not know is no mode: a volume with nothing else
    /// is then refused, as by the Go sidecar.
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
