//! Kernel objects that outlive the processes of a run: loop devices and cgroups.
//!
//! Invariant: only what belongs to the run is touched. A loop device belongs to it if its backing file lies, or lay, in the
//! run's directory ([`loop_devices`]), a cgroup if it lies in one named as the directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use procfs::process::Process;

use super::loop_devices::loop_devices;

/// How long killed processes may keep a cgroup busy.
const DYING: Duration = Duration::from_secs(20);
/// Between two tries to remove a cgroup: version 1 has no event for its last process.
const POLL: Duration = Duration::from_millis(20);

/// Removes what the run in `dir` left in the kernel. Its processes must have been killed.
pub(super) fn remove(dir: &Path) -> Result<()> {
    for device in loop_devices(dir, dir)? {
        let detached = Command::new("losetup").arg("--detach").arg(&device).output();
        let detached = detached.context("run losetup")?;
        // The end of the last mount may have freed it.
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

/// The run's cgroup in each hierarchy, if it is there.
fn cgroups(dir: &Path) -> Result<Vec<PathBuf>> {
    let name = dir.file_name().context("a run's directory must have a name")?;
    let mut cgroups: Vec<_> = hierarchies()?.into_iter().map(|dir| dir.join(name)).collect();
    cgroups.retain(|cgroup| cgroup.is_dir());
    Ok(cgroups)
}

/// Makes the cgroup `name` of the run in `dir` in each hierarchy, and returns its path below them.
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
