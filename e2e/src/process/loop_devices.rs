//! Loop devices of a run.
//!
//! A loop device belongs to the run if its backing file is in the run's directory, compared by inode, because the path in
//! sysfs can be of another mount namespace. A deleted file has no directory entry to compare. So the reaper records each
//! device of the run in a file of the run while its backing file exists, with its diskseq, which the kernel does not reuse
//! until the next boot, so that a later device of the same name is not confused with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Name of the file with the tracked devices, in the run's directory.
const TRACKED_DEVICES: &str = "loop-devices.json";
/// Suffix of the path of a deleted file in sysfs.
const DELETED: &str = " (deleted)";

/// Records the loop devices of a run while their backing files exist.
#[derive(Debug)]
pub(super) struct LoopDeviceTracker {
    run: PathBuf,
    /// All devices of the machine at the last scan.
    seen: BTreeSet<Device>,
    tracked: BTreeMap<String, TrackedDevice>,
}

/// A loop device with a backing file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    name: String,
    /// `None` before Linux 5.15.
    diskseq: Option<u64>,
}

/// A device of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TrackedDevice {
    diskseq: u64,
    /// The backing file, in the harness's mount namespace.
    file: PathBuf,
}

/// Output of `losetup --json`.
#[derive(Debug, Deserialize)]
struct Listing {
    loopdevices: Vec<LosetupEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct LosetupEntry {
    name: PathBuf,
    back_ino: Option<u64>,
    #[serde(rename = "back-maj:min")]
    back_dev: Option<String>,
    back_file: Option<String>,
}

/// `major:minor` of a file's device, as losetup prints it, and its inode.
type FileId = (String, u64);

/// The loop devices of the run in `run` whose backing files are or were in `dir`, a directory of the run, each preceded by
/// the devices on top of it.
pub(crate) fn loop_devices(run: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    let found = find(&read_tracked(run)?, dir)?;
    Ok(found.into_iter().rev().map(|(device, _)| device).collect())
}

// === impl LoopDeviceTracker ===

impl LoopDeviceTracker {
    pub(super) fn new(run: &Path) -> Self {
        Self {
            run: run.to_owned(),
            seen: BTreeSet::new(),
            tracked: BTreeMap::new(),
        }
    }

    /// Records new devices of the run. If no device is new since the last call, this only reads a few files of sysfs.
    pub(super) fn record(&mut self) -> Result<()> {
        let present = present();
        if present.is_subset(&self.seen) {
            self.seen = present;
            return Ok(());
        }
        for (path, file) in find(&self.tracked, &self.run)? {
            let name = name_of(&path);
            if let Some(diskseq) = diskseq(&name) {
                self.tracked.insert(name, TrackedDevice { diskseq, file });
            }
        }
        let new = self.run.join(format!("{TRACKED_DEVICES}.new"));
        fs::write(&new, serde_json::to_vec(&self.tracked)?).context("record the loop devices")?;
        fs::rename(&new, self.run.join(TRACKED_DEVICES)).context("record the loop devices")?;
        self.seen = present;
        Ok(())
    }
}

// === impl LosetupEntry ===

impl LosetupEntry {
    fn file_id(&self) -> Option<FileId> {
        let device = self.back_dev.as_ref()?.trim().to_owned();
        Some((device, self.back_ino?))
    }

    /// The path of its backing file, if the file was deleted.
    fn deleted_file(&self) -> Option<&Path> {
        self.back_file.as_deref()?.strip_suffix(DELETED).map(Path::new)
    }
}

// === functions ===

/// The devices whose backing files are or were in `dir`, with the paths of these files, each followed by the devices on
/// top of it.
fn find(tracked: &BTreeMap<String, TrackedDevice>, dir: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    if present().is_empty() {
        return Ok(Vec::new());
    }
    let entries = losetup()?;
    let mut files = BTreeMap::new();
    files_of(dir, &mut files)?;
    let mut found: Vec<(PathBuf, PathBuf)> = Vec::new();
    loop {
        let mut new = Vec::new();
        for device in &entries {
            if found.iter().any(|(name, _)| *name == device.name) {
                continue;
            }
            let name = name_of(&device.name);
            let before = tracked
                .get(&name)
                .filter(|before| before.file.starts_with(dir) && diskseq(&name) == Some(before.diskseq));
            let present = device.file_id().and_then(|id| files.get(&id));
            let deleted = device.deleted_file().filter(|file| file.starts_with(dir));
            let file = present
                .map(PathBuf::as_path)
                .or(before.map(|before| before.file.as_path()))
                .or(deleted);
            if let Some(file) = file {
                new.push((device.name.clone(), file.to_owned()));
            }
        }
        if new.is_empty() {
            return Ok(found);
        }
        // kubelet attaches another loop device to the device of each raw block volume; it must be detached first.
        for (device, file) in &new {
            let metadata = fs::metadata(device).with_context(|| format!("stat {}", device.display()))?;
            files.insert(file_id(&metadata), file.clone());
        }
        found.extend(new);
    }
}

fn losetup() -> Result<Vec<LosetupEntry>> {
    let mut command = Command::new("losetup");
    command.args([
        "--list",
        "--json",
        "--output",
        "NAME,BACK-INO,BACK-MAJ:MIN,BACK-FILE",
    ]);
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        output => output.context("run losetup")?,
    };
    // losetup prints nothing if there are no devices.
    if output.stdout.is_empty() {
        return Ok(Vec::new());
    }
    let listing: Listing = serde_json::from_slice(&output.stdout).context("parse losetup's output")?;
    Ok(listing.loopdevices)
}

/// The loop devices of the machine that have a backing file.
fn present() -> BTreeSet<Device> {
    let Ok(devices) = fs::read_dir("/sys/block") else {
        return BTreeSet::new();
    };
    devices
        .flatten()
        .filter(|device| device.path().join("loop/backing_file").exists())
        .map(|device| {
            let name = device.file_name().to_string_lossy().into_owned();
            let diskseq = diskseq(&name);
            Device { name, diskseq }
        })
        .collect()
}

fn diskseq(name: &str) -> Option<u64> {
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("diskseq")).ok()?;
    text.trim().parse().ok()
}

fn name_of(device: &Path) -> String {
    device
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn read_tracked(run: &Path) -> Result<BTreeMap<String, TrackedDevice>> {
    match fs::read(run.join(TRACKED_DEVICES)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
        record => serde_json::from_slice(&record.context("read the tracked loop devices")?)
            .context("parse the tracked loop devices"),
    }
}

fn file_id(metadata: &fs::Metadata) -> FileId {
    let (dev, inode) = (metadata.dev(), metadata.ino());
    let dev = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    (dev, inode)
}

/// The regular files below `dir`. Files may vanish meanwhile.
fn files_of(dir: &Path, files: &mut BTreeMap<FileId, PathBuf>) -> Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("list {}", dir.display()))?,
    };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            files_of(&entry.path(), files)?;
        } else if metadata.is_file() {
            files.insert(file_id(&metadata), entry.path());
        }
    }
    Ok(())
}
