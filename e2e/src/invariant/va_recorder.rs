//! Watches the driver's attachments during a scenario and records all their states.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::observations::WatchEvent;
use crate::wait::{Key, Seen, absorb, key_of};

/// Timeout of the first list.
const FIRST_LISTING: Duration = Duration::from_secs(30);

/// Records the attachments of one driver. Dropping it stops the watch.
#[derive(Debug)]
pub struct VaRecorder {
    watch_events: Arc<watch::Sender<Vec<WatchEvent>>>,
    gaps: Gaps,
    task: JoinSet<()>,
}

/// When events may have been lost, and why.
type Gaps = Arc<Mutex<Vec<(Timestamp, String)>>>;

/// Converts kube-rs' watch events.
struct Record {
    driver: String,
    watch_events: Arc<watch::Sender<Vec<WatchEvent>>>,
    gaps: Gaps,
    seen: Seen<VolumeAttachment>,
    listed: BTreeSet<Key>,
}

// === impl VaRecorder ===

impl VaRecorder {
    /// Starts the watch; returns after the first list, so that no later state is missed.
    pub async fn start(client: Client, driver: &str) -> Result<Self> {
        let watch_events = Arc::new(watch::Sender::new(Vec::new()));
        let gaps = Gaps::default();
        let (ready_tx, mut ready_rx) = watch::channel(false);
        let mut record = Record {
            driver: driver.to_owned(),
            watch_events: watch_events.clone(),
            gaps: gaps.clone(),
            seen: Seen::new(),
            listed: BTreeSet::new(),
        };
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut events = watcher(Api::<VolumeAttachment>::all(client), watcher::Config::default())
                .default_backoff()
                .boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        let listed = matches!(event, Event::InitDone);
                        record.handle(event);
                        if listed {
                            ready_tx.send_replace(true);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "attachment watch failed"),
                }
            }
        });
        tokio::time::timeout(FIRST_LISTING, ready_rx.wait_for(|ready| *ready))
            .await
            .context("the first listing of VolumeAttachments took too long")?
            .context("the attachment watch ended")?;
        Ok(Self {
            watch_events,
            gaps,
            task,
        })
    }

    /// All states so far, oldest first.
    pub fn watch_events(&self) -> Vec<WatchEvent> {
        self.watch_events.borrow().clone()
    }

    /// When watch events may have been lost. The API server sent all objects afterwards, but not the states in between.
    pub fn gaps(&self) -> Vec<(Timestamp, String)> {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A receiver that is notified of each new watch event.
    pub fn follow(&self) -> watch::Receiver<Vec<WatchEvent>> {
        self.watch_events.subscribe()
    }

    /// Stops the watch.
    ///
    /// # Errors
    /// The watch failed meanwhile, so the record is incomplete.
    pub async fn end(mut self) -> Result<Vec<WatchEvent>> {
        if let Some(ended) = self.task.try_join_next() {
            ended.context("the attachment watch broke down")?;
        }
        self.task.shutdown().await;
        Ok(self.watch_events())
    }
}

// === impl Record ===

impl Record {
    fn handle(&mut self, event: Event<VolumeAttachment>) {
        match &event {
            Event::Init => {
                // During a relist the old state is kept until the list is complete; then objects that are not
                // in the list count as deleted. A watch that resumes where it ended needs no list.
                if !self.seen.is_empty() {
                    let gap = (Timestamp::now(), "watch of VolumeAttachments".to_owned());
                    self.gaps.lock().unwrap_or_else(PoisonError::into_inner).push(gap);
                }
                self.listed.clear();
                return;
            }
            Event::InitApply(attachment) => {
                self.listed.insert(key_of(attachment));
                self.note(attachment, false);
            }
            Event::Apply(attachment) => self.note(attachment, false),
            Event::Delete(attachment) => self.note(attachment, true),
            Event::InitDone => {
                let gone: Vec<_> = self
                    .seen
                    .iter()
                    .filter(|(key, _)| !self.listed.contains(*key))
                    .map(|(_, attachment)| attachment.clone())
                    .collect();
                gone.iter().for_each(|attachment| self.note(attachment, true));
                self.seen.retain(|key, _| self.listed.contains(key));
            }
        }
        absorb(&mut self.seen, event, true);
    }

    fn note(&self, attachment: &VolumeAttachment, gone: bool) {
        if attachment.spec.attacher == self.driver {
            let mut attachment = attachment.clone();
            // Managed fields are most of an object's size, and no validator reads them.
            attachment.metadata.managed_fields = None;
            let event = WatchEvent {
                at: Timestamp::now(),
                gone,
                attachment,
            };
            self.watch_events
                .send_modify(|watch_events| watch_events.push(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::mk_attachment;

    fn seen_by(events: Vec<Event<VolumeAttachment>>) -> (Vec<(String, bool)>, usize) {
        let watch_events = Arc::new(watch::Sender::new(Vec::new()));
        let mut record = Record {
            driver: "d".to_owned(),
            watch_events: watch_events.clone(),
            gaps: Gaps::default(),
            seen: Seen::new(),
            listed: BTreeSet::new(),
        };
        events.into_iter().for_each(|event| record.handle(event));
        let watch_events = watch_events.borrow();
        let noted = watch_events
            .iter()
            .map(|seen| (seen.attachment.spec.node_name.clone(), seen.gone));
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
