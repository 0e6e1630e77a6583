//! The names of volumes and nodes, kept apart by type so that one can never stand in for the other.
//!
//! Both share their text: the array holds an id in several maps, and a copy costs a counter.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The id by which a volume is known on the wire (`volume_id`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VolumeId(Arc<str>);

/// The id by which a node is known to the driver (CSI's `node_id`, not Kubernetes' node name).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(Arc<str>);

// === impl VolumeId ===

impl VolumeId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for VolumeId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for VolumeId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for VolumeId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl NodeId ===

impl NodeId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NodeId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for NodeId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for NodeId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
