//! Workers that create and delete VolumeAttachments, each on its own volumes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use embedded_cluster::volume::attachment_name;
use fastrand::Rng;
use futures::future::try_join_all;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::fixture::{Access, mk_attachment};
use crate::invariant::observations::WatchEvent;
use crate::scenario::test_env::{TestEnv, TestVolume};

/// Timeout for one attach or detach, including failed calls, backoff of up to five seconds, and restarts of the programs.
const STEP_TIMEOUT: Duration = Duration::from_secs(150);
/// Maximum delay of an early deletion after the attacher's finalizer: before, during or after the call.
const HASTE: Duration = Duration::from_millis(60);

/// Attaches and detaches its own volumes.
pub(super) struct Worker<'a> {
    rng: Rng,
    prefix: String,
    driver: String,
    client: Client,
    watch_events: watch::Receiver<Vec<WatchEvent>>,
    /// Number of attachments that all workers created.
    began: &'a watch::Sender<usize>,
    nodes: Vec<Node>,
    volumes: Vec<Volume>,
    quota: usize,
}

/// A node's name and node ID.
#[derive(Clone)]
struct Node {
    name: String,
    id: String,
}

/// A volume and its attachments.
struct Volume {
    volume: TestVolume,
    held: Vec<Held>,
}

/// A created attachment.
#[derive(Clone)]
struct Held {
    name: String,
    uid: String,
    /// Number of its node.
    node: usize,
    /// Number of watch events before its creation.
    since: usize,
}

// === impl Worker ===

impl<'a> Worker<'a> {
    pub(super) fn new(
        env: &TestEnv<'_>,
        rng: Rng,
        volumes: Vec<TestVolume>,
        began: &'a watch::Sender<usize>,
    ) -> Self {
        let nodes = env.nodes().iter().map(|node| Node {
            name: node.name().to_owned(),
            id: node.node_id().to_owned(),
        });
        let volumes = volumes.into_iter().map(|volume| Volume {
            volume,
            held: Vec::new(),
        });
        Self {
            rng,
            prefix: env.prefix().to_owned(),
            driver: env.driver.name().to_owned(),
            client: env.client(),
            watch_events: env.recorder().follow(),
            began,
            nodes: nodes.collect(),
            volumes: volumes.collect(),
            quota: 0,
        }
    }

    /// Sets the number of attachments after which the worker stops.
    pub(super) fn with_quota(mut self, quota: usize) -> Self {
        self.quota = quota;
        self
    }

    /// Handles of its attached volumes, with the node IDs.
    pub(super) fn held(&self) -> BTreeSet<(String, String)> {
        let targets = self.volumes.iter().flat_map(|volume| {
            let target = |held: &Held| (volume.volume.handle.clone(), self.nodes[held.node].id.clone());
            volume.held.iter().map(target)
        });
        targets.collect()
    }

    /// Creates its attachments and deletes most of them.
    pub(super) async fn work(&mut self) -> Result<()> {
        for _ in 0..self.quota {
            let volume = self.rng.usize(..self.volumes.len());
            let leaving = self.make_room(volume).await?;
            let node = self.free_node(volume);
            if let Some(leaving) = &leaving
                && leaving.node == node
            {
                // The next attachment has the same name, so this one must be deleted first.
                self.gone(leaving).await?;
            }
            let held = self.attach(volume, node).await?;
            if self.rng.u8(..4) == 0 {
                // Not before the finalizer is visible: the API server deletes an object without finalizers immediately, and the
                // attacher may never see it.
                self.wait_for_finalizer(&held).await?;
                let pause = HASTE.mul_f64(self.rng.f64());
                sleep(pause).await;
                self.delete(&held).await?;
                self.gone(&held).await?;
            } else {
                self.attached(&held).await?;
                if self.rng.bool() {
                    self.delete(&held).await?;
                    self.gone(&held).await?;
                } else {
                    self.volumes[volume].held.push(held);
                }
            }
            if let Some(leaving) = &leaving {
                self.gone(leaving).await?;
            }
        }
        Ok(())
    }

    /// Deletes all its attachments.
    pub(super) async fn delete_all(&mut self) -> Result<()> {
        let held: Vec<_> = self
            .volumes
            .iter_mut()
            .flat_map(|volume| volume.held.drain(..))
            .collect();
        try_join_all(held.iter().map(|held| self.delete(held))).await?;
        Ok(())
    }

    /// Deletes an attachment if another one would exceed the limit. Returns it if it may still exist: half of the time the
    /// worker does not wait for the deletion, so that it requests the volume on another node meanwhile.
    async fn make_room(&mut self, volume: usize) -> Result<Option<Held>> {
        let Volume { volume, held } = &mut self.volumes[volume];
        let most = match volume.access {
            Access::OnePod | Access::OneNode => 1,
            Access::ManyReaders | Access::ManyNodes => self.nodes.len(),
        };
        if held.len() < most {
            return Ok(None);
        }
        let leaving = held.swap_remove(self.rng.usize(..held.len()));
        self.delete(&leaving).await?;
        if self.rng.bool() {
            self.gone(&leaving).await?;
            return Ok(None);
        }
        Ok(Some(leaving))
    }

    /// A node that the volume is not attached to.
    fn free_node(&mut self, volume: usize) -> usize {
        let held = &self.volumes[volume].held;
        let free = (0..self.nodes.len()).filter(|node| held.iter().all(|held| held.node != *node));
        self.rng
            .choice(free.collect::<Vec<_>>())
            .expect("room must have been made")
    }

    async fn attach(&self, volume: usize, node: usize) -> Result<Held> {
        let volume = &self.volumes[volume].volume;
        let Node { name: node_name, .. } = &self.nodes[node];
        let name = attachment_name(&volume.handle, &self.driver, node_name);
        let attachment = mk_attachment(&self.prefix, &name, &self.driver, &volume.pv, node_name);
        let since = self.watch_events.borrow().len();
        let made = self
            .api()
            .create(&PostParams::default(), &attachment)
            .await
            .with_context(|| format!("make an attachment of {} to {node_name}", volume.pv))?;
        self.began.send_modify(|began| *began += 1);
        Ok(Held {
            name,
            uid: made.metadata.uid.context("the API server must give a UID")?,
            node,
            since,
        })
    }

    async fn delete(&self, held: &Held) -> Result<()> {
        let this = DeleteParams::default().preconditions(Preconditions {
            uid: Some(held.uid.clone()),
            resource_version: None,
        });
        let deleted = self.api().delete(&held.name, &this).await;
        deleted.map(drop).with_context(|| format!("delete {}", held.name))
    }

    async fn wait_for_finalizer(&self, held: &Held) -> Result<()> {
        let wait_for_finalizer = |event: &WatchEvent| event.object.metadata.finalizers.is_some();
        self.seen(held, wait_for_finalizer)
            .await
            .with_context(|| format!("{} got no finalizer", held.name))
    }

    async fn attached(&self, held: &Held) -> Result<()> {
        let attached = |event: &WatchEvent| {
            let status = event.object.status.as_ref();
            status.is_some_and(|status| status.attached)
        };
        self.seen(held, attached)
            .await
            .with_context(|| format!("{} was not attached", held.name))
    }

    async fn gone(&self, held: &Held) -> Result<()> {
        self.seen(held, |event| event.gone)
            .await
            .with_context(|| format!("{} did not go", held.name))
    }

    /// Waits for a state of the attachment.
    async fn seen(&self, held: &Held, wanted: impl Fn(&WatchEvent) -> bool) -> Result<()> {
        let mut looked_at = held.since;
        let mut last = None;
        let mut watch_events = self.watch_events.clone();
        let seen = watch_events.wait_for(|watch_events| {
            let new = watch_events[looked_at..].iter();
            looked_at = watch_events.len();
            let mut mine = new.filter(|seen| seen.object.metadata.uid.as_deref() == Some(&held.uid));
            mine.any(|seen| {
                last = Some(seen.clone());
                wanted(seen)
            })
        });
        let in_time = timeout(STEP_TIMEOUT, seen).await.map(|seen| seen.is_ok());
        ensure!(
            in_time.is_ok_and(|seen| seen),
            "waited {STEP_TIMEOUT:?}; it was last seen as {last:?}"
        );
        Ok(())
    }

    fn api(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }
}
