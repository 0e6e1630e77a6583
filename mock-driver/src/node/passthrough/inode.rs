//! The inodes of the staged filesystem that the kernel knows, each with an open descriptor, so that they are found under any name,
//! also after a rename or a removal.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::operation::Target;

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    /// Opened with O_PATH.
    pub(super) fd: File,
    /// The root of the volume, resolved.
    root: Arc<Path>,
}

/// An inode with its attributes, to which the kernel gets a reference with the reply.
pub(super) type Entry = (Arc<Inode>, FileAttr);

/// The inodes by the numbers that the kernel knows them by: those of the staged filesystem, except for the root.
#[derive(Debug)]
pub(super) struct Inodes {
    root: Arc<Inode>,
    /// With the number of references of the kernel.
    known: Mutex<HashMap<u64, (Arc<Inode>, u64)>>,
    /// Maximum number of inodes: half of the descriptors of the process.
    limit: usize,
}

// === impl Inode ===

impl Inode {
    fn of(fd: OwnedFd, root: Arc<Path>) -> Result<Arc<Self>> {
        let fd = File::from(fd);
        let number = fd.metadata()?.ino();
        Ok(Arc::new(Self { number, fd, root }))
    }

    pub(super) fn metadata(&self) -> Result<Metadata> {
        self.fd.metadata()
    }

    /// A path that leads to the inode in this process.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// The path below the root, also of a removed inode; empty for the root.
    pub(super) fn path_in_volume(&self) -> PathBuf {
        let path = std::fs::read_link(self.path()).unwrap_or_default();
        let path = path.strip_prefix(&self.root).unwrap_or(&path);
        let path = path.as_os_str().as_bytes();
        // The kernel marks removed names.
        OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)).into()
    }

    pub(super) fn open(&self, flags: OFlags) -> Result<File> {
        let fd = rustix::fs::open(self.path(), flags | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(fd))
    }
}

// === impl Inodes ===

impl Inodes {
    /// Those below a directory. Raises the limit of open files.
    pub(super) fn below(root: &Path) -> Result<Self> {
        let limit = getrlimit(Resource::Nofile);
        let current = limit.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, ..limit })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = root.canonicalize()?.into();
        let root = Inode::of(openat(CWD, root, flags, Mode::empty())?, path)?;
        Ok(Self {
            limit: current.map_or(usize::MAX, |most| usize::try_from(most / 2).unwrap_or(usize::MAX)),
            root,
            known: Mutex::default(),
        })
    }

    pub(super) fn root(&self) -> &Arc<Inode> {
        &self.root
    }

    pub(super) fn get(&self, number: INodeNo) -> Result<Arc<Inode>> {
        if number == INodeNo::ROOT {
            return Ok(self.root.clone());
        }
        let known = crate::lock(&self.known);
        let inode = known.get(&number.0).map(|(inode, _)| inode.clone());
        Ok(inode.ok_or(Errno::STALE)?)
    }

    /// Looks a name up. The kernel gets a reference by [`Self::add`].
    pub(super) fn find(&self, at: &Target) -> Result<Entry> {
        if crate::lock(&self.known).len() >= self.limit {
            return Err(Errno::NFILE.into());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&at.inode.fd, &at.name, flags, Mode::empty())?;
        let inode = Inode::of(fd, self.root.root.clone())?;
        let attributes = self.attributes(&inode)?;
        Ok((inode, attributes))
    }

    /// Counts a reference of the kernel to an inode, whose path is that of its latest lookup.
    pub(super) fn add(&self, inode: Arc<Inode>) {
        let mut known = crate::lock(&self.known);
        let references = known.get(&inode.number).map_or(0, |(_, references)| *references);
        known.insert(inode.number, (inode, references + 1));
    }

    /// Removes references of the kernel. Returns an inode without any.
    pub(super) fn forget(&self, number: INodeNo, references: u64) -> Option<Arc<Inode>> {
        let mut known = crate::lock(&self.known);
        let (_, left) = known.get_mut(&number.0)?;
        *left = left.saturating_sub(references);
        if *left > 0 {
            return None;
        }
        known.remove(&number.0).map(|(inode, _)| inode)
    }

    /// The number that the kernel knows an inode of the staged filesystem by.
    pub(super) fn number(&self, staged: u64) -> INodeNo {
        match staged == self.root.number {
            true => INodeNo::ROOT,
            false => INodeNo(staged),
        }
    }

    pub(super) fn attributes(&self, inode: &Inode) -> Result<FileAttr> {
        let metadata = inode.metadata()?;
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let since = |seconds, nanos| {
            let (seconds, nanos) = (u64::try_from(seconds), u32::try_from(nanos));
            Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
        };
        Ok(FileAttr {
            ino: self.number(metadata.ino()),
            size: metadata.size(),
            blocks: metadata.blocks(),
            atime: metadata.accessed()?,
            mtime: metadata.modified()?,
            ctime: SystemTime::UNIX_EPOCH + since(metadata.ctime(), metadata.ctime_nsec()),
            crtime: SystemTime::UNIX_EPOCH,
            kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
            perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or(0),
            nlink: narrow(metadata.nlink()),
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: narrow(metadata.rdev()),
            blksize: narrow(metadata.blksize()),
            flags: 0,
        })
    }
}
