//! Our finalizer on PersistentVolumes: put on and taken off, one write a volume at a time, however many
//! attachments want it at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Mutex as AsyncMutex;

use super::Worker;
use super::problem::Failure;
use crate::cluster::Cluster;
use crate::csi::Controller;
use crate::decide::Claim;
use crate::engine::Event;
use crate::index::Change;
use crate::model::{Uid, Volume};

/// A lock for each PersistentVolume that is being claimed or released.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<HashMap<Uid, Arc<AsyncMutex<()>>>>);

// === impl Claims ===

impl Claims {
    fn lock_of(&self, volume: &Uid) -> Arc<AsyncMutex<()>> {
        let mut locks = self
            .0
            .lock()
            .expect("nothing must panic while the claims are locked");
        locks.entry(volume.clone()).or_default().clone()
    }

    /// Forgets the lock if nobody else holds it.
    fn done(&self, volume: &Uid, lock: Arc<AsyncMutex<()>>) {
        let mut locks = self
            .0
            .lock()
            .expect("nothing must panic while the claims are locked");
        drop(lock);
        if locks.get(volume).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(volume);
        }
    }
}

impl<K: Cluster, D: Controller> Worker<K, D> {
    /// Puts our finalizer on the volume, unless that has been done since the plan was made.
    ///
    /// # Guarantees
    ///
    /// A release that was under way is over by then, and none follows while the attachment is known.
    pub(super) async fn claim(&self, claim: Option<&Claim>) -> Result<(), Failure> {
        let Some(claim) = claim else { return Ok(()) };
        let lock = self.claims.lock_of(&claim.uid);
        let result = {
            let _one_at_a_time = lock.lock().await;
            self.claim_now(claim).await
        };
        self.claims.done(&claim.uid, lock);
        result
    }

    async fn claim_now(&self, claim: &Claim) -> Result<(), Failure> {
        // Off a volume left in tree the finalizer also comes while the volume lives, so what we know of it
        // may be outdated: the answer to its release was lost, and the watch is late.
        let claimed = self
            .engine()
            .volume(&claim.volume)
            .is_some_and(|volume| volume.uid == claim.uid && volume.finalizer && !volume.left_in_tree);
        if claimed {
            return Ok(());
        }
        match self.cluster.claim(claim).await {
            Ok(volume) => {
                self.engine().handle(Event::Volumes(Change::Written(volume)));
                Ok(())
            }
            Err(error) => {
                if error.is_gone() {
                    let (name, uid) = (claim.volume.clone(), claim.uid.clone());
                    self.engine()
                        .handle(Event::Volumes(Change::Departed { name, uid }));
                }
                Err(Failure::api("could not add PersistentVolume finalizer", &error))
            }
        }
    }

    /// Takes our finalizer off the volume, unless an attachment has come to need it meanwhile.
    pub(super) async fn release_volume(&self, volume: &Volume) -> Result<(), Failure> {
        let lock = self.claims.lock_of(&volume.uid);
        let result = {
            let _one_at_a_time = lock.lock().await;
            if self.engine().is_releasable(&volume.name) {
                self.release_volume_now(volume).await
            } else {
                Ok(())
            }
        };
        self.claims.done(&volume.uid, lock);
        result
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
                let gone = Change::Departed {
                    name: left.name.clone(),
                    uid: left.uid.clone(),
                };
                let change = if left.deleting && !left.finalizer {
                    gone
                } else {
                    Change::Written(left)
                };
                self.engine().handle(Event::Volumes(change));
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
}
