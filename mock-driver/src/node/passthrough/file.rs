//! Open files, and changes of files that the kernel would make for the process that asks.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::SystemTime;

use fuser::TimeOrNow;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, UTIME_NOW, UTIME_OMIT, Uid};

use super::inode::Inode;
use super::operation::Volume;

const SETGID: u32 = 0o2000;

#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) inode: Arc<Inode>,
    pub(super) fd: File,
    /// Whether each write is on the disk when it returns.
    is_synced: bool,
}

// === impl OpenFile ===

impl OpenFile {
    pub(super) fn new(inode: Arc<Inode>, fd: File, flags: OFlags) -> Self {
        Self {
            inode,
            fd,
            is_synced: flags.intersects(OFlags::DSYNC | OFlags::SYNC),
        }
    }

    pub(super) fn read(&self, offset: u64, size: u32) -> Result<Vec<u8>> {
        let mut data = vec![0; usize::try_from(size).unwrap_or(0)];
        let mut filled = 0;
        while filled < data.len() {
            let position = offset + u64::try_from(filled).unwrap_or(0);
            match self.fd.read_at(&mut data[filled..], position)? {
                0 => break,
                read => filled += read,
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    pub(super) fn write(&self, volume: &Volume, offset: u64, data: &[u8]) -> Result<()> {
        if !self.is_synced {
            let end = offset + u64::try_from(data.len()).unwrap_or(0);
            crate::lock(&volume.unsynced).keep(&self.inode, &self.fd, offset..end)?;
        }
        self.fd.write_all_at(data, offset)?;
        if self.is_synced {
            crate::lock(&volume.unsynced).forget(&self.inode);
        }
        Ok(())
    }

    pub(super) fn sync(&self, volume: &Volume, data_only: bool) -> Result<()> {
        match data_only {
            true => self.fd.sync_data()?,
            false => self.fd.sync_all()?,
        }
        crate::lock(&volume.unsynced).forget(&self.inode);
        Ok(())
    }
}

/// Sets owner and mode of a new inode to those of the creating process: the driver creates it as root, with its own umask.
pub(super) fn give(dir: &Inode, name: &OsStr, (uid, gid): (u32, u32), mode: u32) -> Result<()> {
    let above = dir.metadata()?;
    let inherits = above.mode() & SETGID != 0;
    let gid = if inherits { above.gid() } else { gid };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::fs::chownat(&dir.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    let made = rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let file_type = FileType::from_raw_mode(made.st_mode);
    let keeps_group = inherits && file_type == FileType::Directory;
    let mode = Mode::from_raw_mode(if keeps_group { mode | SETGID } else { mode } & 0o7777);
    match file_type == FileType::Symlink {
        true => Ok(()),
        false => Ok(rustix::fs::chmodat(&dir.fd, name, mode, AtFlags::empty())?),
    }
}

/// Opens files for reading, too, because a write keeps what was there before. The kernel appends by itself.
pub(super) fn open_flags(flags: i32) -> OFlags {
    let flags = OFlags::from_bits_retain(u32::try_from(flags).unwrap_or(0));
    let kept = OFlags::DSYNC | OFlags::SYNC | OFlags::NOATIME;
    let access = match flags & OFlags::RWMODE {
        OFlags::RDONLY => OFlags::RDONLY,
        _ => OFlags::RDWR,
    };
    access | (flags & kept)
}

/// Sets the size of a file, which loses what is beyond it unless it is synced.
pub(super) fn truncate(volume: &Volume, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let fd = inode.open(OFlags::RDWR)?;
    crate::lock(&volume.unsynced).keep(inode, &fd, size..u64::MAX)?;
    fd.set_len(size)
}

pub(super) fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timespec {
                tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: since.subsec_nanos().into(),
            }
        }
    }
}
