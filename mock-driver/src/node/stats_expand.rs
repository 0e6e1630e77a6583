//! Statistics, health and expansion of volumes on the node.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use tonic::Code;

use super::error::Error;
use super::record::Record;
use super::stage_publish::NodeFeatures;
use super::{ArrayVolume, Node};
use crate::array::{HealthIssue, Severity, SizeRange};
use crate::node::mount::Stats;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeSpace {
    Files(Stats),
    /// A block device with this number of bytes.
    Device(u64),
}

// === impl Node ===

impl Node {
    pub(crate) async fn stats(
        self: &Arc<Self>,
        volume: &str,
        path: &str,
        view: Option<&ArrayVolume>,
        features: NodeFeatures,
    ) -> Result<VolumeSpace, Error> {
        let (at, of) = (path.to_owned(), volume.to_owned());
        let record = self
            .blocking(move |node| node.recorded_or_linked(&of, &at))
            .await?;
        check_attached(&record, view, features)?;
        let (disk, bytes) = self.disk(&self.volume_disk_of(&record, view)).await?;
        self.blocking(move |node| {
            if !node.state(&record, &disk)?.is_there() {
                return Err(not_there(&record.volume, &record.path));
            }
            if record.capability.is_block() {
                return Ok(VolumeSpace::Device(bytes));
            }
            if node.is_simulated() {
                return Ok(VolumeSpace::Files(Stats::empty(bytes)));
            }
            Ok(VolumeSpace::Files(
                node.mounter.stats(&disk, Path::new(&record.path))?,
            ))
        })
        .await
    }

    /// Health problems of the volume at a path, or on the node if no path is given.
    ///
    /// # Errors
    /// A path is given without a record of the volume.
    pub(crate) async fn findings(
        self: &Arc<Self>,
        volume: &str,
        path: Option<&str>,
        view: Option<&ArrayVolume>,
    ) -> Result<Vec<HealthIssue>, Error> {
        let records = match path {
            Some(path) => vec![self.recorded(volume, path)?],
            None => self.records.of(volume),
        };
        let view = view.cloned();
        self.blocking(move |node| {
            let mut findings = Vec::new();
            for record in records {
                match node.find(&node.volume_disk_of(&record, view.as_ref())) {
                    Ok(Some((disk, _))) if node.state(&record, &disk)?.is_there() => {}
                    Ok(Some(_)) => findings.push(inaccessible(
                        "NotMounted",
                        "the volume is not mounted any more where it was staged or published",
                    )),
                    Ok(None) | Err(_) => findings.push(inaccessible(
                        "DeviceGone",
                        "the volume's device is not on the node",
                    )),
                }
            }
            findings.dedup();
            Ok(findings)
        })
        .await
    }

    /// Whether the volume at a path is published as a raw block device.
    pub(crate) fn is_block_at(&self, volume: &str, path: &str) -> Result<bool, Error> {
        Ok(self.recorded(volume, path)?.capability.is_block())
    }

    /// Grows the device and the filesystem at a path to the volume's size and returns that size.
    ///
    /// # Guarantees
    /// Nothing shrinks; a repeated call changes nothing.
    pub(crate) async fn expand(
        self: &Arc<Self>,
        volume: &str,
        path: &str,
        range: SizeRange,
        view: Option<&ArrayVolume>,
        features: NodeFeatures,
    ) -> Result<u64, Error> {
        let record = self.recorded(volume, path)?;
        check_attached(&record, view, features)?;
        let volume_disk = self.volume_disk_of(&record, view);
        if range.required > volume_disk.bytes {
            return Err(Error::size(&format!(
                "required_bytes {} is more than the volume has, {}: ControllerExpandVolume comes first",
                range.required, volume_disk.bytes
            )));
        }
        if range.limit != 0 && volume_disk.bytes > range.limit {
            return Err(Error::size(&format!(
                "limit_bytes {} is less than the volume has, {}, and volumes do not shrink",
                range.limit, volume_disk.bytes
            )));
        }
        let (disk, bytes) = self.disk(&volume_disk).await?;
        if !volume_disk.writable && bytes < volume_disk.bytes {
            return Err(Error::failed_precondition(format!(
                "volume \"{}\" is attached for reading only, so its filesystem cannot grow",
                volume_disk.volume
            )));
        }
        self.refresh(&volume_disk, &disk).await?;
        // The staging path if it exists: a target may be mounted read-only.
        let mounted = self
            .records
            .at(record.staging())
            .filter(|staged| staged.volume == record.volume)
            .unwrap_or_else(|| record.clone());
        self.blocking(move |node| {
            if !record.capability.is_block() && disk.writable {
                node.mounter.grow(&disk, Path::new(&mounted.path))?;
            }
            Ok(())
        })
        .await?;
        let (_, bytes) = self.disk(&volume_disk).await?;
        Ok(bytes)
    }

    /// The record of a path, or of a published device that the path leads to: kubelet names its own bind mount of that device
    /// when it calls NodeGetVolumeStats. Blocks.
    fn recorded_or_linked(&self, volume: &str, path: &str) -> Result<Record, Error> {
        let device = |path: &str| {
            let found = fs::metadata(path).ok()?;
            found.file_type().is_block_device().then(|| found.rdev())
        };
        self.recorded(volume, path).or_else(|error| {
            let Some(wanted) = device(path) else {
                return Err(error);
            };
            let is_linked = |record: &Record| {
                record.is_done() && record.capability.is_block() && device(&record.path) == Some(wanted)
            };
            self.records.of(volume).into_iter().find(is_linked).ok_or(error)
        })
    }

    fn recorded(&self, volume: &str, path: &str) -> Result<Record, Error> {
        let path = match path.trim_end_matches('/') {
            "" => path,
            trimmed => trimmed,
        };
        self.records
            .at(path)
            .filter(|record| record.volume == volume && record.is_done())
            .ok_or_else(|| not_there(volume, path))
    }
}

/// Checks that the recorded volume was not force-detached meanwhile: then its device will not appear.
fn check_attached(record: &Record, view: Option<&ArrayVolume>, features: NodeFeatures) -> Result<(), Error> {
    if features.attaches && view.is_some_and(|view| view.attachment.is_none()) {
        return Err(Error::not_attached(&record.volume));
    }
    Ok(())
}

fn inaccessible(reason: &str, message: &str) -> HealthIssue {
    HealthIssue {
        status: Severity::Inaccessible,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn not_there(volume: &str, path: &str) -> Error {
    let reason = format!("volume \"{volume}\" is neither staged nor published at {path}");
    Error::refused(Code::NotFound, reason)
}
