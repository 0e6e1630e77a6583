//! Replies to the kernel: a value or an error. What a value refers to is registered with the reply, so that an operation that a rule
//! fails afterwards leaves no reference.

use std::io::Result;
use std::time::Duration;

use fuser::{
    FileAttr, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite,
};
use rustix::fs::StatVfs;

use super::file::OpenFile;
use super::inode::Entry;
use super::operation::Volume;

/// The kernel asks again for each operation.
const UNCACHED: Duration = Duration::ZERO;

/// Also for directories, where it has no effect.
const UNBUFFERED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;

pub(super) trait Reply: Send + 'static {
    type Value;

    fn answer(self, volume: &Volume, result: Result<Self::Value>);
}

macro_rules! replies {
    ($($reply:ident: $type:ident, $volume:pat, $value:pat in $of:ty => $answer:expr;)+) => {$(
        impl Reply for $type {
            type Value = $of;

            fn answer(self, $volume: &Volume, result: Result<$of>) {
                let $reply = self;
                match result {
                    Ok($value) => $answer,
                    Err(error) => $reply.error(error.into()),
                }
            }
        }
    )+};
}

replies! {
    reply: ReplyAttr, _, attributes in FileAttr => reply.attr(&UNCACHED, &attributes);
    reply: ReplyCreate, volume, (file, attributes) in (OpenFile, FileAttr) => {
        volume.inodes.add(file.inode.clone());
        reply.created(&UNCACHED, &attributes, Generation(0), volume.add(file), UNBUFFERED);
    };
    reply: ReplyData, _, data in Vec<u8> => reply.data(&data);
    reply: ReplyEmpty, _, () in () => reply.ok();
    reply: ReplyEntry, volume, (inode, attributes) in Entry => {
        volume.inodes.add(inode);
        reply.entry(&UNCACHED, &attributes, Generation(0));
    };
    reply: ReplyOpen, volume, file in OpenFile => reply.opened(volume.add(file), UNBUFFERED);
    reply: ReplyStatfs, _, s in StatVfs => reply.statfs(
        s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, narrow(s.f_bsize), narrow(s.f_namemax), narrow(s.f_frsize)
    );
    reply: ReplyWrite, _, size in usize => reply.written(u32::try_from(size).unwrap_or(u32::MAX));
}

fn narrow(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
