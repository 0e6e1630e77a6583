//! The kinds of objects that the garbage collector watches: all except events and ServiceAccounts.

use std::any::TypeId;
use std::fmt::Debug;

use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::graph::{Event, events_of};
use crate::informer::Informer;
use crate::informers::Informers;

/// Informers of the kinds that no other controller shares.
#[derive(Clone, Default)]
pub(super) struct OtherInformers {
    leases: Informer<Lease>,
    secrets: Informer<Secret>,
}

/// Looks up an object by namespace, name and UID.
type Lookup = Box<dyn Fn(&str, &str, &str) -> bool + Send + Sync>;

/// A kind of objects.
pub(super) struct Kind {
    pub(super) resource: ApiResource,
    pub(super) namespaced: bool,
    /// Whether the informer has the object with this namespace, name and UID.
    pub(super) has: Lookup,
}

/// The kinds and their changes.
#[derive(Default)]
pub(super) struct Monitors {
    pub(super) kinds: Vec<Kind>,
    pub(super) events: SelectAll<BoxStream<'static, Vec<Event>>>,
}

// === impl OtherInformers ===

impl OtherInformers {
    pub(super) async fn run(self, client: &Client) {
        futures::join!(
            self.leases.run(Api::all(client.clone())),
            self.secrets.run(Api::all(client.clone())),
        );
    }

    pub(super) async fn wait_for_sync(&self) {
        self.leases.wait_for_sync().await;
        self.secrets.wait_for_sync().await;
    }
}

// === impl Monitors ===

impl Monitors {
    /// Subscribes to the changes of all kinds.
    pub(super) fn new(informers: &Informers, others: &OtherInformers) -> Self {
        let mut monitors = Self::default();
        monitors.add(&informers.pods);
        monitors.add(&informers.nodes);
        monitors.add(&informers.claims);
        monitors.add(&informers.volumes);
        monitors.add(&informers.attachments);
        monitors.add(&informers.csi_nodes);
        monitors.add(&informers.csi_drivers);
        monitors.add(&informers.classes);
        monitors.add(&informers.capacities);
        monitors.add(&others.leases);
        monitors.add(&informers.namespaces);
        monitors.add(&others.secrets);
        monitors
    }

    fn add<K>(&mut self, informer: &Informer<K>)
    where
        K: Resource<DynamicType = (), Scope: 'static>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let number = self.kinds.len();
        let mut changes = informer.subscribe();
        let changes = stream::poll_fn(move |context| changes.poll_recv(context));
        self.events
            .push(changes.map(move |change| events_of(number, &change)).boxed());
        let informer = informer.clone();
        self.kinds.push(Kind {
            resource: ApiResource::erase::<K>(&()),
            namespaced: TypeId::of::<K::Scope>() == TypeId::of::<NamespaceResourceScope>(),
            has: Box::new(move |namespace, name, uid| {
                let found = informer.get(namespace, name);
                found.is_some_and(|object| object.meta().uid.as_deref() == Some(uid))
            }),
        });
    }
}
