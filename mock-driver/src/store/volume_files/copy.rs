//! Copies and removes volume files. Incomplete copies and files being removed have temporary names, so that no reader finds
//! partial content.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::extent;
use super::file_id::{DISK, FILESYSTEM, FileId, NODE, TREE, UNFINISHED};
use crate::store::PathError;

/// Above this number of files and directories, syncfs replaces an fsync of each: the cost of fsync grows with their number,
/// while that of syncfs includes writes of other processes.
const MANY: usize = 16;
pub(super) const ORPHANED: &str = "orphaned";

/// The result of a [sweep](super::VolumeFiles::sweep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweepReport {
    /// Number of removed leftovers of copies and deletions.
    pub(crate) unfinished: usize,
    /// Number of volumes, snapshots and ephemeral volumes whose orphaned files were moved aside.
    pub(crate) orphaned: usize,
}

/// Replaces `to` by a copy of `from` and returns the number of bytes. With `lasting` the copy is durable on return.
pub(super) fn replace(from: &Path, to: &Path, bytes: u64, lasting: bool) -> Result<u64, PathError> {
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
        let copied = build(from, source.as_ref(), tree.as_deref(), &new, bytes)?;
        if lasting {
            flush(&new).map_err(PathError::of("flush", &new))?;
        }
        remove(to)?;
        fs::rename(&new, to).map_err(PathError::of("rename", &new))?;
        Ok(copied)
    })();
    if made.is_err() {
        remove_unfinished(&new);
    }
    if lasting && made.is_ok() {
        sync(parent).map_err(PathError::of("flush", parent))?;
        if let Some(above) = parent.parent().filter(|_| is_first) {
            sync(above).map_err(PathError::of("flush", above))?;
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
) -> Result<u64, PathError> {
    // Not flushed: the copy is flushed as a whole before it gets its name.
    fs::create_dir_all(new).map_err(PathError::of("create", new))?;
    let mut copied = 0;
    if let Some(disk) = disk {
        copied += copy_disk(disk, &new.join(DISK), bytes).map_err(PathError::of("copy the disk to", new))?;
    }
    if let Some(tree) = tree {
        copied += copy_tree(tree, &new.join(TREE)).map_err(PathError::of("copy the files to", new))?;
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
        Ok(()) => {
            remove_all_but(NODE, &old)?;
            remove_all(&old)
        }
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
            if is_unfinished(&path) {
                remove_all(&path)?;
                swept.unfinished += 1;
            } else if !known.contains(&path) {
                set_aside(&path, &directory.join(ORPHANED).join(kind))?;
                swept.orphaned += 1;
            }
        }
    }
    Ok(swept)
}

/// The paths in a directory; none if it does not exist.
pub(super) fn paths_in(folder: &Path) -> Result<Vec<PathBuf>, PathError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(PathError::of("read", folder)(error)),
    };
    let path = |entry: io::Result<DirEntry>| Ok(entry.map_err(PathError::of("read", folder))?.path());
    entries.map(path).collect()
}

/// Moves a file into a directory, under its own name or the first free one.
pub(super) fn set_aside(path: &Path, folder: &Path) -> Result<(), PathError> {
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

fn copy_disk(source: &File, target: &Path, bytes: u64) -> io::Result<u64> {
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
            offset += copy_part(source, &target, offset, end - offset)?;
        }
        copied += extent.length;
        position = extent.end();
    }
    target.set_len(length.max(bytes))?;
    Ok(copied)
}

/// Copies bytes at `offset`, in the kernel if possible, and returns their number.
fn copy_part(source: &File, target: &File, offset: u64, length: u64) -> io::Result<u64> {
    let (mut from, mut to) = (offset, offset);
    let wanted = usize::try_from(length).unwrap_or(usize::MAX);
    match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), wanted) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(count as u64),
        Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let mut buffer = vec![0; wanted.min(1 << 20)];
            let count = source.read_at(&mut buffer, offset)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            target.write_all_at(&buffer[..count], offset)?;
            Ok(count as u64)
        }
        Err(error) => Err(error.into()),
    }
}

/// Copies directories, files and links, and counts bytes; a link is copied, never followed.
fn copy_tree(from: &Path, to: &Path) -> io::Result<u64> {
    let (entries, permissions) = (fs::read_dir(from)?, fs::metadata(from)?.permissions());
    let mut copied = 0;
    fs::create_dir(to)?;
    for entry in entries {
        let entry = entry?;
        let source = entry.path();
        match copy_entry(&entry, &source, &to.join(entry.file_name())) {
            // The volume's user has removed the file: a copy of a volume in use contains each concurrent change or not.
            Err(error) if error.kind() == ErrorKind::NotFound && to.is_dir() => {}
            bytes => copied += bytes?,
        }
    }
    fs::set_permissions(to, permissions)?;
    Ok(copied)
}

fn copy_entry(entry: &DirEntry, source: &Path, target: &Path) -> io::Result<u64> {
    let kind = entry.file_type()?;
    if kind.is_dir() {
        return copy_tree(source, target);
    }
    if kind.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(source)?, target)?;
    } else if kind.is_file() {
        return fs::copy(source, target);
    }
    Ok(0)
}

/// Removes the contents of a directory except one name. The note of an ephemeral volume's node is removed last: until then
/// only that node completes an interrupted removal.
fn remove_all_but(kept: &str, directory: &Path) -> Result<(), PathError> {
    if !directory.join(kept).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(PathError::of("read", directory))? {
        let entry = entry.map_err(PathError::of("read", directory))?;
        let path = entry.path();
        let removed = match entry.file_type() {
            _ if entry.file_name() == kept => Ok(()),
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(PathError::of("remove", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn unfinished(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{}{what}-{name}", UNFINISHED))
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
pub(super) fn remove_unfinished(new: &Path) {
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
    fn contents_are_removed_before_the_note_of_the_node() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join(TREE).join("a")).unwrap();
        for name in [DISK, "a", NODE, "zzz"] {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        remove_all_but(NODE, directory.path()).unwrap();
        let left = fs::read_dir(directory.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [NODE]);
    }
}
