//! Copies and removes volume files. Incomplete copies and files being removed have temporary names, so that no reader finds
//! partial content.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::FORMATTING;
use super::extent;
use super::file_id::{DISK, FILESYSTEM, FileId, TREE, UNFINISHED};
use super::tree_copy::copy_tree;
use crate::store::PathError;

/// Above this number of files and directories, syncfs replaces an fsync of each: the cost of fsync grows with their number,
/// while that of syncfs includes writes of other processes.
const MANY: usize = 16;
/// Maximum number of bytes that are copied before the copy can be stopped.
const PART: u64 = 16 << 20;
/// A part of temporary names. A process that still runs, or has ended, may have left the same file under its own name.
static PROCESS: LazyLock<String> = LazyLock::new(|| {
    let mut bytes = [0; 6];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
});
const ORPHANED: &str = "orphaned";

/// The result of a [sweep](super::VolumeFiles::sweep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweepReport {
    /// Number of removed leftovers of copies and deletions.
    pub(crate) unfinished: usize,
    /// Number of volumes and snapshots whose orphaned files were moved aside.
    pub(crate) orphaned: usize,
}

/// Replaces `to` by a copy of `from` and returns the number of bytes. With `lasting` the copy is durable on return.
pub(super) fn replace(
    from: &Path,
    to: &Path,
    bytes: u64,
    lasting: bool,
    stop: &CancellationToken,
) -> Result<u64, PathError> {
    let flush_name = |parent: &Path| if lasting { sync(parent) } else { Ok(()) };
    replace_with(from, to, bytes, lasting, stop, flush_name)
}

/// As [`replace`], with a function that makes a name in a directory durable.
fn replace_with(
    from: &Path,
    to: &Path,
    bytes: u64,
    lasting: bool,
    stop: &CancellationToken,
    flush_name: impl Fn(&Path) -> io::Result<()>,
) -> Result<u64, PathError> {
    let source = match File::open(from.join(DISK)) {
        Ok(source) => Some(source),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(PathError::of("read", from)(error)),
    };
    let tree = Some(from.join(TREE)).filter(|tree| tree.is_dir());
    if source.is_none() && tree.is_none() {
        remove(to)?;
        return Ok(0);
    }
    let parent = to.parent().unwrap_or(to);
    let is_first = !parent.is_dir();
    let new = unfinished(to, "new");
    remove_all(&new)?;
    let made = (|| {
        let copied = build(from, source.as_ref(), tree.as_deref(), &new, bytes, stop)?;
        if lasting {
            flush(&new).map_err(PathError::of("flush", &new))?;
        }
        remove(to)?;
        fs::rename(&new, to).map_err(PathError::of("rename", &new))?;
        Ok(copied)
    })();
    if made.is_err() {
        remove_unfinished(&new);
        return made;
    }
    let above = parent.parent().filter(|_| is_first);
    for folder in std::iter::once(parent).chain(above) {
        if let Err(error) = flush_name(folder) {
            // The caller gets an error, so it has no copy.
            remove_unfinished(to);
            return Err(PathError::of("flush", folder)(error));
        }
    }
    made
}

/// Copies disk and directory, if they exist, into a new directory, and returns the number of bytes.
fn build(
    from: &Path,
    disk: Option<&File>,
    tree: Option<&Path>,
    new: &Path,
    bytes: u64,
    stop: &CancellationToken,
) -> Result<u64, PathError> {
    // Not flushed: the copy is flushed as a whole before it gets its name.
    fs::create_dir_all(new).map_err(PathError::of("create", new))?;
    let mut copied = 0;
    let is_being_formatted = || from.join(FORMATTING).exists();
    let mut is_rest = is_being_formatted();
    if let Some(disk) = disk {
        copied +=
            copy_disk(disk, &new.join(DISK), bytes, stop).map_err(PathError::of("copy the disk to", new))?;
    }
    is_rest |= is_being_formatted();
    if is_rest {
        // Part of a filesystem at most, as after an interrupted mkfs.
        let mark = new.join(FORMATTING);
        File::create(&mark).map_err(PathError::of("create", &mark))?;
    }
    if let Some(tree) = tree {
        copied += copy_tree(tree, &new.join(TREE), stop).map_err(PathError::of("copy the files to", new))?;
        let label = from.join(FILESYSTEM);
        if label.exists() {
            fs::copy(&label, new.join(FILESYSTEM)).map_err(PathError::of("copy the files to", new))?;
        }
    }
    Ok(copied)
}

/// Removes files: renames their directory, then removes one by one.
pub(super) fn remove(path: &Path) -> Result<(), PathError> {
    let old = unfinished(path, "old");
    remove_all(&old)?;
    match fs::rename(path, &old) {
        Ok(()) => remove_all(&old),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(PathError::of("remove", path)(error)),
    }
}

/// Removes unfinished copies and moves files that are not `known` into `orphaned`.
pub(super) fn sweep(directory: &Path, known: &[FileId]) -> Result<SweepReport, PathError> {
    let known: HashSet<PathBuf> = known
        .iter()
        .map(|file_id| directory.join(file_id.relative_path()))
        .collect();
    let mut swept = SweepReport::default();
    for kind in ["volumes", "snapshots"] {
        for path in paths_in(&directory.join(kind))? {
            let (done, count) = match is_unfinished(&path) {
                true => (remove_all(&path), &mut swept.unfinished),
                false if known.contains(&path) => continue,
                false => {
                    let aside = directory.join(ORPHANED).join(kind);
                    (set_aside(&path, &aside), &mut swept.orphaned)
                }
            };
            match done {
                Ok(()) => *count += 1,
                Err(error) => {
                    // The files of others are swept nevertheless.
                    let error = crate::error_chain(&error);
                    tracing::warn!(error, "left-over volume files stay until the next start");
                }
            }
        }
    }
    Ok(swept)
}

/// The paths in a directory; none if it does not exist.
pub(crate) fn paths_in(folder: &Path) -> Result<Vec<PathBuf>, PathError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(PathError::of("read", folder)(error)),
    };
    let path = |entry: io::Result<DirEntry>| Ok(entry.map_err(PathError::of("read", folder))?.path());
    entries.map(path).collect()
}

/// Moves a file into a directory, under its own name or the first free one.
fn set_aside(path: &Path, folder: &Path) -> Result<(), PathError> {
    // Not flushed: files that a crash leaves in place are orphans again.
    fs::create_dir_all(folder).map_err(PathError::of("create", folder))?;
    let name = path.file_name().unwrap_or_default();
    for number in 0_u32.. {
        let mut to = folder.join(name);
        if number > 0 {
            to.as_mut_os_string().push(format!(".{number}"));
        }
        // `rename` would replace an empty directory.
        match rustix::fs::renameat_with(CWD, path, CWD, &to, RenameFlags::NOREPLACE) {
            Ok(()) => {
                tracing::warn!(from = %path.display(), to = %to.display(), "moved orphaned volume files aside");
                return Ok(());
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(error) => return Err(PathError::of("rename", path)(error)),
        }
    }
    Ok(())
}

fn copy_disk(source: &File, target: &Path, bytes: u64, stop: &CancellationToken) -> io::Result<u64> {
    // Writes through a loop device are at least in the source's page cache.
    source.sync_data()?;
    let target = File::create_new(target)?;
    let is_shared = match rustix::fs::ioctl_ficlone(&target, source) {
        Ok(()) => true,
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => false,
        Err(error) => return Err(error.into()),
    };
    let length = source.metadata()?.len();
    let (mut copied, mut position) = (0, 0);
    while let Some(extent) = extent::next_extent(source, position)? {
        let (mut offset, end) = (extent.offset, extent.end().min(length));
        while offset < end && !is_shared {
            go_on(stop)?;
            offset += copy_part(source, &target, offset, end - offset)?;
        }
        copied += extent.length;
        position = extent.end();
    }
    target.set_len(length.max(bytes))?;
    Ok(copied)
}

/// Copies bytes at `offset`, in the kernel if possible, and returns their number.
fn copy_part(mut source: &File, mut target: &File, offset: u64, length: u64) -> io::Result<u64> {
    source.seek(SeekFrom::Start(offset))?;
    target.seek(SeekFrom::Start(offset))?;
    match io::copy(&mut source.take(length.min(PART)), &mut target)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

/// Fails if the work is to be stopped.
pub(super) fn go_on(stop: &CancellationToken) -> io::Result<()> {
    match stop.is_cancelled() {
        true => Err(io::Error::other(
            "stopped: the driver is ending, or the caller has left",
        )),
        false => Ok(()),
    }
}

/// The temporary name of a file in this process: no other process uses it.
fn unfinished(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{UNFINISHED}{what}-{}-{name}", *PROCESS))
}

/// Whether [`replace`] or [`remove`] was interrupted while they had the path.
pub(super) fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let what = name.strip_prefix(UNFINISHED).unwrap_or_default();
    what.starts_with("new-") || what.starts_with("old-")
}

pub(super) fn remove_all(path: &Path) -> Result<(), PathError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(PathError::of("remove", path)(error)),
    }
}

/// Removes what an operation that failed has created.
fn remove_unfinished(new: &Path) {
    if let Err(error) = remove_all(new) {
        let (path, error) = (new.display(), crate::error_chain(&error));
        tracing::warn!(%path, error, "unfinished volume files stay until the next start");
    }
}

/// Makes a finished copy durable. All data is written before the first flush, so that the first flush writes most of it and
/// the others little.
fn flush(copy: &Path) -> io::Result<()> {
    let mut parts = Vec::new();
    list(copy, &mut parts)?;
    if parts.len() > MANY {
        return Ok(rustix::fs::syncfs(File::open(copy)?)?);
    }
    parts.iter().try_for_each(|part| sync(part))
}

/// The files and directories in `root` and `root` itself, each directory after its content.
fn list(root: &Path, parts: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), parts)?;
        } else if kind.is_file() {
            parts.push(entry.path());
        }
    }
    parts.push(root.to_owned());
    Ok(())
}

fn sync(part: &Path) -> io::Result<()> {
    File::open(part)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_whose_name_cannot_be_flushed_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a/from"), directory.path().join("b/to"));
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join(DISK), "x").unwrap();
        let stop = CancellationToken::new();
        for failing in [to.parent(), Some(directory.path())] {
            let flush = |folder: &Path| match Some(folder) == failing {
                true => Err(io::Error::other("disk")),
                false => sync(folder),
            };
            let error = replace_with(&from, &to, 1, true, &stop, flush).unwrap_err();
            assert_eq!((error.act, Some(error.path.as_path())), ("flush", failing));
            assert_eq!(paths_in(to.parent().unwrap()).unwrap(), Vec::<PathBuf>::new());
            fs::remove_dir(to.parent().unwrap()).unwrap();
        }
        replace(&from, &to, 1, true, &stop).unwrap();
        assert!(to.join(DISK).exists());
    }

    #[test]
    fn stopped_copy_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let stop = CancellationToken::new();
        stop.cancel();
        for part in [DISK, "tree/file"] {
            let part = from.join(part);
            fs::create_dir_all(part.parent().unwrap()).unwrap();
            fs::write(&part, "x").unwrap();
            // A clone of the blocks is not stopped: it takes no time.
            let copied = replace(&from, &to, 1, false, &stop);
            assert!(copied.is_err() || part.ends_with(DISK), "{}", part.display());
            remove_all(&to).unwrap();
            let left = paths_in(directory.path()).unwrap();
            assert_eq!(left, std::slice::from_ref(&from));
        }
    }

    #[test]
    fn temporary_names_are_those_of_the_process() {
        let path = Path::new("volumes/a");
        assert_ne!(unfinished(path, "new"), Path::new("volumes/.new-a"));
        assert!(is_unfinished(&unfinished(path, "new")) && is_unfinished(&unfinished(path, "old")));
        let longest = "x".repeat(234);
        let name = unfinished(Path::new(&longest), "new").into_os_string();
        assert!(name.len() <= 255, "{}", name.len());
    }
}
