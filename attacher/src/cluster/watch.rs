//! Watches that hand on our small types.
//!
//! kube's watcher does the list, the resumption and the re-list; its objects are converted one by
//! one as they arrive, so what is not ours takes no memory beyond its page of the list.

use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use kube::core::Resource;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};

use crate::index::Change;
use crate::model::wire::{AttachmentObject, CsiNodeObject, VolumeObject};
use crate::model::{Attachment, Driver, Node, Uid, Volume};
use crate::report::chain;

/// The VolumeAttachments of `driver`, for ever.
pub fn attachments(client: &Client, driver: Arc<Driver>) -> impl Stream<Item = Change<Attachment>> + use<> {
    changes(client, "VolumeAttachment", move |object: AttachmentObject| {
        Kept::ours_or_never(Attachment::from_wire(object, &driver))
    })
}

/// The PersistentVolumes that concern `driver`, for ever.
pub fn volumes(client: &Client, driver: Arc<Driver>) -> impl Stream<Item = Change<Volume>> + use<> {
    changes(client, "PersistentVolume", move |object: VolumeObject| {
        let volume = Volume::from_wire(object, &driver);
        if volume.concerns(&driver) {
            Kept::Ours(volume)
        } else {
            // It may have been: another driver's volume from which our finalizer came off.
            Kept::NoLonger {
                name: volume.name,
                uid: volume.uid,
            }
        }
    })
}

/// All CSINodes, for ever.
pub fn nodes(client: &Client, driver: Arc<Driver>) -> impl Stream<Item = Change<Node>> + use<> {
    changes(client, "CSINode", move |object: CsiNodeObject| {
        Kept::Ours(Node::from_wire(object, &driver))
    })
}

/// What becomes of an object that the watch shows.
enum Kept<T> {
    Ours(T),
    Never,
    NoLonger { name: Arc<str>, uid: Uid },
}

// === impl Kept ===

impl<T> Kept<T> {
    fn ours_or_never(object: Option<T>) -> Self {
        object.map_or(Self::Never, Self::Ours)
    }
}

fn changes<K, T, F>(
    client: &Client,
    kind: &'static str,
    keep: F,
) -> impl Stream<Item = Change<T>> + use<K, T, F>
where
    F: Fn(K) -> Kept<T> + Send + 'static,
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    T: 'static,
{
    let api: Api<K> = Api::all(client.clone());
    // A watcher that the server answers with 410 when it asks to resume would ask the same for ever
    // (kube resumes from the version it has). The one cure is a new list, hence a new watcher.
    stream::unfold(api, |api| async move {
        let events = watcher(api.clone(), watcher::Config::default()).default_backoff();
        let until_expired = events.scan(false, |expired, event| {
            let stop = std::mem::replace(expired, event.as_ref().is_err_and(is_expired));
            std::future::ready((!stop).then_some(event))
        });
        Some((until_expired, api))
    })
    .flatten()
    .filter_map(move |event| {
        let change = match event {
            Ok(event) => change(event, &keep),
            Err(error) => {
                tracing::warn!(kind, error = chain(&error), "watch failed and will be resumed");
                None
            }
        };
        std::future::ready(change)
    })
}

fn change<K: Resource, T>(event: Event<K>, keep: impl Fn(K) -> Kept<T>) -> Option<Change<T>> {
    match event {
        Event::Init => Some(Change::Listing),
        Event::InitApply(object) => match keep(object) {
            Kept::Ours(object) => Some(Change::Put(object)),
            Kept::Never | Kept::NoLonger { .. } => None,
        },
        Event::InitDone => Some(Change::Listed),
        Event::Apply(object) => match keep(object) {
            Kept::Ours(object) => Some(Change::Put(object)),
            Kept::NoLonger { name, uid } => Some(Change::Gone { name, uid }),
            Kept::Never => None,
        },
        Event::Delete(object) => {
            let meta = object.meta();
            let name = meta.name.as_deref().unwrap_or_default().into();
            let uid = Uid(meta.uid.as_deref().unwrap_or_default().into());
            Some(Change::Gone { name, uid })
        }
    }
}

fn is_expired(error: &watcher::Error) -> bool {
    const GONE: u16 = 410;
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code == GONE,
        watcher::Error::WatchError(status) => status.code == GONE,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}
