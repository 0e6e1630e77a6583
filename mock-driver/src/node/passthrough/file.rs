//! Open files, and changes of files that the kernel would make for the process that asks.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::SystemTime;

use fuser::TimeOrNow;
use rustix::fs::{AtFlags, FallocateFlags, Gid, Mode, OFlags, Timespec, UTIME_NOW, UTIME_OMIT, Uid};

use super::inode::{Entry, Inode};
use super::operation::{Target, Volume};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

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
        let length = self.fd.read_at(&mut data, offset)?;
        data.truncate(length);
        Ok(data)
    }

    /// Writes as many bytes as there is space for, and returns their number.
    pub(super) fn write(&self, volume: &Volume, offset: u64, data: &[u8]) -> Result<usize> {
        // Locked until they are written: a loss in between would not see them.
        let mut unsynced = crate::lock(&volume.unsynced);
        if self.is_synced {
            let written = self.fd.write_at(data, offset)?;
            unsynced.forget(&self.inode);
            return Ok(written);
        }
        let end = offset + u64::try_from(data.len()).unwrap_or(0);
        unsynced.keep(&self.inode, &self.fd, offset..end)?;
        self.fd.write_at(data, offset)
    }

    pub(super) fn allocate(&self, volume: &Volume, mode: i32, offset: u64, length: u64) -> Result<()> {
        let mode = FallocateFlags::from_bits_retain(u32::try_from(mode).unwrap_or(0));
        let mut unsynced = crate::lock(&volume.unsynced);
        unsynced.keep(&self.inode, &self.fd, offset..offset.saturating_add(length))?;
        Ok(rustix::fs::fallocate(&self.fd, mode, offset, length)?)
    }

    pub(super) fn sync(&self, volume: &Volume, data_only: bool) -> Result<()> {
        // Before: a write that runs meanwhile may not be on the disk.
        crate::lock(&volume.unsynced).forget(&self.inode);
        match data_only {
            true => self.fd.sync_data(),
            false => self.fd.sync_all(),
        }
    }
}

// === impl Inode ===

impl Inode {
    /// Sets the size, which loses what is beyond it unless it is synced.
    pub(super) fn truncate(self: &Arc<Self>, volume: &Volume, size: u64) -> Result<()> {
        let fd = self.open(OFlags::RDWR)?;
        let mut unsynced = crate::lock(&volume.unsynced);
        unsynced.keep(self, &fd, size..u64::MAX)?;
        fd.set_len(size)
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<()> {
        Ok(rustix::fs::chmod(
            self.path(),
            Mode::from_raw_mode(mode & 0o7777),
        )?)
    }

    /// Clears set-user-ID and set-group-ID, as a write by a process without privileges does.
    pub(super) fn drop_privileges(&self) -> Result<()> {
        let mode = self.metadata()?.mode();
        let set = match mode & GROUP_EXECUTES {
            0 => SETUID,
            _ => SETUID | SETGID,
        };
        match mode & set {
            0 => Ok(()),
            _ => self.set_mode(mode & !set),
        }
    }
}

/// Sets owner and mode of a new inode to those of the creating process: the driver creates it as root, with its own umask.
pub(super) fn give(volume: &Volume, at: &Target, (uid, gid): (u32, u32), mode: u32) -> Result<Entry> {
    let (inode, _) = volume.inodes.find(at)?;
    let above = at.inode.metadata()?;
    let inherits = above.mode() & SETGID != 0;
    let gid = if inherits { above.gid() } else { gid };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::fs::chownat(&inode.fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    let file_type = inode.metadata()?.file_type();
    let group = if inherits && file_type.is_dir() { SETGID } else { 0 };
    if !file_type.is_symlink() {
        inode.set_mode(mode | group)?;
    }
    let attributes = volume.inodes.attributes(&inode)?;
    Ok((inode, attributes))
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

pub(super) fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(SystemTime::UNIX_EPOCH);
            // For times before, fuser subtracts the nanoseconds that the kernel adds.
            let (sign, since) = since.map_or_else(|before| (-1, before.duration()), |since| (1, since));
            Timespec {
                tv_sec: i64::try_from(since.as_secs()).map_or(i64::MAX, |seconds| sign * seconds),
                tv_nsec: since.subsec_nanos().into(),
            }
        }
    }
}
