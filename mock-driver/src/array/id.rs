//! The names of volumes, nodes, snapshots, groups and pools, kept apart by type so that one can never
//! stand in for another.
//!
//! They share their text: the array holds an id in several maps, and a copy costs a counter.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

ids! {
    /// The id by which a volume is known on the wire (`volume_id`).
    VolumeId;

    /// The id by which a node is known to the driver (CSI's `node_id`, not Kubernetes' node name).
    NodeId;

    /// The id by which a snapshot is known on the wire (`snapshot_id`).
    SnapshotId;

    /// The id by which a group of snapshots is known on the wire (`group_snapshot_id`).
    GroupId;

    /// The name of a pool of space.
    PoolName;
}

// === impl PoolName ===

impl Default for PoolName {
    /// No pool: what is there belongs nowhere in particular.
    fn default() -> Self {
        Self::from("")
    }
}
