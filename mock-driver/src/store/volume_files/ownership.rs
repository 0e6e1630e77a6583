//! Ownership of a media directory by an array.
//!
//! At its start the array moves unknown volume files to `orphaned/`, so it must first prove that it owns the directory.
//! `media.json` names the array, and is durable before the first volume file; the process with the array locks
//! `media.lock`. Node processes share the directory without a lock: they compare the marker with the array's identity,
//! and only change files of volumes that are attached to them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::copy;
use super::file_id::{DISK, EPHEMERAL, FILESYSTEM, TARGET, TREE};
use super::location::FilesLocation;
use super::{FORMATTING, VolumeFiles};
use crate::store::PathError;
use crate::store::durable;

const MARKER: &str = "media.json";
const LOCK: &str = "media.lock";
/// Incremented when the marker's meaning changes, so that an older driver rejects it.
const FORMAT: u32 = 1;

/// The array that a media directory belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Its unique identity.
    pub(crate) array: String,
    /// Whether the array is persistent. The files of an array in memory have no owner after its process has ended.
    pub(crate) is_kept: bool,
    /// The directory that the array marked earlier.
    pub(crate) marked: Option<String>,
}

/// Errors of claiming a media directory.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("--media-dir")]
    Path(#[from] PathError),
    #[error("--media-dir: {} is in use by another running driver: give each array its own", path.display())]
    InUse { path: PathBuf },
    #[error(
        "--media-dir: {} has no marker of this driver ({MARKER}) and contains {}, which the array does not know: give \
         an empty directory, or move its contents away first",
        path.display(), found.display()
    )]
    Unmarked { path: PathBuf, found: PathBuf },
    #[error(
        "--media-dir: {} had the marker of this array ({MARKER}) and has none now: mount its filesystem or restore it, or \
         give another directory to start without the volumes' data",
        path.display()
    )]
    MarkerLost { path: PathBuf },
    #[error(
        "--media-dir: {} belongs to array {array}, not to this one: start with that array's --state-dir, or give \
         another --media-dir",
        path.display()
    )]
    OtherArray { path: PathBuf, array: String },
    #[error(
        "--media-dir: {} is not the directory of the array at --array-endpoint={endpoint}: its marker ({MARKER}) {found}; mount \
         its filesystem, or give the --media-dir of that process",
        path.display()
    )]
    NotShared {
        path: PathBuf,
        endpoint: String,
        found: String,
    },
    #[error("--media-dir: {} {reason}: restore the file or give another directory", path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// The state of a directory that the array may claim.
enum Claimed {
    /// It has the array's marker.
    Already,
    /// It has no files of volumes and snapshots that are not this array's, or this array is in memory, too.
    New,
    /// Its files are those of an array in memory that has ended. Equal names mean nothing.
    FromMemory,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    format: u32,
    array: String,
    kept: bool,
}

// === impl VolumeFiles ===

impl VolumeFiles {
    /// Claims a permanent directory for the array until [`VolumeFiles::close`], so that a sweep can only affect this
    /// array's files. Returns the directory; `None` if it is private.
    ///
    /// # Errors
    /// Another array uses the directory, or used it and is persistent; the directory contains files that are not known to
    /// be the array's, or the array's marker is missing; it cannot be created, locked or marked.
    pub(crate) fn claim(
        &self,
        owner: &Owner,
        state_dir: Option<&Path>,
    ) -> Result<Option<String>, ClaimError> {
        let FilesLocation::Persistent { directory, lock } = &*self.location else {
            return Ok(None);
        };
        let held = crate::lock(lock).take();
        let held = claim(directory, held, owner, state_dir)?;
        *crate::lock(lock) = Some(held);
        Ok(Some(directory.to_string_lossy().into_owned()))
    }

    /// Locks a permanent directory that has a lock file. Other directories are not in use, and may not be this driver's.
    ///
    /// # Errors
    /// Another array uses the directory, or it cannot be locked.
    pub(crate) fn lock_used(&self) -> Result<(), ClaimError> {
        let FilesLocation::Persistent { directory, lock } = &*self.location else {
            return Ok(());
        };
        if directory.join(LOCK).exists() {
            *crate::lock(lock) = Some(take_lock(directory)?);
        }
        Ok(())
    }

    /// The array in the marker of a claimed directory; `None` for a directory without a claim.
    ///
    /// # Errors
    /// The marker is missing or unreadable.
    pub(crate) fn claimed_by(&self) -> Result<Option<String>, ClaimError> {
        let FilesLocation::Persistent { directory, lock } = &*self.location else {
            return Ok(None);
        };
        if crate::lock(lock).is_none() {
            return Ok(None);
        }
        match read(&directory.join(MARKER))? {
            Some(marker) => Ok(Some(marker.array)),
            None => Err(ClaimError::MarkerLost {
                path: directory.clone(),
            }),
        }
    }

    /// Checks that a node process uses the directory of the array at `endpoint`: in a directory of another array, or at a
    /// mount point without its filesystem, volumes would be other ones or blank.
    ///
    /// # Errors
    /// The marker is missing, unreadable or that of another array.
    pub(crate) fn check_array(&self, array: &str, endpoint: &str) -> Result<(), ClaimError> {
        let FilesLocation::Persistent { directory, .. } = &*self.location else {
            return Ok(());
        };
        let found = match read(&directory.join(MARKER))? {
            Some(marker) if marker.array == array => return Ok(()),
            Some(marker) => format!("names array {}, not {array}", marker.array),
            None => "is missing".to_owned(),
        };
        Err(ClaimError::NotShared {
            path: directory.clone(),
            endpoint: endpoint.to_owned(),
            found,
        })
    }
}

/// Claims a directory for the array, and returns the lock on it, which may be held already. A directory without a marker must
/// have no volumes.
fn claim(
    directory: &Path,
    held: Option<File>,
    owner: &Owner,
    state_dir: Option<&Path>,
) -> Result<File, ClaimError> {
    durable::create_dir_all(directory).map_err(PathError::of("create", directory))?;
    if !directory.join(LOCK).exists() {
        // A refused directory gets no lock file; the check under the lock decides.
        examine(directory, owner, state_dir)?;
    }
    let lock = held.map_or_else(|| take_lock(directory), Ok)?;
    match examine(directory, owner, state_dir)? {
        Claimed::Already => return Ok(lock),
        Claimed::New => {}
        // Before the marker, so that a crash in between repeats it.
        Claimed::FromMemory => {
            copy::sweep(directory, &[])?;
        }
    }
    let marker = Marker {
        format: FORMAT,
        array: owner.array.clone(),
        kept: owner.is_kept,
    };
    durable::write_json(directory, MARKER, &marker)
        .map_err(PathError::of("write the marker in", directory))?;
    Ok(lock)
}

fn take_lock(directory: &Path) -> Result<File, ClaimError> {
    let path = directory.join(LOCK);
    let lock = durable::try_lock(&path).map_err(PathError::of("lock", &path))?;
    lock.ok_or_else(|| ClaimError::InUse {
        path: directory.to_owned(),
    })
}

/// Checks the marker of a directory. Rejects a directory that the array must not mark.
fn examine(directory: &Path, owner: &Owner, state_dir: Option<&Path>) -> Result<Claimed, ClaimError> {
    let was_marked = owner
        .marked
        .as_deref()
        .is_some_and(|marked| Path::new(marked) == directory);
    match read(&directory.join(MARKER))? {
        Some(marker) if marker.array == owner.array && marker.kept == owner.is_kept => Ok(Claimed::Already),
        Some(marker) if marker.kept => Err(ClaimError::OtherArray {
            path: directory.to_owned(),
            array: marker.array,
        }),
        // Such as a mount point without its filesystem, which an array in memory may have marked: volumes would be blank.
        Some(_) | None if was_marked => Err(ClaimError::MarkerLost {
            path: directory.to_owned(),
        }),
        // The array was in memory; if its process has not ended, it has the lock.
        Some(_) if owner.is_kept => Ok(Claimed::FromMemory),
        Some(_) => Ok(Claimed::New),
        None => {
            if let Some(found) = unknown(directory, state_dir)? {
                return Err(ClaimError::Unmarked {
                    path: directory.to_owned(),
                    found,
                });
            }
            Ok(Claimed::New)
        }
    }
}

fn read(path: &Path) -> Result<Option<Marker>, ClaimError> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(PathError::of("read", path)(error).into()),
    };
    let text = io::read_to_string(file).map_err(PathError::of("read", path))?;
    let damaged = |reason| ClaimError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let marker: Marker = serde_json::from_str(&text)
        .map_err(|error| damaged(format!("is not a marker of this driver ({error})")))?;
    if marker.format != FORMAT {
        let reason = format!("has format {}, this driver knows {FORMAT}", marker.format);
        return Err(damaged(reason));
    }
    Ok(Some(marker))
}

/// The first entry of the directory that is no file which drivers create beside volumes.
fn unknown(directory: &Path, state_dir: Option<&Path>) -> Result<Option<PathBuf>, ClaimError> {
    // Canonical paths do not depend on how a path is written.
    let state_dir = state_dir.and_then(|path| path.canonicalize().ok());
    let canonical = directory
        .canonicalize()
        .map_err(PathError::of("resolve", directory))?;
    let is_state_dir = state_dir.as_deref() == Some(&canonical);
    for path in copy::paths_in(directory)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut found = None;
        match name.as_ref() {
            "volumes" | "snapshots" => {
                found = copy::paths_in(&path)?.into_iter().next();
            }
            // Files of node processes, which may start before the array's process, and of the filesystem.
            "devices" => found = foreign_below(&path, is_device_link)?,
            EPHEMERAL => {
                found = foreign_below(&path, |_| true)?;
                if found.is_none() {
                    for node in copy::paths_in(&path)? {
                        found = found.or(foreign_below(&node, is_volume_file)?);
                    }
                }
            }
            "staging" => found = foreign_below(&path, is_private_staging)?,
            "lost+found" | LOCK => {}
            _ if name.starts_with(MARKER) || is_state_dir => {}
            _ => {
                let is_above = |state: &PathBuf| state.starts_with(canonical.join(name.as_ref()));
                if !state_dir.as_ref().is_some_and(is_above) {
                    return Ok(Some(path));
                }
            }
        }
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The first entry of a directory that is no directory, or the first entry of these that `is_ours` does not accept.
fn foreign_below(folder: &Path, is_ours: impl Fn(&Path) -> bool) -> Result<Option<PathBuf>, ClaimError> {
    let is_directory = |path: &Path| path.is_dir() && !path.is_symlink();
    if !is_directory(folder) {
        return Ok(Some(folder.to_owned()));
    }
    for path in copy::paths_in(folder)? {
        if !is_directory(&path) {
            return Ok(Some(path));
        }
        let found = copy::paths_in(&path)?.into_iter().find(|entry| !is_ours(entry));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn is_device_link(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.is_symlink() && name.contains("csi-mock-")
}

fn is_volume_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [DISK, TREE, FILESYSTEM, FORMATTING, TARGET].contains(&name.as_ref())
}

/// A link, a mount, or a path at which nothing is mounted any more.
fn is_private_staging(path: &Path) -> bool {
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        // The passthrough filesystem of a killed driver.
        Err(error) => return error.kind() == ErrorKind::NotConnected,
    };
    if !metadata.is_dir() {
        return metadata.is_symlink() || metadata.len() == 0;
    }
    let above = path.parent().and_then(|above| above.metadata().ok());
    above.is_some_and(|above| above.dev() != metadata.dev())
        || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}
