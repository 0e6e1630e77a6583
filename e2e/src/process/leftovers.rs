//! Kernel objects that outlive the processes of a run: loop devices and cgroups.
//!
//! Invariant: only objects of the run are changed. A loop device belongs to the run if its backing file is, or was, in the
//! run's directory ([`loop_devices`]); a cgroup, if it is in one named after the directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use procfs::process::Process;

use super::loop_devices::loop_devices;

/// Timeout of removing a cgroup, which killed processes may keep busy.
const DYING: Duration = Duration::from_secs(20);
/// Pause between two attempts to remove a cgroup: version 1 has no event for the exit of its last process.
const POLL: Duration = Duration::from_millis(20);

/// Removes the kernel objects of the run in `dir`. Its processes must have been killed before.
pub(super) fn remove(dir: &Path) -> Result<()> {
    for device in loop_devices(dir, dir)? {
        let detached = Command::new("losetup").arg("--detach").arg(&device).output();
        let detached = detached.context("run losetup")?;
        // The last unmount may have detached it.
        ensure!(
            detached.status.success() || !loop_devices(dir, dir)?.contains(&device),
            "losetup cannot detach {}: {}",
            device.display(),
            String::from_utf8_lossy(&detached.stderr).trim()
        );
    }
    remove_cgroups(dir)
}

/// Removes the cgroups of the run in `dir`, when its processes have ended.
pub(crate) fn remove_cgroups(dir: &Path) -> Result<()> {
    let deadline = Instant::now() + DYING;
    for cgroup in cgroups(dir)? {
        while let Err(error) = remove_cgroup(&cgroup) {
            let busy = error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error());
            if !busy || Instant::now() > deadline {
                return Err(error).with_context(|| format!("remove {}", cgroup.display()));
            }
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// The run's cgroup in each hierarchy, if it exists.
fn cgroups(dir: &Path) -> Result<Vec<PathBuf>> {
    let name = dir.file_name().context("a run's directory must have a name")?;
    let mut cgroups: Vec<_> = hierarchies()?.into_iter().map(|dir| dir.join(name)).collect();
    cgroups.retain(|cgroup| cgroup.is_dir());
    Ok(cgroups)
}

/// Creates the cgroup `name` of the run in `dir` in each hierarchy, and returns its path in them.
pub(crate) fn make_cgroup(dir: &Path, name: &str) -> Result<String> {
    let run = dir.file_name().context("a run's directory must have a name")?;
    let path = Path::new(run).join(name);
    for hierarchy in hierarchies()? {
        let cgroup = hierarchy.join(&path);
        fs::create_dir_all(&cgroup).with_context(|| format!("make {}", cgroup.display()))?;
    }
    Ok(format!("/{}", path.display()))
}

fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = Process::myself().and_then(|process| process.mountinfo());
    let mounts = mounts.context("read the mounts of this process")?.into_iter();
    let cgroups = mounts.filter(|mount| ["cgroup", "cgroup2"].contains(&mount.fs_type.as_str()));
    Ok(cgroups.map(|mount| mount.mount_point).collect())
}

/// Removes a cgroup and those below it.
fn remove_cgroup(cgroup: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}
