//! The parts of Kubernetes objects that are decoded from the API server's JSON.
//!
//! Every field has a default: one object that does not parse would fail its whole page of a list,
//! which kube's watcher then retries for ever.

mod in_tree;
mod picked;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use in_tree::{
    AZURE_RESOURCE_GROUP_ANNOTATION, PORTWORX_SECRET_NAME_ANNOTATION, PORTWORX_SECRET_NAMESPACE_ANNOTATION,
    ZONE_LABELS,
};
pub use in_tree::{
    AzureDiskObject, AzureFileObject, CinderObject, EbsObject, GcePdObject, InTree, MIGRATED_TO_ANNOTATION,
    PortworxObject, VsphereObject,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use super::attachment::{NODE_ID_ANNOTATION, PUBLISH_SECRET_ANNOTATION, VOLUME_HANDLE_ANNOTATION};
use super::{Uid, Version};

/// A VolumeAttachment (storage.k8s.io/v1).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachmentObject {
    /// Standard metadata, reduced to what [`Metadata`] names.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: AttachmentSpec,
    /// What was reached.
    pub status: AttachmentStatus,
}

/// `VolumeAttachment.spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSpec {
    /// Name of the driver that is to attach.
    pub attacher: String,
    /// Name of the Node to attach to.
    pub node_name: String,
    /// What to attach.
    pub source: AttachmentSource,
}

/// `VolumeAttachment.spec.source`: exactly one of the two is meant to be set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSource {
    /// Name of a PersistentVolume.
    pub persistent_volume_name: Option<String>,
    /// A PersistentVolumeSpec, which the attach/detach controller writes for migrated inline volumes.
    pub inline_volume_spec: Option<VolumeSpecObject>,
}

/// `VolumeAttachment.status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentStatus {
    /// Whether the volume is attached.
    pub attached: bool,
    /// The publish context. Only its keys are kept.
    pub attachment_metadata: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    /// The last attach error.
    pub attach_error: Option<VolumeErrorObject>,
    /// The last detach error.
    pub detach_error: Option<VolumeErrorObject>,
}

/// `VolumeError` (storage.k8s.io/v1).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeErrorObject {
    /// When, as RFC 3339.
    pub time: Option<String>,
    /// What, at most 1024 bytes.
    pub message: Option<String>,
    /// The gRPC code.
    pub error_code: Option<i32>,
}

/// A PersistentVolume (v1).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeObject {
    /// Standard metadata, reduced to what [`Metadata`] names.
    pub metadata: Metadata,
    /// The volume.
    pub spec: VolumeSpecObject,
}

/// `PersistentVolumeSpec`, as far as attaching needs it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSpecObject {
    /// `accessModes`.
    pub access_modes: Vec<String>,
    /// `volumeMode`: `Block` or `Filesystem`, the latter when absent.
    pub volume_mode: Option<String>,
    /// `mountOptions`.
    pub mount_options: Vec<String>,
    /// The CSI source, when it is one.
    pub csi: Option<CsiSourceObject>,
    /// The claim that the volume is bound to.
    pub claim_ref: Option<ClaimReferenceObject>,
    /// The source, when it is an EBS volume of the in-tree plugin.
    pub aws_elastic_block_store: Option<Box<EbsObject>>,
    /// The source, when it is a GCE disk of the in-tree plugin.
    pub gce_persistent_disk: Option<Box<GcePdObject>>,
    /// The source, when it is a Cinder volume of the in-tree plugin.
    pub cinder: Option<Box<CinderObject>>,
    /// The source, when it is an Azure disk of the in-tree plugin.
    pub azure_disk: Option<Box<AzureDiskObject>>,
    /// The source, when it is an Azure file share of the in-tree plugin.
    pub azure_file: Option<Box<AzureFileObject>>,
    /// The source, when it is a vSphere disk of the in-tree plugin.
    pub vsphere_volume: Option<Box<VsphereObject>>,
    /// The source, when it is a Portworx volume of the in-tree plugin.
    pub portworx_volume: Option<Box<PortworxObject>>,
}

/// The `ObjectReference` in a PersistentVolume's `claimRef`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimReferenceObject {
    /// Namespace of the claim.
    pub namespace: String,
}

/// `CSIPersistentVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSourceObject {
    /// Name of the driver.
    pub driver: String,
    /// The driver's id of the volume.
    pub volume_handle: String,
    /// Whether to publish read-only.
    pub read_only: bool,
    /// Filesystem type.
    pub fs_type: Option<String>,
    /// CSI `volume_context`.
    pub volume_attributes: BTreeMap<String, String>,
    /// The Secret for publish and unpublish.
    pub controller_publish_secret_ref: Option<SecretReferenceObject>,
}

/// `SecretReference`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SecretReferenceObject {
    /// Name of the Secret.
    pub name: String,
    /// Namespace of the Secret.
    pub namespace: String,
}

/// A CSINode (storage.k8s.io/v1).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeObject {
    /// Standard metadata, reduced to what [`Metadata`] names.
    pub metadata: Metadata,
    /// The drivers on the node.
    pub spec: CsiNodeSpec,
}

/// `CSINode.spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    /// One entry for each registered driver.
    #[serde(deserialize_with = "null_as_default")]
    pub drivers: Vec<CsiNodeDriver>,
}

/// `CSINodeDriver`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeDriver {
    /// Name of the driver.
    pub name: String,
    /// What the driver calls this node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
}

/// ObjectMeta with only `name`, `uid`, `resourceVersion`, `creationTimestamp`, `deletionTimestamp` and
/// `finalizers` filled, and of `labels` and `annotations` those that we read. kube's watcher wants an
/// ObjectMeta; most bytes of one are managedFields, which this crate does not read.
#[derive(Clone, Debug, Default)]
pub struct Metadata(pub ObjectMeta);

// === impl VolumeSpecObject ===

impl VolumeSpecObject {
    /// The source, if it is an in-tree one that is migrated to CSI. The API server sees to it that there
    /// is one source at most.
    pub fn in_tree(&self) -> Option<InTree<'_>> {
        None.or(self.aws_elastic_block_store.as_deref().map(InTree::Ebs))
            .or(self.gce_persistent_disk.as_deref().map(InTree::GcePd))
            .or(self.cinder.as_deref().map(InTree::Cinder))
            .or(self.azure_disk.as_deref().map(InTree::AzureDisk))
            .or(self.azure_file.as_deref().map(InTree::AzureFile))
            .or(self.vsphere_volume.as_deref().map(InTree::Vsphere))
            .or(self.portworx_volume.as_deref().map(InTree::Portworx))
    }
}

// === impl Metadata ===

impl Metadata {
    /// Name, UID and version.
    pub(crate) fn identity(self) -> (Arc<str>, Uid, Version) {
        let version = self
            .0
            .resource_version
            .as_deref()
            .map_or(Version::UNKNOWN, Version::parse);
        (
            self.0.name.unwrap_or_default().into(),
            Uid(self.0.uid.unwrap_or_default().into()),
            version,
        )
    }

    pub(crate) fn name(&self) -> &str {
        self.0.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.0.deletion_timestamp.is_some()
    }

    pub(super) fn created(&self) -> Option<Timestamp> {
        Some(self.0.creation_timestamp.as_ref()?.0)
    }

    pub(super) fn deleted(&self) -> Option<Timestamp> {
        Some(self.0.deletion_timestamp.as_ref()?.0)
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.0.annotations.as_ref()?.get(key).map(String::as_str)
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.0.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub(crate) fn finalizers(&self) -> &[String] {
        self.0.finalizers.as_deref().unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Slim {
            name: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            creation_timestamp: Option<Time>,
            deletion_timestamp: Option<Time>,
            finalizers: Option<Vec<String>>,
            #[serde(deserialize_with = "labels")]
            labels: BTreeMap<String, String>,
            #[serde(deserialize_with = "annotations")]
            annotations: BTreeMap<String, String>,
        }
        let slim = Slim::deserialize(deserializer)?;
        Ok(Self(ObjectMeta {
            name: slim.name,
            uid: slim.uid,
            resource_version: slim.resource_version,
            creation_timestamp: slim.creation_timestamp,
            deletion_timestamp: slim.deletion_timestamp,
            finalizers: slim.finalizers,
            labels: Some(slim.labels),
            annotations: Some(slim.annotations),
            ..ObjectMeta::default()
        }))
    }
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    picked::pick(deserializer, |key| ZONE_LABELS.contains(&key))
}

fn annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    const READ: [&str; 7] = [
        NODE_ID_ANNOTATION,
        VOLUME_HANDLE_ANNOTATION,
        PUBLISH_SECRET_ANNOTATION,
        MIGRATED_TO_ANNOTATION,
        AZURE_RESOURCE_GROUP_ANNOTATION,
        PORTWORX_SECRET_NAME_ANNOTATION,
        PORTWORX_SECRET_NAMESPACE_ANNOTATION,
    ];
    picked::pick(deserializer, |key| READ.contains(&key))
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Lets kube's clients and watchers handle a wire type as the Kubernetes kind that it is a part of.
macro_rules! resource_of {
    ($wire:ty, $kind:ty) => {
        impl Resource for $wire {
            type DynamicType = ();
            type Scope = kube::core::ClusterResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                <$kind as Resource>::kind(&())
            }

            fn group((): &()) -> Cow<'_, str> {
                <$kind as Resource>::group(&())
            }

            fn version((): &()) -> Cow<'_, str> {
                <$kind as Resource>::version(&())
            }

            fn plural((): &()) -> Cow<'_, str> {
                <$kind as Resource>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata.0
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata.0
            }
        }
    };
}

resource_of!(AttachmentObject, VolumeAttachment);
resource_of!(VolumeObject, PersistentVolume);
resource_of!(CsiNodeObject, CSINode);
