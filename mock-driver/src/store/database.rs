//! The state database: rows of the array and of the node in one redb file, written by one thread.
//!
//! Calls pass rows to the thread and wait. Rows that arrive during a commit are written by the next one (group commit), so
//! the number of flushes depends on the disk, not on the number of calls. After an error the thread writes nothing more,
//! because the result of a failed flush is unknown.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::PathError;
use super::error::OpenError;
use super::file::{self, Row, Rows, StateFile, into_io};
use crate::array::json;

/// The table of metadata.
pub(super) const META: &str = "meta";

/// The key of the format version in [`META`].
const FORMAT_KEY: &str = "format";

/// Incremented when the meaning of rows changes, so that a driver of another version refuses them.
const FORMAT: u32 = 4;

#[derive(Debug)]
pub struct Database {
    directory: PathBuf,
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    file: Mutex<Option<StateFile>>,
    pending: Mutex<Pending>,
    wake: Condvar,
}

/// The pending writes of the thread.
#[derive(Debug, Default)]
struct Pending {
    rows: Rows,
    /// The number of the last write.
    sequence: u64,
    is_closed: bool,
}

#[derive(Clone, Debug)]
enum Progress {
    /// The number of the last write that is durable.
    Durable(u64),
    Failed(Arc<io::Error>),
}

// === impl Database ===

impl Database {
    /// Opens or creates a state directory and starts its writer thread, which `close` ends.
    ///
    /// # Errors
    /// Another process has locked the directory, it cannot be read or written, or it is damaged.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        Self::start(StateFile::open(directory)?, directory.to_owned())
    }

    #[cfg(test)]
    pub(super) fn on(disk: impl redb::StorageBackend) -> Result<Self, OpenError> {
        Self::start(StateFile::on(disk)?, PathBuf::new())
    }

    fn start(file: StateFile, directory: PathBuf) -> Result<Self, OpenError> {
        let shared = Arc::new(Shared {
            file: Mutex::new(Some(file)),
            pending: Mutex::default(),
            wake: Condvar::new(),
        });
        let (progress_tx, progress) = watch::channel(Progress::Durable(0));
        let database = Self {
            directory,
            shared,
            progress,
            writer: Mutex::default(),
        };
        match database.get(META, FORMAT_KEY)? {
            Some(FORMAT) => {}
            Some(format) => {
                return Err(database.damaged(&format!("has format {format}, this driver knows {FORMAT}")));
            }
            None => database.set_meta(FORMAT_KEY, &FORMAT)?,
        }
        let shared = database.shared.clone();
        let writer = thread::spawn(move || {
            let written = panic::catch_unwind(AssertUnwindSafe(|| shared.write(&progress_tx)));
            if let Err(panic) = written {
                let error = io::Error::other("the thread that writes the state database panicked");
                progress_tx.send_replace(Progress::Failed(Arc::new(error)));
                panic::resume_unwind(panic);
            }
        });
        *crate::lock(&database.writer) = Some(writer);
        Ok(database)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn all<T: DeserializeOwned>(&self, table: &'static str) -> Result<Vec<T>, OpenError> {
        let rows = self.read(|file| file.all(table))?;
        let parsed = rows.iter().map(|(key, row)| self.parse(table, key, row));
        parsed.collect()
    }

    pub(super) fn get<T: DeserializeOwned>(&self, table: &str, key: &str) -> Result<Option<T>, OpenError> {
        let row = self.read(|file| file.get(table, key))?;
        row.map(|row| self.parse(table, key, &row)).transpose()
    }

    /// All tables with all rows, as JSON. For tests.
    pub fn dump(&self) -> Result<serde_json::Value, OpenError> {
        let mut tables = serde_json::Map::new();
        for table in self.read(StateFile::tables)? {
            let mut rows = serde_json::Map::new();
            for (key, row) in self.read(|file| file.all(&table))? {
                let row = self.parse(&table, &key, &row)?;
                rows.insert(key, row);
            }
            tables.insert(table, rows.into());
        }
        Ok(tables.into())
    }

    pub(super) fn set_meta(&self, key: &str, value: &(impl Serialize + ?Sized)) -> Result<(), OpenError> {
        let row = ((META, key.to_owned()), Some(json(value)));
        self.replace(&[], Rows::from([row]))
    }

    /// Replaces all rows of some tables in one commit. Only for the start, before [`Database::write`].
    pub(crate) fn replace(&self, tables: &[&'static str], rows: Rows) -> Result<(), OpenError> {
        let path = self.path();
        let committed = self.shared.commit(tables, rows);
        Ok(committed
            .map_err(into_io)
            .map_err(PathError::of("write", &path))?)
    }

    /// Queues rows to be written, and returns the number to wait for with `settled`. Rows are committed in
    /// the order of these calls.
    pub fn write(&self, rows: impl IntoIterator<Item = Row>) -> u64 {
        let mut pending = crate::lock(&self.shared.pending);
        pending.rows.extend(rows);
        pending.sequence += 1;
        let sequence = pending.sequence;
        drop(pending);
        self.shared.wake.notify_one();
        sequence
    }

    /// The number of the newest write, durable or not.
    pub(super) fn position(&self) -> u64 {
        crate::lock(&self.shared.pending).sequence
    }

    /// Waits until a write and all before it are durable.
    pub(crate) async fn settled(&self, sequence: u64) -> Result<(), Arc<io::Error>> {
        let is_settled = |progress: &Progress| match progress {
            Progress::Durable(durable) => *durable >= sequence,
            Progress::Failed(_) => true,
        };
        let mut progress = self.progress.clone();
        match progress.wait_for(is_settled).await.as_deref() {
            Ok(Progress::Durable(_)) => Ok(()),
            Ok(Progress::Failed(error)) => Err(error.clone()),
            Err(_) => Err(Arc::new(io::Error::other("the state database is closed"))),
        }
    }

    /// [`Database::settled`] for a thread that may block.
    pub(crate) fn wait_settled(&self, sequence: u64) -> Result<(), Arc<io::Error>> {
        futures::executor::block_on(self.settled(sequence))
    }

    /// Waits until a write fails, and returns the error.
    pub(crate) async fn failed(&self) -> Arc<io::Error> {
        let mut progress = self.progress.clone();
        loop {
            if let Progress::Failed(error) = &*progress.borrow_and_update() {
                return error.clone();
            }
            if progress.changed().await.is_err() {
                // The database was closed without an error, so no failure will follow.
                return std::future::pending().await;
            }
        }
    }

    /// Writes the queued rows, ends the thread, and unlocks the directory for other processes.
    pub(crate) fn close(&self) {
        crate::lock(&self.shared.pending).is_closed = true;
        self.shared.wake.notify_one();
        let writer = crate::lock(&self.writer).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes the state database panicked");
        }
        let file = crate::lock(&self.shared.file).take();
        // redb's locks may be poisoned by that panic; the next start repairs the file.
        if panic::catch_unwind(AssertUnwindSafe(|| drop(file))).is_err() {
            tracing::error!("the state database was not closed in order");
        }
    }

    pub(super) fn damaged(&self, reason: &str) -> OpenError {
        OpenError::Damaged {
            path: self.path(),
            reason: reason.to_owned(),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        file::path(&self.directory)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "redb::Error is non-exhaustive")]
    fn read<T>(&self, read: impl FnOnce(&StateFile) -> Result<T, redb::Error>) -> Result<T, OpenError> {
        let file = crate::lock(&self.shared.file);
        let read = read(file.as_ref().expect("the database must be open"));
        read.map_err(|error| match error {
            redb::Error::Corrupted(reason) => self.damaged(&format!("is damaged ({reason})")),
            error => PathError::of("read", &self.path())(into_io(error)).into(),
        })
    }

    fn parse<T: DeserializeOwned>(&self, table: &str, key: &str, row: &[u8]) -> Result<T, OpenError> {
        serde_json::from_slice(row).map_err(|error| {
            self.damaged(&format!(
                "has a row \"{key}\" in table \"{table}\" that is not of this driver ({error})"
            ))
        })
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl Shared ===

impl Shared {
    fn write(&self, progress: &watch::Sender<Progress>) {
        while let Some((rows, sequence)) = self.next_batch() {
            match self.commit(&[], rows) {
                Ok(()) => progress.send_replace(Progress::Durable(sequence)),
                Err(error) => {
                    progress.send_replace(Progress::Failed(Arc::new(into_io(error))));
                    return;
                }
            };
        }
    }

    /// Waits for rows; `None` when the database is closed.
    fn next_batch(&self) -> Option<(Rows, u64)> {
        let is_idle = |pending: &mut Pending| pending.rows.is_empty() && !pending.is_closed;
        let mut pending = self
            .wake
            .wait_while(crate::lock(&self.pending), is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        let rows = std::mem::take(&mut pending.rows);
        (!rows.is_empty()).then_some((rows, pending.sequence))
    }

    fn commit(&self, clear: &[&'static str], rows: Rows) -> Result<(), redb::Error> {
        let file = crate::lock(&self.file);
        file.as_ref()
            .expect("the database must be open")
            .commit(clear, rows)
    }
}
