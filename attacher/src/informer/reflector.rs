//! Reflector: lists and watches objects, and decodes them into the types of `model`.
//!
//! kube's watcher lists, watches and relists. Each object is decoded as it arrives, so objects of other drivers take no memory
//! beyond their page of the list. The backoff after a failure is ours (`backoff`): kube's default backoff resets with each
//! attempt at a list, because it counts `Event::Init` as a success.

mod backoff;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use kube::Api;
use kube::core::{Resource, Status};
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, sleep};

use self::backoff::{Stage, WatchBackoff};
use super::Change;
use crate::kube_api::{Clients, MAX_RETRY_AFTER, Requests, TOO_MANY_REQUESTS};
use crate::migration;
use crate::model::wire::{AttachmentObject, CsiNodeObject, VolumeObject};
use crate::model::{Attachment, Driver, Node, Uid, Volume};
use crate::report::{answered, chain};

/// The VolumeAttachments of `driver`. The stream never ends; `seed` seeds the jitter of its backoff.
pub(crate) fn attachments(
    clients: &Clients,
    driver: Arc<Driver>,
    seed: u64,
) -> impl Stream<Item = Change<Attachment>> + use<> {
    changes(clients, seed, move |object: AttachmentObject| {
        Attachment::from_wire(object, &driver).map(Change::Applied)
    })
}

/// The PersistentVolumes that concern `driver`. The stream never ends.
pub(crate) fn volumes(
    clients: &Clients,
    driver: Arc<Driver>,
    seed: u64,
) -> impl Stream<Item = Change<Volume>> + use<> {
    changes(clients, seed, move |object: VolumeObject| {
        let volume = migration::decode(object, &driver);
        Some(if volume.concerns(&driver) {
            Change::Applied(volume)
        } else {
            // The object may have concerned the driver before: a volume of another driver that lost our finalizer.
            Change::Deleted {
                name: volume.name,
                uid: volume.uid,
            }
        })
    })
}

/// All CSINodes. The stream never ends.
pub(crate) fn nodes(
    clients: &Clients,
    driver: Arc<Driver>,
    seed: u64,
) -> impl Stream<Item = Change<Node>> + use<> {
    changes(clients, seed, move |object: CsiNodeObject| {
        Some(Change::Applied(Node::from_wire(object, &driver)))
    })
}

struct Watch<K> {
    api: Api<K>,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    backoff: WatchBackoff,
    /// Consecutive starts of a watch that the API server refused.
    refused_starts: u32,
    requests: Requests,
}

/// The first of consecutive failures is a warning, and then every tenth: about one in five minutes.
const LOG_EVERY: u32 = 10;
/// The resourceVersion is too old.
const GONE: u16 = 410;
/// After this many refused starts of a watch, the resourceVersion may be the reason, whatever the response says. client-go lists
/// again after the first.
const REFUSED_STARTS: u32 = 5;
/// Objects per page of a list (docs/adr/0020-paginated-lists.md).
const PAGE_SIZE: u32 = 2_500;

// === impl Watch ===

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    fn new(clients: &Clients, seed: u64) -> Self {
        let api: Api<K> = Api::all(clients.watches.clone());
        Self {
            events: watcher(api.clone(), config()).boxed(),
            api,
            backoff: WatchBackoff::new(seed),
            refused_starts: 0,
            requests: clients.counts.clone(),
        }
    }

    /// The next event. Failures before it are logged and retried with backoff.
    async fn next(&mut self) -> Event<K> {
        loop {
            match self.events.next().await {
                Some(Ok(event)) => {
                    self.on_event(&event);
                    return event;
                }
                Some(Err(error)) => self.on_error(&error).await,
                // kube's watcher never ends; if it does, start another one.
                None => self.restart(),
            }
        }
    }

    fn on_event(&mut self, event: &Event<K>) {
        let stage = match event {
            // The first one comes before the request, and after the others the next page may fail.
            Event::Init | Event::InitApply(_) => return,
            Event::InitDone => Stage::List,
            Event::Apply(_) | Event::Delete(_) => Stage::Watch,
        };
        self.refused_starts = 0;
        if let Some(failures) = self.backoff.succeeded(stage) {
            let kind = &*K::kind(&());
            tracing::info!(kind, failures, "the watch works again");
        }
    }

    /// Logs and counts a failure, and waits for its backoff.
    async fn on_error(&mut self, error: &watcher::Error) {
        let (stage, why) = describe(error);
        let asked_for = retry_after(error).unwrap_or_default();
        self.refused_starts = if is_refused_start(error) {
            self.refused_starts + 1
        } else {
            0
        };
        let is_gone = response(error).is_some_and(|status| status.code == GONE);
        if is_gone || self.refused_starts >= REFUSED_STARTS {
            // kube's watcher would resume from the same resourceVersion again and again. A new watcher starts with a list.
            self.restart();
        }
        let (failures, pause) = self.backoff.failed(stage, asked_for, Instant::now().into_std());
        let kind = &*K::kind(&());
        self.requests.watch_failed(K::plural(&()), &why);
        let again_in = pause.as_secs_f64();
        if failures == 1 || failures.is_multiple_of(LOG_EVERY) {
            tracing::warn!(
                kind,
                error = why,
                failures,
                again_in,
                "the watch failed; it is tried again, and each {LOG_EVERY}th failure in a row is logged"
            );
        } else {
            tracing::debug!(kind, error = why, failures, again_in, "the watch failed again");
        }
        sleep(pause).await;
    }

    fn restart(&mut self) {
        self.refused_starts = 0;
        self.events = watcher(self.api.clone(), config()).boxed();
    }
}

fn changes<K, T, F>(clients: &Clients, seed: u64, decode: F) -> impl Stream<Item = Change<T>> + use<K, T, F>
where
    F: Fn(K) -> Option<Change<T>> + Send + 'static,
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    T: 'static,
{
    stream::unfold(Watch::new(clients, seed), |mut watch| async move {
        let event = watch.next().await;
        Some((event, watch))
    })
    .filter_map(move |event| std::future::ready(change(event, &decode)))
}

fn change<K: Resource, T>(event: Event<K>, decode: impl Fn(K) -> Option<Change<T>>) -> Option<Change<T>> {
    match event {
        Event::Init => Some(Change::ReplaceStarted),
        // A list deletes the objects that it does not contain when it is complete.
        Event::InitApply(object) => decode(object).filter(|change| matches!(change, Change::Applied(_))),
        Event::InitDone => Some(Change::Replaced),
        Event::Apply(object) => decode(object),
        Event::Delete(object) => {
            let meta = object.meta();
            let name = meta.name.as_deref().unwrap_or_default().into();
            let uid = Uid(meta.uid.as_deref().unwrap_or_default().into());
            Some(Change::Deleted { name, uid })
        }
    }
}

fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE_SIZE)
}

/// The API server's response to the list or watch.
fn response(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}

/// Whether the API server refused to start a watch, and is not overloaded: a list would cost it more.
fn is_refused_start(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::WatchStartFailed(_) => response(error),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::NoResourceVersion => None,
    };
    status.is_some_and(|status| status.code != TOO_MANY_REQUESTS)
}

/// The request that failed, and the error without the second, structured copy of the response that kube's `Display` adds.
fn describe(error: &watcher::Error) -> (Stage, String) {
    match error {
        watcher::Error::InitialListFailed(cause) => (Stage::List, format!("cannot list: {}", chain(cause))),
        watcher::Error::WatchStartFailed(cause) => (Stage::Watch, format!("cannot watch: {}", chain(cause))),
        watcher::Error::WatchFailed(cause) => {
            (Stage::Watch, format!("the watch was cut off: {}", chain(cause)))
        }
        watcher::Error::WatchError(status) => {
            (Stage::Watch, format!("the watch was ended: {}", answered(status)))
        }
        watcher::Error::NoResourceVersion => (
            Stage::List,
            "the API server's response has no resourceVersion".to_owned(),
        ),
    }
}

/// `retryAfterSeconds` of the response's Status.
fn retry_after(error: &watcher::Error) -> Option<Duration> {
    let seconds = response(error)?.details.as_ref()?.retry_after_seconds;
    Some(Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests;
