//! Device faults on mounted volumes: a FUSE filesystem between the staging path of a volume and its targets, which passes each
//! operation to the staged filesystem unless a fault rule matches it.
//!
//! Invariants:
//! - A volume gets it at its first target and keeps it until its last: if a rule names the volume by then, or all volumes do.
//! - It can be aborted at any time, and ends with the driver. After SIGKILL the kernel aborts it, and the next start unmounts
//!   it (`leftovers`).
//! - Neither the server nor the rest of the driver waits for it: a mount is looked up in what the kernel knows.
//! - Which volumes are published without it follows from the records and the mounts, also after a restart.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use fuser::{BackgroundSession, Config, Session, SessionACL};
use rustix::mount::UnmountFlags;

use self::filesystem::Passthrough;
use self::operation::Volume;
use super::Node;
use super::error::Error;
use super::mount::{self, MountSource};
use super::record::{Progress, Record};
use crate::error_chain;
use crate::fault::{DeviceFaultCheck, Faults, NamesVolume};
use crate::store::PathError;
use crate::store::volume_files::file_name;

mod file;
mod filesystem;
mod inode;
mod operation;
mod reply;
mod unsynced;

const DEVICE: &str = "/dev/fuse";

/// Threads of a filesystem. They never wait for a rule.
const THREADS: usize = 2;

/// What is missing for device faults of raw block volumes.
const NOT_FOR_BLOCK: &str = "is a raw block device: its device faults need device-mapper (dm-flakey, dm-delay) or ublk, \
     which this driver does not use; use a mounted volume";

const PUBLISHED_WITHOUT: &str = "is published without device faults: unpublish it first, start the driver with --device-faults, \
     or set the rule before NodePublishVolume; enabled: false suffices";

#[derive(Debug)]
pub(super) struct Passthroughs {
    faults: Arc<Faults>,
    /// `--device-faults`: every mounted volume gets one.
    for_all: bool,
    mounted: Mutex<BTreeMap<String, Mounted>>,
}

#[derive(Debug)]
struct Mounted {
    /// Its own mount point, which the targets are bound to.
    root: PathBuf,
    device: u64,
    volume: Arc<Volume>,
    session: BackgroundSession,
}

/// Why device faults are impossible here, besides the kind of devices.
pub(super) fn unavailable() -> Option<String> {
    let opened = File::options().read(true).write(true).open(DEVICE);
    let error = opened.err()?;
    Some(format!(
        "device faults need {DEVICE} ({error}): load the kernel module fuse; in a container, also give it the device"
    ))
}

// === impl Passthroughs ===

impl Passthroughs {
    pub(super) fn new(faults: Arc<Faults>, for_all: bool) -> Self {
        Self {
            faults,
            for_all,
            mounted: Mutex::default(),
        }
    }

    /// The mount source of a volume's targets; `None` if it has no passthrough filesystem.
    pub(super) fn source(&self, volume: &str) -> Option<MountSource> {
        let mounted = crate::lock(&self.mounted);
        mounted
            .get(volume)
            .map(|mounted| MountSource::Device(mounted.device))
    }

    /// The root of a volume's passthrough filesystem, which is mounted first if it is not. `name` is its mount source in
    /// mountinfo.
    ///
    /// # Errors
    /// It cannot be mounted; then nothing is.
    fn mount(
        &self,
        (volume, node): (&str, &str),
        staging: &Path,
        root: &Path,
        name: &Path,
    ) -> Result<PathBuf, mount::Error> {
        let mut mounted = crate::lock(&self.mounted);
        if let Some(there) = mounted.get(volume) {
            return Ok(there.root.clone());
        }
        let behind = Volume::new(volume, node, self.faults.clone(), staging);
        let behind = Arc::new(behind.map_err(PathError::of("open", staging))?);
        // Not flushed: its mount does not survive a reboot either.
        fs::create_dir_all(root).map_err(PathError::of("create", root))?;
        let device = File::options().read(true).write(true).open(DEVICE);
        let device = device.map_err(PathError::of("open", Path::new(DEVICE)))?;
        mount::mount_fuse(device.as_raw_fd(), name, staging, root)?;
        let serve = || {
            let number = mount::device_at(root)?.unwrap_or_default();
            let mut config = Config::default();
            config.n_threads = Some(THREADS);
            let filesystem = Passthrough(behind.clone());
            let session = Session::from_fd(filesystem, OwnedFd::from(device), SessionACL::All, config);
            let session = session
                .and_then(Session::spawn)
                .map_err(PathError::of("serve the filesystem at", root))?;
            Ok((number, session))
        };
        let (device, session) = serve().inspect_err(|_: &mount::Error| {
            force_unmount(root).ok();
        })?;
        mounted.insert(
            volume.to_owned(),
            Mounted {
                root: root.to_owned(),
                device,
                volume: behind,
                session,
            },
        );
        tracing::info!(volume, root = %root.display(), "published with a passthrough filesystem for device faults");
        Ok(root.to_owned())
    }

    /// Applies the rules for the moment in which a published volume is detached.
    pub(super) fn detach(&self, volume: &str) {
        let mounted = crate::lock(&self.mounted);
        let behind = mounted.get(volume).map(|mounted| mounted.volume.clone());
        drop(mounted);
        if let Some(volume) = behind {
            volume.detach();
        }
    }

    /// Ends the passthrough filesystem of a volume that has no target any more. Waits until what processes have written through
    /// memory maps is in the staged filesystem.
    fn end(&self, volume: &str) -> Result<(), mount::Error> {
        let root = |mounted: &Mounted| mounted.root.clone();
        let Some(root) = crate::lock(&self.mounted).get(volume).map(root) else {
            return Ok(());
        };
        // It can still be aborted meanwhile.
        if let Err(error) = File::open(&root).and_then(|root| Ok(rustix::fs::syncfs(root)?)) {
            tracing::debug!(volume, %error, "cannot flush the passthrough filesystem");
        }
        let Some(mounted) = crate::lock(&self.mounted).remove(volume) else {
            return Ok(());
        };
        force_unmount(&root)?;
        mounted.volume.detach();
        mounted.join();
        mount::remove_empty(&root)
    }

    /// Aborts all passthrough filesystems, whatever their operations wait for, and unmounts them from these targets.
    fn abort_all(&self, targets: impl Fn(&str) -> Vec<PathBuf>) {
        let all = std::mem::take(&mut *crate::lock(&self.mounted));
        for (volume, mounted) in all {
            for path in targets(&volume).iter().chain([&mounted.root]) {
                let source = mount::device_at(path).ok().flatten();
                if source == Some(mounted.device)
                    && let Err(error) = force_unmount(path)
                {
                    tracing::warn!(volume, error = error_chain(&error), "something is left behind");
                }
            }
            if mount::remove_empty(&mounted.root).is_ok() {
                mounted.join();
            }
        }
    }
}

// === impl Node ===

impl Node {
    /// The root of the passthrough filesystem of a volume that is being published; `None` if it needs none. Blocks.
    ///
    /// # Errors
    /// A rule names the volume, which another target shows without it; or it cannot be mounted.
    pub(super) fn passthrough_of(&self, record: &Record, staging: &Path) -> Result<Option<PathBuf>, Error> {
        let (volume, node) = (&record.volume, self.info().id);
        if self.passthroughs.source(volume).is_none() {
            let is_named = self.passthroughs.faults.names_io(volume, &node);
            match self.target_without(record, staging)? {
                Some(other) if is_named => {
                    let reason =
                        format!("is published without device faults at {other}: unpublish it there first");
                    return Err(refused(volume, &reason));
                }
                None if is_named || self.passthroughs.for_all => {}
                Some(_) | None => return Ok(None),
            }
        }
        // Beside private stages, whose names do not begin with a dot.
        let name = format!(".{}", file_name(volume));
        let root = self.private_staging(volume)?.with_file_name(name);
        let link = self.devices.link(&self.volume_disk_of(record, None).serial)?;
        let mounted = self.passthroughs.mount((volume, &node), staging, &root, &link)?;
        Ok(Some(mounted))
    }

    /// Another target at which the staged filesystem itself is mounted.
    fn target_without(&self, record: &Record, staging: &Path) -> Result<Option<String>, Error> {
        let staged = mount::device_at(staging)?;
        for other in self.other_targets(record) {
            if mount::device_at(Path::new(&other.path))? == staged {
                return Ok(Some(other.path));
            }
        }
        Ok(None)
    }

    /// Checks that no rule names a raw block volume that is being published.
    pub(super) fn check_block(&self, record: &Record) -> Result<(), Error> {
        let (volume, node) = (&record.volume, self.info().id);
        match self.passthroughs.faults.names_io(volume, &node) {
            true => Err(refused(volume, NOT_FOR_BLOCK)),
            false => Ok(()),
        }
    }

    /// Ends the passthrough filesystem of a volume without other targets than that of the record. Blocks.
    pub(super) fn end_idle_passthrough(&self, record: &Record) -> Result<(), Error> {
        if record.is_staged() || self.other_targets(record).next().is_some() {
            return Ok(());
        }
        Ok(self.passthroughs.end(&record.volume)?)
    }

    /// Aborts and unmounts all passthrough filesystems.
    pub(super) async fn abort_passthroughs(self: &Arc<Self>) {
        let aborted = self.blocking(|node| {
            let targets = |volume: &str| {
                let published = node.records.of(volume).into_iter();
                let published = published.filter(|record| !record.is_staged());
                published.map(|record| PathBuf::from(record.path)).collect()
            };
            node.passthroughs.abort_all(targets);
            Ok(())
        });
        aborted.await.ok();
    }

    fn other_targets(&self, record: &Record) -> impl Iterator<Item = Record> {
        let (path, all) = (record.path.clone(), self.records.of(&record.volume));
        all.into_iter()
            .filter(move |other| !other.is_staged() && other.path != path)
    }
}

/// The volumes that are published without a passthrough filesystem.
impl DeviceFaultCheck for Weak<Node> {
    fn reason(&self, is_named: NamesVolume<'_>) -> Option<String> {
        let node = self.upgrade()?;
        let id = node.info().id;
        let is_without = |record: &Record| {
            // One that is being published may have been decided before the rule exists.
            let is_shown = || !matches!(mount::device_at(Path::new(&record.path)), Ok(None));
            !record.is_staged()
                && is_named(&record.volume, &id)
                && node.passthroughs.source(&record.volume).is_none()
                && (record.progress == Progress::Doing || is_shown())
        };
        let record = node.records.all().into_iter().find(is_without)?;
        let reason = match record.capability.is_block() {
            true => NOT_FOR_BLOCK,
            false => PUBLISHED_WITHOUT,
        };
        Some(format!("volume \"{}\" {reason}", record.volume))
    }
}

// === impl Mounted ===

impl Mounted {
    /// Waits, after the connection was aborted, until the staged filesystem is not used any more.
    fn join(self) {
        self.volume.stop();
        if let Err(error) = self.session.join() {
            tracing::debug!(%error, "passthrough filesystem ended");
        }
    }
}

fn refused(volume: &str, reason: &str) -> Error {
    Error::failed_precondition(format!("a fault rule names volume \"{volume}\", which {reason}"))
}

/// Aborts a FUSE filesystem, as `/sys/fs/fuse/connections/N/abort` does, and unmounts it, although processes may use it. The kernel
/// aborts it first, and also if it is mounted elsewhere.
pub(super) fn force_unmount(path: &Path) -> Result<(), mount::Error> {
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    Ok(rustix::mount::unmount(path, flags).map_err(PathError::of("unmount", path))?)
}
