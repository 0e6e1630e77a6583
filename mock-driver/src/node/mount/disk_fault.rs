//! Injected faults of a disk's content, which staging finds before it mounts the disk.
//!
//! Invariant: nothing on the disk is changed.

use std::path::Path;

use super::error::Error;
use super::filesystem::{self, E2FSCK, Filesystem};
use super::{Disk, Mounter};
use crate::fault::DiskFault;
use crate::node::exec;
use crate::store::volume_files::FILESYSTEM;

// === impl Mounter ===

impl Mounter {
    /// Applies the disk fault before a mount at `path` as `fs_type`. It does not affect a disk that is mounted there already or
    /// has no filesystem yet.
    pub(crate) fn apply_disk_fault(
        self,
        disk: &Disk,
        path: &Path,
        fs_type: &str,
        disk_fault: DiskFault,
    ) -> Result<(), Error> {
        if self == Self::Kernel && self.is_mounted(disk, path)? {
            return Ok(());
        }
        match disk_fault {
            DiskFault::Damaged if self.has_filesystem(disk)? => Err(Error::Damaged(exec::Error::Failed {
                name: E2FSCK.name,
                status: "exit status: 4".to_owned(),
                code: Some(filesystem::UNREPAIRED),
                output: "UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY (backend fault damaged-filesystem)"
                    .to_owned(),
            })),
            DiskFault::Damaged => Ok(()),
            DiskFault::Foreign(found) => Err(Error::UnknownData {
                found,
                fs: Filesystem::asked(fs_type)?.unwrap_or(Filesystem::DEFAULT).name(),
            }),
        }
    }

    fn has_filesystem(self, disk: &Disk) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(disk.tree.with_file_name(FILESYSTEM).exists()),
            Self::Kernel => Ok(filesystem::found(&disk.device)?.is_some()),
        }
    }
}
