//! Keeps the array and its durability together.
//!
//! The array sits behind one lock that is held for a state transition (microseconds) and never over
//! an await. With a state directory the rows that a change touched are committed to its database before the answer
//! goes out; calls that wait at the same time share one commit.
//!
//! Invariant: a response only reflects durable state. That holds for refusals and
//! reads too: they wait for everything the array had done when they looked at it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde::Serialize;

use crate::array::{self, Array, Done, RowId, Settings};
use crate::fault::{Freeze, Loses, Loss};

pub use self::database::Database;
use self::database::META;
pub use self::error::{Error, OpenError};
pub use self::file::Row;
use self::file::{Rows, failed};
use self::legacy::Legacy;
use self::past::Past;
use self::restore::{Mark, restore, stored_image};

pub(crate) mod durable;
pub mod volume_files;

mod database;
mod error;
mod file;
mod legacy;
mod past;
mod restore;

/// The keys of the array's identity and of a [`Mark`] in [`META`].
const IDENTITY: &str = "array";
const LOSS: &str = "loss";

/// The array as calls reach it.
#[derive(Debug)]
pub struct Store {
    array: Mutex<Array>,
    /// Where the array is kept; none for as long as the process lives.
    database: Option<Arc<Database>>,
    /// The array as it was, while a fault shows that; locked after the array.
    past: Mutex<Option<Past>>,
    /// Which past that is; none if no fault shows one.
    wanted_past: Arc<RwLock<Option<Freeze>>>,
    /// What the database says is lost at the next start; locked before the array.
    loss: Mutex<Option<Loss>>,
}

// === impl Store ===

impl Store {
    /// An array that lives as long as the process.
    pub(crate) fn in_memory(settings: Settings, epoch: u128, premade: u64) -> Self {
        let mut array = Array::new(settings, epoch);
        array.premake(premade);
        Self::of(array, None)
    }

    /// An array kept in a database, restored as it was left. `epoch` is for a first start.
    ///
    /// # Errors
    /// If the database cannot be read or written, or holds something damaged.
    pub fn open(
        database: Arc<Database>,
        settings: Settings,
        epoch: u128,
        premade: u64,
    ) -> Result<Self, OpenError> {
        let stored = stored_image(&database)?;
        let directory = database.directory().to_owned();
        let found = match &stored {
            Some(image) => Legacy {
                image: Some(image.clone()),
                mark: database.get(META, LOSS)?,
                ..Legacy::default()
            },
            None => Legacy::read(&directory)?.unwrap_or_default(),
        };
        if found.mark.as_ref().is_some_and(|mark| !mark.is_whole()) {
            return Err(database.damaged("must have a backup if changes are lost, and only then"));
        }
        let loses = found.mark.as_ref().map(|mark| mark.loses);
        if let Some(loses) = loses {
            tracing::warn!(?loses, dir = %directory.display(), "backend fault state-loss applied");
        }
        let identity = found.identity.clone();
        let mut array = restore(settings, epoch, found.image, found.changes, found.mark);
        array.premake(premade);
        // The settings of this start may have changed something, too.
        if loses.is_some() || stored != Some(array.image()) {
            let mut rows: Rows = array.rows().map(|id| row(&array, &id)).collect();
            rows.insert((META, LOSS.to_owned()), None);
            if let Some(identity) = identity {
                rows.insert((META, IDENTITY.to_owned()), Some(json(&identity)));
            }
            database.replace(&RowId::TABLES, rows)?;
        }
        Legacy::remove(&directory)?;
        tracing::info!(dir = %directory.display(), volumes = array.volumes().len(), "state restored");
        Ok(Self::of(array, Some(database)))
    }

    fn of(array: Array, database: Option<Arc<Database>>) -> Self {
        Self {
            array: Mutex::new(array),
            database,
            past: Mutex::default(),
            wanted_past: Arc::default(),
            loss: Mutex::default(),
        }
    }

    /// What tells a kept array from every other one, for as long as its directory exists: an array that lost its
    /// state is the same array. `fresh` is taken at a first start. None for an array in memory.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn identity(&self, fresh: u128) -> Result<Option<String>, OpenError> {
        let Some(database) = &self.database else {
            return Ok(None);
        };
        let identity = match database.get(META, IDENTITY)? {
            Some(identity) => identity,
            None => {
                let fresh = format!("{fresh:032x}");
                let row = ((META, IDENTITY.to_owned()), Some(json(&fresh)));
                database.replace(&[], Rows::from([row]))?;
                fresh
            }
        };
        Ok(Some(identity))
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
                if let (Some(database), Some(change)) = (&self.database, &done.change) {
                    database.write(change.rows().iter().map(|id| row(&array, id)));
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

    /// What keeps the array; none if it lives as long as the process.
    pub fn database(&self) -> Option<&Arc<Database>> {
        self.database.as_ref()
    }

    /// Keeps a past as long as `wanted` names one.
    #[must_use]
    pub(crate) fn keeping_past(mut self, wanted: Arc<RwLock<Option<Freeze>>>) -> Self {
        self.wanted_past = wanted;
        self
    }

    /// Records what the array has lost when its directory is opened the next time, however this process ends. Nothing is
    /// lost before that. Blocks.
    ///
    /// # Errors
    /// If it cannot be recorded; the previous record stays.
    pub fn lose(&self, wanted: impl FnOnce() -> Option<Loss>) -> Result<(), OpenError> {
        let Some(database) = &self.database else {
            return Ok(());
        };
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = wanted();
        if *loss == wanted {
            return Ok(());
        }
        let sequence = {
            let array = self.lock();
            let mark = wanted.map(|Loss { loses, .. }| Mark {
                loses,
                backup: (loses == Loses::Changes).then(|| array.image()),
            });
            database.write([((META, LOSS.to_owned()), mark.as_ref().map(json))])
        };
        let written = database.wait_settled(sequence);
        written
            .map_err(|error| failed("write", database.directory())(io::Error::new(error.kind(), error)))?;
        *loss = wanted;
        Ok(())
    }

    /// Looks at the past that is wanted, or at the array as it is if none is.
    ///
    /// The result is durable, as with [`Store::read`].
    pub(crate) async fn read_past<T>(
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

    fn position(&self) -> u64 {
        self.database.as_ref().map_or(0, |database| database.position())
    }

    async fn settled(&self, position: u64) -> Result<(), Error> {
        match &self.database {
            Some(database) => database.settled(position).await.map_err(Error::Lost),
            None => Ok(()),
        }
    }

    /// A panic inside the array would leave the lock poisoned; transitions decide before they
    /// touch anything, so the state behind it is whole.
    fn lock(&self) -> MutexGuard<'_, Array> {
        self.array.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn row(array: &Array, id: &RowId) -> ((&'static str, String), Option<Vec<u8>>) {
    ((id.table(), id.key().to_owned()), array.row(id))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("state must be representable as JSON")
}

#[cfg(test)]
pub(crate) mod tests;
