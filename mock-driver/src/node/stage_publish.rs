//! Bringing volumes to paths: staging and publishing.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::compatibility::{self, Compatibility};
use super::error::Error;
use super::path_state::{PathState, foreign, taken};
use super::record::{Map, Progress, Record, Role};
use super::{Node, View, VolumeDisk};
use crate::array::{Access, Capability, PublishInfo};
use crate::node::mount::{self, Disk, MountParams, MountSource, Mounter};

/// What NodeStageVolume asks for.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) capability: Capability,
    pub(crate) publish_context: Map,
    pub(crate) volume_context: Map,
}

/// What NodePublishVolume asks for.
#[derive(Clone, Debug)]
pub(crate) struct Publish {
    pub(crate) volume: String,
    pub(crate) target: String,
    /// None if no staging path was given.
    pub(crate) staging: Option<String>,
    pub(crate) capability: Capability,
    pub(crate) readonly: bool,
    pub(crate) publish_context: Map,
    pub(crate) volume_context: Map,
}

/// A volume that is made for one target and goes with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineVolume {
    pub(crate) bytes: u64,
}

/// What the driver says it can do, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeFeatures {
    /// Volumes are attached by the controller before they come here.
    pub(crate) attaches: bool,
    /// Volumes are staged before they are published.
    pub(crate) stages: bool,
}

// === impl Node ===

impl Node {
    /// Stages a volume that the array has.
    ///
    /// # Guarantees
    /// After success the volume is there. After an error, or a crash, nothing is mounted by this call.
    ///
    /// # Errors
    /// If the volume is not attached here or is staged there in another way, if the path is another user's, or if
    /// the capability cannot be had; and of devices and mounts.
    pub(crate) async fn stage(
        self: &Arc<Self>,
        wish: Stage,
        view: &View,
        ways: NodeFeatures,
    ) -> Result<(), Error> {
        let record = Record {
            volume: wish.volume,
            path: wish.path,
            role: Role::Staged,
            readonly: false,
            capability: wish.capability,
            publish_context: wish.publish_context,
            volume_context: wish.volume_context,
            inline: None,
            shown: None,
            progress: Progress::Doing,
        };
        let verdict = self.compare(&record)?;
        if let Access::Mount { fs_type, .. } = &record.capability.access {
            Mounter::supports(fs_type)?;
        }
        let unit = self.reachable(&record, view, ways).await?;
        self.stage_device(&record, &unit, verdict).await
    }

    /// Publishes a volume that the array has.
    ///
    /// # Guarantees
    /// As for [`Node::stage`].
    ///
    /// # Errors
    /// As for [`Node::stage`], and if the volume is not staged where it is to come from, or is published already in
    /// a way that forbids a second target.
    pub(crate) async fn publish(
        self: &Arc<Self>,
        wish: Publish,
        view: &View,
        ways: NodeFeatures,
    ) -> Result<(), Error> {
        let (staging, ours) = match (&wish.staging, ways.stages) {
            (Some(staging), true) => (staging.clone(), false),
            (None, true) => return Err(Error::NoStagingPath),
            (_, false) => (text(&self.private_staging(&wish.volume)?), true),
        };
        let record = published(wish, staging, ours, None);
        let verdict = self.compare(&record)?;
        if !ours {
            return self.publish_staged(&record, view, ways, verdict).await;
        }
        // Nothing is begun for a device that has not appeared yet.
        let unit = self.reachable(&record, view, ways).await?;
        self.disk(&unit).await?;
        let brought = async {
            self.stage_for(&record, view, ways).await?;
            self.publish_staged(&record, view, ways, verdict).await
        };
        self.all_or_nothing(&record, verdict, brought).await
    }

    async fn publish_staged(
        self: &Arc<Self>,
        record: &Record,
        view: &View,
        ways: NodeFeatures,
        verdict: Compatibility,
    ) -> Result<(), Error> {
        let staged = self
            .records
            .at(record.staging())
            .filter(|staged| staged.is_staged() && staged.is_done() && staged.volume == record.volume)
            .ok_or_else(|| Error::NotStaged {
                volume: record.volume.clone(),
                path: record.staging().to_owned(),
            })?;
        compatibility::covered(&record.volume, "staged", &staged.capability, &record.capability)?;
        let unit = self.reachable(record, view, ways).await?;
        self.stage_device(record, &unit, verdict).await
    }

    pub(super) fn compare(&self, record: &Record) -> Result<Compatibility, Error> {
        compatibility::compare(
            self.records.at(&record.path).as_ref(),
            &self.records.of(&record.volume),
            record,
        )
    }

    /// The unit of a volume that is attached to this node, as the call believes.
    pub(super) async fn reachable(
        self: &Arc<Self>,
        record: &Record,
        view: &View,
        ways: NodeFeatures,
    ) -> Result<VolumeDisk, Error> {
        let unit = self.unit_of(record, Some(view));
        let Some(attachment) = &view.attachment else {
            if ways.attaches {
                return Err(Error::NotAttached {
                    volume: record.volume.clone(),
                });
            }
            // The driver has no ControllerPublishVolume, so the node reaches the volume by itself.
            self.attach(&unit).await?;
            return Ok(unit);
        };
        if let Some(given) = record.publish_context.get(PublishInfo::ATTACHMENT)
            && *given != attachment.number.to_string()
        {
            return Err(Error::OldContext {
                volume: record.volume.clone(),
                given: given.clone(),
                current: attachment.number,
            });
        }
        // What an earlier version took at the staging path holds for calls with the same arguments.
        let staged = self.records.at(record.staging());
        let is_known = staged.is_some_and(|staged| {
            staged.is_done()
                && staged.volume == record.volume
                && staged.publish_context == record.publish_context
        });
        if ways.attaches && !is_known {
            let expected = PublishInfo::of(&record.volume, attachment).context();
            compatibility::same_context(&record.volume, &expected, &record.publish_context)?;
        }
        compatibility::covered(
            &record.volume,
            "attached",
            &attachment.params.capability,
            &record.capability,
        )?;
        Ok(unit)
    }

    /// Does what a record says, or makes sure that it is done.
    pub(super) async fn stage_device(
        self: &Arc<Self>,
        record: &Record,
        unit: &VolumeDisk,
        verdict: Compatibility,
    ) -> Result<(), Error> {
        let (disk, bytes) = self.disk(unit).await?;
        if self.is_simulated() {
            return match self.records.at(&record.path) {
                Some(there) if there.volume != record.volume => Err(taken(there)),
                Some(_) | None => self.records.put(&record.when(Progress::Done)),
            };
        }
        if record.is_staged() && bytes < unit.bytes {
            // The volume has grown since its device was attached.
            self.refresh(unit, &disk).await?;
        }
        let (record, repeat) = (record.clone(), verdict == Compatibility::Repeat);
        self.blocking(move |node| {
            if repeat {
                match node.state(&record, &disk)? {
                    PathState::AsAsked => return Ok(()),
                    PathState::Absent => {}
                    PathState::Foreign => return Err(foreign(&record.path)),
                    // Pods may use it, so it is not done again under their feet.
                    PathState::Changed(field) => {
                        return Err(Error::Otherwise {
                            volume: record.volume.clone(),
                            done: record.done(),
                            path: record.path.clone(),
                            field,
                        });
                    }
                }
            }
            node.claim(&record)?;
            node.clear_rest(&record)?;
            let known = node.records.at(&record.path).and_then(|known| known.shown);
            let record = Record {
                shown: known,
                progress: Progress::Doing,
                ..record
            };
            // What was made for this path goes with the record, so that must not tell of something unfinished
            // when all that failed is to show it there once more, as after a reboot.
            let keeps = repeat && record.inline.is_some() && !record.is_staged();
            if !keeps {
                node.records.put(&record)?;
            }
            match node.show(&record, &disk) {
                Ok(shown) => node.records.put(&Record {
                    shown,
                    progress: Progress::Done,
                    ..record
                }),
                Err(error) if keeps => {
                    node.withdraw(&record)?;
                    Err(error)
                }
                Err(error) => {
                    // What cannot be taken away is still there, and counts.
                    node.records.put(&record.when(Progress::Undoing))?;
                    node.discard(&record)?;
                    Err(error)
                }
            }
        })
        .await
    }

    /// Takes away what is left at a staging path of a call that was not finished, if it was mounted in another way.
    /// Blocks.
    fn clear_rest(&self, record: &Record) -> Result<(), Error> {
        match self.records.at(&record.path) {
            Some(rest) if rest.is_staged() && !rest.is_done() && compatibility::differ(&rest, record) => {
                self.withdraw(&rest)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Does what a record says, and tells what its path shows then. Blocks.
    fn show(&self, record: &Record, disk: &Disk) -> Result<Option<MountSource>, Error> {
        let path = Path::new(&record.path);
        let readonly = record.is_for_reading(disk);
        match (&record.role, &record.capability.access) {
            // The device is there; what it is published as is made of it.
            (Role::Staged, Access::Block) => self.hand_over(disk)?,
            (
                Role::Staged,
                Access::Mount {
                    fs_type,
                    flags,
                    group,
                },
            ) => {
                let wanted = MountParams {
                    fs_type,
                    flags,
                    group,
                };
                let _alone = self.alone(record, disk)?;
                if let Some(disk_fault) = self.disk_fault(&record.volume) {
                    self.mounter.apply_disk_fault(disk, path, fs_type, disk_fault)?;
                }
                self.mounter.mount(disk, path, &wanted)?;
            }
            (Role::Published { staging, .. }, Access::Mount { flags, .. }) => {
                let from = Path::new(staging);
                if !self.mounter.is_mounted(disk, from)? {
                    return Err(Error::NotStaged {
                        volume: record.volume.clone(),
                        path: staging.clone(),
                    });
                }
                // What is left of a call that was cut off: see `claim`.
                self.withdraw(record)?;
                self.mounter.remove(path)?;
                self.mounter.show_files(disk, from, path, readonly, flags)?;
            }
            (Role::Published { .. }, Access::Block) => {
                self.hand_over(disk)?;
                self.withdraw(record)?;
                self.mounter.remove(path)?;
                let disk = self.disk_to_show(record, disk)?;
                self.mounter.show_device(&disk, path, readonly)?;
            }
        }
        self.mount_source_of(record, disk)
    }

    /// Prepares a disk to be published as a device. Under the lock, because another node's mkfs that still runs has
    /// the same mark as one that was interrupted, whose rest is wiped.
    fn hand_over(&self, disk: &Disk) -> Result<(), Error> {
        let _locked = match self.mounter {
            Mounter::Kernel => Some(lock_disk(disk)?),
            Mounter::Emulated => None,
        };
        Ok(self.mounter.hand_over(disk)?)
    }

    /// Checks that the filesystem of a disk is mounted through no other device: each would write over what the
    /// other has in mind. Nodes that share a machine take turns for as long as what is returned lives.
    fn alone(&self, record: &Record, disk: &Disk) -> Result<Option<File>, Error> {
        if self.mounter == Mounter::Emulated || self.mounter.is_mounted(disk, Path::new(&record.path))? {
            return Ok(None);
        }
        let turn = lock_disk(disk)?;
        let elsewhere = self
            .devices
            .mounted_elsewhere(&disk.device, &disk.file, disk.writable)?;
        match elsewhere {
            Some(device) => Err(Error::MountedElsewhere {
                volume: record.volume.clone(),
                device,
            }),
            None => Ok(Some(turn)),
        }
    }
}

/// Locks a disk against other nodes that share the machine, until the file is closed.
fn lock_disk(disk: &Disk) -> Result<File, Error> {
    let failed = |act| mount::Error::io(act, &disk.file);
    let file = File::open(&disk.file).map_err(failed("open"))?;
    file.lock().map_err(failed("lock"))?;
    Ok(file)
}

pub(super) fn published(wish: Publish, staging: String, ours: bool, inline: Option<u64>) -> Record {
    Record {
        volume: wish.volume,
        path: wish.target,
        role: Role::Published { staging, ours },
        capability: wish.capability,
        readonly: wish.readonly,
        publish_context: wish.publish_context,
        volume_context: wish.volume_context,
        inline,
        shown: None,
        progress: Progress::Doing,
    }
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}
