//! Injected faults of a disk's content, which staging finds before it mounts the disk.
//!
//! Invariant: no user data is changed. Filesystem errors are recorded in the superblock of an unmounted filesystem, where
//! the fsck before each mount repairs them; the other faults only cause errors.

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::Error;
use super::filesystem::{self, E2FSCK, Filesystem};
use super::{Disk, Mounter};
use crate::fault::DiskFault;
use crate::node::exec::{self, Program};
use crate::store::PathError;
use crate::store::volume_files::FILESYSTEM;

const TUNE2FS: Program = Program {
    name: "tune2fs",
    package: "e2fsprogs",
};

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
            DiskFault::Dirty => self.mark_dirty(disk),
            DiskFault::Damaged if self.has_filesystem(disk)? => Err(Error::Damaged(exec::Error::Failed {
                name: E2FSCK.name,
                status: "exit status: 4".to_owned(),
                code: Some(filesystem::UNREPAIRED),
                output: "UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY (backend fault dirty-filesystem)"
                    .to_owned(),
            })),
            DiskFault::Damaged => Ok(()),
            DiskFault::Foreign(found) => Err(Error::UnknownData {
                found,
                fs: Filesystem::asked(fs_type)?.unwrap_or(Filesystem::DEFAULT).name(),
            }),
        }
    }

    /// Records errors in an unmounted ext filesystem. xfs replays its log at the mount, and emulated filesystems have no
    /// superblock.
    fn mark_dirty(self, disk: &Disk) -> Result<(), Error> {
        if self == Self::Emulated || !disk.writable {
            return Ok(());
        }
        match filesystem::found(&disk.device)? {
            Some(Filesystem::Ext2 | Filesystem::Ext3 | Filesystem::Ext4) => {}
            Some(Filesystem::Xfs) | None => return Ok(()),
        }
        // Fails for a device that is mounted somewhere.
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(&disk.device, flags, Mode::empty()) {
            Ok(claim) => drop(claim),
            Err(Errno::BUSY) => return Ok(()),
            Err(error) => return Err(PathError::of("open", &disk.device)(error).into()),
        }
        let args = ["-E".as_ref(), "force_fsck".as_ref(), disk.device.as_os_str()];
        TUNE2FS.run(args, &[0])?;
        tracing::info!(device = %disk.device.display(), "backend fault dirty-filesystem: marked the filesystem as having errors");
        Ok(())
    }

    fn has_filesystem(self, disk: &Disk) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(disk.tree.with_file_name(FILESYSTEM).exists()),
            Self::Kernel => Ok(filesystem::found(&disk.device)?.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::super::tests::mk_blank_disk;
    use super::*;

    fn has_errors(disk: &Disk) -> bool {
        let mut state = [0; 2];
        let file = File::open(&disk.file).unwrap();
        file.read_exact_at(&mut state, 0x43A).unwrap();
        u16::from_le_bytes(state) & 2 != 0
    }

    #[test]
    fn errors_are_noted_where_there_is_an_ext_filesystem_to_repair() {
        verdict::require!(verdict::Requirement::Program("mkfs.ext4"));
        // A filesystem whose rules can be tested without mounting it.
        let (_directory, mut disk) = mk_blank_disk(320 << 20);
        let mark_dirty = |disk: &Disk| Mounter::Kernel.mark_dirty(disk).unwrap();
        mark_dirty(&disk);
        assert!(
            crate::store::volume_files::is_blank(&disk.file, &disk.stop).unwrap(),
            "a blank disk stays blank"
        );
        super::super::formatting::prepare(&disk, Some(Filesystem::Ext4)).unwrap();
        assert!(!has_errors(&disk));
        disk.writable = false;
        mark_dirty(&disk);
        assert!(
            !has_errors(&disk),
            "nothing is written where nothing may be written"
        );
        disk.writable = true;
        mark_dirty(&disk);
        assert!(has_errors(&disk));
        super::super::formatting::prepare(&disk, None).unwrap();
        assert!(!has_errors(&disk), "repaired");
    }

    #[test]
    fn xfs_is_not_marked_dirty() {
        verdict::require!(verdict::Requirement::Program("mkfs.xfs"));
        let (_directory, disk) = mk_blank_disk(320 << 20);
        super::super::formatting::prepare(&disk, Some(Filesystem::Xfs)).unwrap();
        let before = filesystem::head(&disk.file).unwrap();
        Mounter::Kernel.mark_dirty(&disk).unwrap();
        assert!(before == filesystem::head(&disk.file).unwrap());
    }
}
