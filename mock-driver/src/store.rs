//! The array with its durable state.
//!
//! A lock protects the array; it is held for one state transition (microseconds) and never across an await. With a state
//! directory, the rows changed by a call are committed to the database before its response; concurrent calls share a commit.
//!
//! Invariant: a response reflects durable state only. That includes refusals and reads: they wait for everything that the
//! array had done when they read it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::array::{self, Array, Counters, Done, Image, Row, Settings};
use crate::fault::StaleList;

pub use self::database::Database;
use self::database::META;
pub use self::error::{Error, OpenError};
pub use self::path_error::PathError;
pub(crate) use self::path_error::remove_if_exists;
use self::stale_state::StaleState;

pub(crate) mod durable;
pub mod volume_files;

mod database;
mod error;
mod file;
mod path_error;
mod stale_state;

/// The keys of the array's identity and of its media directory in [`META`].
const IDENTITY: &str = "array";
const MEDIA: &str = "media";

#[derive(Debug)]
pub struct Store {
    /// Poisoning is ignored: operations decide before they change anything, so a panic leaves a consistent array.
    array: Mutex<Array>,
    /// The database; `None` without a state directory.
    pub database: Option<Arc<Database>>,
    /// An earlier state of the array, while a fault shows it; locked after the array.
    stale: Mutex<Option<StaleState>>,
    /// The earlier state that a fault shows, if any.
    wanted_stale: Arc<RwLock<Option<StaleList>>>,
    /// The state at the start, to which a reset returns.
    initial: Initial,
}

/// What an array starts with, besides the state of its directory.
#[derive(Clone, Debug, Default)]
pub struct Initial {
    pub volumes: u64,
    /// A state that replaces the stored one.
    pub fixture: Option<Image>,
}

// === impl Store ===

impl Store {
    pub(crate) fn in_memory(settings: Settings, id_seed: u128, initial: Initial) -> Self {
        Self::of(initial.array(settings, id_seed, None), None, initial)
    }

    pub(crate) fn copy(&self) -> Self {
        Self::of(self.peek(Array::clone), None, Initial::default())
    }

    /// An array restored from a database, or begun with `id_seed`.
    pub fn open(
        database: Arc<Database>,
        settings: Settings,
        id_seed: u128,
        initial: Initial,
    ) -> Result<Self, OpenError> {
        let stored = stored_image(&database)?;
        let directory = database.directory().to_owned();
        let array = initial.array(settings, id_seed, stored.clone());
        // The settings of this start may have changed the array.
        if stored != Some(array.image()) {
            database.replace(&Row::TABLES, array.rows().map(|row| row.stored()).collect())?;
        }
        let volumes = array.volumes().len();
        if initial.fixture.is_some() {
            tracing::info!(dir = %directory.display(), volumes, "state replaced by --fixture");
        } else if stored.is_some() {
            tracing::info!(dir = %directory.display(), volumes, "state restored");
        } else {
            tracing::info!(dir = %directory.display(), volumes, "state directory initialized");
        }
        Ok(Self::of(array, Some(database), initial))
    }

    fn of(array: Array, database: Option<Arc<Database>>, initial: Initial) -> Self {
        Self {
            array: Mutex::new(array),
            database,
            stale: Mutex::default(),
            wanted_stale: Arc::default(),
            initial,
        }
    }

    /// The identity of the stored array for as long as its directory exists, whatever state it gets. `fresh` is used at the
    /// first start. `None` for an array in memory.
    pub fn identity(&self, fresh: u128) -> Result<Option<String>, OpenError> {
        let Some(database) = &self.database else {
            return Ok(None);
        };
        if let Some(identity) = database.get(META, IDENTITY)? {
            return Ok(Some(identity));
        }
        let fresh = format!("{fresh:032x}");
        database.set_meta(IDENTITY, &fresh)?;
        Ok(Some(fresh))
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
        match &self.database {
            Some(database) => database.set_meta(MEDIA, directory),
            None => Ok(()),
        }
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
            let mut stale = self.stale(array);
            let done = act(array)?;
            if let Some(stale) = stale.as_mut() {
                stale.note(&done.rows);
            }
            if let Some(database) = self.database.as_ref().filter(|_| !done.rows.is_empty()) {
                database.write(done.rows.iter().map(Row::stored));
            }
            Ok(done.reply)
        })
        .await
    }

    /// Keeps ids or numbers for operations that happen later.
    pub(crate) fn promise(&self, promise: impl FnOnce(&mut Array)) {
        promise(&mut crate::lock(&self.array));
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
    pub(crate) fn with_stale_lists(mut self, wanted: Arc<RwLock<Option<StaleList>>>) -> Self {
        self.wanted_stale = wanted;
        self
    }

    /// Replaces the state of the array, atomically and durably.
    ///
    /// # Errors
    /// The image contradicts itself or the settings; the state has not changed then.
    pub(crate) async fn replace(&self, mut image: Image) -> Result<(), Error> {
        self.flushed(|array| {
            image.check(array.settings())?;
            image.id_seed = array.id_seed();
            let new = Array::from_image(array.settings().clone(), image);
            *crate::lock(&self.stale) = None;
            if let Some(database) = &self.database {
                let gone = array.rows().map(|row| (row.stored().0, None));
                database.write(gone.chain(new.rows().map(|row| row.stored())));
            }
            *array = new;
            Ok(())
        })
        .await
    }

    /// The state of `--fixture`, else of a first start.
    pub(crate) fn initial_image(&self) -> Image {
        let (settings, id_seed) = self.peek(|array| (array.settings().clone(), array.id_seed()));
        self.initial.array(settings, id_seed, None).image()
    }

    /// Reads the earlier state that a fault shows, or the present array.
    ///
    /// The result is durable, as with [`Store::read`].
    pub(crate) async fn read_stale<T>(
        &self,
        look: impl FnOnce(&Array) -> Result<T, array::Error>,
    ) -> Result<T, Error> {
        self.flushed(|array| match self.stale(array).as_mut() {
            Some(stale) => look(stale.now()),
            None => look(array),
        })
        .await
    }

    /// The earlier state, started or dropped as faults ask.
    fn stale(&self, array: &Array) -> MutexGuard<'_, Option<StaleState>> {
        let mut stale = crate::lock(&self.stale);
        let wanted = *self.wanted_stale.read().unwrap_or_else(PoisonError::into_inner);
        if stale.as_ref().map(|stale| stale.freeze) != wanted {
            *stale = wanted.map(|freeze| StaleState::of(array, freeze));
        }
        stale
    }
}

// === impl Initial ===

impl Initial {
    /// The array at a start, with the state of its directory, if any. A fixture was checked when it was read.
    fn array(&self, settings: Settings, id_seed: u128, stored: Option<Image>) -> Array {
        let id_seed = stored.as_ref().map_or(id_seed, |image| image.id_seed);
        let mut array = match self.fixture.clone().or(stored) {
            Some(image) => Array::from_image(settings, Image { id_seed, ..image }),
            None => Array::new(settings, id_seed),
        };
        array.add_initial_volumes(self.volumes);
        array
    }
}

fn stored_image(database: &Database) -> Result<Option<Image>, OpenError> {
    let [counters, volumes, snapshots, groups, storage, nodes, pools] = Row::TABLES;
    let Some(counters) = database.get::<Counters>(counters, "")? else {
        return Ok(None);
    };
    Ok(Some(Image {
        volumes: database.all(volumes)?,
        snapshots: database.all(snapshots)?,
        groups: database.all(groups)?,
        storage: database.all(storage)?,
        nodes: database.all(nodes)?.into_iter().collect(),
        pools: database.all(pools)?.into_iter().collect(),
        ..Image::empty(counters)
    }))
}

#[cfg(test)]
pub(crate) mod tests;
