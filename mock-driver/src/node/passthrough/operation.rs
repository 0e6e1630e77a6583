//! Operations on a volume, and the faults of the rules that match them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Result;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fuser::{FileHandle, INodeNo, ReplyEntry, Request};
use rustix::fs::Mode;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::file::{OpenFile, give};
use super::filesystem::Passthrough;
use super::inode::{Inode, Inodes};
use super::reply::Reply;
use super::unsynced::Unsynced;
use crate::fault::{ActiveFault, CallEnd, CallInfo, Faults, FilePath, Io, IoEnd, IoError, IoKind, Phase};
use crate::journal::Peer;

#[derive(Debug)]
pub(super) struct Volume {
    id: String,
    node: String,
    faults: Arc<Faults>,
    pub(super) inodes: Inodes,
    files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    /// Number of files that were opened.
    opened: AtomicU64,
    pub(super) unsynced: Mutex<Unsynced>,
    /// Ends the waiting operations.
    stop: CancellationToken,
    /// The operations that rules delay or hang. No server thread waits for them.
    waiting: TaskTracker,
    runtime: Handle,
}

/// What an operation accesses: an inode, an open file, or a name in a directory.
pub(super) struct Target {
    /// The directory of a name.
    pub(super) inode: Arc<Inode>,
    pub(super) name: OsString,
    file: Option<Arc<OpenFile>>,
    /// The bytes of a file.
    range: Option<Range<u64>>,
    /// The number of bytes that are read or written.
    bytes: u64,
}

/// An operation of a process, or the detach of the volume.
struct Operation<'a> {
    volume: &'a Volume,
    kind: IoKind,
    target: &'a Target,
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
            range: self.target.range.clone(),
            path: self.target,
        })
    }

    fn peer(&self) -> Option<Peer> {
        self.peer
    }

    fn size(&self) -> u64 {
        self.target.bytes
    }
}

// === impl Target ===

impl Target {
    fn of(inode: Arc<Inode>) -> Self {
        Self {
            inode,
            name: OsString::new(),
            file: None,
            range: None,
            bytes: 0,
        }
    }

    /// Only these bytes of the file.
    pub(super) fn within(self, range: Range<u64>) -> Self {
        let bytes = range.end - range.start;
        Self {
            bytes,
            ..self.resizing(range)
        }
    }

    /// Adds or removes these bytes of the file, without data.
    pub(super) fn resizing(self, range: Range<u64>) -> Self {
        let range = Some(range).filter(|range| !range.is_empty());
        Self { range, ..self }
    }

    pub(super) fn file(&self) -> Result<&OpenFile> {
        Ok(self.file.as_deref().ok_or(Errno::BADF)?)
    }
}

impl FilePath for Target {
    fn file_path(&self) -> String {
        let mut path = self.inode.path_in_volume();
        if !self.name.is_empty() {
            path.push(&self.name);
        }
        path.to_string_lossy().into_owned()
    }
}

// === impl Volume ===

impl Volume {
    pub(super) fn new(id: &str, node: &str, faults: Arc<Faults>, staging: &Path) -> Result<Self> {
        Ok(Self {
            id: id.to_owned(),
            node: node.to_owned(),
            faults,
            inodes: Inodes::below(staging)?,
            files: Mutex::default(),
            opened: AtomicU64::new(0),
            unsynced: Mutex::default(),
            stop: CancellationToken::new(),
            waiting: TaskTracker::new(),
            runtime: Handle::current(),
        })
    }

    /// Ends the operations that wait. Blocks until the staged filesystem is not used any more, after the connection was aborted.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        self.waiting.close();
        self.runtime.block_on(self.waiting.wait());
    }

    pub(super) fn inode(&self, number: INodeNo) -> Result<Target> {
        Ok(Target::of(self.inodes.get(number)?))
    }

    pub(super) fn name(&self, dir: INodeNo, name: &OsStr) -> Result<Target> {
        Ok(Target {
            name: name.to_owned(),
            ..self.inode(dir)?
        })
    }

    pub(super) fn add(&self, file: OpenFile) -> FileHandle {
        let handle = self.opened.fetch_add(1, Ordering::Relaxed);
        crate::lock(&self.files).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    pub(super) fn file(&self, handle: FileHandle) -> Result<Target> {
        let file = crate::lock(&self.files).get(&handle.0).cloned();
        let file = file.ok_or(Errno::BADF)?;
        Ok(Target {
            file: Some(file.clone()),
            ..Target::of(file.inode.clone())
        })
    }

    pub(super) fn close(&self, handle: FileHandle) {
        crate::lock(&self.files).remove(&handle.0);
    }

    /// Applies the rules for the moment in which the volume leaves the node.
    pub(super) fn detach(&self) {
        let decision = self.faults.decide(&Operation {
            volume: self,
            kind: IoKind::Detach,
            target: &Target::of(self.inodes.root().clone()),
            peer: None,
        });
        if let Some(rule) = decision.rule {
            self.inject(rule, |_| Ok(())).ok();
        }
    }

    /// Performs an operation as the end of its rule says.
    fn inject<T>(&self, rule: ActiveFault, act: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        match rule.rule().action.end {
            Some(CallEnd::Io(IoEnd::Fail(IoError(error)))) if rule.rule().phase == Phase::After => {
                let done = act(u64::MAX)?;
                // `None` if another operation has left the rule's state meanwhile.
                self.faults.apply(rule).map_or(Ok(done), |_| Err(error.into()))
            }
            Some(CallEnd::Io(IoEnd::Fail(IoError(error)))) => Err(error.into()),
            Some(CallEnd::Io(IoEnd::Torn(kept))) => act(kept),
            Some(CallEnd::Io(IoEnd::LoseUnsynced)) => {
                let (volume, rule) = (&self.id, &rule.rule().id);
                match crate::lock(&self.unsynced).lose() {
                    Ok(files) => tracing::info!(volume, rule, files, "unsynced writes lost"),
                    Err(error) => tracing::warn!(volume, rule, %error, "not all unsynced writes are lost"),
                }
                act(u64::MAX)
            }
            _ => act(u64::MAX),
        }
    }
}

// === impl Passthrough ===

impl Passthrough {
    /// Performs an operation with the fault of the rule that matches it: at once, or in a task of its own if the operation waits.
    /// `act` gets the number of bytes after which a write is torn.
    pub(super) fn perform<R: Reply>(
        &self,
        kind: IoKind,
        target: Result<Target>,
        request: &Request,
        reply: R,
        act: impl FnOnce(&Volume, &Target, u64) -> Result<R::Value> + Send + 'static,
    ) {
        let volume = &self.0;
        let target = match target {
            Ok(target) => target,
            Err(error) => return reply.answer(volume, Err(error)),
        };
        let decision = volume.faults.decide(&Operation {
            volume,
            kind,
            target: &target,
            peer: Some(Peer {
                pid: i32::try_from(request.pid()).ok(),
                uid: request.uid(),
            }),
        });
        let finish = move |volume: &Volume, rule: Result<Option<ActiveFault>>| {
            let act = |kept| act(volume, &target, kept);
            let result = match rule {
                Ok(None) => act(u64::MAX),
                Ok(Some(rule)) => volume.inject(rule, act),
                Err(stopped) => Err(stopped),
            };
            reply.answer(volume, result);
        };
        let waits = |rule: &ActiveFault| !rule.delay.is_zero() || rule.rule().action.hang.is_some();
        let mut rule = match decision.rule {
            Some(rule) if waits(&rule) => rule,
            rule => return finish(volume, Ok(rule)),
        };
        let (tracker, runtime) = (&volume.waiting, &volume.runtime);
        let volume = volume.clone();
        let waiting = async move {
            let has_waited = volume.stop.run_until_cancelled(rule.pause()).await;
            let rule = has_waited.map(|()| Some(rule)).ok_or(Errno::IO.into());
            tokio::task::spawn_blocking(move || finish(&volume, rule))
                .await
                .ok();
        };
        tracker.spawn_on(waiting, runtime);
    }

    /// Creates a name, which belongs to the process that asks.
    pub(super) fn make(
        &self,
        request: &Request,
        target: Result<Target>,
        mode: u32,
        reply: ReplyEntry,
        make: impl FnOnce(&Target, Mode) -> rustix::io::Result<()> + Send + 'static,
    ) {
        let owner = (request.uid(), request.gid());
        self.perform(IoKind::Create, target, request, reply, move |volume, at, _| {
            make(at, Mode::from_raw_mode(mode & 0o7777))?;
            give(volume, at, owner, mode)
        });
    }
}
