//! A PersistentVolume or an inline volume.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeSpec;
use sha2::{Digest as _, Sha256};

use super::{Driver, SecretRef, Uid, Version};

/// The attach/detach controller's, before the hash of handle, driver and node.
pub(super) const ATTACHMENT_NAME_PREFIX: &str = "csi-";

/// One PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// The CSI source, translated if the volume is an in-tree one.
    pub csi: Result<CsiSource, NoCsiSource>,
    /// Whether it is an in-tree volume.
    pub migrated: bool,
    /// `accessModes`.
    pub access_modes: Vec<String>,
    /// `volumeMode: Block`.
    pub block: bool,
    /// `mountOptions`.
    pub mount_options: Vec<String>,
}

/// The reason that a volume has no CSI source, with the Go sidecar's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum NoCsiSource {
    #[error("pv spec contained non-csi source that was not migrated")]
    NotMigrated,
    #[error("failed to translate in tree pv to CSI: {reason}")]
    Untranslatable {
        driver: &'static str,
        /// csi-translation-lib's error.
        reason: String,
    },
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
        let csi = object.csi.map(|csi| CsiSource {
            driver: csi.driver,
            handle: csi.volume_handle.into(),
            read_only: csi.read_only.unwrap_or_default(),
            fs_type: csi.fs_type.unwrap_or_default(),
            attributes: csi.volume_attributes.unwrap_or_default(),
            publish_secret: csi.controller_publish_secret_ref.map(|secret| SecretRef {
                namespace: secret.namespace.unwrap_or_default().into(),
                name: secret.name.unwrap_or_default().into(),
            }),
        });
        Self {
            csi: csi.ok_or(NoCsiSource::NotMigrated),
            migrated: false,
            access_modes: object.access_modes.unwrap_or_default(),
            block: object.volume_mode.as_deref() == Some("Block"),
            mount_options: object.mount_options.unwrap_or_default(),
        }
    }

    /// Whether several nodes may have the volume.
    pub fn is_multi_node(&self) -> bool {
        let is_multi = |mode: &String| matches!(&**mode, "ReadWriteMany" | "ReadOnlyMany");
        self.access_modes.iter().any(is_multi)
    }

    /// The CSI source, if the volume has one.
    pub fn csi(&self) -> Option<&CsiSource> {
        self.csi.as_ref().ok()
    }

    /// Name of the volume's CSI driver.
    pub fn driver(&self) -> Option<&str> {
        match &self.csi {
            Ok(csi) => Some(&csi.driver),
            Err(NoCsiSource::Untranslatable { driver, .. }) => Some(driver),
            Err(NoCsiSource::NotMigrated) => None,
        }
    }
}

impl Default for VolumeSpec {
    fn default() -> Self {
        Self::from_wire(PersistentVolumeSpec::default())
    }
}

// === impl CsiSource ===

impl CsiSource {
    /// The name that the attach/detach controller gives the VolumeAttachment of this volume and the node (`getAttachmentName` in
    /// Kubernetes' `pkg/volume/csi/csi_attacher.go`).
    pub(crate) fn attachment_name(&self, node: &str) -> String {
        let hash = Sha256::digest(format!("{}{}{node}", self.handle, self.driver));
        hash.iter()
            .fold(ATTACHMENT_NAME_PREFIX.to_owned(), |mut name, byte| {
                write!(name, "{byte:02x}").expect("writing to a String must succeed");
                name
            })
    }
}
