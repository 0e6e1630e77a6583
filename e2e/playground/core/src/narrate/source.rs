//! The sources of the narration: watches and the drivers' journals, a task each.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::Result;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::{Actor, Line, Names, Narration, Narrator, attachment, call, object};
use csi_e2e::driver::journal::{self, Journal};
use csi_e2e::fixture::SCENARIO_LABEL;
use csi_e2e::scenario::TestEnv;
use csi_e2e::wait::{Key, key_of};

/// Starts a task for each source.
pub(super) fn follow(narrator: &Narrator, env: &TestEnv<'_>, tasks: &mut JoinSet<()>) -> Result<()> {
    let names = Names::of(env);
    attachments(narrator, env, &names, tasks);
    journals(narrator, env, &names, tasks)?;

    let client = env.client();
    let mine = watcher::Config::default().labels(&format!("{SCENARIO_LABEL}={}", env.prefix()));
    let seen_by = names.clone();
    watched(
        narrator,
        tasks,
        Api::<Pod>::namespaced(client.clone(), env.prefix()),
        mine.clone(),
        |pod, _| object::claims(pod),
        move |old, new| object::pod(old, new, &seen_by),
    );
    let (seen_by, mentions) = (names.clone(), names.clone());
    watched(
        narrator,
        tasks,
        Api::<Node>::all(client.clone()),
        mine.clone(),
        move |_, text| mentions.mentioned(text),
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
        {
            let names = names.clone();
            move |volume, _| vec![names.short(&volume.name_any())]
        },
        {
            let names = names.clone();
            move |old, new| {
                if let Some(new) = new {
                    names.learn(new);
                }
                object::volume(old, new, &names)
            }
        },
    );
    let leaders = narrator.clone();
    watched(
        narrator,
        tasks,
        Api::<Lease>::namespaced(client.clone(), env.prefix()),
        watcher::Config::default(),
        |_, _| Vec::new(),
        move |old, new| {
            let (holder, since) = object::leader(new?)?;
            let is_new = old
                .and_then(object::leader)
                .is_none_or(|(before, _)| before != holder);
            is_new.then(|| {
                leaders.set_leader(since, &holder);
                Narration::effect(Actor::Attacher, "acquires the Lease: it is the leader".to_owned())
            })
        },
    );
    let events = Api::<Event>::namespaced(client, env.prefix());
    let seen_by = names.clone();
    watched(
        narrator,
        tasks,
        events,
        watcher::Config::default(),
        move |_, text| names.mentioned(text),
        move |old, new| match (old, new) {
            (None, Some(new)) => object::event(new, &seen_by).into_iter().collect(),
            _ => Vec::new(),
        },
    );
    Ok(())
}

fn attachments(narrator: &Narrator, env: &TestEnv<'_>, names: &Names, tasks: &mut JoinSet<()>) {
    let (narrator, names) = (narrator.clone(), names.clone());
    let mut watch_events = env.recorder().follow();
    tasks.spawn(async move {
        let mut described = 0;
        let mut states: BTreeMap<String, VolumeAttachment> = BTreeMap::new();
        loop {
            let fresh = watch_events.borrow_and_update()[described..].to_vec();
            described += fresh.len();
            for event in fresh {
                let uid = event.object.metadata.uid.clone().unwrap_or_default();
                for narration in attachment::describe(states.get(&uid), &event, &names) {
                    let volumes = vec![attachment::volume(&event.object, &names)];
                    narrator.take_watched(event.at, volumes, narration);
                }
                states.insert(uid, event.object);
            }
            if watch_events.changed().await.is_err() {
                return;
            }
        }
    });
}

fn journals(narrator: &Narrator, env: &TestEnv<'_>, names: &Names, tasks: &mut JoinSet<()>) -> Result<()> {
    let of_array = names.clone();
    journal(narrator, env.driver.journal(), tasks, move |line| {
        call::describe(line, &of_array)
    })?;
    for node in env.nodes() {
        if let Some(driver) = node.driver() {
            let (name, names) = (node.name().to_owned(), names.clone());
            journal(narrator, driver.journal(), tasks, move |line| {
                call::describe_mount(line, &name, &names)
            })?;
        }
    }
    Ok(())
}

fn journal(
    narrator: &Narrator,
    journal: &Journal,
    tasks: &mut JoinSet<()>,
    describe: impl Fn(&journal::Line) -> Option<Line> + Send + 'static,
) -> Result<()> {
    let narrator = narrator.clone();
    let mut tail = journal.tail()?;
    tasks.spawn(async move {
        loop {
            let lines = match tail.read() {
                Ok(lines) => lines,
                Err(error) => {
                    return tracing::warn!(error = %format!("{error:#}"), "the journal cannot be read");
                }
            };
            lines
                .iter()
                .filter_map(&describe)
                .for_each(|line| narrator.take(line));
            if let Err(error) = tail.changed().await {
                return tracing::warn!(error = %format!("{error:#}"), "the journal cannot be read");
            }
        }
    });
    Ok(())
}

/// Follows a watch and reports each change by `describe`, which gets the old and the new state; `volumes` returns the
/// volumes of an object.
fn watched<K, D>(
    narrator: &Narrator,
    tasks: &mut JoinSet<()>,
    api: Api<K>,
    config: watcher::Config,
    volumes: impl Fn(&K, &str) -> Vec<String> + Send + 'static,
    describe: impl Fn(Option<&K>, Option<&K>) -> D + Send + 'static,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    D: IntoIterator<Item = Narration, IntoIter: Send> + Send,
{
    let narrator = narrator.clone();
    tasks.spawn(async move {
        let mut known: BTreeMap<Key, K> = BTreeMap::new();
        let mut events = watcher(api, config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            let (described, object) = match event {
                Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => {
                    let key = key_of(&object);
                    let described = describe(known.get(&key), Some(&object));
                    known.insert(key, object.clone());
                    (described, object)
                }
                Ok(watcher::Event::Delete(object)) => {
                    known.remove(&key_of(&object));
                    (describe(Some(&object), None), object)
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone) => continue,
                Err(error) => {
                    tracing::warn!(%error, "a watch cannot be read");
                    continue;
                }
            };
            for narration in described {
                let volumes = volumes(&object, &narration.text);
                narrator.take_watched(Timestamp::now(), volumes, narration);
            }
        }
    });
}
