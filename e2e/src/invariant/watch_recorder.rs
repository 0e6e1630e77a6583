//! Watches the driver's VolumeAttachments and PersistentVolumes and its attachers' Lease during a scenario and records all their
//! states.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::observations::WatchEvent;
use crate::fixture::leader_lease_name;
use crate::mutex::lock;
use crate::wait::{Key, Seen, absorb, key_of};

/// Timeout of the first list.
const FIRST_LISTING: Duration = Duration::from_secs(30);

/// Records the VolumeAttachments, the PersistentVolumes and the Lease of one driver. Dropping it stops the watches.
#[derive(Debug)]
pub struct WatchRecorder {
    watch_events: Events<VolumeAttachment>,
    volume_events: Events<PersistentVolume>,
    lease_events: Events<Lease>,
    gaps: Gaps,
    tasks: JoinSet<()>,
}

type Events<K> = Arc<watch::Sender<Vec<WatchEvent<K>>>>;
/// When events may have been lost, and why.
type Gaps = Arc<Mutex<Vec<(Timestamp, String)>>>;

/// Converts kube-rs' watch events of a kind.
struct Record<K> {
    is_own: Box<dyn Fn(&K) -> bool + Send>,
    events: Events<K>,
    gaps: Gaps,
    seen: Seen<K>,
    listed: BTreeSet<Key>,
}

// === impl WatchRecorder ===

impl WatchRecorder {
    /// Starts the watches; returns after the first lists, so that no later state is missed. `namespace`: that of the Lease.
    pub async fn start(client: Client, driver: &str, namespace: &str) -> Result<Self> {
        let (gaps, mut tasks) = (Gaps::default(), JoinSet::new());
        let name = driver.to_owned();
        let attachments = Record::new(gaps.clone(), move |attachment: &VolumeAttachment| {
            attachment.spec.attacher == name
        });
        let name = driver.to_owned();
        let volumes = Record::new(gaps.clone(), move |volume: &PersistentVolume| {
            let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            source.is_some_and(|source| source.driver == name)
        });
        let name = leader_lease_name(driver);
        let leases = Record::new(gaps.clone(), move |lease: &Lease| lease.name_any() == name);
        let (watch_events, volume_events) = (attachments.events.clone(), volumes.events.clone());
        let lease_events = leases.events.clone();
        attachments.start(Api::all(client.clone()), &mut tasks).await?;
        volumes.start(Api::all(client.clone()), &mut tasks).await?;
        leases
            .start(Api::namespaced(client, namespace), &mut tasks)
            .await?;
        Ok(Self {
            watch_events,
            volume_events,
            lease_events,
            gaps,
            tasks,
        })
    }

    /// All states so far, oldest first.
    pub fn watch_events(&self) -> Vec<WatchEvent> {
        self.watch_events.borrow().clone()
    }

    /// All states of PersistentVolumes so far, oldest first.
    pub fn volume_events(&self) -> Vec<WatchEvent<PersistentVolume>> {
        self.volume_events.borrow().clone()
    }

    /// All states of PersistentVolumes; the receiver is notified of each new one.
    pub fn volumes(&self) -> watch::Receiver<Vec<WatchEvent<PersistentVolume>>> {
        self.volume_events.subscribe()
    }

    /// When watch events may have been lost. The API server sent all objects afterwards, but not the states in between.
    pub fn gaps(&self) -> Vec<(Timestamp, String)> {
        lock(&self.gaps).clone()
    }

    /// A receiver that is notified of each new watch event.
    pub fn follow(&self) -> watch::Receiver<Vec<WatchEvent>> {
        self.watch_events.subscribe()
    }

    /// All states of the attachers' Lease; the receiver is notified of each new one.
    pub fn leases(&self) -> watch::Receiver<Vec<WatchEvent<Lease>>> {
        self.lease_events.subscribe()
    }

    /// Stops the watches.
    ///
    /// # Errors
    /// A watch failed meanwhile, so the record is incomplete.
    pub async fn end(mut self) -> Result<Vec<WatchEvent>> {
        if let Some(ended) = self.tasks.try_join_next() {
            ended.context("a watch broke down")?;
        }
        self.tasks.shutdown().await;
        Ok(self.watch_events())
    }
}

// === impl Record ===

impl<K> Record<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    fn new(gaps: Gaps, is_own: impl Fn(&K) -> bool + Send + 'static) -> Self {
        Self {
            is_own: Box::new(is_own),
            events: Arc::new(watch::Sender::new(Vec::new())),
            gaps,
            seen: Seen::new(),
            listed: BTreeSet::new(),
        }
    }

    /// Watches until the task ends. Returns after the first list.
    async fn start(mut self, api: Api<K>, tasks: &mut JoinSet<()>) -> Result<()> {
        let (ready_tx, mut ready_rx) = watch::channel(false);
        tasks.spawn(async move {
            let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        let listed = matches!(event, Event::InitDone);
                        self.handle(event);
                        if listed {
                            ready_tx.send_replace(true);
                        }
                    }
                    Err(error) => tracing::warn!(%error, kind = %K::kind(&()), "watch failed"),
                }
            }
        });
        let listed = tokio::time::timeout(FIRST_LISTING, ready_rx.wait_for(|ready| *ready));
        let listed = listed.await.context("the first list took too long")?;
        listed.context("the watch ended").map(drop)
    }

    fn handle(&mut self, event: Event<K>) {
        match &event {
            Event::Init => {
                // During a relist the old state is kept until the list is complete; then objects that are not
                // in the list count as deleted. A watch that resumes where it ended needs no list.
                if !self.seen.is_empty() {
                    let gap = (Timestamp::now(), format!("watch of {}s", K::kind(&())));
                    lock(&self.gaps).push(gap);
                }
                self.listed.clear();
                return;
            }
            Event::InitApply(object) => {
                self.listed.insert(key_of(object));
                self.note(object, false);
            }
            Event::Apply(object) => self.note(object, false),
            Event::Delete(object) => self.note(object, true),
            Event::InitDone => {
                let gone: Vec<_> = self
                    .seen
                    .iter()
                    .filter(|(key, _)| !self.listed.contains(*key))
                    .map(|(_, object)| object.clone())
                    .collect();
                gone.iter().for_each(|object| self.note(object, true));
                self.seen.retain(|key, _| self.listed.contains(key));
            }
        }
        absorb(&mut self.seen, event, true);
    }

    fn note(&self, object: &K, gone: bool) {
        if (self.is_own)(object) {
            let mut object = object.clone();
            // Managed fields are most of an object's size, and no validator reads them.
            object.meta_mut().managed_fields = None;
            let at = Timestamp::now();
            self.events
                .send_modify(|events| events.push(WatchEvent { at, gone, object }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::mk_attachment;

    fn seen_by(events: Vec<Event<VolumeAttachment>>) -> (Vec<(String, bool)>, usize) {
        let is_own = |attachment: &VolumeAttachment| attachment.spec.attacher == "d";
        let mut record = Record::new(Gaps::default(), is_own);
        events.into_iter().for_each(|event| record.handle(event));
        let watch_events = record.events.borrow();
        let noted = watch_events
            .iter()
            .map(|seen| (seen.object.spec.node_name.clone(), seen.gone));
        let gaps = record.gaps.lock().expect("no holder panics").len();
        (noted.collect(), gaps)
    }

    fn attachment(name: &str, driver: &str) -> VolumeAttachment {
        mk_attachment("s", name, driver, "pv", name)
    }

    #[test]
    fn only_the_drivers_own_attachments_are_noted() {
        let events = vec![
            Event::Apply(attachment("a", "d")),
            Event::Apply(attachment("b", "other")),
        ];
        assert_eq!(seen_by(events), (vec![("a".to_owned(), false)], 0));
    }

    #[test]
    fn an_attachment_lost_in_a_relisting_is_noted_as_gone() {
        let events = vec![
            Event::Apply(attachment("a", "d")),
            Event::Apply(attachment("b", "d")),
            Event::Init,
            Event::InitApply(attachment("b", "d")),
            Event::InitDone,
        ];
        let (noted, gaps) = seen_by(events);
        assert_eq!(gaps, 1, "states between watch and list are lost");
        assert_eq!(noted.last(), Some(&("a".to_owned(), true)), "{noted:?}");
    }
}
