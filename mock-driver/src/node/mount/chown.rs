//! Changes the group of a volume's files, which kubelet leaves to drivers with VOLUME_MOUNT_GROUP.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use super::error::Error;
use crate::store::PathError;
use crate::store::volume_files::paths_in;

/// Readable and writable for the group, and setgid, so that new files get the group.
const DIRECTORY: u32 = 0o2770;
const FILE: u32 = 0o660;

/// Changes the group of all files under `root`, unless `root` has the group already. An empty group changes nothing.
pub(super) fn give(root: &Path, group: &str) -> Result<(), Error> {
    let Ok(group) = group.parse::<u32>() else {
        return Ok(());
    };
    let meta = fs::symlink_metadata(root).map_err(PathError::of("stat", root))?;
    if meta.gid() == group && meta.mode() & DIRECTORY == DIRECTORY {
        return Ok(());
    }
    // The root is changed last: its group shows that all files were changed.
    give_entry(root, group)
}

fn give_entry(path: &Path, group: u32) -> Result<(), Error> {
    let meta = fs::symlink_metadata(path).map_err(PathError::of("stat", path))?;
    if meta.is_symlink() {
        return lchown(path, None, Some(group)).map_err(failed(path, group));
    }
    if meta.is_dir() {
        for entry in paths_in(path)? {
            give_entry(&entry, group)?;
        }
        return take(path, group, DIRECTORY);
    }
    take(path, group, FILE)
}

fn take(path: &Path, group: u32, mode: u32) -> Result<(), Error> {
    let failed = || failed(path, group);
    lchown(path, None, Some(group)).map_err(failed())?;
    let meta = fs::symlink_metadata(path).map_err(failed())?;
    fs::set_permissions(path, fs::Permissions::from_mode(meta.mode() & 0o7777 | mode)).map_err(failed())
}

fn failed(path: &Path, group: u32) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| match source.kind() == ErrorKind::PermissionDenied {
        true => Error::Group { path, group, source },
        false => PathError::of("change the group of", &path)(source).into(),
    }
}
