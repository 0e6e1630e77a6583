//! Usage of filesystems.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Available to unprivileged users.
    pub(crate) available: u64,
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// Bytes and inodes of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) bytes: Usage,
    pub(crate) inodes: Usage,
}

// === impl Stats ===

impl Stats {
    /// The usage of an empty filesystem on a disk of that size with an inode per 16 KiB, the default of mkfs.ext4.
    pub(crate) fn empty(bytes: u64) -> Self {
        let unused = |total| Usage {
            available: total,
            total,
            used: 0,
        };
        Self {
            bytes: unused(bytes),
            inodes: unused(bytes / (16 * 1024)),
        }
    }
}
