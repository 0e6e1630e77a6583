//! One write for a PersistentVolume's finalizer, however many attachments want it at once.

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
use crate::model::Uid;

/// A lock for each PersistentVolume that is being claimed.
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
        let claimed = self
            .engine()
            .volume(&claim.volume)
            .is_some_and(|volume| volume.uid == claim.uid && volume.finalizer);
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
}
