//! A PersistentVolume, or the inline specification of one, as far as attaching needs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::wire::{CsiSourceObject, SecretReferenceObject, VolumeObject, VolumeSpecObject};
use super::{Driver, SecretRef, Uid, Version};
use crate::migration::{self, MIGRATED_TO_ANNOTATION, Translation, Untranslatable};

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
    /// Whether it is an in-tree volume that the PersistentVolume controller has not handed to our driver, or
    /// has taken back. It never hands over a volume that a person made, though such a one is attached through
    /// us too.
    pub left_in_tree: bool,
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
    /// An in-tree volume that is migrated to CSI, as the driver that took over knows it.
    Migrated(Box<CsiSource>),
    /// An in-tree volume that is migrated to CSI, but of which the driver has no name.
    Untranslatable(Box<Untranslatable>),
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
        let translated = migration::translate(&object);
        let left_in_tree =
            translated.is_some() && object.metadata.annotation(MIGRATED_TO_ANNOTATION) != Some(&*driver.name);
        let spec = VolumeSpec::from_wire(object.spec).migrated(translated);
        let (name, uid, version) = object.metadata.identity();
        Self {
            name,
            uid,
            version,
            deleting,
            finalizer,
            left_in_tree,
            spec,
        }
    }

    /// Whether `driver`'s attacher has anything to do with this volume: it is the driver's, or our
    /// finalizer is on it and must one day come off.
    pub fn concerns(&self, driver: &Driver) -> bool {
        self.finalizer || self.spec.driver() == Some(&*driver.name)
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

    /// The same volume with what its in-tree source was translated to, if it has one. That wins, as in the
    /// Go sidecar.
    fn migrated(self, translated: Option<Result<Translation, Untranslatable>>) -> Self {
        match translated {
            None => self,
            Some(Ok(Translation { source, access_modes })) => Self {
                source: VolumeSource::Migrated(Box::new(source)),
                access_modes,
                ..self
            },
            Some(Err(untranslatable)) => Self {
                source: VolumeSource::Untranslatable(Box::new(untranslatable)),
                ..self
            },
        }
    }

    /// The CSI source, if it is one or was translated to one.
    pub fn csi(&self) -> Option<&CsiSource> {
        match &self.source {
            VolumeSource::Csi(csi) | VolumeSource::Migrated(csi) => Some(csi),
            VolumeSource::Untranslatable(_) | VolumeSource::Other => None,
        }
    }

    /// Name of the CSI driver that the volume belongs to, by itself or by migration.
    pub fn driver(&self) -> Option<&str> {
        match &self.source {
            VolumeSource::Csi(csi) | VolumeSource::Migrated(csi) => Some(&csi.driver),
            VolumeSource::Untranslatable(volume) => Some(volume.plugin.driver()),
            VolumeSource::Other => None,
        }
    }

    /// Whether it is an in-tree volume that is migrated to CSI.
    pub fn is_migrated(&self) -> bool {
        match &self.source {
            VolumeSource::Migrated(_) | VolumeSource::Untranslatable(_) => true,
            VolumeSource::Csi(_) | VolumeSource::Other => false,
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::Capabilities;

    fn decode(object: Value, driver: &str) -> (Volume, bool) {
        let driver = Driver::new(driver, Capabilities::default(), "");
        let volume = Volume::from_wire(serde_json::from_value(object).unwrap(), &driver);
        let concerns = volume.concerns(&driver);
        (volume, concerns)
    }

    fn ebs(annotations: Value, finalizers: Value) -> Value {
        json!({
            "metadata": {"name": "pv", "annotations": annotations, "finalizers": finalizers},
            "spec": {"awsElasticBlockStore": {"volumeID": "vol-1"}, "accessModes": ["ReadWriteOnce"]},
        })
    }

    #[test]
    fn an_in_tree_volume_concerns_the_driver_that_took_over() {
        let (volume, concerns) = decode(ebs(json!({}), json!([])), "ebs.csi.aws.com");
        assert!(concerns);
        assert_eq!(volume.spec.csi().map(|csi| &*csi.handle), Some("vol-1"));
        assert!(volume.spec.is_migrated());
        assert!(volume.spec.access_modes.read_write_once);
        let (volume, concerns) = decode(ebs(json!({}), json!([])), "d.example");
        assert!(!concerns);
        assert_eq!(volume.spec.driver(), Some("ebs.csi.aws.com"));
        let malformed = json!({"spec": {"azureDisk": {"diskURI": "d", "kind": "Shared"}}});
        assert!(decode(malformed.clone(), "disk.csi.azure.com").1);
        assert!(!decode(malformed, "d.example").1);
        let nfs = json!({"spec": {"nfs": {"server": "s", "path": "/"}}});
        assert!(!decode(nfs, "ebs.csi.aws.com").1);
    }

    #[test]
    fn a_volume_is_left_in_tree_until_it_is_handed_to_our_driver() {
        const KEY: &str = "pv.kubernetes.io/migrated-to";
        for (annotations, left) in [
            (json!({}), true),
            (json!({KEY: "other"}), true),
            (json!({KEY: ""}), true),
            (json!({KEY: "ebs.csi.aws.com"}), false),
        ] {
            let (volume, _) = decode(ebs(annotations.clone(), json!([])), "ebs.csi.aws.com");
            assert_eq!(volume.left_in_tree, left, "{annotations}");
        }
        let native = json!({"spec": {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}});
        assert!(!decode(native, "ebs.csi.aws.com").0.left_in_tree);
        // Our finalizer on another driver's volume must come off one day.
        let finalizers = json!(["external-attacher/d-example"]);
        let (volume, concerns) = decode(ebs(json!({}), finalizers), "d.example");
        assert!(concerns && volume.finalizer && volume.left_in_tree);
    }

    #[test]
    fn of_labels_and_annotations_only_those_that_are_read_are_kept() {
        let object: VolumeObject = serde_json::from_value(json!({
            "metadata": {
                "labels": {"topology.kubernetes.io/zone": "z", "app": "x"},
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": "{}",
                    "openstorage.io/auth-secret-name": "s",
                },
            },
        }))
        .unwrap();
        let metadata = &object.metadata.0;
        assert_eq!(metadata.labels.as_ref().map(BTreeMap::len), Some(1));
        assert_eq!(metadata.annotations.as_ref().map(BTreeMap::len), Some(1));
        let bare = json!({"metadata": {"labels": null, "annotations": null}});
        serde_json::from_value::<VolumeObject>(bare).unwrap();
    }
}
