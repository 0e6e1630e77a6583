//! Kernel objects that outlive the processes of a run: loop devices and cgroups.
//!
//! Invariant: only what belongs to the run is touched. A loop device belongs to it if its backing file lies in the run's
//! directory (compared by inode: the path is that of another mount namespace), a cgroup if it lies in one named as the
//! directory.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use procfs::process::Process;
use serde::Deserialize;

/// How long killed processes may keep a cgroup busy.
const DYING: Duration = Duration::from_secs(20);
/// Between two tries to remove a cgroup: version 1 has no event for its last process.
const POLL: Duration = Duration::from_millis(20);

/// Output of `losetup --json`.
#[derive(Debug, Deserialize)]
struct Listing {
    loopdevices: Vec<LoopDevice>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct LoopDevice {
    name: PathBuf,
    back_ino: Option<u64>,
    #[serde(rename = "back-maj:min")]
    back_dev: Option<String>,
}

/// Removes what the run in `dir` left in the kernel. Its processes must have been killed.
pub(super) fn remove(dir: &Path) -> Result<()> {
    for device in loop_devices(dir)? {
        let detached = Command::new("losetup").arg("--detach").arg(&device).output();
        let detached = detached.context("run losetup")?;
        // The end of the last mount may have freed it.
        ensure!(
            detached.status.success() || !loop_devices(dir)?.contains(&device),
            "losetup cannot detach {}: {}",
            device.display(),
            String::from_utf8_lossy(&detached.stderr).trim()
        );
    }
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

/// The loop devices whose backing files lie in `dir`, and those on top of them, which come first.
pub(crate) fn loop_devices(dir: &Path) -> Result<Vec<PathBuf>> {
    let in_use = |device: &fs::DirEntry| device.path().join("loop/backing_file").exists();
    let devices = fs::read_dir("/sys/block").map(|devices| devices.flatten().any(|device| in_use(&device)));
    if !devices.unwrap_or(false) {
        return Ok(Vec::new());
    }
    let mut command = Command::new("losetup");
    command.args(["--list", "--json", "--output", "NAME,BACK-INO,BACK-MAJ:MIN"]);
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        output => output.context("run losetup")?,
    };
    // Without devices it prints nothing.
    if output.stdout.is_empty() {
        return Ok(Vec::new());
    }
    let listing: Listing = serde_json::from_slice(&output.stdout).context("understand losetup")?;
    let mut files = BTreeSet::new();
    inodes(dir, &mut files)?;
    // kubelet attaches a device of its own to the device of each raw block volume; it must be detached first.
    let mut found = Vec::new();
    loop {
        let is_new = |device: &&LoopDevice| {
            let file = device.back_dev.clone().zip(device.back_ino);
            !found.contains(&device.name)
                && file.is_some_and(|(dev, inode)| files.contains(&(dev.trim().to_owned(), inode)))
        };
        let new: Vec<_> = listing
            .loopdevices
            .iter()
            .filter(is_new)
            .map(|device| device.name.clone())
            .collect();
        if new.is_empty() {
            found.reverse();
            return Ok(found);
        }
        for device in &new {
            let metadata = fs::metadata(device).with_context(|| format!("look at {}", device.display()))?;
            files.insert(identity(&metadata));
        }
        found.extend(new);
    }
}

/// A file, as losetup prints it: `major:minor` of its device, and its inode.
fn identity(metadata: &fs::Metadata) -> (String, u64) {
    let (dev, inode) = (metadata.dev(), metadata.ino());
    let dev = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    (dev, inode)
}

/// The regular files below `dir`, each by `major:minor` of its device and its inode. Files may vanish meanwhile.
fn inodes(dir: &Path, files: &mut BTreeSet<(String, u64)>) -> Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("list {}", dir.display()))?,
    };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            inodes(&entry.path(), files)?;
        } else if metadata.is_file() {
            files.insert(identity(&metadata));
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

/// Makes the cgroup `name` of the run in `dir` in each hierarchy, and answers with its path below them.
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
