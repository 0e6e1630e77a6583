//! Keeps the devices of this process's node in sync with the attachments of the array.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time;

use super::Driver;
use super::remote_sync::ensure_joined;
use crate::array::{NodeSettings, StorageHealthIssue, StorageSeverity};
use crate::driver::error::Error;
use crate::driver::registration::{self, RegistrationState};
use crate::driver::remote::RemoteArray;
use crate::error_chain;
use crate::fault::VolumeLocation;
use crate::node::stage_publish::NodeFeatures;
use crate::node::{ArrayVolume, Node, NodeInfo};
use crate::rpc::capabilities::Capability;
use crate::rpc::method::Method;

/// Maximum time of one step on devices and files while the driver exits.
pub(crate) const LAST_STEP: Duration = Duration::from_secs(60);

// === impl Driver ===

impl Driver {
    /// The features of the node according to the present capabilities.
    pub(crate) fn node_features(&self) -> NodeFeatures {
        NodeFeatures {
            attaches: self.capabilities.has(Capability::PublishUnpublishVolume)
                && !self.settings.config.attach_optional,
            stages: self.capabilities.has(Capability::NodeStageUnstageVolume),
        }
    }

    /// The node; it exists where the Node service is served.
    pub(crate) fn here(&self) -> Result<&Arc<Node>, Error> {
        self.node.as_ref().ok_or(Error::Broken)
    }

    /// The view that this process's node has of a volume.
    pub(crate) async fn view(&self, volume: &str) -> Result<ArrayVolume, Error> {
        let node = self.own_node();
        if let Some(remote) = &self.remote {
            return self.remote_view(remote, volume, &node).await;
        }
        let view = self
            .store
            .read(|array| {
                let found = array.volume(volume)?;
                Ok(ArrayVolume {
                    bytes: self.settings.config.disk_bytes(&found.spec),
                    attachment: found.attachments.get(node.as_str()).cloned(),
                    issues: found.health.clone(),
                })
            })
            .await?;
        Ok(view)
    }

    /// The response of NodeGetInfo: configured values, else those of the array.
    pub(crate) async fn info(&self) -> Result<NodeInfo, Error> {
        let node = self.here()?;
        let known = match &self.remote {
            Some(remote) => {
                // Kubelet calls as soon as the driver is registered, and keeps the first response.
                let known = ensure_joined(remote, node).await?;
                Some((known.advertised_limit, known.topology))
            }
            None => {
                let id = node.info().id;
                let known = self.store.read(|array| Ok(array.node_or_former(&id).ok()));
                let known = known.await?;
                known.map(|known| (known.advertised, known.segments.as_map().clone()))
            }
        };
        let info = node.info();
        let Some((advertised, topology)) = known else {
            return Ok(info);
        };
        Ok(NodeInfo {
            limit: info.limit.or(advertised),
            topology: if info.topology.is_empty() {
                topology
            } else {
                info.topology
            },
            id: info.id,
        })
    }

    /// Sets the node's topology in the array of this process, if a flag gives it.
    pub(super) async fn announce(&self, node: &Node) {
        let id = node.info().id;
        if !node.segments.is_empty() {
            let settings = NodeSettings {
                segments: Some(node.segments.clone()),
                ..NodeSettings::default()
            };
            let info = self.store.change(|array| Ok(array.set_node(&id, settings))).await;
            if let Err(error) = info {
                tracing::warn!(
                    error = error_chain(&error),
                    "failed to set the topology of this node"
                );
            }
        }
        self.warn_if_no_pool_is_accessible(&id);
    }

    /// Warns if no volume can be attached to the node, which is more often a mistake than intended.
    pub(crate) fn warn_if_no_pool_is_accessible(&self, node: &str) {
        if self.store.peek(|array| array.has_no_accessible_pool(node)) {
            tracing::warn!(
                node,
                "no pool is accessible from this node: its topology matches no --pool or --zones"
            );
        }
    }

    pub(crate) async fn storage_health(&self) -> Result<Vec<StorageHealthIssue>, Error> {
        let id = self.here()?.info().id;
        if let Some(remote) = &self.remote {
            return Ok(match remote.storage_health(&id).await {
                Ok(issues) => issues,
                Err(error) => vec![StorageHealthIssue {
                    status: StorageSeverity::Unreachable,
                    reason: "ArrayUnreachable".to_owned(),
                    message: error_chain(&error),
                    capability: None,
                }],
            });
        }
        Ok(self.store.read(|array| Ok(array.storage_health(&id))).await?)
    }

    /// The location of a volume for a call with a node id, or without one. A process with a node only takes every volume to be
    /// on its node.
    pub(crate) fn location(&self, volume: &str, node: &str) -> VolumeLocation {
        if let Some(remote) = &self.remote {
            return VolumeLocation {
                exists: true,
                here: remote.is_here(volume),
                elsewhere: false,
            };
        }
        self.store.peek(|array| match array.volume(volume) {
            Ok(volume) => VolumeLocation {
                exists: true,
                here: volume.attachments.keys().any(|id| id.as_str() == node),
                elsewhere: volume.attachments.keys().any(|id| id.as_str() != node),
            },
            Err(_) => VolumeLocation {
                exists: false,
                here: false,
                elsewhere: false,
            },
        })
    }

    /// A random `max_volumes_per_node`, if configured.
    pub(crate) fn random_limit(&self) -> Option<usize> {
        self.settings.config.random_limit.then(|| {
            let count = self.random_limits.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            let drawn = self
                .faults
                .seed
                .keyed_hash(&[b"limit".as_slice(), &count].concat());
            1 + usize::try_from(drawn % 10).unwrap_or(0)
        })
    }

    /// The id of the node of this process; empty without one.
    pub(crate) fn own_node(&self) -> String {
        self.node.as_ref().map(|node| node.info().id).unwrap_or_default()
    }

    /// The node on which calls of a method run without its id in the request; empty for other methods.
    pub(crate) fn node_of(&self, method: Method) -> String {
        match method.is_on_node() {
            true => self.own_node(),
            false => String::new(),
        }
    }

    pub(crate) fn is_here(&self, node: &str) -> bool {
        self.node.as_ref().is_some_and(|here| here.info().id == node)
    }

    /// Whether this process's node had that id before it was renamed.
    pub(crate) fn was_here(&self, node: &str) -> bool {
        let own = self.own_node();
        own != node && self.node.is_some() && self.store.peek(|array| array.current_id(node) == own)
    }

    /// Attaches or detaches the volume's device on this process's node according to the array. Call it after every change of
    /// the volume's attachments.
    pub(crate) async fn reconcile_device(&self, volume: &str) -> Result<(), Error> {
        let Some(node) = &self.node else {
            return Ok(());
        };
        let id = node.info().id;
        if self.uses_unattached(node, volume, &id) {
            return Ok(());
        }
        let view = self.store.peek(|array| {
            let found = array.volume(volume).ok()?;
            Some(ArrayVolume {
                bytes: self.settings.config.disk_bytes(&found.spec),
                attachment: found.attachments.get(id.as_str()).cloned(),
                issues: Vec::new(),
            })
        });
        Ok(node.reconcile_device(volume, view.as_ref()).await?)
    }

    /// Removes the volume's device from this process's node before the array detaches the volume: after a crash in between the
    /// volume is still attached, and its device is restored.
    pub(crate) async fn remove_device(&self, volume: &str) -> Result<(), Error> {
        match &self.node {
            // It is removed when the volume is unstaged.
            Some(node) if self.settings.config.attach_optional && node.knows(volume) => Ok(()),
            Some(node) => Ok(node.reconcile_device(volume, None).await?),
            None => Ok(()),
        }
    }

    /// Whether the node legitimately uses a volume that is not attached to it.
    fn uses_unattached(&self, node: &Node, volume: &str, id: &str) -> bool {
        self.settings.config.attach_optional
            && node.knows(volume)
            && self.store.peek(|array| {
                let found = array.volume(volume);
                found.is_ok_and(|found| !found.attachments.contains_key(id))
            })
    }

    /// Recovers the node's state of an earlier process: restores devices of attached volumes, removes others, and undoes
    /// interrupted calls. Failures are logged, and retried by the calls that need the device.
    pub(crate) async fn recover(&self) {
        if self.has_array() {
            self.resume_copies();
        }
        let Some(node) = &self.node else {
            return;
        };
        node.recover().await;
        for conflict in self.faults.io_conflicts() {
            tracing::warn!(
                error = error_chain(&conflict),
                "a device fault has no effect on a volume"
            );
        }
        // Before the check, the media directory may be another array's.
        if self.remote.as_ref().is_none_or(RemoteArray::has_checked_media) {
            node.sweep_ephemeral().await;
        }
        if self.remote.is_some() {
            // The array's response shows what is attached.
            return;
        }
        self.announce(node).await;
        let id = node.info().id;
        let attached: Vec<String> = self
            .store
            .peek(|array| array.attached_to(&id).map(ToString::to_string).collect());
        if let Err(error) = node.retain_devices(attached.clone(), self.node_features()).await {
            tracing::warn!(
                error = error_chain(&error),
                "devices of detached volumes are still there"
            );
        }
        self.reconcile_devices(attached).await;
    }

    /// Attaches or detaches the devices of volumes. Failures are logged, and retried by the calls that need the device.
    pub(super) async fn reconcile_devices(&self, volumes: impl IntoIterator<Item = String>) {
        for volume in volumes {
            if let Err(error) = self.reconcile_device(&volume).await {
                let error = error_chain(&error);
                tracing::warn!(volume, error, "the device cannot be attached or detached");
            }
        }
    }

    /// Starts a task that continues if its caller is dropped, until the driver ends or is reset; then it returns `None`.
    pub(crate) fn spawn_work<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let scope = self.reset_scope.enter();
        self.work.spawn(async move { scope.run(work).await })
    }

    /// Ends running tasks and, without a state directory, undoes everything on the node. Stops copies, scans and mkfs, and waits for
    /// threads that run another step, because no record would show its result, at most as long as `last_step`. Returns whether all
    /// have ended; if not, locks must be held until the process ends.
    #[must_use]
    pub(crate) async fn leave(&self, last_step: Duration) -> bool {
        self.halt.cancel();
        self.work.close();
        self.copies.close();
        let ended = async {
            self.copies.wait().await;
            self.work.wait().await;
            self.volume_files.finish().await;
            if let Some(node) = &self.node {
                node.finish().await;
            }
        };
        let has_ended = time::timeout(last_step, ended).await.is_ok();
        if !has_ended {
            tracing::warn!(waited = ?last_step, "work on devices and files goes on until the process ends");
        }
        if let Some(node) = &self.node {
            let used = node.volumes();
            node.leave(self.node_features()).await;
            self.release_attached(used).await;
        }
        has_ended
    }

    /// Waits until kubelet rejects the registration, and returns its reason. Never returns otherwise.
    pub(crate) async fn registration_failed(&self) -> String {
        match &self.registrar {
            Some(registrar) => registrar.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Whether kubelet has yet to register the driver; `false` if a sidecar registers it.
    pub(crate) fn awaits_registration(&self) -> bool {
        let registrar = self.registrar.as_ref();
        registrar.is_some_and(|registrar| registrar.state() != RegistrationState::Registered)
    }

    /// Checks whether kubelet can find a driver that registers itself.
    ///
    /// # Errors
    /// Nothing listens on the registration socket.
    pub async fn check_registration(&self) -> std::io::Result<()> {
        match &self.registrar {
            Some(registrar) => registration::dial(&registrar.socket()).await,
            None => Ok(()),
        }
    }
}
