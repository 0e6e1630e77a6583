//! Private directories of drivers without a state or media directory.
//!
//! The process that has one holds a lock on it, which ends with the process, whatever ends that. A later start undoes what is
//! in a directory without a living owner. Invariants:
//! - A directory that is locked, or whose owner runs, is never touched.
//! - Only directories that a driver of the same user made are touched: these have the owner's file, or are empty.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::copy::{paths_in, remove_all};
use super::file_name;
use crate::store::PathError;

const PREFIX: &str = "csi-mock-driver-";
const OWNER: &str = "owner.json";
/// The owner's file until it is complete.
const UNFINISHED_OWNER: &str = ".owner.json";
/// Links to the sockets of the process.
pub(crate) const SOCKETS: &str = "sockets";
/// The links of the nodes to their devices, or links to the directories that have these.
pub(crate) const DEVICES: &str = "devices";

/// A private directory of this process, removed when it is dropped.
#[derive(Debug)]
pub(super) struct PrivateDir {
    path: PathBuf,
    _lock: File,
}

/// The private directory of a process that has ended, locked against other starts.
#[derive(Debug)]
pub(crate) struct AbandonedDir {
    pub(crate) path: PathBuf,
    /// The process; `None` if it ended before it could write that.
    pub(crate) process: Option<Process>,
    _lock: File,
}

/// A process, which another one with the same id is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its start in clock ticks since the machine's.
    started: u64,
    /// The namespace in which it has this id.
    pid_namespace: PathBuf,
    boot: String,
}

// === impl PrivateDir ===

impl PrivateDir {
    pub(super) fn create() -> Result<Self, PathError> {
        loop {
            let made = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(0o700))
                .tempdir()
                .map_err(PathError::of("create a directory in", &std::env::temp_dir()))?;
            let path = made.keep();
            // A start that found it before it was locked has removed it.
            let Some(lock) = open(&path)? else { continue };
            if let Err(error) = lock.lock() {
                tracing::warn!(path = %path.display(), %error, "the private directory cannot be locked");
            }
            if lock.metadata().map_err(PathError::of("stat", &path))?.nlink() == 0 {
                continue;
            }
            let made = Self { path, _lock: lock };
            let owner = Process::own().and_then(|process| {
                let unfinished = made.path.join(UNFINISHED_OWNER);
                fs::write(&unfinished, serde_json::to_vec(&process)?)?;
                fs::rename(unfinished, made.path.join(OWNER))
            });
            owner.map_err(PathError::of("write the owner of", &made.path))?;
            return Ok(made);
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn note(&self, folder: &str, path: &Path) -> Result<(), PathError> {
        let folder = self.path.join(folder);
        // Not flushed: after a reboot nothing listens there, and there are no devices.
        fs::create_dir_all(&folder).map_err(PathError::of("create", &folder))?;
        let note = folder.join(file_name(&path.to_string_lossy()));
        symlink(path, &note).map_err(PathError::of("link", &note))
    }

    /// # Errors
    /// Loop devices or targets are still in use. The next start after the end of this process undoes them.
    pub(super) fn remove(self) -> Result<(), PathError> {
        if has_notes(&self.path) {
            return Err(PathError::of("remove", &self.path)(io::Error::from(
                ErrorKind::ResourceBusy,
            )));
        }
        remove_all(&self.path)
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if has_notes(&self.path) {
            // A third signal, or a driver dropped without its end: what is noted here is still there.
            return;
        }
        if let Err(error) = remove_all(&self.path) {
            tracing::warn!(
                error = crate::error_chain(&error),
                "the next start removes volume files"
            );
        }
    }
}

// === impl AbandonedDir ===

impl AbandonedDir {
    /// The private directories of processes that have ended.
    pub(crate) fn all() -> Result<Vec<Self>, PathError> {
        let mut all = Vec::new();
        for path in paths_in(&std::env::temp_dir())? {
            let name = path.file_name().unwrap_or_default();
            if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                continue;
            }
            match Self::at(path) {
                Ok(found) => all.extend(found),
                Err(error) => {
                    tracing::debug!(error = crate::error_chain(&error), "not a driver's directory");
                }
            }
        }
        Ok(all)
    }

    fn at(path: PathBuf) -> Result<Option<Self>, PathError> {
        let Some(lock) = open(&path)? else { return Ok(None) };
        let meta = lock.metadata().map_err(PathError::of("stat", &path))?;
        // Anybody can make a directory with such a name.
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            return Ok(None);
        }
        let is_locked = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(_)) => false,
        };
        let process = match fs::read(path.join(OWNER)) {
            Ok(text) => {
                let process = serde_json::from_slice::<Process>(&text).map_err(io::Error::from);
                match process.map_err(PathError::of("read the owner of", &path)) {
                    // As after a power failure.
                    Err(_) if has_nothing_but_owner(&path)? => None,
                    process => Some(process?),
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(PathError::of("read the owner of", &path)(error)),
        };
        let is_abandoned = match &process {
            // Without a lock, a process that cannot be looked up may still run.
            Some(process) => process.runs().map_or(is_locked, |runs| !runs),
            None => is_locked && has_nothing_but_owner(&path)?,
        };
        Ok(is_abandoned.then_some(Self {
            path,
            process,
            _lock: lock,
        }))
    }

    /// Removes the sockets of the process that nobody listens to, and returns their number.
    pub(crate) fn remove_sockets(&self) -> Result<usize, PathError> {
        let mut removed = 0;
        for note in paths_in(&self.path.join(SOCKETS))? {
            let socket = fs::read_link(&note).map_err(PathError::of("read the link", &note))?;
            let is_socket = fs::symlink_metadata(&socket).is_ok_and(|meta| meta.file_type().is_socket());
            let is_dead = || {
                let refused = UnixStream::connect(&socket).err();
                refused.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            };
            if is_socket && is_dead() {
                fs::remove_file(&socket).map_err(PathError::of("remove", &socket))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(crate) fn remove(self) -> Result<(), PathError> {
        remove_all(&self.path)
    }
}

// === impl Process ===

impl Process {
    fn own() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            pid,
            started: start_of(pid)?.ok_or(ErrorKind::NotFound)?,
            pid_namespace: fs::read_link("/proc/self/ns/pid")?,
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")?
                .trim()
                .to_owned(),
        })
    }

    /// Whether the process runs; `None` if its id is of another namespace, and so cannot be looked up.
    fn runs(&self) -> Option<bool> {
        let own = Self::own().ok()?;
        if self.boot != own.boot {
            return Some(false);
        }
        if self.pid_namespace != own.pid_namespace {
            return None;
        }
        Some(start_of(self.pid).ok()? == Some(self.started))
    }
}

/// The start of a process in clock ticks since that of the machine; `None` if it does not run.
fn start_of(pid: u32) -> io::Result<Option<u64>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name, in parentheses, may contain anything.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = rest.split_whitespace();
    // A zombie, or dead: its files are closed.
    if matches!(fields.next(), Some("Z" | "X")) {
        return Ok(None);
    }
    let started = fields.nth(18).and_then(|field| field.parse().ok());
    started.map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Whether a node has noted loop devices or targets, which the next start needs to undo them.
fn has_notes(private: &Path) -> bool {
    let is_note = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b".origin-") || name.starts_with(b".target-")
    };
    let nodes = paths_in(&private.join(DEVICES)).unwrap_or_default();
    nodes
        .iter()
        .any(|node| paths_in(node).is_ok_and(|paths| paths.iter().any(is_note)))
}

/// Whether the process ended before it used the directory.
fn has_nothing_but_owner(private: &Path) -> Result<bool, PathError> {
    let owners = [OWNER, UNFINISHED_OWNER].map(|name| private.join(name));
    Ok(paths_in(private)?.iter().all(|path| owners.contains(path)))
}

/// Opens a directory; `None` if it does not exist or is something else.
fn open(path: &Path) -> Result<Option<File>, PathError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(PathError::of("open", path)(error)),
    }
}

/// Whether a living process has the private directory, which may be in another mount namespace.
pub(crate) fn has_owner(directory: &Path) -> bool {
    let Ok(Some(lock)) = open(directory) else {
        return false;
    };
    lock.try_lock().is_err()
}

/// The part of a path that is a private directory of a driver.
pub(crate) fn private_part(path: &Path) -> Option<&Path> {
    let is_private = |above: &&Path| {
        let name = above.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
    };
    path.ancestors().find(is_private)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as a process would have left it.
    fn mk_left(change: impl FnOnce(&mut Process)) -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("csi-mock-driver-x");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let mut process = Process::own().unwrap();
        change(&mut process);
        fs::write(path.join(OWNER), serde_json::to_vec(&process).unwrap()).unwrap();
        (above, path)
    }

    #[test]
    fn directory_is_abandoned_if_its_process_does_not_run_and_no_lock_is_held() {
        type Case = (&'static str, fn(&mut Process), bool);
        let ended = |process: &mut Process| process.started += 1;
        // (case, the owner, whether the directory is abandoned)
        let table: [Case; 4] = [
            ("runs", |_| {}, false),
            ("another process with this id", ended, true),
            ("before a reboot", |process| process.boot.push('x'), true),
            (
                "of another namespace",
                |process| process.pid_namespace.push("x"),
                true,
            ),
        ];
        for (case, change, expected) in table {
            let (_above, path) = mk_left(change);
            let found = AbandonedDir::at(path.clone()).unwrap();
            assert_eq!(found.is_some(), expected, "{case}");
            drop(found);
            let held = open(&path).unwrap().unwrap();
            held.lock().unwrap();
            assert!(
                AbandonedDir::at(path.clone()).unwrap().is_none(),
                "{case}: locked"
            );
            drop(held);
        }
    }

    #[test]
    fn directory_with_files_and_without_an_owner_is_not_a_drivers() {
        let (_above, path) = mk_left(|process| process.started += 1);
        fs::remove_file(path.join(OWNER)).unwrap();
        assert!(AbandonedDir::at(path.clone()).unwrap().is_some(), "it is empty");
        for part in [OWNER, UNFINISHED_OWNER] {
            fs::write(path.join(part), "{").unwrap();
            assert!(
                AbandonedDir::at(path.clone()).unwrap().is_some(),
                "its process ended while it wrote the owner"
            );
            fs::remove_file(path.join(part)).unwrap();
        }
        fs::write(path.join("precious"), "").unwrap();
        assert!(AbandonedDir::at(path.clone()).unwrap().is_none());
        fs::write(path.join(OWNER), "{}").unwrap();
        assert!(AbandonedDir::at(path.clone()).is_err());
    }

    #[test]
    fn directory_that_others_may_use_is_not_a_drivers() {
        let (_above, path) = mk_left(|process| process.started += 1);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert!(AbandonedDir::at(path.clone()).unwrap().is_none());
    }

    #[test]
    fn directory_with_notes_is_left_to_the_next_start() {
        for note in [".origin-csi-mock-1", ".target-csi-mock-t"] {
            for is_dropped in [false, true] {
                let made = PrivateDir::create().unwrap();
                let path = made.path().to_owned();
                let links = path.join("devices/node-0");
                fs::create_dir_all(&links).unwrap();
                symlink("7:0:1", links.join(note)).unwrap();
                if is_dropped {
                    drop(made);
                } else {
                    let error = made.remove().unwrap_err();
                    assert_eq!(error.source.kind(), ErrorKind::ResourceBusy);
                }
                assert!(path.exists(), "{note}");
                fs::remove_dir_all(path).unwrap();
            }
        }
    }
}
