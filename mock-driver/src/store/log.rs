//! The log of changes: appended by calls, written and flushed by one thread.
//!
//! While the thread flushes, new lines gather; its next turn takes all of them. So the number of
//! flushes follows the disk's speed and not the number of calls (group commit).

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::backend::Change;

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
}

#[derive(Clone, Debug)]
enum Progress {
    Safe(u64),
    Failed(Arc<io::Error>),
}

// === impl Log ===

impl Log {
    pub(super) fn start(file: LogFile) -> Self {
        let LogFile { file, lock, seq } = file;
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending {
                lines: Vec::new(),
                seq,
                closed: false,
            }),
            wake: Condvar::new(),
        });
        let (progress_tx, progress) = watch::channel(Progress::Safe(seq));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                write(file, &shared, &progress_tx);
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

    /// Queues a change. The caller holds the array's lock, so lines stand in the order of events.
    pub(super) fn append(&self, change: &Change) {
        let mut pending = self.shared.lock();
        pending.seq += 1;
        let line = Line {
            seq: pending.seq,
            change,
        };
        serde_json::to_writer(&mut pending.lines, &line).expect("a change must be representable as JSON");
        pending.lines.push(b'\n');
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

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next lines to write and the number of the last of them; none when the log is closed.
    fn next_batch(&self) -> Option<(Vec<u8>, u64)> {
        let idle = |pending: &mut Pending| pending.lines.is_empty() && !pending.closed;
        let mut pending = self
            .wake
            .wait_while(self.lock(), idle)
            .unwrap_or_else(PoisonError::into_inner);
        if pending.lines.is_empty() {
            return None;
        }
        Some((std::mem::take(&mut pending.lines), pending.seq))
    }
}

fn write(mut file: File, shared: &Shared, progress: &watch::Sender<Progress>) {
    while let Some((lines, seq)) = shared.next_batch() {
        match file.write_all(&lines).and_then(|()| file.sync_data()) {
            Ok(()) => progress.send_replace(Progress::Safe(seq)),
            Err(error) => {
                // After a failed flush nobody can say what reached the disk: give up for good.
                progress.send_replace(Progress::Failed(Arc::new(error)));
                return;
            }
        };
    }
}
