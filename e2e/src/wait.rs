//! Waits for conditions with deadlines, on watch streams, or by polling if there is no event.
//!
//! Invariants: a wait always ends (by its deadline at the latest), and the error of a failed wait names the condition,
//! the missing part in the last evaluation, and the last watch error.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};

/// Pause between two evaluations of a condition that is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Result of evaluating a condition.
#[derive(Debug)]
pub enum Progress<T> {
    /// The condition holds; the wait returns this.
    Reached(T),
    /// It does not hold yet; the text describes the missing part in the error of a timeout.
    Pending(String),
}

/// Namespace (empty for cluster-scoped kinds) and name of an object.
pub type Key = (String, String);

/// The objects a wait has seen so far, by key.
pub type Seen<K> = BTreeMap<Key, K>;

// === impl Progress ===

impl Progress<()> {
    /// Reached if `held`, otherwise pending with the text of `missing`.
    pub fn of(held: bool, missing: impl FnOnce() -> String) -> Self {
        if held {
            Self::Reached(())
        } else {
            Self::Pending(missing())
        }
    }
}

// === waits ===

/// Waits until `condition` holds for the object `name`; it is `None` while absent.
pub async fn for_object<K, T>(
    api: &Api<K>,
    name: &str,
    within: Duration,
    what: &str,
    mut condition: impl FnMut(Option<&K>) -> Progress<T>,
) -> Result<T>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    for_objects(api, config, within, what, |seen| condition(seen.values().next())).await
}

/// Waits until the object `name` is gone.
pub async fn for_absence<K>(api: &Api<K>, name: &str, within: Duration, what: &str) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    for_object(api, name, within, what, |object| match object {
        None => Progress::Reached(()),
        Some(object) => Progress::Pending(format!(
            "it is still there (deletion asked: {}, finalizers: {:?})",
            object.meta().deletion_timestamp.is_some(),
            object.finalizers()
        )),
    })
    .await
}

/// Waits until `condition` holds for the objects that `config` selects.
pub async fn for_objects<K, T>(
    api: &Api<K>,
    config: watcher::Config,
    within: Duration,
    what: &str,
    condition: impl FnMut(&Seen<K>) -> Progress<T>,
) -> Result<T>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    follow(
        watcher(api.clone(), config).default_backoff(),
        within,
        what,
        condition,
    )
    .await
}

/// Polls `condition` until it holds, if there is no event to wait for.
///
/// # Errors
/// The condition failed, or did not hold in time.
pub async fn poll<T, F>(within: Duration, what: &str, mut condition: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Progress<T>>>,
{
    let deadline = Instant::now() + within;
    let mut missing = "the first evaluation has not ended".to_owned();
    loop {
        match timeout_at(deadline, condition()).await {
            Ok(Ok(Progress::Reached(value))) => return Ok(value),
            Ok(Ok(Progress::Pending(why))) => missing = why,
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            bail!("waited {within:?} for {what}: {missing}");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Evaluates `condition` after the first list and after each change.
async fn follow<K, T>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    within: Duration,
    what: &str,
    mut condition: impl FnMut(&Seen<K>) -> Progress<T>,
) -> Result<T>
where
    K: Resource,
{
    let mut events = pin!(events);
    let deadline = Instant::now() + within;
    let mut seen = Seen::new();
    let mut listed = false;
    let mut missing = "the first listing has not arrived".to_owned();
    let mut last_error = String::new();
    loop {
        let event = match timeout_at(deadline, events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => bail!("the watch ended while waiting for {what}: {missing}{last_error}"),
            Err(_) => bail!("waited {within:?} for {what}: {missing}{last_error}"),
        };
        match event {
            Ok(event) => listed = absorb(&mut seen, event, listed),
            Err(error) => last_error = format!(" (watch error: {error})"),
        }
        if listed {
            match condition(&seen) {
                Progress::Reached(value) => return Ok(value),
                Progress::Pending(why) => missing = why,
            }
        }
    }
}

/// Applies the event to `seen`; returns whether `seen` is now complete.
pub(crate) fn absorb<K: Resource>(seen: &mut Seen<K>, event: Event<K>, listed: bool) -> bool {
    match event {
        Event::Init => {
            seen.clear();
            false
        }
        Event::InitApply(object) | Event::Apply(object) => {
            seen.insert(key_of(&object), object);
            listed
        }
        Event::Delete(object) => {
            seen.remove(&key_of(&object));
            listed
        }
        Event::InitDone => true,
    }
}

/// The key of an object.
pub fn key_of<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::Node;

    use super::*;
    use crate::fixture::mk_node;

    fn node(name: &str) -> Node {
        mk_node("test", name)
    }

    fn names(seen: &Seen<Node>) -> Vec<&str> {
        seen.keys().map(|(_, name)| name.as_str()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_is_evaluated_only_on_a_whole_listing() {
        let events = stream::iter([
            Ok(Event::Init),
            Ok(Event::InitApply(node("a"))),
            Ok(Event::InitApply(node("b"))),
            Ok(Event::InitDone),
        ]);
        let mut evaluated = 0;
        let found = follow(events, Duration::from_secs(1), "nodes", |seen| {
            evaluated += 1;
            Progress::Reached(names(seen).join(","))
        })
        .await
        .expect("the listing satisfies the condition");
        assert_eq!((found.as_str(), evaluated), ("a,b", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_relisting_forgets_what_went_unseen() {
        let events = stream::iter([
            Ok(Event::Init),
            Ok(Event::InitApply(node("a"))),
            Ok(Event::InitDone),
            Ok(Event::Init),
            Ok(Event::InitApply(node("b"))),
            Ok(Event::InitDone),
        ]);
        follow(events, Duration::from_secs(1), "a gone", |seen| {
            Progress::of(!names(seen).contains(&"a"), || "a is there".to_owned())
        })
        .await
        .expect("the second listing has no a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_reports_what_was_missing() {
        let events = stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).chain(stream::pending());
        let error = follow(
            events,
            Duration::from_secs(7),
            "node a to appear",
            |seen: &Seen<Node>| Progress::<()>::Pending(format!("{} nodes", seen.len())),
        )
        .await
        .expect_err("nothing ever appears");
        assert_eq!(error.to_string(), "waited 7s for node a to appear: 0 nodes");
    }

    #[tokio::test(start_paused = true)]
    async fn polls_until_the_condition_holds_or_the_deadline_passes() {
        let mut evaluated = 0;
        let mut count_to = |wanted| {
            evaluated += 1;
            let reached = evaluated == wanted;
            async move { Ok(Progress::of(reached, || "not yet".to_owned())) }
        };
        poll(Duration::from_secs(1), "the third time", || count_to(3))
            .await
            .expect("the condition holds the third time");
        let error = poll(Duration::from_secs(1), "nothing", || count_to(0))
            .await
            .expect_err("the condition never holds");
        assert_eq!(error.to_string(), "waited 1s for nothing: not yet");
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_ends_at_its_deadline_during_an_evaluation() {
        let condition = std::future::pending::<Result<Progress<()>>>;
        let error = poll(Duration::from_secs(1), "nothing", condition)
            .await
            .expect_err("the evaluation never ends");
        assert_eq!(
            error.to_string(),
            "waited 1s for nothing: the first evaluation has not ended"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_watch_is_named_in_the_error() {
        let events = stream::iter([Err(watcher::Error::NoResourceVersion)]).chain(stream::pending());
        let error = follow(
            events,
            Duration::from_secs(7),
            "node a to appear",
            |_: &Seen<Node>| Progress::<()>::Pending(String::new()),
        )
        .await
        .expect_err("nothing ever appears");
        let text = error.to_string();
        assert!(
            text.contains("first listing") && text.contains("watch error"),
            "{text}"
        );
    }
}
