//! Keeps the array and its durability together.
//!
//! The array sits behind one lock that is held for a state transition (microseconds) and never over
//! an await. With a state directory each change is written to a log and flushed before the answer
//! goes out; calls that wait at the same time share one flush.
//!
//! Invariant: no reply tells of a state that a crash could take back. That holds for refusals and
//! reads too: they wait for everything the array had done when they looked at it.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::array::{self, Array, Done, Image, Settings};
use crate::fault::{Freeze, Loss};

pub(crate) use self::directory::lock;
use self::log::Log;
use self::loss::Mark;
use self::past::Past;

pub(crate) mod durable;
pub mod volume_files;

mod directory;
mod log;
mod loss;
mod past;

/// The array as calls reach it.
#[derive(Debug)]
pub struct Store {
    array: Mutex<Array>,
    log: Option<Log>,
    /// The array as it was, while somebody wants that; locked after the array.
    past: Mutex<Option<Past>>,
    /// Which past that is; none if nobody wants one.
    wanted_past: Arc<RwLock<Option<Freeze>>>,
    /// Where the array is kept; none for as long as the process lives.
    directory: Option<PathBuf>,
    /// What is written down there to be lost; locked before the array.
    loss: Mutex<Option<Loss>>,
}

/// Why an operation got no answer from the array, or another one than asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The array refused.
    #[error(transparent)]
    Refused(#[from] array::Error),
    /// The change cannot be made safe, so it is not confirmed. The driver stops.
    #[error("the state directory cannot be written, so nothing is confirmed any more")]
    Lost(#[source] Arc<io::Error>),
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An operation on a file or directory failed.
    #[error("--state-dir: cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// Another driver works in it.
    #[error("--state-dir: {} is in use by another running driver: give each its own", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file that was written by nobody we know, or damaged.
    #[error("--state-dir: {} {reason}: restore the directory or start with an empty one", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
}

// === impl Store ===

impl Store {
    /// An array that lives as long as the process.
    pub fn in_memory(settings: Settings, epoch: u128, premade: u64) -> Self {
        let mut array = Array::new(settings, epoch);
        array.premake(premade);
        Self {
            array: Mutex::new(array),
            log: None,
            past: Mutex::default(),
            wanted_past: Arc::default(),
            directory: None,
            loss: Mutex::default(),
        }
    }

    /// An array kept in a directory, brought back as it was left. `epoch` is for a first start.
    ///
    /// Starts a thread that writes the log; [`Store::close`] ends it.
    ///
    /// # Errors
    /// If the directory cannot be read, written or locked, or holds something damaged. An
    /// unfinished last line of the log is no damage: nobody was told of that change.
    pub fn open(
        directory: PathBuf,
        settings: Settings,
        epoch: u128,
        premade: u64,
    ) -> Result<Self, OpenError> {
        let begin = |image: Option<Image>| match image {
            Some(image) => Array::from_image(settings, image),
            None => Array::new(settings, epoch),
        };
        let (array, file) = directory::open(directory.clone(), begin, premade)?;
        Ok(Self {
            array: Mutex::new(array),
            log: Some(Log::start(file)),
            past: Mutex::default(),
            wanted_past: Arc::default(),
            directory: Some(directory),
            loss: Mutex::default(),
        })
    }

    /// What tells a kept array from every other one, for as long as its directory exists: an array that lost its
    /// state is the same array. `fresh` is taken at a first start. None for an array in memory.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn identity(&self, fresh: u128) -> Result<Option<String>, OpenError> {
        let directory = self.directory.as_deref();
        directory
            .map(|directory| directory::identity(directory, fresh))
            .transpose()
    }

    /// Puts the log together when it has more bytes than this, for the first time. For tests: it is done by
    /// itself, too.
    #[must_use]
    pub fn compacting_above(self, bytes: u64) -> Self {
        if let Some(log) = &self.log {
            log.set_long(bytes);
        }
        self
    }

    /// Runs an operation that may change the array, and makes its change safe before it returns.
    ///
    /// # Guarantees
    /// The operation sees and leaves a whole state. After `Ok`, and after a refusal, everything
    /// the operation did or saw survives a crash.
    ///
    /// # Errors
    /// What the array refuses; [`Error::Lost`] if the state directory fails.
    ///
    /// # Cancellation
    /// Dropped while it waits for the flush, the change stands and is flushed all the same.
    pub async fn change<T>(
        &self,
        act: impl FnOnce(&mut Array) -> Result<Done<T>, array::Error>,
    ) -> Result<T, Error> {
        let (outcome, position) = {
            let mut array = self.lock();
            let mut past = self.past(&array);
            let outcome = act(&mut array).map(|done| {
                if let (Some(past), Some(change)) = (past.as_mut(), &done.change) {
                    past.note(change);
                }
                if let (Some(log), Some(change)) = (&self.log, &done.change)
                    && log.append(change)
                {
                    log.put_together(array.image());
                }
                done.reply
            });
            (outcome, self.position())
        };
        self.settled(position).await?;
        Ok(outcome?)
    }

    /// Looks at the array, and waits until everything seen is safe.
    ///
    /// # Errors
    /// As for [`Store::change`].
    pub async fn read<T>(&self, look: impl FnOnce(&Array) -> Result<T, array::Error>) -> Result<T, Error> {
        let (outcome, position) = {
            let array = self.lock();
            (look(&array), self.position())
        };
        self.settled(position).await?;
        Ok(outcome?)
    }

    /// Looks at the array as it is now, for deciding what goes wrong next: what is seen may not be safe
    /// yet, so it must never be told to a caller.
    pub fn peek<T>(&self, look: impl FnOnce(&Array) -> T) -> T {
        look(&self.lock())
    }

    /// Whether the array outlives the process.
    pub fn is_kept(&self) -> bool {
        self.log.is_some()
    }

    /// Keeps a past from the moment on that somebody wants one.
    #[must_use]
    pub fn keeping_past(mut self, wanted: Arc<RwLock<Option<Freeze>>>) -> Self {
        self.wanted_past = wanted;
        self
    }

    /// Has the array lost something when its directory is opened the next time, however this process ends, or
    /// nothing. Of what is lost nothing is missed before that. Blocks.
    ///
    /// # Errors
    /// If it cannot be written down; what was wanted before stays so.
    pub fn lose(&self, wanted: impl FnOnce() -> Option<Loss>) -> Result<(), OpenError> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = wanted();
        if *loss == wanted {
            return Ok(());
        }
        match wanted {
            Some(wanted) => Mark::new(wanted.loses, || {
                let array = self.lock();
                (array.image(), self.position())
            })
            .write(directory)?,
            None => Mark::remove(directory)?,
        }
        *loss = wanted;
        Ok(())
    }

    /// Looks at the past that is wanted, or at the array as it is if none is.
    ///
    /// What is seen is safe by the time it is told, as with [`Store::read`].
    ///
    /// # Errors
    /// As for [`Store::change`].
    pub async fn read_past<T>(
        &self,
        look: impl FnOnce(&Array) -> Result<T, array::Error>,
    ) -> Result<T, Error> {
        let (outcome, position) = {
            let array = self.lock();
            let outcome = match self.past(&array).as_mut() {
                Some(past) => look(past.now()),
                None => look(&array),
            };
            (outcome, self.position())
        };
        self.settled(position).await?;
        Ok(outcome?)
    }

    /// The past, begun or given up as is wanted.
    fn past(&self, array: &Array) -> MutexGuard<'_, Option<Past>> {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = *self.wanted_past.read().unwrap_or_else(PoisonError::into_inner);
        if past.as_ref().map(|past| past.freeze) != wanted {
            *past = wanted.map(|freeze| Past::of(array, freeze));
        }
        past
    }

    /// Waits until the log fails, and says how. Never returns while all is well.
    pub async fn failed(&self) -> Arc<io::Error> {
        match &self.log {
            Some(log) => log.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Writes what is still to be written and ends the log's thread.
    pub fn close(&self) {
        if let Some(log) = &self.log {
            log.close();
        }
    }

    fn position(&self) -> u64 {
        self.log.as_ref().map_or(0, Log::position)
    }

    async fn settled(&self, position: u64) -> Result<(), Error> {
        match &self.log {
            Some(log) => log.settled(position).await.map_err(Error::Lost),
            None => Ok(()),
        }
    }

    /// A panic inside the array would leave the lock poisoned; transitions decide before they
    /// touch anything, so the state behind it is whole.
    fn lock(&self) -> MutexGuard<'_, Array> {
        self.array.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests;
