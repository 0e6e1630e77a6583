//! A VolumeAttachment of our driver.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::{Resource as _, ResourceExt as _};

use super::volume::ATTACHMENT_NAME_PREFIX;
use super::wire::{self, AttachmentObject, ErrorObject, SourceObject};
use super::{CsiSource, Driver, SecretRef, Uid, Version, Volume, VolumeSpec};

/// The node id of the publish call. The Go sidecar writes it too.
pub const NODE_ID_ANNOTATION: &str = "csi.alpha.kubernetes.io/node-id";
/// The volume handle of the publish call, for a detach after the deletion of the PersistentVolume.
pub const VOLUME_HANDLE_ANNOTATION: &str = "external-attacher/volume-handle";
/// The reference (never the content) of the publish Secret, for the same reason.
pub const PUBLISH_SECRET_ANNOTATION: &str = "external-attacher/publish-secret";

/// By how much the clocks of two API servers may differ, and so the creation times of two objects.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_mins(1);

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
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// `metadata.deletionTimestamp`, or else `metadata.creationTimestamp`.
    pub requested_at: Option<Timestamp>,
    /// Whether it has our finalizer: a publish may have been sent.
    pub finalizer: bool,
    /// Whether it has other finalizers: removing ours will not delete it.
    pub foreign_finalizers: bool,
    /// `spec.nodeName`.
    pub node: Arc<str>,
    /// `spec.source`.
    pub source: Source,
    /// The record of the publish call, stored before the call.
    pub recorded: Recorded,
    /// `status.attached`.
    pub attached: bool,
    /// `status.attachmentMetadata`.
    pub metadata: Metadata,
    /// `status.attachError`.
    pub attach_error: Option<Box<Problem>>,
    /// `status.detachError`.
    pub detach_error: Option<Box<Problem>>,
}

/// `spec.source`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The PersistentVolume of this name.
    Volume(Arc<str>),
    /// `inlineVolumeSpec`.
    Inline(Box<VolumeSpec>),
    /// An invalid source.
    Invalid(SourceFault),
}

/// The error of an invalid `spec.source`, with the Go sidecar's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum SourceFault {
    #[error("both InlineCSIVolumeSource and PersistentVolumeName specified in VA source")]
    Both,
    #[error("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")]
    Neither,
    #[error("inline volume spec contains nil CSI source")]
    InlineWithoutCsi,
}

/// The annotations that are written with our finalizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// [`NODE_ID_ANNOTATION`].
    pub node_id: Option<Arc<str>>,
    /// [`VOLUME_HANDLE_ANNOTATION`].
    pub handle: Option<Arc<str>>,
    /// [`PUBLISH_SECRET_ANNOTATION`].
    pub secret: Option<SecretRef>,
}

/// What writes need of `status.attachmentMetadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// A patch merges maps, so it must name old keys to remove them.
    pub(crate) keys: Box<[Box<str>]>,
    /// Of keys and values.
    hash: u64,
}

/// A `VolumeError`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// RFC 3339, in seconds.
    pub time: String,
    /// The message that users see in the pod's events.
    pub message: String,
    /// The numeric gRPC code, if the driver returned one.
    pub code: Option<i32>,
}

// === impl Attachment ===

impl Attachment {
    /// Converts an object; `None` if it belongs to another driver.
    pub fn from_wire(object: AttachmentObject, driver: &Driver) -> Option<Self> {
        if *object.spec.attacher != *driver.name {
            return None;
        }
        let ours = |finalizer: &&String| ***finalizer == *driver.finalizer;
        let finalizer = object.finalizers().iter().any(|f| ours(&f));
        let foreign_finalizers = object.finalizers().iter().any(|f| !ours(&f));
        let annotation = |key| {
            let value = object.annotations().get(key).map(String::as_str);
            value.filter(|value| !value.is_empty())
        };
        let recorded = Recorded {
            node_id: annotation(NODE_ID_ANNOTATION).map(Arc::from),
            handle: annotation(VOLUME_HANDLE_ANNOTATION).map(Arc::from),
            secret: annotation(PUBLISH_SECRET_ANNOTATION).map(SecretRef::recorded),
        };
        let deleted = object.meta().deletion_timestamp.as_ref();
        let deleting = deleted.is_some();
        let created = object.meta().creation_timestamp.as_ref();
        let requested_at = deleted.or(created).map(|time| time.0);
        let created = created.map(|time| time.0);
        let (name, uid, version) = wire::identity(object.metadata);
        let status = object.status;
        Some(Self {
            name,
            uid,
            version,
            deleting,
            created,
            requested_at,
            finalizer,
            foreign_finalizers,
            node: object.spec.node_name.into(),
            source: Source::from_wire(object.spec.source),
            recorded,
            attached: status.attached,
            metadata: Metadata::of(&status.attachment_metadata.unwrap_or_default()),
            attach_error: status.attach_error.map(Problem::from_wire),
            detach_error: status.detach_error.map(Problem::from_wire),
        })
    }

    /// Whether this is the response to the removal of the last finalizer, which deletes the object.
    pub fn is_deleted(&self) -> bool {
        self.deleting && !self.finalizer && !self.foreign_finalizers
    }

    /// Whether the status has fields that a detach must remove.
    pub fn has_attached_status(&self) -> bool {
        self.attached || self.detach_error.is_some() || !self.metadata.keys.is_empty()
    }

    /// Whether the status is that of a publish with this context.
    pub(crate) fn is_attached_with(&self, context: &BTreeMap<String, String>) -> bool {
        self.attached && self.attach_error.is_none() && self.metadata == Metadata::of(context)
    }

    /// Whether this may be attached to an earlier volume than the PersistentVolume that has the name now: the Go sidecar records no
    /// handle, and the PersistentVolume is younger, so it was re-created, maybe for another volume. But the attach/detach controller
    /// names a VolumeAttachment by the handle. ADR 0004 says more.
    pub(crate) fn may_predate(&self, volume: &Volume) -> bool {
        let may_be_published = self.finalizer || self.attached || self.recorded.node_id.is_some();
        let tolerated = match self.has_controllers_name() {
            true => SignedDuration::ZERO,
            false => CLOCK_DIFFERENCE,
        };
        let created = volume.created.zip(self.created);
        let is_younger =
            created.is_some_and(|(volume, attachment)| volume.duration_since(attachment) > tolerated);
        let is_of = |csi: &CsiSource| *self.name == *csi.attachment_name(&self.node);
        may_be_published
            && self.recorded.handle.is_none()
            && is_younger
            && !volume.spec.csi().is_some_and(is_of)
    }

    /// Whether the name has the form of those that contain the handle's hash.
    fn has_controllers_name(&self) -> bool {
        let hash = self.name.strip_prefix(ATTACHMENT_NAME_PREFIX);
        hash.is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }

    /// The PersistentVolume's name, unless the source is inline.
    pub fn volume_name(&self) -> Option<&Arc<str>> {
        match &self.source {
            Source::Volume(name) => Some(name),
            Source::Inline(_) | Source::Invalid(_) => None,
        }
    }
}

// === impl Recorded ===

impl Recorded {
    pub(crate) fn annotations(&self) -> [(&'static str, Option<String>); 3] {
        [
            (NODE_ID_ANNOTATION, self.node_id.as_deref().map(str::to_owned)),
            (
                VOLUME_HANDLE_ANNOTATION,
                self.handle.as_deref().map(str::to_owned),
            ),
            (
                PUBLISH_SECRET_ANNOTATION,
                self.secret.as_ref().map(ToString::to_string),
            ),
        ]
    }

    /// Whether both are of the same volume and node.
    pub(crate) fn has_same_target(&self, other: &Self) -> bool {
        (&self.node_id, &self.handle) == (&other.node_id, &other.handle)
    }
}

// === impl Metadata ===

impl Metadata {
    /// Of a publish context.
    pub fn of(context: &BTreeMap<String, String>) -> Self {
        if context.is_empty() {
            return Self::default();
        }
        // Without a random key: two processes need not agree, two calls must.
        let mut hasher = DefaultHasher::new();
        context.hash(&mut hasher);
        Self {
            keys: context.keys().map(|key| key.as_str().into()).collect(),
            hash: hasher.finish(),
        }
    }
}

// === impl Source ===

impl Source {
    fn from_wire(object: SourceObject) -> Self {
        match (object.persistent_volume_name, object.inline_volume_spec) {
            (Some(_), Some(_)) => Self::Invalid(SourceFault::Both),
            (None, None) => Self::Invalid(SourceFault::Neither),
            (Some(name), None) => Self::Volume(name.into()),
            (None, Some(spec)) if spec.csi.is_none() => Self::Invalid(SourceFault::InlineWithoutCsi),
            (None, Some(spec)) => Self::Inline(Box::new(VolumeSpec::from_wire(*spec))),
        }
    }
}

// === impl Problem ===

impl Problem {
    fn from_wire(object: ErrorObject) -> Box<Self> {
        Box::new(Self {
            time: object.time.unwrap_or_default(),
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
    fn ignores_attachments_of_other_drivers() {
        assert_eq!(
            decode(json!({"metadata": {"name": "va"}, "spec": {"attacher": "other"}})),
            None
        );
    }

    #[test]
    fn non_numeric_resource_version_is_unknown() {
        let of = |version: Option<&str>| {
            let metadata = json!({"name": "va", "resourceVersion": version});
            decode(json!({"metadata": metadata, "spec": {"attacher": "d.example"}})).map(|va| va.version)
        };
        assert_eq!(of(Some("9")), Some(Version(9)));
        assert_eq!(of(Some("9z")), Some(Version::UNKNOWN));
        assert_eq!(of(None), Some(Version::UNKNOWN));
    }

    /// The API server stores it, and one such object must not fail the whole list.
    #[test]
    fn decodes_an_error_with_a_time_beyond_the_range_of_timestamps() {
        let attachment = decode(json!({
            "metadata": {"name": "va"},
            "spec": {"attacher": "d.example"},
            "status": {"attachError": {"time": "9999-12-31T00:00:00Z", "message": "m"}},
        }));
        let error = attachment.unwrap().attach_error.unwrap();
        assert_eq!((&*error.time, &*error.message), ("9999-12-31T00:00:00Z", "m"));
    }

    /// It may have been published with a Secret.
    #[test]
    fn an_unreadable_secret_reference_is_kept() {
        let attachment = decode(json!({
            "metadata": { "name": "va", "annotations": { "external-attacher/publish-secret": "s" } },
            "spec": { "attacher": "d.example" },
        }));
        let secret = attachment.unwrap().recorded.secret;
        assert_eq!(secret, Some(SecretRef::recorded("s")));
    }

    #[test]
    fn converts_all_fields() {
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
                created: "2026-01-01T00:00:00Z".parse().ok(),
                requested_at: "2026-01-01T00:00:01Z".parse().ok(),
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
                metadata: Metadata::of(&BTreeMap::from([("device".to_owned(), "/dev/x".to_owned())])),
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
    fn converts_sources() {
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
