//! A VolumeAttachment of our driver.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::{VolumeAttachmentSource, VolumeError};

use super::wire::AttachmentObject;
use super::{Driver, SecretRef, Uid, Version, VolumeSpec};
use crate::report::time;

/// Where the node id of the publish call is recorded. The Go sidecar writes it too.
pub const NODE_ID_ANNOTATION: &str = "csi.alpha.kubernetes.io/node-id";
/// Where the volume handle of the publish call is recorded, so that an attachment can be detached
/// after its PersistentVolume is gone.
pub const VOLUME_HANDLE_ANNOTATION: &str = "external-attacher/volume-handle";
/// Where the reference (never the content) of the publish Secret is recorded, for the same reason.
pub const PUBLISH_SECRET_ANNOTATION: &str = "external-attacher/publish-secret";

/// One VolumeAttachment whose `spec.attacher` is our driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// Whether `metadata.deletionTimestamp` is set: a detach is wanted.
    pub deleting: bool,
    /// When what is wanted now began to be wanted: `metadata.deletionTimestamp` if a detach is, else
    /// `metadata.creationTimestamp`.
    pub wanted_since: Option<Timestamp>,
    /// Whether our finalizer is on it: a publish may have been sent.
    pub finalizer: bool,
    /// Whether finalizers of others are on it: removing ours will not delete it.
    pub foreign_finalizers: bool,
    /// `spec.nodeName`.
    pub node: Arc<str>,
    /// `spec.source`.
    pub source: Source,
    /// What was stored before the publish call was sent.
    pub recorded: Recorded,
    /// `status.attached`.
    pub attached: bool,
    /// Keys of `status.attachmentMetadata`: a patch merges maps, so old keys must be named to go.
    pub metadata_keys: Box<[Box<str>]>,
    /// `status.attachError`.
    pub attach_error: Option<Box<Problem>>,
    /// `status.detachError`.
    pub detach_error: Option<Box<Problem>>,
}

/// What a VolumeAttachment attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The PersistentVolume of this name.
    Volume(Arc<str>),
    /// A volume specified in place.
    Inline(Box<VolumeSpec>),
    /// Nothing that can be attached.
    Invalid(SourceFault),
}

/// What is wrong with a `spec.source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceFault {
    /// Two sources.
    #[error("both InlineCSIVolumeSource and PersistentVolumeName specified in VA source")]
    Both,
    /// No source.
    #[error("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")]
    Neither,
    /// An inline specification of something else than a CSI volume.
    #[error("inline volume spec contains nil CSI source")]
    InlineWithoutCsi,
}

/// The annotations that are written together with our finalizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// [`NODE_ID_ANNOTATION`].
    pub node_id: Option<Arc<str>>,
    /// [`VOLUME_HANDLE_ANNOTATION`].
    pub handle: Option<Arc<str>>,
    /// [`PUBLISH_SECRET_ANNOTATION`].
    pub secret: Option<SecretRef>,
}

/// A `VolumeError` as it stands in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// RFC 3339, in seconds.
    pub time: String,
    /// The message that users see in the pod's events.
    pub message: String,
    /// The numeric gRPC code, when the driver answered with one.
    pub code: Option<i32>,
}

// === impl Attachment ===

impl Attachment {
    /// Converts an object of `driver`; one of another driver is nothing to us.
    pub fn from_wire(object: AttachmentObject, driver: &Driver) -> Option<Self> {
        if *object.spec.attacher != *driver.name {
            return None;
        }
        let metadata = object.metadata;
        let ours = |finalizer: &&String| ***finalizer == *driver.finalizer;
        let finalizer = metadata.finalizers().iter().any(|f| ours(&f));
        let foreign_finalizers = metadata.finalizers().iter().any(|f| !ours(&f));
        let annotation = |key| metadata.annotation(key).filter(|value| !value.is_empty());
        let recorded = Recorded {
            node_id: annotation(NODE_ID_ANNOTATION).map(Arc::from),
            handle: annotation(VOLUME_HANDLE_ANNOTATION).map(Arc::from),
            secret: annotation(PUBLISH_SECRET_ANNOTATION).and_then(SecretRef::parse),
        };
        let deleting = metadata.is_deleting();
        let wanted_since = metadata.deleted().or(metadata.created());
        let (name, uid, version) = metadata.identity();
        let status = object.status;
        Some(Self {
            name,
            uid,
            version,
            deleting,
            wanted_since,
            finalizer,
            foreign_finalizers,
            node: object.spec.node_name.into(),
            source: Source::from_wire(object.spec.source),
            recorded,
            attached: status.attached,
            metadata_keys: status
                .attachment_metadata
                .unwrap_or_default()
                .into_keys()
                .map(String::into_boxed_str)
                .collect(),
            attach_error: status.attach_error.map(Problem::from_wire),
            detach_error: status.detach_error.map(Problem::from_wire),
        })
    }

    /// Whether the status says anything that a detach makes wrong.
    pub fn says_attached(&self) -> bool {
        self.attached || self.detach_error.is_some() || !self.metadata_keys.is_empty()
    }

    /// Name of the PersistentVolume that is attached, if it is one.
    pub fn volume_name(&self) -> Option<&Arc<str>> {
        match &self.source {
            Source::Volume(name) => Some(name),
            Source::Inline(_) | Source::Invalid(_) => None,
        }
    }
}

// === impl Recorded ===

impl Recorded {
    /// Whether both are of the same volume and node.
    pub fn is_at_one_with(&self, other: &Self) -> bool {
        (&self.node_id, &self.handle) == (&other.node_id, &other.handle)
    }
}

// === impl Source ===

impl Source {
    fn from_wire(object: VolumeAttachmentSource) -> Self {
        match (object.persistent_volume_name, object.inline_volume_spec) {
            (Some(_), Some(_)) => Self::Invalid(SourceFault::Both),
            (None, None) => Self::Invalid(SourceFault::Neither),
            (Some(name), None) => Self::Volume(name.into()),
            (None, Some(spec)) if spec.csi.is_none() => Self::Invalid(SourceFault::InlineWithoutCsi),
            (None, Some(spec)) => Self::Inline(Box::new(VolumeSpec::from_wire(spec))),
        }
    }
}

// === impl Problem ===

impl Problem {
    fn from_wire(object: VolumeError) -> Box<Self> {
        Box::new(Self {
            time: object.time.map(|at| time(at.0)).unwrap_or_default(),
            message: object.message.unwrap_or_default(),
            code: object.error_code,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Capabilities;

    fn decode(object: serde_json::Value) -> Option<Attachment> {
        let driver = Driver::new("d.example", Capabilities::default(), "");
        Attachment::from_wire(serde_json::from_value(object).unwrap(), &driver)
    }

    #[test]
    fn an_attachment_of_another_driver_is_nothing_to_us() {
        assert_eq!(
            decode(json!({"metadata": {"name": "va"}, "spec": {"attacher": "other"}})),
            None
        );
    }

    #[test]
    fn an_object_as_the_api_server_sends_it_keeps_what_decisions_need() {
        let attachment = decode(json!({
            "metadata": {
                "name": "va", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:01Z",
                "finalizers": ["external-attacher/d-example", "other/f"],
                "annotations": {
                    "csi.alpha.kubernetes.io/node-id": "id-1",
                    "external-attacher/volume-handle": "h",
                    "external-attacher/publish-secret": "ns/s",
                },
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {"attacher": "d.example", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
            "status": {
                "attached": true, "attachmentMetadata": {"device": "/dev/x"},
                "attachError": {"time": "2026-01-01T00:00:00Z", "message": "m", "errorCode": 8},
            },
        }))
        .unwrap();
        assert_eq!(
            attachment,
            Attachment {
                name: "va".into(),
                uid: "u".into(),
                version: Version(7),
                deleting: true,
                wanted_since: "2026-01-01T00:00:01Z".parse().ok(),
                finalizer: true,
                foreign_finalizers: true,
                node: "n".into(),
                source: Source::Volume("pv".into()),
                recorded: Recorded {
                    node_id: Some("id-1".into()),
                    handle: Some("h".into()),
                    secret: SecretRef::parse("ns/s"),
                },
                attached: true,
                metadata_keys: ["device".into()].into(),
                attach_error: Some(Box::new(Problem {
                    time: "2026-01-01T00:00:00Z".into(),
                    message: "m".into(),
                    code: Some(8),
                })),
                detach_error: None,
            }
        );
    }

    #[test]
    fn sources_are_told_apart() {
        let source = |source: serde_json::Value| {
            decode(json!({"spec": {"attacher": "d.example", "source": source}}))
                .unwrap()
                .source
        };
        let inline = json!({"csi": {"driver": "d.example", "volumeHandle": "h"}});
        assert_eq!(source(json!({})), Source::Invalid(SourceFault::Neither));
        assert_eq!(
            source(json!({"inlineVolumeSpec": {}})),
            Source::Invalid(SourceFault::InlineWithoutCsi)
        );
        assert_eq!(
            source(json!({"persistentVolumeName": "pv", "inlineVolumeSpec": inline})),
            Source::Invalid(SourceFault::Both)
        );
        assert!(matches!(
            source(json!({"inlineVolumeSpec": inline})),
            Source::Inline(spec) if spec.csi().is_some_and(|csi| &*csi.handle == "h")
        ));
    }
}
