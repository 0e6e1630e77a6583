//! Watches VolumeAttachments and records when each appeared, was attached, and was gone.
//!
//! The watch uses the CPUs that are measured, so it decodes only the fields that it needs.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The history of one VolumeAttachment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    pub(super) seen: Option<Instant>,
    pub(super) attached: Option<Instant>,
    pub(super) deleting: Option<Instant>,
    pub(super) gone: Option<Instant>,
    /// How often its status had the `errorCode` of RESOURCE_EXHAUSTED.
    pub(super) exhausted: usize,
}

/// The decoded fields of a VolumeAttachment.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Shown")]
struct Attachment {
    metadata: ObjectMeta,
    attached: bool,
    error_code: Option<i32>,
}

/// The JSON form of these fields. Most bytes of an object are `managedFields`, which are skipped.
#[derive(Deserialize)]
struct Shown {
    metadata: ShownMetadata,
    #[serde(default)]
    status: ShownStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShownMetadata {
    name: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShownStatus {
    #[serde(default)]
    attached: bool,
    attach_error: Option<ShownError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShownError {
    error_code: Option<i32>,
}

/// A watch of some VolumeAttachments.
pub(super) struct Tracker {
    lives: watch::Receiver<HashMap<String, Life>>,
    _task: JoinSet<()>,
}

// === impl Tracker ===

impl Tracker {
    /// Watches the VolumeAttachments with these names, of which there may be many.
    pub(super) fn follow(client: Client, names: &[String]) -> Self {
        let config = match names {
            // Skips the objects of other drivers.
            [name] => watcher::Config::default().fields(&format!("metadata.name={name}")),
            _ => watcher::Config::default(),
        };
        let names: HashSet<String> = names.iter().cloned().collect();
        let (lives_tx, lives) = watch::channel(HashMap::new());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let api: Api<Attachment> = Api::all(client);
            let mut events = std::pin::pin!(watcher(api, config).default_backoff());
            while let Some(event) = events.next().await {
                let now = Instant::now();
                lives_tx.send_if_modified(|lives| note(lives, event, now, &names));
            }
        });
        Self { lives, _task: task }
    }

    /// Waits until `count` histories have the time that `when` selects; returns the latest.
    pub(super) async fn reached(
        &self,
        count: usize,
        within: Duration,
        when: impl Fn(&Life) -> Option<Instant>,
    ) -> Result<Instant> {
        let mut lives = self.lives.clone();
        let count_done = |lives: &HashMap<String, Life>| lives.values().filter_map(&when).count();
        let waited = tokio::time::timeout(within, lives.wait_for(|lives| count_done(lives) >= count)).await;
        let lives = waited
            .with_context(|| {
                let done = count_done(&self.lives.borrow());
                format!("{done} of {count} VolumeAttachments were done in {within:?}")
            })?
            .context("the watch of VolumeAttachments ended")?;
        lives
            .values()
            .filter_map(when)
            .max()
            .context("nothing was waited for")
    }

    /// The number of status writes with the `errorCode` of RESOURCE_EXHAUSTED.
    pub(super) fn exhausted(&self) -> usize {
        self.lives.borrow().values().map(|life| life.exhausted).sum()
    }

    /// The durations between two state changes.
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

// === impl Attachment ===

impl From<Shown> for Attachment {
    fn from(shown: Shown) -> Self {
        Self {
            metadata: ObjectMeta {
                name: shown.metadata.name,
                resource_version: shown.metadata.resource_version,
                deletion_timestamp: shown.metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            attached: shown.status.attached,
            error_code: shown.status.attach_error.and_then(|error| error.error_code),
        }
    }
}

impl Resource for Attachment {
    type DynamicType = ();
    type Scope = kube::core::ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        VolumeAttachment::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        VolumeAttachment::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        VolumeAttachment::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        VolumeAttachment::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn note(
    lives: &mut HashMap<String, Life>,
    event: Result<Event<Attachment>, watcher::Error>,
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
    if object.attached {
        life.attached.get_or_insert(now);
    }
    life.exhausted += usize::from(object.error_code == Some(tonic::Code::ResourceExhausted as i32));
    if object.metadata.deletion_timestamp.is_some() {
        life.deleting.get_or_insert(now);
    }
    if gone {
        life.gone.get_or_insert(now);
    }
    true
}
