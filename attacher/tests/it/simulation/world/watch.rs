//! Watches of the fake API server, which are late, skip events and repeat them.

use std::time::Duration;

use csi_attacher::controller::state::Event;
use csi_attacher::informer::Change;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Lie, State, World};

/// When the next list follows a skipped event at the latest.
const NEXT_LIST: Duration = Duration::from_secs(2);

// === impl World ===

impl World {
    /// All watches of a process, each with its own delays. The watch of attachments begins after `leads`.
    pub(in super::super) async fn watch(
        &self,
        events_tx: mpsc::Sender<Event>,
        leads: impl Future<Output = ()>,
    ) {
        let attachments = async {
            leads.await;
            self.watch_kind(&events_tx, |event| matches!(event, Event::Attachments(_)))
                .await;
        };
        futures::join!(
            attachments,
            self.watch_kind(&events_tx, |event| matches!(event, Event::Volumes(_))),
            self.watch_kind(&events_tx, |event| matches!(event, Event::Nodes(_))),
            self.watch_kind(&events_tx, |event| matches!(event, Event::DriverConnected(_))),
        );
    }

    /// Sends a list, then each later event with a delay.
    async fn watch_kind(&self, events_tx: &mpsc::Sender<Event>, is_kind: fn(&Event) -> bool) {
        loop {
            let (list, mut seen) = {
                let state = self.state();
                (state.list(), state.log.len())
            };
            for event in list.into_iter().filter(is_kind) {
                events_tx.send(event).await.ok();
            }
            let mut relist = None;
            while relist.is_none_or(|at| Instant::now() < at) {
                let changed = self.state().changed.clone();
                let changed = changed.notified();
                let (event, delay) = self.state().next_event(&mut seen, &mut relist, is_kind);
                match event {
                    Some(event) => {
                        tokio::time::sleep(delay).await;
                        events_tx.send(event).await.ok();
                    }
                    None => {
                        let end = relist.unwrap_or_else(|| Instant::now() + NEXT_LIST);
                        tokio::time::timeout_at(end, changed).await.ok();
                    }
                }
            }
        }
    }
}

// === impl State ===

impl State {
    /// The next event of this kind, and how late it is. `seen`: the number of events that the watch has sent. `relist`: when
    /// the watch ends.
    fn next_event(
        &mut self,
        seen: &mut usize,
        relist: &mut Option<Instant>,
        is_kind: fn(&Event) -> bool,
    ) -> (Option<Event>, Duration) {
        let delay = Duration::from_millis(self.random.u64(1..15));
        let next = self.log[*seen..].iter().position(is_kind);
        *seen = next.map_or(self.log.len(), |next| *seen + next + 1);
        let event = next.map(|_| self.log[*seen - 1].clone());
        // A session with the driver has no watch.
        if matches!(event, None | Some(Event::DriverConnected(_))) {
            return (event, delay);
        }
        if self.lies(Lie::SkippedEvents, 3) {
            relist.get_or_insert_with(|| Instant::now() + NEXT_LIST);
            return (None, delay);
        }
        if self.lies(Lie::RepeatedEvents, 3) {
            *seen = seen.saturating_sub(self.random.usize(..20));
        }
        (event, delay)
    }

    fn list(&self) -> Vec<Event> {
        let mut list = vec![
            Event::DriverConnected(self.array.capabilities()),
            Event::Attachments(Change::ReplaceStarted),
            Event::Volumes(Change::ReplaceStarted),
            Event::Nodes(Change::ReplaceStarted),
        ];
        list.extend(
            self.attachments
                .values()
                .cloned()
                .map(|a| Event::Attachments(Change::Applied(a))),
        );
        list.extend(
            self.volumes
                .values()
                .cloned()
                .map(|v| Event::Volumes(Change::Applied(v))),
        );
        list.extend(
            self.nodes
                .values()
                .cloned()
                .map(|n| Event::Nodes(Change::Applied(n))),
        );
        list.extend([
            Event::Nodes(Change::Replaced),
            Event::Attachments(Change::Replaced),
            Event::Volumes(Change::Replaced),
        ]);
        list
    }
}
