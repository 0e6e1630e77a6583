//! The files of the staged filesystem that the kernel knows, each with an open descriptor: so they are found whatever their names
//! are, also after a rename or without any name.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A file, directory or other inode.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    /// Opened with O_PATH.
    pub(super) fd: File,
}

/// The inodes by the numbers that the kernel knows them by: those of the staged filesystem, except for the root.
#[derive(Debug)]
pub(super) struct Inodes {
    root: Arc<Inode>,
    root_path: PathBuf,
    /// With the number of lookups that the kernel has not forgotten.
    known: Mutex<HashMap<u64, (Arc<Inode>, u64)>>,
    /// Maximum number of inodes: half of the descriptors of the process.
    most: usize,
}

// === impl Inode ===

impl Inode {
    fn at(fd: File) -> Result<(Self, Metadata)> {
        let metadata = fd.metadata()?;
        let number = metadata.ino();
        Ok((Self { number, fd }, metadata))
    }

    pub(super) fn metadata(&self) -> Result<Metadata> {
        self.fd.metadata()
    }

    /// A path that leads to the inode in this process.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
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
        let fd = openat(CWD, root, flags, Mode::empty())?;
        let root = Arc::new(Inode::at(fd.into())?.0);
        Ok(Self {
            most: current.map_or(usize::MAX, |most| usize::try_from(most / 2).unwrap_or(usize::MAX)),
            // Resolved, as the paths of the others are.
            root_path: std::fs::read_link(root.path())?,
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

    /// Looks a name up, for which the kernel counts a reference.
    pub(super) fn lookup(&self, parent: &Inode, name: &OsStr) -> Result<(Arc<Inode>, FileAttr)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&parent.fd, name, flags, Mode::empty())?;
        let (found, metadata) = Inode::at(fd.into())?;
        let mut known = crate::lock(&self.known);
        if known.len() >= self.most {
            return Err(Errno::NFILE.into());
        }
        let (inode, lookups) = known.entry(found.number).or_insert_with(|| (Arc::new(found), 0));
        *lookups += 1;
        Ok((inode.clone(), self.attributes(&metadata)))
    }

    /// Removes references of the kernel. Returns an inode without any.
    pub(super) fn forget(&self, number: INodeNo, lookups: u64) -> Option<Arc<Inode>> {
        let mut known = crate::lock(&self.known);
        let (_, left) = known.get_mut(&number.0)?;
        *left = left.saturating_sub(lookups);
        if *left > 0 {
            return None;
        }
        known.remove(&number.0).map(|(inode, _)| inode)
    }

    pub(super) fn attributes(&self, metadata: &Metadata) -> FileAttr {
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let since = |seconds, nanos| {
            let (seconds, nanos) = (u64::try_from(seconds), u32::try_from(nanos));
            Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
        };
        FileAttr {
            ino: match metadata.ino() == self.root.number {
                true => INodeNo::ROOT,
                false => INodeNo(metadata.ino()),
            },
            size: metadata.size(),
            blocks: metadata.blocks(),
            atime: metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
            mtime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
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
        }
    }

    /// The path of an inode below the root; empty for the root.
    pub(super) fn path_of(&self, inode: &Inode) -> PathBuf {
        let path = std::fs::read_link(inode.path()).unwrap_or_default();
        let below = path.strip_prefix(&self.root_path);
        below.map(Path::to_owned).unwrap_or(path)
    }
}
