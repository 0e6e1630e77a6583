//! Drivers without PUBLISH_UNPUBLISH_VOLUME: the node process attaches a volume at its first use and detaches it after
//! the last.
//!
//! So the array knows which volumes are in use on which node, does not delete them, and enforces access modes and
//! limits. Invariant: a volume with a record on a node is attached to it. The call, the shutdown or the next start that
//! finds an attached volume unused detaches it.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{self, Instant};

use super::Driver;
use super::remote_sync::ensure_joined;
use crate::array::Capability;
use crate::driver::error::Error;
use crate::driver::locks::{LockMode, Scope};
use crate::error_chain;
use crate::node::{self, ArrayVolume};

const DEVICE_POLL_INTERVAL: Duration = Duration::from_millis(50);

// === impl Driver ===

impl Driver {
    /// The node's view of a volume that a call is about to use.
    ///
    /// # Guarantees
    /// Without ControllerPublishVolume, and with the array in another process, the volume is attached.
    async fn array_volume_to_use(&self, volume: &str, capability: &Capability) -> Result<ArrayVolume, Error> {
        let view = self.view(volume).await?;
        let Some(remote) = self.remote.as_ref().filter(|_| !self.node_features().attaches) else {
            return Ok(view);
        };
        if view.attachment.is_some() {
            return Ok(view);
        }
        let known = ensure_joined(remote, self.here()?).await?;
        {
            let _locked = remote.lock_volume(volume).await;
            remote.attach(volume, &known.id, capability).await?;
        }
        self.view(volume).await
    }

    /// Performs an operation that needs a volume's device, and retries until the device has appeared or the node's device
    /// timeout is over. No event announces a device, so this polls. After a failure, detaches the volume if it is at no other
    /// path.
    pub(crate) async fn with_device<F>(
        &self,
        volume: &str,
        capability: &Capability,
        act: impl Fn(ArrayVolume) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), node::Error>>,
    {
        let limit = self
            .node
            .as_ref()
            .map(|node| node.device_timeout)
            .unwrap_or_default();
        let deadline = Instant::now() + limit;
        let outcome = loop {
            let attempt = async { Ok(act(self.array_volume_to_use(volume, capability).await?).await?) };
            match attempt.await {
                Err(Error::Node(node::Error::NoDevice { .. })) if Instant::now() < deadline => {
                    time::sleep(DEVICE_POLL_INTERVAL).await;
                }
                outcome => break outcome,
            }
        };
        if outcome.is_err() {
            self.release_attached([volume.to_owned()]).await;
        }
        outcome
    }

    /// Removes the device of a volume that no controller attached and that is no longer mounted at any path: without
    /// ControllerPublishVolume no other call removes it. Detaches the volume at the array if that runs in another
    /// process.
    pub(crate) async fn release_device(&self, volume: &str) -> Result<(), Error> {
        let is_kept = self.node.as_ref().is_none_or(|node| node.knows(volume));
        if is_kept || self.node_features().attaches {
            return Ok(());
        }
        let Some(remote) = &self.remote else {
            return self.reconcile_device(volume).await;
        };
        let _locked = remote.lock_volume(volume).await;
        // The device first, as for any detach: after a crash in between, the volume is still attached.
        self.remove_device(volume).await?;
        remote.detach(volume, &self.own_node()).await?;
        remote.note(volume, false);
        Ok(())
    }

    /// Detaches volumes of an earlier process that are at no path any more, as after a kill. A call in progress for one of them
    /// detaches it itself.
    pub(super) async fn release_leftover_devices(&self, volumes: &BTreeSet<String>) {
        if self.node_features().attaches {
            return;
        }
        for volume in volumes {
            let locked = self.lock_on_node(Scope::Call, LockMode::Shared, volume).await;
            if let Ok(_locked) = locked {
                self.release_attached([volume.clone()]).await;
            }
        }
    }

    /// Detaches volumes that no controller attached and that are mounted at no path. Logs a failure and leaves it to the
    /// next start.
    pub(super) async fn release_attached(&self, volumes: impl IntoIterator<Item = String>) {
        if self.node_features().attaches {
            return;
        }
        for volume in volumes {
            if let Err(error) = self.release_device(&volume).await {
                tracing::warn!(volume, error = error_chain(&error), "is not given back yet");
            }
        }
    }
}
