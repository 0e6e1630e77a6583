//! The array with its durable state.
//!
//! A lock protects the array; it is held for one state transition (microseconds) and never across an await. With a state
//! directory, the rows changed by a call are committed to the database before its response; concurrent calls share a commit.
//!
//! Invariant: a response reflects durable state only. That includes refusals and reads: they wait for everything that the
//! array had done when they read it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::array::{self, Array, Done, RowId, Settings, json};
use crate::fault::{Freeze, Loses, Loss};

pub use self::database::Database;
use self::database::META;
pub use self::error::{Error, OpenError};
pub(crate) use self::file::{Rows, failed};
use self::past::Past;
pub use self::path_error::PathError;
use self::restore::{Mark, restore, stored_image};

pub(crate) mod durable;
pub mod volume_files;

mod database;
mod error;
mod file;
mod past;
mod path_error;
mod restore;

/// The keys of the array's identity, of its media directory and of a [`Mark`] in [`META`].
const IDENTITY: &str = "array";
const MEDIA: &str = "media";
const LOSS: &str = "loss";

/// The array behind its lock.
#[derive(Debug)]
pub struct Store {
    /// Poisoning is ignored: operations decide before they change anything, so a panic leaves a consistent array.
    array: Mutex<Array>,
    /// The database; `None` without a state directory.
    pub database: Option<Arc<Database>>,
    /// An earlier state of the array, while a fault shows it; locked after the array.
    past: Mutex<Option<Past>>,
    /// The earlier state that a fault shows, if any.
    wanted_past: Arc<RwLock<Option<Freeze>>>,
    /// The state loss recorded in the database; locked before the array.
    loss: Mutex<Option<Loss>>,
}

// === impl Store ===

impl Store {
    pub(crate) fn in_memory(settings: Settings, epoch: u128, premade: u64) -> Self {
        let mut array = Array::new(settings, epoch);
        array.premake(premade);
        Self::of(array, None)
    }

    /// A copy of the array, in memory.
    pub(crate) fn copy(&self) -> Self {
        Self::of(self.peek(Array::clone), None)
    }

    /// An array restored from a database. `epoch` is used at the first start.
    pub fn open(
        database: Arc<Database>,
        settings: Settings,
        epoch: u128,
        premade: u64,
    ) -> Result<Self, OpenError> {
        let stored = stored_image(&database)?;
        let directory = database.directory().to_owned();
        let mark: Option<Mark> = database.get(META, LOSS)?;
        if mark.as_ref().is_some_and(|mark| !mark.is_whole()) {
            return Err(database.damaged("must have a backup if changes are lost, and only then"));
        }
        let loses = mark.as_ref().map(|mark| mark.loses);
        if let Some(loses) = loses {
            tracing::warn!(?loses, dir = %directory.display(), "backend fault state-loss applied");
        }
        let mut array = restore(settings, epoch, stored.clone(), mark);
        array.premake(premade);
        // The settings of this start may have changed the array.
        if loses.is_some() || stored != Some(array.image()) {
            let mut rows: Rows = array.rows().map(|id| row(&array, &id)).collect();
            rows.insert((META, LOSS.to_owned()), None);
            database.replace(&RowId::TABLES, rows)?;
        }
        let volumes = array.volumes().len();
        if stored.is_some() {
            tracing::info!(dir = %directory.display(), volumes, "state restored");
        } else {
            tracing::info!(dir = %directory.display(), volumes, "state directory initialized");
        }
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

    /// The identity of the stored array for as long as its directory exists, also after a state loss. `fresh` is used at the
    /// first start. `None` for an array in memory.
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

    /// The media directory that the stored array has marked.
    pub(crate) fn marked_media(&self) -> Result<Option<String>, OpenError> {
        match &self.database {
            Some(database) => database.get(META, MEDIA),
            None => Ok(None),
        }
    }

    /// Records the media directory that the array has marked.
    pub(crate) fn set_marked_media(&self, directory: &str) -> Result<(), OpenError> {
        let Some(database) = &self.database else {
            return Ok(());
        };
        let row = ((META, MEDIA.to_owned()), Some(json(&directory)));
        database.replace(&[], Rows::from([row]))
    }

    /// Runs an operation that may change the array, and returns after the change is durable.
    ///
    /// # Guarantees
    /// The operation is atomic. After `Ok`, and after a refusal, everything that the operation did or saw survives a crash.
    ///
    /// # Errors
    /// Those of the operation; [`Error::Lost`] if the state directory fails.
    ///
    /// # Cancellation
    /// A change whose caller is dropped during the commit is committed nevertheless.
    pub async fn change<T>(
        &self,
        act: impl FnOnce(&mut Array) -> Result<Done<T>, array::Error>,
    ) -> Result<T, Error> {
        self.flushed(|array| {
            let mut past = self.past(array);
            let done = act(array)?;
            if let (Some(past), Some(change)) = (past.as_mut(), &done.change) {
                past.note(change);
            }
            if let (Some(database), Some(change)) = (&self.database, &done.change) {
                database.write(change.rows().iter().map(|id| row(array, id)));
            }
            Ok(done.reply)
        })
        .await
    }

    /// Reads the array, and returns after everything seen is durable.
    pub async fn read<T>(&self, look: impl FnOnce(&Array) -> Result<T, array::Error>) -> Result<T, Error> {
        self.flushed(|array| look(array)).await
    }

    /// Runs an operation, and returns after everything that it did or saw is durable, also if it refused.
    async fn flushed<T>(&self, act: impl FnOnce(&mut Array) -> Result<T, array::Error>) -> Result<T, Error> {
        let (outcome, position) = {
            let mut array = crate::lock(&self.array);
            let outcome = act(&mut array);
            (
                outcome,
                self.database.as_ref().map(|database| database.position()),
            )
        };
        if let (Some(database), Some(position)) = (&self.database, position) {
            database.settled(position).await.map_err(Error::Lost)?;
        }
        Ok(outcome?)
    }

    /// Reads the present array, for decisions of faults only: the state may not be durable yet, so a response must not depend on
    /// it.
    pub fn peek<T>(&self, look: impl FnOnce(&Array) -> T) -> T {
        look(&crate::lock(&self.array))
    }

    /// Keeps an earlier state while `wanted` asks for one.
    #[must_use]
    pub(crate) fn keeping_past(mut self, wanted: Arc<RwLock<Option<Freeze>>>) -> Self {
        self.wanted_past = wanted;
        self
    }

    /// Records the state loss of the next start, however this process ends. Blocks.
    ///
    /// # Errors
    /// It cannot be written; the previous record remains.
    pub fn lose(&self, wanted: impl FnOnce() -> Option<Loss>) -> Result<(), OpenError> {
        let Some(database) = &self.database else {
            return Ok(());
        };
        let mut loss = crate::lock(&self.loss);
        let wanted = wanted();
        if *loss == wanted {
            return Ok(());
        }
        let sequence = {
            let array = crate::lock(&self.array);
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

    /// Reads the earlier state that a fault shows, or the present array.
    ///
    /// The result is durable, as with [`Store::read`].
    pub(crate) async fn read_past<T>(
        &self,
        look: impl FnOnce(&Array) -> Result<T, array::Error>,
    ) -> Result<T, Error> {
        self.flushed(|array| match self.past(array).as_mut() {
            Some(past) => look(past.now()),
            None => look(array),
        })
        .await
    }

    /// The earlier state, started or dropped as faults ask.
    fn past(&self, array: &Array) -> MutexGuard<'_, Option<Past>> {
        let mut past = crate::lock(&self.past);
        let wanted = *self.wanted_past.read().unwrap_or_else(PoisonError::into_inner);
        if past.as_ref().map(|past| past.freeze) != wanted {
            *past = wanted.map(|freeze| Past::of(array, freeze));
        }
        past
    }
}

fn row(array: &Array, id: &RowId) -> ((&'static str, String), Option<Vec<u8>>) {
    ((id.table(), id.key().to_owned()), array.row(id))
}

#[cfg(test)]
pub(crate) mod tests;
