//! When each VolumeAttachment appeared, was attached, and was gone, as a watch saw it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What happened to one VolumeAttachment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    pub(super) seen: Option<Instant>,
    pub(super) attached: Option<Instant>,
    pub(super) deleting: Option<Instant>,
    pub(super) gone: Option<Instant>,
}

/// A watch over some VolumeAttachments.
pub(super) struct Tracker {
    lives: watch::Receiver<HashMap<String, Life>>,
    _task: JoinSet<()>,
}

// === impl Tracker ===

impl Tracker {
    /// Follows the VolumeAttachments of these names, of which there may be many.
    pub(super) fn follow(client: Client, names: &[String]) -> Self {
        let config = match names {
            // A cluster full of others is not our business then.
            [name] => watcher::Config::default().fields(&format!("metadata.name={name}")),
            _ => watcher::Config::default(),
        };
        let names: HashSet<String> = names.iter().cloned().collect();
        let (lives_tx, lives) = watch::channel(HashMap::new());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let api: Api<VolumeAttachment> = Api::all(client);
            let mut events = std::pin::pin!(watcher(api, config).default_backoff());
            while let Some(event) = events.next().await {
                let now = Instant::now();
                lives_tx.send_if_modified(|lives| note(lives, event, now, &names));
            }
        });
        Self { lives, _task: task }
    }

    /// Waits until `count` lives satisfy `condition`; returns when the last one came to do so.
    pub(super) async fn reached(
        &self,
        count: usize,
        within: Duration,
        when: impl Fn(&Life) -> Option<Instant>,
    ) -> Result<Instant> {
        let mut lives = self.lives.clone();
        let done = |lives: &HashMap<String, Life>| {
            lives.values().filter(|life| when(life).is_some()).count() >= count
        };
        let waited = tokio::time::timeout(within, lives.wait_for(done)).await;
        let reached = self.lives.borrow().values().filter_map(&when).count();
        let lives = waited
            .with_context(|| format!("{reached} of {count} VolumeAttachments were done in {within:?}"))?
            .context("the watch of VolumeAttachments ended")?;
        lives
            .values()
            .filter_map(when)
            .max()
            .context("nothing was waited for")
    }

    /// How long each life took from one moment to another.
    pub(super) fn spans(
        &self,
        from: impl Fn(&Life) -> Option<Instant>,
        to: impl Fn(&Life) -> Option<Instant>,
    ) -> Vec<Duration> {
        let lives = self.lives.borrow();
        lives
            .values()
            .filter_map(|life| Some(to(life)?.saturating_duration_since(from(life)?)))
            .collect()
    }
}

fn note(
    lives: &mut HashMap<String, Life>,
    event: Result<Event<VolumeAttachment>, watcher::Error>,
    now: Instant,
    names: &HashSet<String>,
) -> bool {
    let (object, gone) = match event {
        Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
        Ok(Event::Delete(object)) => (object, true),
        Ok(Event::Init | Event::InitDone) | Err(_) => return false,
    };
    let name = object.name_any();
    if !names.contains(&name) {
        return false;
    }
    let life = lives.entry(name).or_default();
    life.seen.get_or_insert(now);
    if object.status.is_some_and(|status| status.attached) {
        life.attached.get_or_insert(now);
    }
    if object.metadata.deletion_timestamp.is_some() {
        life.deleting.get_or_insert(now);
    }
    if gone {
        life.gone.get_or_insert(now);
    }
    true
}
