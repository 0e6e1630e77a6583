//! The FUSE filesystem. It passes each operation to the staged filesystem and caches nothing. Rules do not match readlink, readdir, unlink, rmdir, rename,
//! statfs and the attributes of the root.

use std::ffi::OsStr;
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
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RawDir, SeekFrom, Timestamps, Uid};

use super::file::{OpenFile, give, open_flags, timespec, truncate};
use super::inode::Inode;
use super::operation::{Passthrough, Volume};
use super::reply::Reply;
use crate::fault::IoKind;

fn kind(file_type: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Type;
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

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A kernel without one of them is supported, too.
        for wanted in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            config.add_capabilities(wanted).ok();
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let target = self.name(parent, name);
        self.perform(IoKind::Stat, target, request, reply, |volume, (dir, name), _| {
            volume.found(dir, name)
        });
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        if let Some(inode) = self.0.inodes.forget(number, lookups)
            && inode.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
        {
            crate::lock(&self.0.unsynced).forget(&inode);
        }
    }

    fn getattr(&self, request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attributes =
            |volume: &Volume, inode: &Arc<Inode>| Ok(volume.inodes.attributes(&inode.metadata()?));
        match self.inode(number) {
            // Kubelet waits for it.
            Ok(root) if number == INodeNo::ROOT => reply.answer(attributes(&self.0, &root)),
            target => self.perform(IoKind::Stat, target, request, reply, move |volume, inode, _| {
                attributes(volume, inode)
            }),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let kind = size.map_or(IoKind::Stat, |_| IoKind::Write);
        let target = self.inode(number);
        self.perform(kind, target, request, reply, move |volume, inode, _| {
            if let Some(mode) = mode {
                rustix::fs::chmod(inode.path(), Mode::from_raw_mode(mode & 0o7777))?;
            }
            if uid.is_some() || gid.is_some() {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(&inode.fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if let Some(size) = size {
                truncate(volume, inode, size)?;
            }
            if atime.is_some() || mtime.is_some() {
                let times = Timestamps {
                    last_access: timespec(atime),
                    last_modification: timespec(mtime),
                };
                rustix::fs::utimensat(CWD, inode.path(), &times, AtFlags::empty())?;
            }
            Ok(volume.inodes.attributes(&inode.metadata()?))
        });
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let inode = self.inode(number);
        let target = inode.and_then(|inode| Ok(rustix::fs::readlinkat(&inode.fd, "", Vec::new())?));
        reply.answer(target.map(std::ffi::CString::into_bytes));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let file_type = rustix::fs::FileType::from_raw_mode(mode);
        self.make(request, (parent, name), mode, reply, move |dir, name, mode| {
            rustix::fs::mknodat(&dir.fd, name, file_type, mode, device.into())
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        self.make(request, (parent, name), mode, reply, |dir, name, mode| {
            rustix::fs::mkdirat(&dir.fd, name, mode)
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.to_owned();
        self.make(request, (parent, name), 0o777, reply, move |dir, name, _| {
            rustix::fs::symlinkat(&target, &dir.fd, name)
        });
    }

    fn link(&self, request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (inode, target) = (self.inode(number), self.name(parent, name));
        self.perform(
            IoKind::Create,
            target,
            request,
            reply,
            |volume, (dir, name), _| {
                rustix::fs::linkat(CWD, inode?.path(), &dir.fd, name, AtFlags::SYMLINK_FOLLOW)?;
                volume.found(dir, name)
            },
        );
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let dir = self.inode(parent);
        reply.answer(dir.and_then(|dir| Ok(rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty())?)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let dir = self.inode(parent);
        reply.answer(dir.and_then(|dir| Ok(rustix::fs::unlinkat(&dir.fd, name, AtFlags::REMOVEDIR)?)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let rename = || {
            let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
            Ok(rustix::fs::renameat_with(
                &from.fd, name, &to.fd, new_name, flags,
            )?)
        };
        reply.answer(rename());
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (flags, target) = (open_flags(flags.0), self.inode(number));
        self.perform(IoKind::Stat, target, request, reply, move |volume, inode, _| {
            Ok(volume.add(OpenFile::new(inode.clone(), inode.open(flags)?, flags)))
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (owner, flags) = ((request.uid(), request.gid()), open_flags(flags));
        let target = self.name(parent, name);
        self.perform(
            IoKind::Create,
            target,
            request,
            reply,
            move |volume, (dir, name), _| {
                let how = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&dir.fd, name, how, Mode::from_raw_mode(mode & 0o7777))?;
                give(dir, name, owner, mode)?;
                let (inode, attributes) = volume.inodes.lookup(dir, name)?;
                let handle = volume.add(OpenFile::new(inode, fd.into(), flags));
                Ok((attributes, handle))
            },
        );
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let target = self.extent(handle, offset, size);
        self.perform(IoKind::Read, target, request, reply, move |_, extent, _| {
            extent.file.read(offset, size)
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let target = self.extent(handle, offset, size);
        self.perform(
            IoKind::Write,
            target,
            request,
            reply,
            move |volume, extent, kept| {
                let kept = usize::try_from(kept).unwrap_or(usize::MAX).min(data.len());
                extent.file.write(volume, offset, &data[..kept])?;
                Ok(size)
            },
        );
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        crate::lock(&self.0.files).remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, request: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let target = self.extent(handle, 0, 0);
        self.perform(IoKind::Fsync, target, request, reply, move |volume, extent, _| {
            extent.file.sync(volume, data_only)
        });
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let open = |inode: Arc<Inode>| {
            let fd = inode.open(OFlags::DIRECTORY)?;
            Ok(self.0.add(OpenFile::new(inode, fd, OFlags::empty())))
        };
        reply.answer(self.inode(number).and_then(open));
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut list = || -> std::io::Result<()> {
            let file = self.file(handle)?;
            rustix::fs::seek(&file.fd, SeekFrom::Start(offset))?;
            let mut buffer = Vec::with_capacity(32_768);
            let mut entries = RawDir::new(&file.fd, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                let next = entry.next_entry_cookie();
                if reply.add(INodeNo(entry.ino()), next, kind(entry.file_type()), name) {
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
        crate::lock(&self.0.files).remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.answer(rustix::fs::fstatvfs(&self.0.inodes.root().fd).map_err(Into::into));
    }
}
