//! Operations of processes on a volume, with the faults of the rules that match them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Result;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fuser::{FileAttr, FileHandle, INodeNo, ReplyEntry, Request};
use rustix::fs::Mode;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::file::{OpenFile, give};
use super::inode::{Inode, Inodes};
use super::reply::Reply;
use super::unsynced::Unsynced;
use crate::fault::{ActiveFault, CallEnd, CallInfo, Faults, FilePath, Io, IoEnd, IoError, IoKind, Phase};
use crate::journal::Peer;

/// The filesystem of a volume.
#[derive(Debug)]
pub(super) struct Passthrough(pub(super) Arc<Volume>);

/// A volume on a node.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) node: String,
    pub(super) faults: Arc<Faults>,
    pub(super) inodes: Inodes,
    pub(super) files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    /// Number of files that were opened.
    pub(super) opened: AtomicU64,
    pub(super) unsynced: Mutex<Unsynced>,
    /// Ends the waiting operations.
    pub(super) stop: CancellationToken,
    /// The operations that rules delay or hang. No server thread waits for them.
    pub(super) waiting: TaskTracker,
    pub(super) runtime: Handle,
}

/// What a rule makes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injected {
    Nothing,
    Fail(Errno),
    /// The operation happens, and fails then.
    FailAfter(Errno),
    /// A write of only these first bytes.
    Torn(u64),
}

/// The file or name that an operation accesses.
pub(super) trait Target: Send + 'static {
    /// Below the root of the volume.
    fn path(&self, inodes: &Inodes) -> PathBuf;

    /// The bytes of a file.
    fn range(&self) -> Option<Range<u64>> {
        None
    }
}

/// Bytes of an open file.
pub(super) struct Extent {
    pub(super) file: Arc<OpenFile>,
    range: Range<u64>,
}

/// An operation of a process, or the detach of the volume.
struct Operation<'a> {
    volume: &'a Volume,
    kind: IoKind,
    target: &'a dyn Target,
    peer: Option<Peer>,
}

// === impl Operation ===

impl CallInfo for Operation<'_> {
    fn path(&self) -> &str {
        self.kind.name()
    }

    fn volume(&self) -> &str {
        &self.volume.id
    }

    fn node(&self) -> &str {
        &self.volume.node
    }

    fn io(&self) -> Option<Io<'_>> {
        Some(Io {
            kind: self.kind,
            range: self.target.range(),
            path: self,
        })
    }

    fn peer(&self) -> Option<Peer> {
        self.peer
    }

    fn size(&self) -> u64 {
        self.target.range().map_or(0, |range| range.end - range.start)
    }
}

impl FilePath for Operation<'_> {
    fn file_path(&self) -> String {
        let path = self.target.path(&self.volume.inodes);
        path.to_string_lossy().into_owned()
    }
}

// === impl Target ===

impl Target for Arc<Inode> {
    fn path(&self, inodes: &Inodes) -> PathBuf {
        inodes.path_of(self)
    }
}

/// A name in a directory.
impl Target for (Arc<Inode>, OsString) {
    fn path(&self, inodes: &Inodes) -> PathBuf {
        inodes.path_of(&self.0).join(&self.1)
    }
}

impl Target for Extent {
    fn path(&self, inodes: &Inodes) -> PathBuf {
        inodes.path_of(&self.file.inode)
    }

    fn range(&self) -> Option<Range<u64>> {
        Some(self.range.clone()).filter(|range| !range.is_empty())
    }
}

// === impl Injected ===

impl Injected {
    /// Performs an operation unless it fails before. It gets the number of bytes after which a write is torn.
    fn around<T>(self, act: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        match self {
            Self::Nothing => act(u64::MAX),
            Self::Torn(kept) => act(kept),
            Self::Fail(error) => Err(error.into()),
            Self::FailAfter(error) => act(u64::MAX).and(Err(error.into())),
        }
    }
}

// === impl Volume ===

impl Volume {
    /// Looks a name up.
    pub(super) fn found(&self, dir: &Inode, name: &OsStr) -> Result<FileAttr> {
        let (_, attributes) = self.inodes.lookup(dir, name)?;
        Ok(attributes)
    }

    pub(super) fn add(&self, file: OpenFile) -> FileHandle {
        let handle = self.opened.fetch_add(1, Ordering::Relaxed);
        crate::lock(&self.files).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    /// Performs an operation with the fault of the rule that matches it: at once, or in a task of its own if the operation waits.
    /// `act` gets the number of bytes after which a write is torn.
    fn perform<T: Target, R: Reply>(
        self: &Arc<Self>,
        kind: IoKind,
        target: T,
        request: &Request,
        reply: R,
        act: impl FnOnce(&Self, &T, u64) -> Result<R::Value> + Send + 'static,
    ) {
        let decision = self.faults.decide(&Operation {
            volume: self,
            kind,
            target: &target,
            peer: Some(Peer {
                pid: i32::try_from(request.pid()).ok(),
                uid: request.uid(),
            }),
        });
        let finish = move |volume: &Self, injected: Injected| {
            reply.answer(injected.around(|kept| act(volume, &target, kept)));
        };
        let Some(mut active) = decision.rule else {
            return finish(self, Injected::Nothing);
        };
        if active.delay.is_zero() && active.rule().action.hang.is_none() {
            return finish(self, self.apply(active));
        }
        let volume = self.clone();
        let waiting = async move {
            let has_waited = volume.stop.run_until_cancelled(active.pause()).await.is_some();
            let running = volume.waiting.token();
            let work = move || {
                let _running = running;
                let injected = match has_waited {
                    true => volume.apply(active),
                    false => Injected::Fail(Errno::IO),
                };
                finish(&volume, injected);
            };
            tokio::task::spawn_blocking(work).await.ok();
        };
        self.waiting.spawn_on(waiting, &self.runtime);
    }

    /// Applies the rules for the moment in which the volume leaves the node.
    pub(super) fn detach(&self) {
        let operation = Operation {
            volume: self,
            kind: IoKind::Detach,
            target: self.inodes.root(),
            peer: None,
        };
        if let Some(active) = self.faults.decide(&operation).rule {
            self.apply(active);
        }
    }

    fn apply(&self, active: ActiveFault) -> Injected {
        let phase = active.rule().phase;
        let Some(active) = self.faults.apply(active) else {
            return Injected::Nothing;
        };
        let rule = &active.rule().id;
        match active.rule().action.end {
            Some(CallEnd::Io(IoEnd::Fail(IoError(error)))) if phase == Phase::After => {
                Injected::FailAfter(error)
            }
            Some(CallEnd::Io(IoEnd::Fail(IoError(error)))) => Injected::Fail(error),
            Some(CallEnd::Io(IoEnd::Torn(kept))) => Injected::Torn(kept),
            Some(CallEnd::Io(IoEnd::LoseUnsynced)) => {
                match crate::lock(&self.unsynced).lose() {
                    Ok(files) => tracing::info!(volume = self.id, rule, files, "unsynced writes lost"),
                    Err(error) => {
                        tracing::warn!(volume = self.id, rule, %error, "not all unsynced writes are lost");
                    }
                }
                Injected::Nothing
            }
            _ => Injected::Nothing,
        }
    }
}

// === impl Passthrough ===

impl Passthrough {
    pub(super) fn inode(&self, number: INodeNo) -> Result<Arc<Inode>> {
        self.0.inodes.get(number)
    }

    pub(super) fn file(&self, handle: FileHandle) -> Result<Arc<OpenFile>> {
        let files = crate::lock(&self.0.files);
        Ok(files.get(&handle.0).cloned().ok_or(Errno::BADF)?)
    }

    /// Performs an operation with the fault of a rule if its file exists.
    pub(super) fn perform<T: Target, R: Reply>(
        &self,
        kind: IoKind,
        target: Result<T>,
        request: &Request,
        reply: R,
        act: impl FnOnce(&Volume, &T, u64) -> Result<R::Value> + Send + 'static,
    ) {
        match target {
            Ok(target) => self.0.perform(kind, target, request, reply, act),
            Err(error) => reply.answer(Err(error)),
        }
    }

    pub(super) fn name(&self, parent: INodeNo, name: &OsStr) -> Result<(Arc<Inode>, OsString)> {
        Ok((self.inode(parent)?, name.to_owned()))
    }

    pub(super) fn extent(&self, handle: FileHandle, offset: u64, length: u32) -> Result<Extent> {
        Ok(Extent {
            file: self.file(handle)?,
            range: offset..offset.saturating_add(length.into()),
        })
    }

    /// Creates a name, which belongs to the process that asks.
    pub(super) fn make(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        mode: u32,
        reply: ReplyEntry,
        act: impl FnOnce(&Inode, &OsStr, Mode) -> rustix::io::Result<()> + Send + 'static,
    ) {
        let owner = (request.uid(), request.gid());
        let target = self.name(parent, name);
        self.perform(
            IoKind::Create,
            target,
            request,
            reply,
            move |volume, (dir, name), _| {
                act(dir, name, Mode::from_raw_mode(mode & 0o7777))?;
                give(dir, name, owner, mode)?;
                volume.found(dir, name)
            },
        );
    }
}
