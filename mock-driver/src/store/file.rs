//! The redb file of a state directory, with tables of JSON rows by key.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use redb::TableHandle;
use redb::{
    DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
    TableError,
};

use super::error::OpenError;
use super::{PathError, durable, remove_if_exists};

const FILE: &str = "state.redb";
const NEW_FILE: &str = "state.redb.new";
const LOCK: &str = "lock";

/// Rows are read at the start only, so the page cache serves writes.
const CACHE_BYTES: usize = 16 << 20;

/// Table, key and content of a row; `None` removes it.
pub(crate) type Row = ((&'static str, String), Option<Vec<u8>>);

pub(crate) type Rows = BTreeMap<(&'static str, String), Option<Vec<u8>>>;

/// An open file. Fields are dropped in this order.
pub(super) struct StateFile {
    redb: redb::Database,
    _lock: Option<File>,
}

// === impl StateFile ===

impl StateFile {
    pub(super) fn open(directory: &Path) -> Result<Self, OpenError> {
        let lock = lock(directory)?;
        let path = path(directory);
        if !path.try_exists().map_err(PathError::of("read", &path))? {
            create(directory)?;
        }
        let redb = builder().open(&path).map_err(|error| refused(&path, error))?;
        let _lock = Some(lock);
        Ok(Self { redb, _lock })
    }

    #[cfg(test)]
    pub(super) fn on(disk: impl redb::StorageBackend) -> Result<Self, OpenError> {
        let redb = builder().create_with_backend(disk);
        let redb = redb.map_err(|error| refused(Path::new(FILE), error))?;
        Ok(Self { redb, _lock: None })
    }

    pub(super) fn get(&self, table: &str, key: &str) -> Result<Option<Vec<u8>>, redb::Error> {
        let Some(table) = open_table(&self.redb.begin_read()?, table)? else {
            return Ok(None);
        };
        Ok(table.get(key)?.map(|row| row.value().to_vec()))
    }

    pub(super) fn all(&self, table: &str) -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
        let Some(table) = open_table(&self.redb.begin_read()?, table)? else {
            return Ok(Vec::new());
        };
        let rows = table.iter()?.map(|row| {
            let (key, row) = row?;
            Ok((key.value().to_owned(), row.value().to_vec()))
        });
        rows.collect()
    }

    pub(super) fn tables(&self) -> Result<Vec<String>, redb::Error> {
        let transaction = self.redb.begin_read()?;
        let tables = transaction.list_tables()?;
        Ok(tables.map(|table| table.name().to_owned()).collect())
    }

    /// Writes rows and removes all others of some tables, durably and all at once.
    pub(super) fn commit(&self, clear: &[&'static str], rows: Rows) -> Result<(), redb::Error> {
        let transaction = self.redb.begin_write()?;
        for table in clear {
            transaction.delete_table(definition(table))?;
        }
        let mut rows = rows.into_iter().peekable();
        while let Some(name) = rows.peek().map(|((table, _), _)| *table) {
            let mut table = transaction.open_table(definition(name))?;
            while let Some(((_, key), row)) = rows.next_if(|((table, _), _)| *table == name) {
                match row {
                    Some(row) => table.insert(key.as_str(), row.as_slice())?,
                    None => table.remove(key.as_str())?,
                };
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

impl fmt::Debug for StateFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateFile")
    }
}

pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Creates a state directory and locks it against other processes until the file is closed.
fn lock(directory: &Path) -> Result<File, OpenError> {
    durable::create_dir_all(directory).map_err(PathError::of("create", directory))?;
    let path = directory.join(LOCK);
    durable::try_lock(&path)
        .map_err(PathError::of("lock", &path))?
        .ok_or_else(|| OpenError::InUse {
            path: directory.to_owned(),
        })
}

/// Creates an empty database atomically.
fn create(directory: &Path) -> Result<(), OpenError> {
    let new = directory.join(NEW_FILE);
    remove_if_exists(&new)?;
    drop(builder().create(&new).map_err(|error| refused(&new, error))?);
    let path = path(directory);
    fs::rename(&new, &path).map_err(PathError::of("create", &path))?;
    Ok(durable::sync_directory(directory).map_err(PathError::of("flush", directory))?)
}

fn builder() -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder.set_check_integrity_on_open(true);
    builder
}

fn definition(table: &str) -> TableDefinition<'_, &'static str, &'static [u8]> {
    TableDefinition::new(table)
}

fn open_table(
    transaction: &ReadTransaction,
    table: &str,
) -> Result<Option<redb::ReadOnlyTable<&'static str, &'static [u8]>>, redb::Error> {
    match transaction.open_table(definition(table)) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "redb's errors are non-exhaustive")]
fn refused(path: &Path, error: DatabaseError) -> OpenError {
    let damaged = |reason: String| OpenError::Damaged {
        path: path.to_owned(),
        reason: format!("is not a database of this driver ({reason})"),
    };
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse {
            path: path.to_owned(),
        },
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() != ErrorKind::InvalidData => {
            PathError::of("open", path)(error).into()
        }
        error => damaged(error.to_string()),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "redb's errors are non-exhaustive")]
pub(super) fn into_io(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}
