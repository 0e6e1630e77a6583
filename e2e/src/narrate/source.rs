//! The sources of the narration: watches, the driver's journal and the nodes' ledger, a task each.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::Result;
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::object::Told;
use super::{Line, Names, Narrator, WATCH_LAG, attachment, call, object};
use crate::fixture::SCENARIO_LABEL;
use crate::scenario::Stage;
use crate::wait::{Key, key_of};

/// Starts a task for each source.
pub(super) fn follow(narrator: &Narrator, stage: &Stage<'_>, tasks: &mut JoinSet<()>) -> Result<()> {
    let names = Names::of_stage(stage.prefix());
    attachments(narrator, stage, &names, tasks);
    journal(narrator, stage, &names, tasks)?;
    ledger(narrator, stage, &names, tasks);

    let client = stage.client();
    let mine = watcher::Config::default().labels(&format!("{SCENARIO_LABEL}={}", stage.prefix()));
    let seen_by = names.clone();
    watched(
        narrator,
        tasks,
        Api::<Pod>::namespaced(client.clone(), stage.prefix()),
        mine.clone(),
        SignedDuration::ZERO,
        move |old, new| new.map(|new| object::pod(old, new, &seen_by)).unwrap_or_default(),
    );
    let seen_by = names.clone();
    watched(
        narrator,
        tasks,
        Api::<Node>::all(client.clone()),
        mine.clone(),
        SignedDuration::ZERO,
        move |old, new| {
            new.map(|new| object::node(old, new, &seen_by))
                .unwrap_or_default()
        },
    );
    watched(
        narrator,
        tasks,
        Api::<PersistentVolume>::all(client.clone()),
        mine,
        WATCH_LAG,
        move |old, new| {
            if let Some(new) = new {
                names.learn(new);
            }
            object::volume(old, new, &names)
        },
    );
    let events = Api::<Event>::namespaced(client, stage.prefix());
    watched(
        narrator,
        tasks,
        events,
        watcher::Config::default(),
        SignedDuration::ZERO,
        |old, new| match (old, new) {
            (None, Some(new)) => object::event(new).into_iter().collect(),
            _ => Vec::new(),
        },
    );
    Ok(())
}

fn attachments(narrator: &Narrator, stage: &Stage<'_>, names: &Names, tasks: &mut JoinSet<()>) {
    let (narrator, names) = (narrator.clone(), names.clone());
    let mut sightings = stage.witness().follow();
    tasks.spawn(async move {
        let mut told = 0;
        let mut states: BTreeMap<String, VolumeAttachment> = BTreeMap::new();
        loop {
            let fresh = sightings.borrow_and_update()[told..].to_vec();
            told += fresh.len();
            for sighting in fresh {
                let uid = sighting.attachment.metadata.uid.clone().unwrap_or_default();
                for line in attachment::tell(states.get(&uid), &sighting, &names) {
                    narrator.take(line);
                }
                states.insert(uid, sighting.attachment);
            }
            if sightings.changed().await.is_err() {
                return;
            }
        }
    });
}

fn journal(narrator: &Narrator, stage: &Stage<'_>, names: &Names, tasks: &mut JoinSet<()>) -> Result<()> {
    let (narrator, names) = (narrator.clone(), names.clone());
    let mut tail = stage.driver.journal().tail()?;
    tasks.spawn(async move {
        loop {
            let lines = match tail.read() {
                Ok(lines) => lines,
                Err(error) => {
                    return tracing::warn!(error = %format!("{error:#}"), "the journal cannot be told");
                }
            };
            lines
                .iter()
                .filter_map(|line| call::tell(line, &names))
                .for_each(|line| narrator.take(line));
            if let Err(error) = tail.changed().await {
                return tracing::warn!(error = %format!("{error:#}"), "the journal cannot be told");
            }
        }
    });
    Ok(())
}

fn ledger(narrator: &Narrator, stage: &Stage<'_>, names: &Names, tasks: &mut JoinSet<()>) {
    let (narrator, names) = (narrator.clone(), names.clone());
    let mut entries = stage.ledger().follow();
    tasks.spawn(async move {
        let mut told = 0;
        loop {
            let fresh = entries.borrow_and_update()[told..].to_vec();
            told += fresh.len();
            for entry in fresh {
                let (party, text) = object::deed(&entry.node, &entry.deed, &names);
                narrator.take(Line {
                    at: entry.at,
                    party,
                    text,
                });
            }
            if entries.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Follows a watch and tells each change by `tell`, which gets the states before and after. What others may
/// have acted on by the time it is seen is dated back by `lag`.
fn watched<K>(
    narrator: &Narrator,
    tasks: &mut JoinSet<()>,
    api: Api<K>,
    config: watcher::Config,
    lag: SignedDuration,
    tell: impl Fn(Option<&K>, Option<&K>) -> Vec<Told> + Send + 'static,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let narrator = narrator.clone();
    tasks.spawn(async move {
        let mut known: BTreeMap<Key, K> = BTreeMap::new();
        let mut events = watcher(api, config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            let told = match event {
                Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => {
                    let key = key_of(&object);
                    let told = tell(known.get(&key), Some(&object));
                    known.insert(key, object);
                    told
                }
                Ok(watcher::Event::Delete(object)) => {
                    known.remove(&key_of(&object));
                    tell(Some(&object), None)
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone) => Vec::new(),
                Err(error) => {
                    tracing::warn!(%error, "a watch cannot be told");
                    Vec::new()
                }
            };
            for (party, text) in told {
                narrator.take(Line {
                    at: Timestamp::now() - lag,
                    party,
                    text,
                });
            }
        }
    });
}
