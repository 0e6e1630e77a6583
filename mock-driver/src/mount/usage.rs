//! How full a filesystem is.

/// How full something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// What can still be taken by who has no privileges.
    pub(crate) available: u64,
    /// All there is.
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
