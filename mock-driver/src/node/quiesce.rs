//! Freezes the filesystems of volumes while they are copied.

use std::path::Path;
use std::sync::Arc;

use super::Node;
use super::error::Error;
use super::record::Record;
use crate::node::mount::Frozen;
use crate::store::volume_files::FileId;

// === impl Node ===

impl Node {
    /// Whether a filesystem of the volume is mounted here that can be frozen.
    pub(crate) fn has_mounted(&self, volume: &str) -> bool {
        !self.is_simulated() && self.mounted(volume).is_some()
    }

    /// Freezes the volume's filesystem, if it is mounted here, until the returned value is dropped.
    pub(crate) async fn freeze(self: &Arc<Self>, volume: &str) -> Result<Option<Frozen>, Error> {
        let Some(record) = self.mounted(volume) else {
            return Ok(None);
        };
        let file_id = FileId::Volume(volume.to_owned());
        self.blocking(move |node| {
            let volume_files = node.volume_files.directory()?;
            let mark = node.volume_files.frozen_mark(&file_id)?;
            Ok(node
                .mounter
                .freeze(Path::new(record.staging()), &volume_files, &mark)?)
        })
        .await
    }

    /// Thaws a filesystem that a killed process left frozen.
    pub(super) async fn thaw_left(self: &Arc<Self>, volume: &str) -> Result<(), Error> {
        let file_id = FileId::Volume(volume.to_owned());
        self.blocking(move |node| {
            node.mounter.thaw_left(&node.volume_files.frozen_mark(&file_id)?);
            Ok(())
        })
        .await
    }

    fn mounted(&self, volume: &str) -> Option<Record> {
        let mut records = self.records.of(volume).into_iter();
        let is_mounted =
            |record: &Record| record.is_done() && record.inline.is_none() && !record.capability.is_block();
        records.find(is_mounted)
    }
}
