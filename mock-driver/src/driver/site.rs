//! What the driver's array and the node it stands on have to do with one another.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::backend::{self, StorageAilment, StorageSeverity};
use crate::error::{Error, chain};
use crate::fault::Place;
use crate::node::{self, Node, Told, View, Ways};
use crate::offer::Capability;
use crate::registration;
use crate::remote::{FOLLOW_EVERY, Known, RemoteArray};

/// How long to wait before looking for a device again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

// === impl Driver ===

impl Driver {
    /// How volumes get to paths with what the driver says it can do at this moment.
    pub(crate) fn ways(&self) -> Ways {
        Ways {
            attaches: self.offer.has(Capability::PublishUnpublishVolume),
            stages: self.offer.has(Capability::NodeStageUnstageVolume),
        }
    }

    /// A volume as the array has it for the node of this process.
    ///
    /// # Errors
    /// If there is no such volume, or the array does not answer.
    pub(crate) async fn view(&self, volume: &str) -> Result<View, Error> {
        let node = self.own_node();
        self.trouble_device(volume, &node);
        if let Some(remote) = &self.remote {
            return self.remote_view(remote, volume, &node).await;
        }
        let view = self
            .store
            .read(|array| {
                let found = array.volume(volume)?;
                Ok(View {
                    bytes: found.spec.capacity_bytes,
                    attachment: found.attachments.get(node.as_str()).cloned(),
                    ailments: array.ailments(volume).to_vec(),
                })
            })
            .await?;
        Ok(view)
    }

    /// The same of an array in another process. The device is brought in line on the way: the node may not
    /// have followed yet.
    async fn remote_view(&self, remote: &RemoteArray, volume: &str, node: &str) -> Result<View, Error> {
        let _turn = remote.turn().await;
        let view = remote
            .view(volume, node)
            .await?
            .ok_or_else(|| backend::Error::VolumeNotFound {
                volume: volume.to_owned(),
            })?;
        remote.note(volume, view.attachment.is_some());
        if let Some(here) = self.node().filter(|_| view.attachment.is_some()) {
            here.settle_device(volume, Some(&view)).await?;
        }
        Ok(view)
    }

    /// Follows what the array in another process has attached to this node, until told to stop.
    pub(crate) async fn follow_array(&self, stop: CancellationToken) {
        let (Some(remote), Some(node)) = (&self.remote, self.node()) else {
            return stop.cancelled().await;
        };
        let mut settled = BTreeSet::new();
        let (mut trouble, mut is_first) = (None, true);
        loop {
            let now = self.follow_once(remote, node, &mut settled).await.err();
            if is_first && now.is_none() {
                is_first = false;
                self.give_back_left(&settled).await;
            }
            let now = now.map(|error| chain(&error));
            if now != trouble {
                match &now {
                    Some(error) => tracing::warn!(error, "cannot follow the array"),
                    None => tracing::info!("following the array again"),
                }
                trouble = now;
            }
            if stop
                .run_until_cancelled(time::sleep(FOLLOW_EVERY))
                .await
                .is_none()
            {
                return;
            }
        }
    }

    async fn follow_once(
        &self,
        remote: &RemoteArray,
        node: &Arc<Node>,
        settled: &mut BTreeSet<String>,
    ) -> Result<(), Error> {
        let _turn = remote.turn().await;
        let (told, known) = match find(remote, node).await? {
            // Somebody may have taken it out of the register: it stays out, and has what is attached to it.
            (told, Some(known)) => (told, known),
            (told, None) => return join(remote, &told).await.map(drop),
        };
        remote.note_all(&known.attached);
        node.retain_devices(known.attached.iter().cloned().collect(), self.ways())
            .await?;
        settled.retain(|volume| known.attached.contains(volume));
        for volume in known.attached {
            if !settled.contains(&volume)
                && let Some(view) = remote.view(&volume, &told.id).await?
            {
                node.settle_device(&volume, Some(&view)).await?;
                settled.insert(volume);
            }
        }
        Ok(())
    }

    /// Does what needs a volume's device, again and again until it has appeared or the node's patience is
    /// over. A device comes without telling, so it is looked for.
    ///
    /// # Errors
    /// Those of the last try.
    pub(crate) async fn patiently<T, F>(&self, act: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let patience = self.node().map(|node| node.device_timeout()).unwrap_or_default();
        let deadline = Instant::now() + patience;
        loop {
            match act().await {
                Err(Error::Node(node::Error::NoDevice { .. })) if Instant::now() < deadline => {
                    time::sleep(LOOK_AGAIN).await;
                }
                result => return result,
            }
        }
    }

    /// What the node tells about itself: what was set for this process, else what the array has.
    ///
    /// # Errors
    /// If the array's state cannot be made safe, or it does not answer.
    pub(crate) async fn told(&self) -> Result<Told, Error> {
        let told = self.node().ok_or(Error::Broken)?.told();
        if let Some(remote) = &self.remote {
            let _turn = remote.turn().await;
            let (told, known) = match find(remote, self.node().ok_or(Error::Broken)?).await? {
                (told, Some(known)) => (told, known),
                // Kubelet asks as soon as the driver is there, and believes the first answer for good.
                (told, None) => {
                    let known = join(remote, &told).await?;
                    (told, known)
                }
            };
            return Ok(Told {
                limit: told.limit.or(known.advertised),
                topology: if told.topology.is_empty() {
                    known.topology
                } else {
                    told.topology
                },
                id: told.id,
            });
        }
        let known = self.store.read(|array| Ok(array.node(&told.id).ok())).await?;
        let Some(known) = known else {
            return Ok(told);
        };
        let segments = known.segments.iter();
        Ok(Told {
            limit: told.limit.or(known.advertised),
            topology: if told.topology.is_empty() {
                segments
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect()
            } else {
                told.topology
            },
            id: told.id,
        })
    }

    /// What ails the storage as seen from the node.
    ///
    /// # Errors
    /// If the array's state cannot be made safe.
    pub(crate) async fn storage_health(&self) -> Result<Vec<StorageAilment>, Error> {
        let id = self.node().ok_or(Error::Broken)?.told().id;
        if let Some(remote) = &self.remote {
            return Ok(match remote.storage_health(&id).await {
                Ok(ailments) => ailments,
                Err(error) => vec![StorageAilment {
                    status: StorageSeverity::Unreachable,
                    reason: "ArrayUnreachable".to_owned(),
                    message: chain(&error),
                    capability: None,
                }],
            });
        }
        Ok(self.store.read(|array| Ok(array.storage_health(&id))).await?)
    }

    /// Where a volume is, seen from a call that names a node, or none. A process that has only a node knows
    /// of no other, and takes every volume to be there.
    pub(crate) fn place(&self, volume: &str, node: &str) -> Place {
        if let Some(remote) = &self.remote {
            return Place {
                exists: true,
                here: remote.is_here(volume),
                elsewhere: false,
            };
        }
        self.store.peek(|array| match array.volume(volume) {
            Ok(volume) => Place {
                exists: true,
                here: volume.attachments.keys().any(|id| id.as_str() == node),
                elsewhere: volume.attachments.keys().any(|id| id.as_str() != node),
            },
            Err(_) => Place {
                exists: false,
                here: false,
                elsewhere: false,
            },
        })
    }

    /// How many volumes the node says it takes this time, if that is left to chance.
    pub(crate) fn limit_by_chance(&self) -> Option<usize> {
        if !self.conduct.limit_by_chance {
            return None;
        }
        let count = self.limits_drawn.fetch_add(1, Ordering::Relaxed);
        let drawn = self
            .faults
            .seed()
            .mark(&[b"limit".as_slice(), &count.to_le_bytes()].concat());
        Some(1 + usize::try_from(drawn % 10).unwrap_or(0))
    }

    /// The id of the node of this process; empty without one.
    pub(crate) fn own_node(&self) -> String {
        self.node().map(|node| node.told().id).unwrap_or_default()
    }

    /// Whether a node of that id stands in this process.
    pub(crate) fn is_here(&self, node: &str) -> bool {
        self.node().is_some_and(|here| here.told().id == node)
    }

    /// Brings the volume's device on the node of this process in line with the array: call it after
    /// every change of the volume's attachments.
    ///
    /// # Errors
    /// If the device cannot be made or taken away.
    pub async fn settle_device(&self, volume: &str) -> Result<(), Error> {
        let Some(node) = self.node() else {
            return Ok(());
        };
        let id = node.told().id;
        let view = self.store.peek(|array| {
            let found = array.volume(volume).ok()?;
            Some(View {
                bytes: found.spec.capacity_bytes,
                attachment: found.attachments.get(id.as_str()).cloned(),
                ailments: Vec::new(),
            })
        });
        Ok(node.settle_device(volume, view.as_ref()).await?)
    }

    /// Takes the volume's device away from the node of this process, before the array is told that it is
    /// detached: a crash in between leaves a volume that is attached, and its device comes back.
    ///
    /// # Errors
    /// If it cannot be taken away.
    pub(crate) async fn remove_device(&self, volume: &str) -> Result<(), Error> {
        match self.node() {
            Some(node) => Ok(node.settle_device(volume, None).await?),
            None => Ok(()),
        }
    }

    /// Takes up what the process before left on the node: devices of attached volumes come back, others
    /// go, and calls that were cut off are undone. What fails is told, and tried again by the calls that
    /// need it.
    pub(crate) async fn recover(&self) {
        let Some(node) = self.node() else {
            return;
        };
        node.recover().await;
        if self.remote.is_some() {
            // What is attached is known when the array has been asked.
            return;
        }
        let id = node.told().id;
        let attached: Vec<String> = self
            .store
            .peek(|array| array.attached_to(&id).map(ToString::to_string).collect());
        if let Err(error) = node.retain_devices(attached.clone(), self.ways()).await {
            tracing::warn!(
                error = chain(&error),
                "devices of detached volumes are still there"
            );
        }
        for volume in attached {
            if let Err(error) = self.settle_device(&volume).await {
                tracing::warn!(volume, error = chain(&error), "the device cannot be brought back");
            }
        }
    }

    /// Leaves nothing behind on the node, unless state is kept.
    pub(crate) async fn leave(&self) {
        if let Some(node) = self.node() {
            let used = node.volumes();
            node.leave(self.ways()).await;
            self.give_back(used).await;
        }
    }

    /// Waits until kubelet refuses the driver, and says why. Never returns if it does not.
    pub(crate) async fn refused(&self) -> String {
        match &self.registrar {
            Some(registrar) => registrar.refused().await,
            None => std::future::pending().await,
        }
    }

    /// Whether kubelet would find the driver, if it registers itself.
    ///
    /// # Errors
    /// If nobody answers on the registration socket.
    pub async fn check_registration(&self) -> std::io::Result<()> {
        match &self.registrar {
            Some(registrar) => registration::dial(&registrar.socket()).await,
            None => Ok(()),
        }
    }
}

/// What the array in another process has of this process's node, which takes another id if somebody gave it
/// one there.
pub(super) async fn find(remote: &RemoteArray, node: &Node) -> Result<(Told, Option<Known>), Error> {
    let mut told = node.told();
    let mut known = remote.node(&told.id).await?;
    if let Some(id) = known.as_ref().and_then(|known| known.became.clone()) {
        tracing::info!(from = told.id, to = id, "the array gave this node another id");
        node.tell(|told| told.id.clone_from(&id));
        told = node.told();
        known = remote.node(&told.id).await?;
    }
    Ok((told, known))
}

/// Makes a node known to the array in another process, and says what it has of it then.
pub(super) async fn join(remote: &RemoteArray, told: &Told) -> Result<Known, Error> {
    remote.join(&told.id, told.topology.clone()).await?;
    tracing::info!(node = told.id, "joined the array");
    let known = remote.node(&told.id).await?;
    known.ok_or_else(|| {
        let reason = format!("it has taken node \"{}\" in and does not know it", told.id);
        node::Error::NoArray { reason }.into()
    })
}
