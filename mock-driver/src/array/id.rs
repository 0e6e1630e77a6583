//! Ids of volumes, nodes, snapshots, groups and pools as separate types.
//!
//! Their text is shared, because the array stores an id in several maps.

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
    /// CSI's `volume_id`.
    VolumeId;

    /// CSI's `node_id`, not the name of a Kubernetes Node.
    NodeId;

    /// CSI's `snapshot_id`.
    SnapshotId;

    /// CSI's `group_snapshot_id`.
    GroupId;

    PoolName;
}

// === impl PoolName ===

impl Default for PoolName {
    fn default() -> Self {
        Self::from("")
    }
}
