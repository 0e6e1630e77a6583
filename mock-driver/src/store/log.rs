//! The log of changes: appended by calls, written and flushed by one thread.
//!
//! While the thread flushes, new lines gather; its next turn takes all of them. So the number of
//! flushes follows the disk's speed and not the number of calls (group commit).
//!
//! A log that has grown long is put together: the thread writes the array as it was after some line as the
//! new snapshot, and only then empties the log. If that fails the log goes on as it is, and it is tried again
//! later.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::directory;
use crate::array::{Change, Image};
use crate::error_chain;

/// How many bytes a log has at least before it is put together.
const LONG: u64 = 16 << 20;

/// How many times longer than the snapshot a log gets before it is put together, so that no more than a
/// part of what is written goes into snapshots.
const TIMES_SNAPSHOT: u64 = 2;

/// One line of the log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line<C> {
    /// Its number; the first after a snapshot is one more than the snapshot's.
    pub(super) seq: u64,
    /// What happened.
    pub(super) change: C,
}

/// A file to write the log to, and the number of the last line before it.
#[derive(Debug)]
pub(super) struct LogFile {
    /// Open for appending, empty.
    pub(super) file: File,
    /// Keeps other drivers out as long as it is open.
    pub(super) lock: File,
    /// Where it and the snapshot lie.
    pub(super) directory: PathBuf,
    /// The number of the last change that is safe already.
    pub(super) seq: u64,
}

/// The log, as calls see it.
#[derive(Debug)]
pub(super) struct Log {
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    wake: Condvar,
}

#[derive(Debug)]
struct Pending {
    lines: Vec<u8>,
    seq: u64,
    closed: bool,
    /// How many bytes came since the log was empty, and how many are long.
    grown: u64,
    long: u64,
    /// The array to make the snapshot of.
    whole: Option<Whole>,
}

/// The array after a line of the log.
#[derive(Debug)]
struct Whole {
    image: Image,
    /// The number of the line.
    seq: u64,
    /// Where it ends among the lines that wait.
    end: usize,
}

/// What the thread does in one turn.
struct Batch {
    lines: Vec<u8>,
    /// The number of the last line.
    seq: u64,
    whole: Option<Whole>,
}

#[derive(Clone, Debug)]
enum Progress {
    Safe(u64),
    Failed(Arc<io::Error>),
}

// === impl Log ===

impl Log {
    pub(super) fn start(file: LogFile) -> Self {
        let LogFile {
            file,
            lock,
            directory,
            seq,
        } = file;
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending {
                lines: Vec::new(),
                seq,
                closed: false,
                grown: 0,
                long: LONG,
                whole: None,
            }),
            wake: Condvar::new(),
        });
        let (progress_tx, progress) = watch::channel(Progress::Safe(seq));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                Writer { file, directory }.write(&shared, &progress_tx);
                // Only now may another driver open the directory.
                drop(lock);
            })
        };
        Self {
            shared,
            progress,
            writer: Mutex::new(Some(writer)),
        }
    }

    /// Counts as long what has so many bytes. For tests, which have no time for long logs.
    pub(super) fn set_long(&self, bytes: u64) {
        self.shared.lock().long = bytes;
    }

    /// Queues a change, and says whether the log has become long: then it wants to be put together. The
    /// caller holds the array's lock, so lines stand in the order of events.
    pub(super) fn append(&self, change: &Change) -> bool {
        let mut pending = self.shared.lock();
        let before = pending.lines.len();
        pending.seq += 1;
        let line = Line {
            seq: pending.seq,
            change,
        };
        serde_json::to_writer(&mut pending.lines, &line).expect("a change must be representable as JSON");
        pending.lines.push(b'\n');
        let bytes = pending.lines.len() - before;
        pending.grown += u64::try_from(bytes).unwrap_or(u64::MAX);
        let is_long = pending.grown > pending.long && pending.whole.is_none();
        drop(pending);
        self.shared.wake.notify_one();
        is_long
    }

    /// Has the log put together. The caller holds the array's lock, and the image is of the array after the
    /// last line.
    pub(super) fn put_together(&self, image: Image) {
        let mut pending = self.shared.lock();
        pending.grown = 0;
        pending.whole = Some(Whole {
            image,
            seq: pending.seq,
            end: pending.lines.len(),
        });
        drop(pending);
        self.shared.wake.notify_one();
    }

    /// The number of the newest change, safe or not.
    pub(super) fn position(&self) -> u64 {
        self.shared.lock().seq
    }

    /// Waits until change `seq` and all before it are safe.
    pub(super) async fn settled(&self, seq: u64) -> Result<(), Arc<io::Error>> {
        let reached = |progress: &Progress| match progress {
            Progress::Safe(safe) => *safe >= seq,
            Progress::Failed(_) => true,
        };
        let mut progress = self.progress.clone();
        match progress.wait_for(reached).await.as_deref() {
            Ok(Progress::Safe(_)) => Ok(()),
            Ok(Progress::Failed(error)) => Err(error.clone()),
            Err(_) => Err(Arc::new(io::Error::other("the log is closed"))),
        }
    }

    /// How writing failed; never returns while it does not.
    pub(super) async fn failed(&self) -> Arc<io::Error> {
        let mut progress = self.progress.clone();
        loop {
            if let Progress::Failed(error) = &*progress.borrow_and_update() {
                return error.clone();
            }
            if progress.changed().await.is_err() {
                // Closed in order: no failure will come.
                return std::future::pending().await;
            }
        }
    }

    pub(super) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the log's writer panicked");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl Reading ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be done next; none when the log is closed.
    fn next_batch(&self) -> Option<Batch> {
        let idle =
            |pending: &mut Pending| pending.lines.is_empty() && pending.whole.is_none() && !pending.closed;
        let mut pending = self
            .wake
            .wait_while(self.lock(), idle)
            .unwrap_or_else(PoisonError::into_inner);
        if pending.lines.is_empty() && pending.whole.is_none() {
            return None;
        }
        Some(Batch {
            lines: std::mem::take(&mut pending.lines),
            seq: pending.seq,
            whole: pending.whole.take(),
        })
    }
}

/// The thread's side of the log.
struct Writer {
    file: File,
    directory: PathBuf,
}

// === impl Writer ===

impl Writer {
    fn write(mut self, shared: &Shared, progress: &watch::Sender<Progress>) {
        while let Some(batch) = shared.next_batch() {
            if let Err(error) = self.write_batch(batch, shared, progress) {
                // After a failed flush nobody can say what reached the disk: give up for good.
                progress.send_replace(Progress::Failed(Arc::new(error)));
                return;
            }
        }
    }

    fn write_batch(
        &mut self,
        batch: Batch,
        shared: &Shared,
        progress: &watch::Sender<Progress>,
    ) -> io::Result<()> {
        let Batch { lines, seq, whole } = batch;
        let mut rest = lines.as_slice();
        if let Some(Whole { image, seq, end }) = whole {
            let (before, after) = rest.split_at(end);
            self.flush(before)?;
            progress.send_replace(Progress::Safe(seq));
            self.put_together(image, seq, shared);
            rest = after;
        }
        self.flush(rest)?;
        progress.send_replace(Progress::Safe(seq));
        Ok(())
    }

    fn flush(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.file.write_all(lines).and_then(|()| self.file.sync_data())
    }

    /// Makes the snapshot new and the log empty. A crash in between leaves lines that the snapshot has
    /// already, which the next start passes over.
    fn put_together(&self, image: Image, seq: u64, shared: &Shared) {
        match directory::renew(&self.directory, seq, image) {
            Ok(bytes) => {
                let mut pending = shared.lock();
                pending.long = pending.long.max(bytes.saturating_mul(TIMES_SNAPSHOT));
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "the log of changes stays long");
                return;
            }
        }
        // What stays of it does no harm.
        if let Err(error) = self.file.set_len(0).and_then(|()| self.file.sync_all()) {
            tracing::warn!(error = error_chain(&error), "the log of changes stays long");
        }
    }
}
