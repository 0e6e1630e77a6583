//! Our finalizer on PersistentVolumes, and the record of a PersistentVolume's handle. Concurrent attaches of one
//! volume write its finalizer once.

use std::sync::Arc;

use super::state::Event;
use super::{Controller, SyncError};
use crate::csi::ControllerClient;
use crate::informer::Change;
use crate::kube_api::{AttachmentRequest, Cluster, Error, VolumeRequest};
use crate::model::{Attachment, Recorded, Uid, Version, Volume};
use crate::plan::{PvFinalizer, Record};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Adds our finalizer to the volume, unless it has been added since the plan was made.
    ///
    /// # Guarantees
    ///
    /// A running removal has ended by then, and no removal starts while the VolumeAttachment is in the store.
    pub(super) async fn add_pv_finalizer(&self, finalizer: &PvFinalizer) -> Result<(), SyncError> {
        let PvFinalizer { volume: name, uid } = finalizer;
        let _guard = self.unless_draining(self.pv_mutexes.lock(uid)).await?;
        // A volume that is not migrated loses the finalizer while it lives, so the stored version may be outdated: the response to
        // the removal was lost, and the watch is late.
        let is_present = self
            .state()
            .index
            .volumes
            .get(name)
            .is_some_and(|volume| volume.uid == *uid && volume.finalizer && !volume.left_in_tree);
        if is_present {
            return Ok(());
        }
        match self.cluster.volume(name, VolumeRequest::AddFinalizer(uid)).await {
            Ok(volume) => {
                let is_stored = volume.finalizer;
                self.state()
                    .handle(Event::Volumes(Change::LocallyUpdated(volume)));
                let not_stored = || SyncError::not_stored("our finalizer on the PersistentVolume");
                is_stored.then_some(()).ok_or_else(not_stored)
            }
            Err(error) => {
                if error.is_gone() {
                    self.volume_is_gone(name, uid, None);
                }
                Err(SyncError::api("could not add PersistentVolume finalizer", &error))
            }
        }
    }

    /// Removes our finalizer from the volume, unless a VolumeAttachment needs it by now.
    pub(super) async fn remove_pv_finalizer(&self, volume: &Volume) -> Result<(), SyncError> {
        let _guard = self.unless_draining(self.pv_mutexes.lock(&volume.uid)).await?;
        let removed = match self.remove_pv_finalizer_once(volume).await {
            // The watch is late, or the first attempt of the request was executed and its response lost.
            Err(error) if error.is_conflict() => {
                match self.cluster.volume(&volume.name, VolumeRequest::Get).await {
                    Ok(newest) => {
                        self.state()
                            .handle(Event::Volumes(Change::LocallyUpdated(newest)));
                        self.remove_pv_finalizer_once(volume).await
                    }
                    Err(error) => Err(error),
                }
            }
            removed => removed,
        };
        match removed {
            Err(error) if error.is_gone() => {
                self.volume_is_gone(&volume.name, &volume.uid, None);
                Ok(())
            }
            removed => {
                removed.map_err(|error| SyncError::api("could not remove PersistentVolume finalizer", &error))
            }
        }
    }

    /// Removes it from the stored version of the volume.
    async fn remove_pv_finalizer_once(&self, volume: &Volume) -> Result<(), Error> {
        let stored = {
            let state = self.state();
            let stored = state.index.volumes.get(&volume.name).cloned();
            stored.filter(|stored| stored.uid == volume.uid && state.removes_pv_finalizer(&volume.name))
        };
        let Some(stored) = stored else {
            return Ok(());
        };
        let remove = VolumeRequest::RemoveFinalizer(&stored);
        let left = self.cluster.volume(&stored.name, remove).await?;
        // The API server responds to the removal of a deleted object's last finalizer with the object.
        if left.deleting && !left.finalizer {
            self.volume_is_gone(&stored.name, &stored.uid, Some(left.version));
        } else {
            self.state().handle(Event::Volumes(Change::LocallyUpdated(left)));
        }
        tracing::debug!("removed our finalizer from the PersistentVolume");
        Ok(())
    }

    fn volume_is_gone(&self, name: &Arc<str>, uid: &Uid, version: Option<Version>) {
        let (name, uid) = (name.clone(), uid.clone());
        let deleted = Change::LocallyDeleted { name, uid, version };
        self.state().handle(Event::Volumes(deleted));
    }

    /// Records the volume's handle on VolumeAttachments that lack it: the Go sidecar does not.
    pub(super) async fn record_volume_id(
        &self,
        volume: &Volume,
        attachments: &[Arc<Attachment>],
    ) -> Result<(), SyncError> {
        let Some(csi) = volume.spec.csi() else {
            return Ok(());
        };
        for attachment in attachments {
            let record = Record {
                annotations: Recorded {
                    handle: Some(csi.handle.clone()),
                    secret: csi.publish_secret.clone(),
                    ..attachment.recorded.clone()
                },
                // A concurrent attach may be recording another node id.
                is_unconditional: false,
            };
            let write = async {
                let recorded = self.request(attachment, AttachmentRequest::Record(&record)).await;
                let what = "could not record the handle of the PersistentVolume";
                recorded.map_err(|error| SyncError::api(what, &error))
            };
            self.write_unless_draining(write).await?;
        }
        tracing::info!("recorded the handle of the PersistentVolume on its VolumeAttachments");
        Ok(())
    }
}
