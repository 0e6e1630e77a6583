//! Supported filesystems, and the detection of a disk's content.
//!
//! A disk is blank only if all its bytes are zero, not if no signature is found: unknown data is user data, too.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::Disk;
use super::error::Error;
use crate::node::exec::{self, Program};
use crate::store::PathError;
use crate::store::volume_files;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filesystem {
    Ext2,
    Ext3,
    Ext4,
    Xfs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Blank,
    Known(Filesystem),
    /// Data other than a known filesystem, and its kind if known.
    Unknown(&'static str),
}

/// Bytes at the beginning of a disk that contain all known signatures.
const HEAD: u64 = 72 * 1024;

const XFS_GROWFS: Program = Program {
    name: "xfs_growfs",
    package: "xfsprogs",
};
const RESIZE2FS: Program = Program {
    name: "resize2fs",
    package: "e2fsprogs",
};
pub(super) const E2FSCK: Program = Program {
    name: "e2fsck",
    package: "e2fsprogs",
};

/// e2fsck: no errors, or errors corrected.
const REPAIRED: [i32; 2] = [0, 1];
/// e2fsck: errors left uncorrected.
pub(super) const UNREPAIRED: i32 = 4;

// === impl Filesystem ===

impl Filesystem {
    const ALL: [Self; 4] = [Self::Ext2, Self::Ext3, Self::Ext4, Self::Xfs];

    /// The filesystem of that name; `None` for an empty name.
    pub(super) fn asked(fs_type: &str) -> Result<Option<Self>, Error> {
        if fs_type.is_empty() {
            return Ok(None);
        }
        let known = Self::ALL.into_iter().find(|fs| fs.name() == fs_type);
        known.map(Some).ok_or_else(|| {
            Error::Refused(format!(
                "fs_type \"{fs_type}\" is not supported: ask for ext4, ext3, ext2 or xfs, or for none"
            ))
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    pub(super) const DEFAULT: Self = Self::Ext4;

    pub(super) fn mkfs(self) -> (Program, &'static [&'static str]) {
        // Inode tables are initialized lazily, and no blocks are reserved for root: the volume belongs to its user.
        const EXT: (&str, &[&str]) = ("e2fsprogs", &["-q", "-F", "-m0"]);
        let (name, (package, args)) = match self {
            Self::Ext2 => ("mkfs.ext2", EXT),
            Self::Ext3 => ("mkfs.ext3", EXT),
            Self::Ext4 => ("mkfs.ext4", EXT),
            Self::Xfs => ("mkfs.xfs", ("xfsprogs", &["-q", "-f"][..])),
        };
        (Program { name, package }, args)
    }

    /// Whether a disk with `self` satisfies a request for `asked`: the kernel's ext4 driver mounts all ext filesystems.
    pub(super) fn serves(self, asked: Self) -> bool {
        (self == Self::Xfs) == (asked == Self::Xfs)
    }
}

pub(super) fn found(device: &Path) -> Result<Option<Filesystem>, Error> {
    let head = head(device).map_err(PathError::of("read", device))?;
    Ok(match signature(&head) {
        Some(Content::Known(fs)) => Some(fs),
        Some(Content::Unknown(_) | Content::Blank) | None => None,
    })
}

pub(super) fn grow(fs: Filesystem, device: &Path, path: &Path) -> Result<(), Error> {
    match fs {
        Filesystem::Ext2 | Filesystem::Ext3 | Filesystem::Ext4 => {
            let head = head(device).map_err(PathError::of("read", device))?;
            if !has_room(&head, device)? {
                return Ok(());
            }
            RESIZE2FS.run([device], &[0]).map_err(|error| match &error {
                exec::Error::Failed { output, .. } if output.contains("Permission denied") => {
                    Error::CannotGrowInUse(error)
                }
                exec::Error::Failed { .. } | exec::Error::Missing { .. } | exec::Error::Start { .. } => {
                    error.into()
                }
            })?;
        }
        Filesystem::Xfs => {
            XFS_GROWFS.run([path], &[0])?;
        }
    }
    Ok(())
}

/// Grows an unmounted ext filesystem to the size of its device, which needs access to the device only. xfs grows only
/// while it is mounted.
pub(super) fn grow_unmounted(disk: &Disk) -> Result<(), Error> {
    let device = disk.device.as_path();
    let head = head(device).map_err(PathError::of("read", device))?;
    if !has_room(&head, device)? {
        return Ok(());
    }
    // resize2fs requires a check just before.
    let args = ["-f".as_ref(), "-p".as_ref(), device.as_os_str()];
    E2FSCK.run_until(args, &REPAIRED, &disk.stop, disk.lock.as_deref())?;
    RESIZE2FS.run_until([device], &[0], &disk.stop, disk.lock.as_deref())?;
    Ok(())
}

/// Whether the device exceeds the ext filesystem on it by more than a block.
fn has_room(head: &[u8], device: &Path) -> Result<bool, Error> {
    let Some((blocks, block)) = ext_blocks(head) else {
        return Ok(false);
    };
    let bytes = File::open(device)
        .and_then(|mut file| file.seek(SeekFrom::End(0)))
        .map_err(PathError::of("read the size of", device))?;
    Ok(bytes / block > blocks)
}

fn ext_blocks(head: &[u8]) -> Option<(u64, u64)> {
    const HAS_64BIT: u32 = 0x80;
    let word = |offset: usize| {
        let bytes = head.get(offset..offset + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if head.get(0x438..0x43A) != Some(&[0x53, 0xEF]) {
        return None;
    }
    let high = if word(0x460)? & HAS_64BIT != 0 {
        word(0x550)?
    } else {
        0
    };
    let block = 1024_u64.checked_shl(word(0x418)?)?;
    Some((u64::from(high) << 32 | u64::from(word(0x404)?), block))
}

pub(super) fn content(disk: &Disk) -> Result<Content, Error> {
    let (device, file) = (disk.device.as_path(), disk.file.as_path());
    // Writes to the device must be visible in its backing file.
    File::open(device)
        .and_then(|device| device.sync_all())
        .map_err(PathError::of("flush", device))?;
    let head = head(device).map_err(PathError::of("read", device))?;
    if let Some(content) = signature(&head) {
        return Ok(content);
    }
    let is_blank = volume_files::is_blank(file, &disk.stop).map_err(PathError::of("read", file))?;
    Ok(if is_blank {
        Content::Blank
    } else {
        Content::Unknown("data of an unknown kind")
    })
}

fn head(device: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(device)?.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

/// The content of a disk by the signatures at its beginning. Offsets are those of the kernel's headers.
fn signature(head: &[u8]) -> Option<Content> {
    let has = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    let word = |offset: usize| {
        let bytes = head.get(offset..offset + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if has(0, b"XFSB") {
        return Some(Content::Known(Filesystem::Xfs));
    }
    if has(0x438, &[0x53, 0xEF]) {
        const HAS_JOURNAL: u32 = 0x4;
        // Extents, 64 bit, flexible groups: features that ext3 does not have.
        const EXT4_ONLY: u32 = 0x40 | 0x80 | 0x200;
        let (compatible, incompatible) = (word(0x45C)?, word(0x460)?);
        return Some(Content::Known(if incompatible & EXT4_ONLY != 0 {
            Filesystem::Ext4
        } else if compatible & HAS_JOURNAL != 0 {
            Filesystem::Ext3
        } else {
            Filesystem::Ext2
        }));
    }
    let looks_like = [
        (0x10040, &b"_BHRfS_M"[..], "a btrfs filesystem"),
        (0, b"LUKS\xBA\xBE", "an encrypted disk (LUKS)"),
        (0x218, b"LVM2 001", "a physical volume of LVM"),
        (0xFF6, b"SWAPSPACE2", "swap space"),
        (0x200, b"EFI PART", "a partition table"),
        (0x1FE, &[0x55, 0xAA], "a partition table or boot sector"),
        (0x8001, b"CD001", "a CD image"),
        (0, b"hsqs", "a squashfs filesystem"),
    ];
    looks_like
        .into_iter()
        .find(|(offset, magic, _)| has(*offset, magic))
        .map(|(_, _, what)| Content::Unknown(what))
}

/// Repairs what fsck repairs automatically. xfs replays its log when it is mounted.
pub(super) fn check(fs: Filesystem, disk: &Disk) -> Result<(), Error> {
    match fs {
        Filesystem::Xfs => Ok(()),
        Filesystem::Ext2 | Filesystem::Ext3 | Filesystem::Ext4 => {
            let args = ["-p".as_ref(), disk.device.as_os_str()];
            match E2FSCK.run_until(args, &REPAIRED, &disk.stop, disk.lock.as_deref()) {
                Ok(_) => Ok(()),
                Err(error) => Err(match &error {
                    exec::Error::Failed { code: Some(code), .. } if code & UNREPAIRED != 0 => {
                        Error::Damaged(error)
                    }
                    exec::Error::Failed { .. } | exec::Error::Missing { .. } | exec::Error::Start { .. } => {
                        error.into()
                    }
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests;
