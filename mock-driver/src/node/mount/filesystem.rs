//! The filesystems that can be put on a disk, and what is on it before.
//!
//! A disk counts as blank only if no byte of it is set, not if no signature is known: unknown data is still
//! user data.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::Error;
use crate::node::exec::{self, Program};
use crate::store::volume_files;

/// A filesystem that can be made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the filesystem of that name")]
pub(crate) enum Filesystem {
    Ext2,
    Ext3,
    Ext4,
    Xfs,
}

/// What is on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Blank,
    Known(Filesystem),
    /// Data of which we know at best what it looks like.
    Unknown(&'static str),
}

/// How much of the beginning of a disk holds all signatures that are looked for.
const HEAD: usize = 72 * 1024;

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

/// e2fsck: nothing wrong, or everything repaired.
const REPAIRED: [i32; 2] = [0, 1];
/// e2fsck: errors are left that a person must decide about.
pub(super) const UNREPAIRED: i32 = 4;

// === impl Filesystem ===

impl Filesystem {
    const ALL: [Self; 4] = [Self::Ext2, Self::Ext3, Self::Ext4, Self::Xfs];

    /// The filesystem of that name; none if none was named.
    pub(super) fn asked(fs_type: &str) -> Result<Option<Self>, Error> {
        if fs_type.is_empty() {
            return Ok(None);
        }
        let known = Self::ALL.into_iter().find(|fs| fs.name() == fs_type);
        known.map(Some).ok_or_else(|| Error::UnknownType {
            fs_type: fs_type.to_owned(),
        })
    }

    /// Its name in mount tables.
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
        let name = match self {
            Self::Ext2 => "mkfs.ext2",
            Self::Ext3 => "mkfs.ext3",
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
        };
        match self {
            // Inode tables are written when they are needed, and nothing is kept for root alone: the volume
            // is its user's.
            Self::Ext2 | Self::Ext3 | Self::Ext4 => (
                Program {
                    name,
                    package: "e2fsprogs",
                },
                &["-q", "-F", "-m0"],
            ),
            Self::Xfs => (
                Program {
                    name,
                    package: "xfsprogs",
                },
                &["-q", "-f"],
            ),
        }
    }

    /// Whether a disk with `self` on it will do for who asks for `asked`: one driver of the kernel mounts
    /// all ext filesystems.
    pub(super) fn serves(self, asked: Self) -> bool {
        (self == Self::Xfs) == (asked == Self::Xfs)
    }
}

/// The filesystem on a device, if we know it.
pub(super) fn found(device: &Path) -> Result<Option<Filesystem>, Error> {
    let head = head(device).map_err(Error::io("read", device))?;
    Ok(match signature(&head) {
        Some(Content::Known(fs)) => Some(fs),
        Some(Content::Unknown(_) | Content::Blank) | None => None,
    })
}

/// Makes the filesystem mounted at `path` as large as its device.
pub(super) fn grow(fs: Filesystem, device: &Path, path: &Path) -> Result<(), Error> {
    match fs {
        Filesystem::Ext2 | Filesystem::Ext3 | Filesystem::Ext4 => {
            let head = head(device).map_err(Error::io("read", device))?;
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

/// Makes an ext filesystem that is not mounted as large as its device: that needs no privilege beyond
/// the device. xfs grows only when it is mounted.
pub(super) fn grow_unmounted(device: &Path) -> Result<(), Error> {
    let head = head(device).map_err(Error::io("read", device))?;
    if !has_room(&head, device)? {
        return Ok(());
    }
    // resize2fs wants to see that everything has been looked at just before.
    E2FSCK.run(["-f".as_ref(), "-p".as_ref(), device.as_os_str()], &REPAIRED)?;
    RESIZE2FS.run([device], &[0])?;
    Ok(())
}

/// Whether the device is larger than the ext filesystem on it, by more than a block.
fn has_room(head: &[u8], device: &Path) -> Result<bool, Error> {
    let Some((blocks, block)) = ext_blocks(head) else {
        return Ok(false);
    };
    let bytes = File::open(device)
        .and_then(|mut file| file.seek(SeekFrom::End(0)))
        .map_err(Error::io("read the size of", device))?;
    Ok(bytes / block > blocks)
}

/// How many blocks an ext filesystem has, and how large they are.
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

/// What is on a disk.
pub(super) fn content(device: &Path, file: &Path) -> Result<Content, Error> {
    // What was written to the device is to be seen in the file behind it.
    File::open(device)
        .and_then(|device| device.sync_all())
        .map_err(Error::io("flush", device))?;
    let head = head(device).map_err(Error::io("read", device))?;
    if let Some(content) = signature(&head) {
        return Ok(content);
    }
    let is_blank = volume_files::is_blank(file).map_err(Error::io("read", file))?;
    Ok(if is_blank {
        Content::Blank
    } else {
        Content::Unknown("data of an unknown kind")
    })
}

pub(super) fn head(device: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(device)?;
    let mut head = vec![0; HEAD];
    let mut filled = 0;
    while filled < head.len() {
        match file.read_at(&mut head[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(head)
}

/// What the beginning of a disk says of the rest. Offsets as in the kernel's own headers.
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
        // Extents, 64 bit, flexible groups: what ext3 never had.
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

/// Repairs what can be repaired without asking. xfs does that itself when it is mounted.
pub(super) fn check(fs: Filesystem, device: &Path) -> Result<(), Error> {
    match fs {
        Filesystem::Xfs => Ok(()),
        Filesystem::Ext2 | Filesystem::Ext3 | Filesystem::Ext4 => {
            match E2FSCK.run(["-p".as_ref(), device.as_os_str()], &REPAIRED) {
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
