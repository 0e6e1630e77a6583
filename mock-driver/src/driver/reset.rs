//! The state between tests: import of a fixture, and the return to the state after the start.

use std::collections::BTreeSet;

use super::Driver;
use super::error::Error;
use super::locks::{Guard, Key, LockMode, Scope};
use crate::array::{Array, Image};
use crate::fault::scenario::{self, Scenario};
use crate::node::{self, NodeInfo};
use crate::rpc::capabilities::CapabilitySet;
use crate::rpc::validate::Invalid;
use crate::store::volume_files::FileId;

/// What [`Driver::reset`] restores besides the array.
#[derive(Clone, Debug)]
pub(crate) struct InitialServices {
    pub(super) capabilities: CapabilitySet,
    pub(super) scenarios: Vec<&'static Scenario>,
    pub(super) node: Option<NodeInfo>,
}

// === impl Driver ===

impl Driver {
    /// Replaces the state of the array. Volumes and snapshots that the new state has, too, keep their bytes.
    ///
    /// # Errors
    /// The node of this process uses a volume, or the image contradicts itself; nothing has changed then.
    pub(crate) async fn import(&self, image: Image) -> Result<(), Error> {
        let (before, _locked) = self.replace_array(image).await?;
        let kept: BTreeSet<FileId> = self.store.peek(FileId::all_of).into_iter().collect();
        for gone in before.iter().filter(|id| !kept.contains(*id)) {
            self.discard(gone).await;
        }
        Ok(())
    }

    /// Returns to the state after the start: the array to that of `--fixture` or of a first start, with blank volumes; rules, backend
    /// faults, scenarios, capabilities and the node to those of the flags; and the journal in memory to an empty one. Releases the
    /// calls that rules block.
    ///
    /// # Errors
    /// The node of this process uses a volume; then only the rules have changed.
    pub(crate) async fn reset(&self) -> Result<(), Error> {
        self.faults.restart();
        let played = scenario::play(&self.initial.scenarios, &self.faults);
        played.map_err(|conflict| Invalid::new("scenario", conflict.to_string()))?;
        if self.has_array() {
            let (files, _locked) = self.replace_array(self.store.initial_image()).await?;
            for file in files {
                self.discard(&file).await;
            }
        }
        self.capabilities.write().clone_from(&self.initial.capabilities);
        if let (Some(node), Some(info)) = (&self.node, &self.initial.node) {
            node.set_info(|current| current.clone_from(info));
        }
        if let Some(journal) = &self.journal {
            journal.clear();
            journal.touch();
        }
        Ok(())
    }

    /// Returns the files of the volumes and snapshots before, and their locks: no operation uses them meanwhile.
    async fn replace_array(&self, image: Image) -> Result<(Vec<FileId>, Vec<Guard>), Error> {
        let files = self.store.peek(FileId::all_of);
        let keys = files.iter().flat_map(|file| {
            let id = || file.id().to_owned();
            match file {
                FileId::Snapshot(_) => vec![Key::Snapshot(id())],
                FileId::Volume(_) | FileId::Ephemeral(_) => vec![Key::Volume(id()), Key::OnNode(id())],
            }
        });
        let keys = keys.map(|key| (key, LockMode::Exclusive)).collect();
        let locked = self.locks.lock(Scope::Operation, keys).await?;
        if let Some(node) = &self.node
            && let Some(volume) = node.volumes().pop_first()
        {
            let path = node.path_of(&volume).unwrap_or_default();
            return Err(node::Error::InUse { volume, path }.into());
        }
        let volumes = |array: &Array| -> BTreeSet<String> {
            array.volumes().map(|volume| volume.spec.id.to_string()).collect()
        };
        let mut changed = self.store.peek(volumes);
        self.store.replace(image).await?;
        changed.append(&mut self.store.peek(volumes));
        for volume in &changed {
            self.reconcile_device(volume).await?;
        }
        self.resume_copies();
        Ok((files, locked))
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, task};

    use super::*;
    use crate::driver::Settings;

    #[tokio::test]
    async fn import_waits_for_the_operations_on_the_volumes() {
        let settings = Settings {
            initial_volumes: 1,
            ..Settings::default()
        };
        let (driver, _) = Driver::open(settings).unwrap();
        let id = || "vol-0".to_owned();
        for key in [Key::Volume(id()), Key::OnNode(id())] {
            let key = vec![(key, LockMode::Exclusive)];
            let operation = driver.locks.lock(Scope::Operation, key).await.unwrap();
            let mut import = task::spawn(driver.import(driver.store.peek(Array::image)));
            assert_pending!(import.poll());
            let mut reset = task::spawn(driver.reset());
            assert_pending!(reset.poll());
            drop(operation);
            import.await.unwrap();
            reset.await.unwrap();
        }
        driver.import(Image::default()).await.unwrap();
        assert_eq!(driver.store.peek(|array| array.volumes().len()), 0);
        driver.close();
    }
}
