//! How full a filesystem is.

/// How full something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// What can still be taken by who has no privileges.
    pub(crate) available: u64,
    pub(crate) total: u64,
    /// What is taken.
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
    /// Of a filesystem without files on a disk of that size, with an inode for 16 KiB, as mkfs.ext4 gives.
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
