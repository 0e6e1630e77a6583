//! Replies to the kernel: a value or an error.

use std::io::Result;
use std::time::Duration;

use fuser::{
    FileAttr, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite,
};
use rustix::fs::StatVfs;

/// The kernel asks again for each operation.
const UNCACHED: Duration = Duration::ZERO;

/// Also for directories, where it has no effect.
const UNBUFFERED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;

pub(super) trait Reply: Send + 'static {
    type Value;

    fn answer(self, result: Result<Self::Value>);
}

macro_rules! replies {
    ($($type:ident: $value:pat, $of:ty => $reply:ident.$method:ident($($argument:expr),*);)+) => {$(
        impl Reply for $type {
            type Value = $of;

            fn answer(self, result: Result<$of>) {
                let $reply = self;
                match result {
                    Ok($value) => $reply.$method($($argument),*),
                    Err(error) => $reply.error(error.into()),
                }
            }
        }
    )+};
}

replies! {
    ReplyAttr: attributes, FileAttr => reply.attr(&UNCACHED, &attributes);
    ReplyCreate: (attributes, handle), (FileAttr, FileHandle) =>
        reply.created(&UNCACHED, &attributes, Generation(0), handle, UNBUFFERED);
    ReplyData: data, Vec<u8> => reply.data(&data);
    ReplyEmpty: (), () => reply.ok();
    ReplyEntry: attributes, FileAttr => reply.entry(&UNCACHED, &attributes, Generation(0));
    ReplyOpen: handle, FileHandle => reply.opened(handle, UNBUFFERED);
    ReplyStatfs: s, StatVfs => reply.statfs(
        s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, narrow(s.f_bsize), narrow(s.f_namemax), narrow(s.f_frsize)
    );
    ReplyWrite: size, u32 => reply.written(size);
}

fn narrow(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
