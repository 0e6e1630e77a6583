//! Our finalizer on PersistentVolumes: put on and taken off, one write a volume at a time, however many
//! attachments want it at once; and what becomes of a volume's handle when the volume is gone all the same.

use std::sync::Arc;

use super::Controller;
use super::sync_error::Failure;
use crate::controller::state::Event;
use crate::csi::ControllerClient;
use crate::informer::Change;
use crate::kube_api::Cluster;
use crate::model::{Attachment, Recorded, Volume};
use crate::plan::{PvFinalizer, Record};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Puts our finalizer on the volume, unless that has been done since the plan was made.
    ///
    /// # Guarantees
    ///
    /// A release that was under way is over by then, and none follows while the attachment is known.
    pub(super) async fn claim(&self, claim: Option<&PvFinalizer>) -> Result<(), Failure> {
        let Some(claim) = claim else { return Ok(()) };
        let _turn = self.pv_mutexes.lock(&claim.uid).await;
        self.claim_now(claim).await
    }

    async fn claim_now(&self, claim: &PvFinalizer) -> Result<(), Failure> {
        // Off a volume left in tree the finalizer also comes while the volume lives, so what we know of it
        // may be outdated: the answer to its release was lost, and the watch is late.
        let claimed = self
            .state()
            .volume(&claim.volume)
            .is_some_and(|volume| volume.uid == claim.uid && volume.finalizer && !volume.left_in_tree);
        if claimed {
            return Ok(());
        }
        match self.cluster.claim(claim).await {
            Ok(volume) => {
                self.state()
                    .handle(Event::Volumes(Change::LocallyUpdated(volume)));
                Ok(())
            }
            Err(error) => {
                if error.is_gone() {
                    let (name, uid) = (claim.volume.clone(), claim.uid.clone());
                    self.state()
                        .handle(Event::Volumes(Change::LocallyDeleted { name, uid }));
                }
                Err(Failure::api("could not add PersistentVolume finalizer", &error))
            }
        }
    }

    /// Takes our finalizer off the volume, unless an attachment has come to need it meanwhile.
    pub(super) async fn release_volume(&self, volume: &Volume) -> Result<(), Failure> {
        let _turn = self.pv_mutexes.lock(&volume.uid).await;
        if !self.state().is_releasable(&volume.name) {
            return Ok(());
        }
        self.release_volume_now(volume).await
    }

    async fn release_volume_now(&self, volume: &Volume) -> Result<(), Failure> {
        // Of the volumes that live and were handed over, only a driver that publishes nothing lets go, and
        // it may have been followed by one that does.
        let handed_over = !volume.deleting && !volume.left_in_tree;
        if handed_over && self.driver().await?.capabilities.publish {
            return Ok(());
        }
        match self.cluster.release_volume(volume).await {
            Ok(left) => {
                // The API server answers the removal of a deleted object's last finalizer with the object
                // as it was.
                let gone = Change::LocallyDeleted {
                    name: left.name.clone(),
                    uid: left.uid.clone(),
                };
                let change = if left.deleting && !left.finalizer {
                    gone
                } else {
                    Change::LocallyUpdated(left)
                };
                self.state().handle(Event::Volumes(change));
                tracing::debug!("took our finalizer off the PersistentVolume");
                Ok(())
            }
            Err(error) if error.is_gone() => {
                self.volume_departed(volume);
                Ok(())
            }
            Err(error) => Err(Failure::api(
                "could not remove PersistentVolume finalizer",
                &error,
            )),
        }
    }
    /// Records the handle of a volume that is gone on the attachments that were published by it.
    pub(super) async fn record_volume_id(
        &self,
        volume: &Volume,
        attachments: &[Arc<Attachment>],
    ) -> Result<(), Failure> {
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
                // An attach may be about to record another node id.
                whole: false,
            };
            match self.cluster.record(attachment, &record).await {
                Ok(attachment) => self.written(attachment),
                Err(error) if error.is_gone() => self.departed(attachment),
                Err(error) => {
                    let what = "could not record the handle of a PersistentVolume that is gone";
                    return Err(Failure::api(what, &error));
                }
            }
        }
        tracing::info!("recorded the handle of a PersistentVolume that is gone on its VolumeAttachments");
        Ok(())
    }
}
