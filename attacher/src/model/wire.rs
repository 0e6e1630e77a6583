//! Kubernetes objects as they are decoded from the API server's JSON: k8s-openapi's types without `managedFields`, which
//! are most bytes of an object's metadata and are not needed.
//!
//! Every field has a default: one object that does not parse would fail its whole page of a list, which kube's watcher then
//! retries forever.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeSpec, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use super::{Uid, Version};

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachmentObject {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(super) spec: SpecObject,
    pub(super) status: StatusObject,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SpecObject {
    pub(super) attacher: String,
    pub(super) node_name: String,
    pub(super) source: SourceObject,
}

/// A VolumeAttachment's source. The inline volume is boxed: the type has 3 kB, and kube's watcher moves each object often.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SourceObject {
    pub(super) persistent_volume_name: Option<String>,
    pub(super) inline_volume_spec: Option<Box<PersistentVolumeSpec>>,
}

/// A VolumeAttachment's status. Of the publish context only the keys are kept, and times are text: the API server stores
/// some that k8s-openapi's type cannot hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StatusObject {
    pub(super) attached: bool,
    pub(super) attachment_metadata: Option<BTreeMap<String, String>>,
    pub(super) attach_error: Option<ErrorObject>,
    pub(super) detach_error: Option<ErrorObject>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ErrorObject {
    pub(super) time: Option<String>,
    pub(super) message: Option<String>,
    pub(super) error_code: Option<i32>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeObject {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Box<PersistentVolumeSpec>,
}

/// A CSINode.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeObject {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(super) spec: CSINodeSpec,
}

/// Name, UID and version of an object.
pub(crate) fn identity(metadata: ObjectMeta) -> (Arc<str>, Uid, Version) {
    let version = metadata.resource_version.and_then(|version| version.parse().ok());
    (
        metadata.name.unwrap_or_default().into(),
        Uid(metadata.uid.unwrap_or_default().into()),
        version.map_or(Version::UNKNOWN, Version),
    )
}

/// Decodes only those fields of the metadata that are needed.
fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Slim {
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        finalizers: Option<Vec<String>>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
    let slim = Slim::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        uid: slim.uid,
        resource_version: slim.resource_version,
        creation_timestamp: slim.creation_timestamp,
        deletion_timestamp: slim.deletion_timestamp,
        finalizers: slim.finalizers,
        labels: slim.labels,
        annotations: slim.annotations,
        ..ObjectMeta::default()
    })
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
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource_of!(AttachmentObject, VolumeAttachment);
resource_of!(VolumeObject, PersistentVolume);
resource_of!(CsiNodeObject, CSINode);
