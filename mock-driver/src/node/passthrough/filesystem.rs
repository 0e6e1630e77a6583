//! The FUSE filesystem. It passes each operation to the staged filesystem and caches nothing. Rules do not match readlink, readdir,
//! unlink, rmdir, rename, statfs and the attributes of the root.

use std::ffi::{CString, OsStr};
use std::io::Result;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, FileHandle, FileType, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, CWD, FileType as Type, Gid, Mode, OFlags, RawDir, SeekFrom, Timestamps, Uid};

use super::file::{OpenFile, give, open_flags, timespec};
use super::operation::Volume;
use super::reply::Reply;
use crate::fault::IoKind;

#[derive(Debug)]
pub(super) struct Passthrough(pub(super) Arc<Volume>);

fn kind(file_type: Type) -> FileType {
    match file_type {
        Type::Directory => FileType::Directory,
        Type::Symlink => FileType::Symlink,
        Type::Fifo => FileType::NamedPipe,
        Type::Socket => FileType::Socket,
        Type::CharacterDevice => FileType::CharDevice,
        Type::BlockDevice => FileType::BlockDevice,
        Type::RegularFile | Type::Unknown => FileType::RegularFile,
    }
}

// === impl Passthrough ===

impl Passthrough {
    fn remove(&self, dir: INodeNo, name: &OsStr, flags: AtFlags, reply: ReplyEmpty) {
        let dir = self.0.inodes.get(dir);
        let removed = dir.and_then(|dir| Ok(rustix::fs::unlinkat(&dir.fd, name, flags)?));
        reply.answer(&self.0, removed);
    }

    fn sync(&self, request: &Request, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let file = self.0.file(handle);
        self.perform(IoKind::Fsync, file, request, reply, move |volume, at, _| {
            at.file()?.sync(volume, data_only)
        });
    }
}

// The signatures are fuser's.
#[rustfmt::skip]
impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> Result<()> {
        // A kernel without one of them is supported, too.
        for wanted in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            config.add_capabilities(wanted).ok();
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let target = self.0.name(dir, name);
        self.perform(IoKind::Stat, target, request, reply, |volume, at, _| {
            volume.inodes.find(at)
        });
    }

    fn forget(&self, _: &Request, number: INodeNo, references: u64) {
        if let Some(inode) = self.0.inodes.forget(number, references)
            && inode.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
        {
            crate::lock(&self.0.unsynced).forget(&inode);
        }
    }

    fn getattr(&self, request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let inodes = &self.0.inodes;
        if number == INodeNo::ROOT {
            // Kubelet waits for it.
            return reply.answer(&self.0, inodes.attributes(inodes.root()));
        }
        let target = self.0.inode(number);
        self.perform(IoKind::Stat, target, request, reply, |volume, at, _| {
            volume.inodes.attributes(&at.inode)
        });
    }

    fn setattr(&self, request: &Request, number: INodeNo, mode: Option<u32>, uid: Option<u32>,
        gid: Option<u32>, size: Option<u64>, atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>,
        _: Option<SystemTime>, _: Option<FileHandle>, _: Option<SystemTime>, _: Option<SystemTime>,
        _: Option<SystemTime>, _: Option<BsdFileFlags>, reply: ReplyAttr) {
        let kind = size.map_or(IoKind::Stat, |_| IoKind::Write);
        let target = self.0.inode(number).and_then(|at| match size {
            Some(size) => {
                let present = u64::try_from(rustix::fs::fstat(&at.inode.fd)?.st_size).unwrap_or(0);
                Ok(at.resizing(present.min(size)..present.max(size)))
            }
            None => Ok(at),
        });
        self.perform(kind, target, request, reply, move |volume, at, _| {
            let inode = &at.inode;
            if uid.is_some() || gid.is_some() {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(&inode.fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if let Some(mode) = mode {
                inode.set_mode(mode)?;
            }
            if let Some(size) = size {
                inode.truncate(volume, size)?;
            }
            if atime.is_some() || mtime.is_some() {
                let times = Timestamps {
                    last_access: timespec(atime),
                    last_modification: timespec(mtime),
                };
                rustix::fs::utimensat(CWD, inode.path(), &times, AtFlags::empty())?;
            }
            volume.inodes.attributes(inode)
        });
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let inode = self.0.inodes.get(number);
        let target = inode.and_then(|inode| Ok(rustix::fs::readlinkat(&inode.fd, "", Vec::new())?));
        reply.answer(&self.0, target.map(CString::into_bytes));
    }

    fn mknod(&self, request: &Request, dir: INodeNo, name: &OsStr, mode: u32, _: u32, device: u32,
        reply: ReplyEntry) {
        let (kind, target) = (Type::from_raw_mode(mode), self.0.name(dir, name));
        self.make(request, target, mode, reply, move |at, mode| {
            rustix::fs::mknodat(&at.inode.fd, &at.name, kind, mode, device.into())
        });
    }

    fn mkdir(&self, request: &Request, dir: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let target = self.0.name(dir, name);
        self.make(request, target, mode, reply, |at, mode| {
            rustix::fs::mkdirat(&at.inode.fd, &at.name, mode)
        });
    }

    fn symlink(&self, request: &Request, dir: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        let (to, target) = (to.to_owned(), self.0.name(dir, name));
        self.make(request, target, 0o777, reply, move |at, _| {
            rustix::fs::symlinkat(&to, &at.inode.fd, &at.name)
        });
    }

    fn link(&self, request: &Request, number: INodeNo, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (inode, target) = (self.0.inodes.get(number), self.0.name(dir, name));
        self.perform(IoKind::Create, target, request, reply, |volume, at, _| {
            rustix::fs::linkat(CWD, inode?.path(), &at.inode.fd, &at.name, AtFlags::SYMLINK_FOLLOW)?;
            volume.inodes.find(at)
        });
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(dir, name, AtFlags::empty(), reply);
    }

    fn rmdir(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(dir, name, AtFlags::REMOVEDIR, reply);
    }

    fn rename(&self, _: &Request, dir: INodeNo, name: &OsStr, new_dir: INodeNo, new_name: &OsStr,
        flags: RenameFlags, reply: ReplyEmpty) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let rename = || {
            let (from, to) = (self.0.inodes.get(dir)?, self.0.inodes.get(new_dir)?);
            Ok(rustix::fs::renameat_with(
                &from.fd, name, &to.fd, new_name, flags,
            )?)
        };
        reply.answer(&self.0, rename());
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (flags, target) = (open_flags(flags.0), self.0.inode(number));
        self.perform(IoKind::Stat, target, request, reply, move |_, at, _| {
            Ok(OpenFile::new(at.inode.clone(), at.inode.open(flags)?, flags))
        });
    }

    fn create(&self, request: &Request, dir: INodeNo, name: &OsStr, mode: u32, _: u32, flags: i32,
        reply: ReplyCreate) {
        let (owner, flags) = ((request.uid(), request.gid()), open_flags(flags));
        let target = self.0.name(dir, name);
        self.perform(IoKind::Create, target, request, reply, move |volume, at, _| {
            let how = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&at.inode.fd, &at.name, how, Mode::RUSR)?;
            let (inode, attributes) = give(volume, at, owner, mode)?;
            Ok((OpenFile::new(inode, fd.into(), flags), attributes))
        });
    }

    fn read(&self, request: &Request, _: INodeNo, handle: FileHandle, offset: u64, size: u32, _: OpenFlags,
        _: Option<LockOwner>, reply: ReplyData) {
        let target = self.0.file(handle).and_then(|file| {
            // Not what it asks for beyond the end.
            let end = offset.saturating_add(size.into()).min(file.inode.metadata()?.len());
            Ok(file.within(offset..end.max(offset)))
        });
        self.perform(IoKind::Read, target, request, reply, move |_, at, _| {
            at.file()?.read(offset, size)
        });
    }

    fn write(&self, request: &Request, _: INodeNo, handle: FileHandle, offset: u64, data: &[u8],
        flags: WriteFlags, _: OpenFlags, _: Option<LockOwner>, reply: ReplyWrite) {
        let data = data.to_vec();
        let end = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        let target = self.0.file(handle).map(|file| file.within(offset..end));
        self.perform(IoKind::Write, target, request, reply, move |volume, at, kept| {
            if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                at.inode.drop_privileges()?;
            }
            match usize::try_from(kept).unwrap_or(usize::MAX) {
                kept if kept < data.len() => {
                    at.file()?.write(volume, offset, &data[..kept])?;
                    Ok(data.len())
                }
                _ => at.file()?.write(volume, offset, &data),
            }
        });
    }

    fn fallocate(&self, request: &Request, _: INodeNo, handle: FileHandle, offset: u64, length: u64,
        mode: i32, reply: ReplyEmpty) {
        let range = offset..offset.saturating_add(length);
        let target = self.0.file(handle).map(|at| at.resizing(range));
        self.perform(IoKind::Write, target, request, reply, move |volume, at, _| {
            at.file()?.allocate(volume, mode, offset, length)
        });
    }

    fn release(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, _: Option<LockOwner>,
        _: bool, reply: ReplyEmpty) {
        self.0.close(handle);
        reply.ok();
    }

    fn fsync(&self, request: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.sync(request, handle, data_only, reply);
    }

    fn fsyncdir(&self, request: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.sync(request, handle, data_only, reply);
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let inode = self.0.inodes.get(number);
        let opened = inode.and_then(|inode| {
            let fd = inode.open(OFlags::DIRECTORY)?;
            Ok(OpenFile::new(inode, fd, OFlags::empty()))
        });
        reply.answer(&self.0, opened);
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut list = || -> Result<()> {
            let target = self.0.file(handle)?;
            let file = target.file()?;
            rustix::fs::seek(&file.fd, SeekFrom::Start(offset))?;
            let mut buffer = Vec::with_capacity(32_768);
            let mut entries = RawDir::new(&file.fd, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                let (number, next) = (self.0.inodes.number(entry.ino()), entry.next_entry_cookie());
                if reply.add(number, next, kind(entry.file_type()), name) {
                    break;
                }
            }
            Ok(())
        };
        match list() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.0.close(handle);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let statistics = rustix::fs::fstatvfs(&self.0.inodes.root().fd);
        reply.answer(&self.0, statistics.map_err(Into::into));
    }
}
