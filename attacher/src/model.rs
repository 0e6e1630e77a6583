//! The attacher's own small types.
//!
//! A cluster may have 100,000 VolumeAttachments of which ten are ours. So each object is converted as soon as it is decoded
//! ([`wire`]) and dropped if it belongs to another driver.
//!

pub mod attachment;
pub mod driver;
pub mod handle;
pub mod node;
pub mod volume;
pub mod wire;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use csi_proto::secret::SecretMap;

pub use attachment::{Attachment, Metadata, Problem, Recorded, Source, SourceFault};
pub use driver::{Capabilities, Driver};
pub use node::Node;
pub use volume::{CsiSource, NoCsiSource, Volume, VolumeSpec};

/// `metadata.uid`, which distinguishes a re-created object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(pub Arc<str>);

/// `metadata.resourceVersion` as a number.
///
/// Versions of one resource type may be compared: the API server documents them as increasing
/// integers (KEP-5504). A version that is not a number is [`Version::UNKNOWN`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

/// The Secret of a call. Its content is read for each call and not kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecretRef {
    /// Namespace of the Secret.
    pub namespace: Arc<str>,
    /// Name of the Secret.
    pub name: Arc<str>,
}

/// The content of a Secret. `Debug` prints only the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub SecretMap);

/// Volume and node of a ControllerPublishVolume or ControllerUnpublishVolume.
///
/// Two are equal if the driver takes them for the same: it completes handles of migrated volumes from the node
/// ([`handle`]).
#[derive(Clone, Debug)]
pub struct PublishTarget {
    /// CSI `volume_id`, as it is sent.
    pub volume_id: Arc<str>,
    /// CSI `node_id`.
    pub node_id: Arc<str>,
}

// === impl Uid ===

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<&str> for Uid {
    fn from(uid: &str) -> Self {
        Self(uid.into())
    }
}

// === impl Version ===

impl Version {
    /// A version that cannot be compared, so no version is stale beside it.
    pub const UNKNOWN: Self = Self(0);
}

// === impl PublishTarget ===

impl PublishTarget {
    /// The volume as the driver knows it, and the node.
    fn identity(&self) -> (Cow<'_, str>, &str) {
        let volume = handle::completed_if_possible(&self.volume_id, &self.node_id);
        (volume, &self.node_id)
    }

    /// The target of another volume on the same node.
    pub(crate) fn with_volume(&self, handle: &Arc<str>) -> Self {
        Self {
            volume_id: handle.clone(),
            node_id: self.node_id.clone(),
        }
    }
}

impl PartialEq for PublishTarget {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for PublishTarget {}

impl PartialOrd for PublishTarget {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PublishTarget {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for PublishTarget {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.identity().hash(hasher);
    }
}

// === impl SecretRef ===

impl SecretRef {
    /// From the annotation. An invalid reference is kept as a Secret that does not exist: an unpublish without it is not one of a
    /// volume without Secret.
    pub fn recorded(text: &str) -> Self {
        Self::parse(text).unwrap_or_else(|| Self {
            namespace: Arc::default(),
            name: text.into(),
        })
    }

    /// Whether it names a Secret.
    pub fn is_valid(&self) -> bool {
        // No other name passes the API server's validation of Secrets, but that of PersistentVolumes.
        let is_name = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphanumeric())
                && name
                    .bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
        };
        is_name(&self.namespace) && is_name(&self.name)
    }

    /// Parses `namespace/name`, the form of the annotation.
    pub fn parse(recorded: &str) -> Option<Self> {
        let (namespace, name) = recorded.split_once('/')?;
        (!namespace.is_empty() && !name.is_empty()).then(|| Self {
            namespace: namespace.into(),
            name: name.into(),
        })
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.is_empty() {
            false => write!(f, "{}/{}", self.namespace, self.name),
            true => self.name.fmt(f),
        }
    }
}

// === impl Secrets ===

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_secret_values() {
        let secrets = Secrets(SecretMap::from([("user".to_owned(), "hunter2".to_owned())]));
        assert_eq!(format!("{secrets:?}"), r#"{"user"}"#);
    }

    #[test]
    fn parses_a_displayed_secret_reference() {
        let reference = SecretRef {
            namespace: "ns".into(),
            name: "creds".into(),
        };
        assert_eq!(SecretRef::parse(&reference.to_string()), Some(reference));
        for broken in ["", "ns", "ns/", "/name"] {
            assert_eq!(SecretRef::parse(broken), None, "{broken:?}");
            let recorded = SecretRef::recorded(broken);
            assert!(!recorded.is_valid(), "{broken:?}");
            assert_eq!(recorded.to_string(), broken);
        }
    }
}
