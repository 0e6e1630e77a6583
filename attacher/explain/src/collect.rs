//! Reads the objects that one explanation needs, starting from the object to explain.
//!
//! Memory and requests are bounded: only the relevant objects of each list page are kept, and at most [`MAX_OBJECTS`]
//! objects of a kind are read one by one.

mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, Resource as ApiResource};

use crate::api::{ApiReader, ReadError};
use crate::objects::{AttachmentExt, ClaimExt, LeaseExt, ObjectExt, PodExt, VolumeExt, text};
use crate::resource::{Resource, ResourceKind, is_object_name};
use crate::rules;
use crate::snapshot::{Lookup, NamespacedName, Snapshot};

/// Objects of one kind that are read one by one.
const MAX_OBJECTS: usize = 500;
const CONCURRENT_REQUESTS: usize = 16;
/// Objects whose events are read, unless the whole cluster is explained.
const MAX_EVENT_SOURCES: usize = 16;
/// Where attachers often run, for users who may not list leases in all namespaces.
const LIKELY_LEASE_NAMESPACES: [&str; 2] = ["kube-system", "default"];
/// Events about cluster-scoped objects are in this namespace.
const CLUSTER_EVENTS_NAMESPACE: &str = "default";

/// The snapshot so far.
struct Collector<'r> {
    reader: &'r ApiReader,
    snapshot: Snapshot,
}

/// Reads `resource` and all related objects.
///
/// # Errors
///
/// The object itself cannot be read; anything else is only a gap.
pub(crate) async fn collect(
    reader: &ApiReader,
    resource: Resource,
    driver: Option<&str>,
) -> Result<Snapshot, ReadError> {
    let mut collector = Collector {
        reader,
        snapshot: Snapshot {
            resource,
            ..Snapshot::default()
        },
    };
    collector.read_resource().await?;
    collector.read_claims_and_volumes().await;
    collector.read_pods().await;
    collector.read_attachments().await;
    // Attachments to a node may name volumes that no pod uses any more.
    collector.read_claims_and_volumes().await;
    collector.read_nodes().await;
    if collector.is_unknown_node() {
        return Err(ReadError::NotFound);
    }
    collector.read_drivers(driver).await;
    collector.read_classes().await;
    collector.read_events().await;
    Ok(collector.snapshot)
}

// === impl Collector ===

impl Collector<'_> {
    fn cluster_api<K>(&self) -> Api<K>
    where
        K: ApiResource<DynamicType = ()>,
    {
        Api::all(self.reader.client())
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: ApiResource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.reader.client(), namespace)
    }

    async fn read_resource(&mut self) -> Result<(), ReadError> {
        let Resource {
            kind,
            namespace,
            name,
        } = self.snapshot.resource.clone();
        match kind {
            ResourceKind::Pod => {
                let pod = self.reader.get(&self.api(&namespace), &name).await?;
                self.snapshot.pods.push(pod);
            }
            ResourceKind::PersistentVolumeClaim => {
                let claim = self.reader.get(&self.api(&namespace), &name).await?;
                let name = NamespacedName::new(&namespace, &name);
                self.snapshot.claims.insert(name, Lookup::Found(claim));
            }
            ResourceKind::PersistentVolume => {
                let volume = self.reader.get(&self.cluster_api(), &name).await?;
                self.snapshot.volumes.insert(name, Lookup::Found(volume));
            }
            ResourceKind::VolumeAttachment => {
                let attachment = self.reader.get(&self.cluster_api(), &name).await?;
                self.snapshot.attachments.push(attachment);
            }
            ResourceKind::Cluster => self.read_waiting().await?,
            ResourceKind::Node => {
                // Attachments may outlive their Node object; then they are explained.
                let node = match self.reader.get(&self.cluster_api(), &name).await {
                    Err(ReadError::NotFound) => Lookup::NotFound,
                    node => Lookup::Found(node?),
                };
                self.snapshot.nodes.insert(name, node);
            }
        }
        Ok(())
    }

    /// Whether the resource is a node of which no object exists.
    fn is_unknown_node(&self) -> bool {
        let Snapshot {
            resource,
            nodes,
            csi_nodes,
            attachments,
            attachments_complete,
            pods,
            pods_incomplete,
            ..
        } = &self.snapshot;
        let is_not_found = nodes.get(&resource.name).is_some_and(Lookup::is_not_found)
            && csi_nodes.get(&resource.name).is_some_and(Lookup::is_not_found);
        let may_be_named =
            !attachments.is_empty() || !attachments_complete || !pods.is_empty() || *pods_incomplete;
        resource.kind == ResourceKind::Node && is_not_found && !may_be_named
    }

    /// Claims of the pods, volumes of the claims and attachments, claims of the volumes.
    async fn read_claims_and_volumes(&mut self) {
        let of_pods = self.snapshot.pods.iter().flat_map(PodExt::claims);
        self.read_claims(of_pods.map(|(_, claim)| claim).collect()).await;
        let claims = self.snapshot.claims.values().filter_map(Lookup::found);
        let of_claims = claims.filter_map(ClaimExt::volume_name);
        let of_attachments = self
            .snapshot
            .attachments
            .iter()
            .filter_map(AttachmentExt::volume_name);
        let names = of_claims.chain(of_attachments).map(str::to_owned).collect();
        let volumes = self
            .lookup_new("persistentvolumes", names, &self.snapshot.volumes)
            .await;
        self.snapshot.volumes.extend(volumes);
        let volumes = self.snapshot.volumes.values().filter_map(Lookup::found);
        self.read_claims(volumes.filter_map(VolumeExt::claim).collect())
            .await;
    }

    async fn read_claims(&mut self, names: BTreeSet<NamespacedName>) {
        let known = &self.snapshot.claims;
        let names = names.into_iter().filter(|name| !known.contains_key(name));
        let names: Vec<_> = names.take(MAX_OBJECTS).collect();
        let this = &*self;
        let claims = concurrently(names, |name| async move {
            let api: Api<PersistentVolumeClaim> = this.api(&name.namespace);
            let claim = this
                .reader
                .lookup("persistentvolumeclaims", &api, &name.name)
                .await;
            (name, claim)
        });
        let claims = claims.await;
        self.snapshot.claims.extend(claims);
    }

    /// Looks up the cluster-scoped objects of these names that are not known yet.
    async fn lookup_new<K>(
        &self,
        resources: &str,
        names: BTreeSet<String>,
        known: &BTreeMap<String, Lookup<K>>,
    ) -> Vec<(String, Lookup<K>)>
    where
        K: ApiResource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let names = names.into_iter().filter(|name| !known.contains_key(name));
        let names: Vec<_> = names.filter(|name| !name.is_empty()).take(MAX_OBJECTS).collect();
        let api = self.cluster_api::<K>();
        let api = &api;
        let lookup = |name: String| async move {
            let object = self.reader.lookup(resources, api, &name).await;
            (name, object)
        };
        concurrently(names, lookup).await
    }

    /// Pods on the node to explain, and pods that use one of the claims.
    async fn read_pods(&mut self) {
        let Resource { kind, name, .. } = self.snapshot.resource.clone();
        if kind == ResourceKind::Node {
            let selector = format!("spec.nodeName={name}");
            let keep = |pod: &Pod| pod.claims().next().is_some();
            let api = self.cluster_api();
            let (mut pods, complete) = self.reader.list("pods", &api, &selector, keep).await;
            self.snapshot.pods.append(&mut pods);
            self.snapshot.pods_incomplete = !complete;
        }
        self.read_claims_and_volumes().await;
        let claims: BTreeSet<NamespacedName> = match kind {
            // Only a claim that a pod is waiting for may be in use by pods on other nodes.
            ResourceKind::Node => pending_claims(&self.snapshot.pods),
            ResourceKind::Pod
            | ResourceKind::PersistentVolumeClaim
            | ResourceKind::PersistentVolume
            | ResourceKind::VolumeAttachment
            | ResourceKind::Cluster => self.snapshot.claims.keys().cloned().collect(),
        };
        let known: BTreeSet<String> = self
            .snapshot
            .pods
            .iter()
            .map(|pod| pod.uid().to_owned())
            .collect();
        let keep =
            |pod: &Pod| !known.contains(pod.uid()) && pod.claims().any(|(_, claim)| claims.contains(&claim));
        let mut scopes: BTreeMap<String, Api<Pod>> = BTreeMap::new();
        for NamespacedName { namespace, .. } in &claims {
            let (resources, api) = if kind == ResourceKind::Cluster {
                ("pods".to_owned(), self.cluster_api())
            } else {
                (format!("pods in namespace {namespace}"), self.api(namespace))
            };
            scopes.insert(resources, api);
        }
        for (resources, api) in scopes {
            let (mut pods, complete) = self.reader.list(&resources, &api, "", keep).await;
            self.snapshot.pods.append(&mut pods);
            self.snapshot.pods_incomplete |= !complete;
        }
    }

    async fn read_attachments(&mut self) {
        let snapshot = &self.snapshot;
        let node = (snapshot.resource.kind == ResourceKind::Node).then_some(&snapshot.resource.name);
        let known: BTreeSet<&str> = snapshot.attachments.iter().map(ObjectExt::uid).collect();
        let keep = |va: &VolumeAttachment| {
            let is_of_volume = va
                .volume_name()
                .is_some_and(|name| snapshot.volumes.contains_key(name));
            !known.contains(va.uid()) && (node == Some(&va.spec.node_name) || is_of_volume)
        };
        let api = self.cluster_api();
        let (mut attachments, complete) = self.reader.list("volumeattachments", &api, "", keep).await;
        self.snapshot.attachments.append(&mut attachments);
        self.snapshot.attachments_complete = complete;
    }

    /// Nodes of the pods and attachments.
    async fn read_nodes(&mut self) {
        let snapshot = &self.snapshot;
        let of_pods = snapshot.pods.iter().map(PodExt::node_name);
        let of_attachments = snapshot.attachments.iter().map(|va| va.spec.node_name.as_str());
        let of_resource = snapshot.nodes.keys().map(String::as_str);
        let names = of_resource.chain(of_pods).chain(of_attachments);
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        let csi_nodes = self
            .lookup_new("csinodes", names.clone(), &snapshot.csi_nodes)
            .await;
        let nodes = self.lookup_new("nodes", names, &snapshot.nodes).await;
        self.snapshot.nodes.extend(nodes);
        self.snapshot.csi_nodes.extend(csi_nodes);
    }

    /// CSIDriver objects, the leases of the drivers' attachers, and the pods that hold them.
    async fn read_drivers(&mut self, named: Option<&str>) {
        let snapshot = &self.snapshot;
        let of_attachments = snapshot.attachments.iter().map(|va| va.spec.attacher.clone());
        let volumes = snapshot.volumes.values().filter_map(Lookup::found);
        let of_volumes = volumes.filter_map(rules::driver_of);
        let names = of_attachments.chain(of_volumes).chain(named.map(str::to_owned));
        let names: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
        let drivers = self
            .lookup_new("csidrivers", names.clone(), &snapshot.drivers)
            .await;
        self.snapshot.drivers.extend(drivers);
        for driver in names {
            let leases = self.leases(&driver).await;
            for lease in leases.found().into_iter().flatten() {
                if lease.holder().is_empty() {
                    continue;
                }
                let holder = NamespacedName::new(lease.namespace(), lease.holder());
                let api = self.api(&holder.namespace);
                let pod = self.reader.lookup("pods of attachers", &api, &holder.name).await;
                self.snapshot.holders.insert(holder, pod);
            }
            self.snapshot.leases.insert(driver, leases);
        }
    }

    /// The lease's name is known; its namespace is the attacher's.
    async fn leases(&self, driver: &str) -> Lookup<Vec<Lease>> {
        let name = rules::lease_name(driver);
        let selector = format!("metadata.name={name}");
        let api = self.cluster_api();
        let (leases, complete) = self
            .reader
            .list("leases in all namespaces", &api, &selector, |_| true)
            .await;
        if complete {
            return Lookup::Found(leases);
        }
        let mut namespaces: BTreeSet<&str> = LIKELY_LEASE_NAMESPACES.into();
        namespaces.extend(Some(self.snapshot.resource.namespace.as_str()).filter(|name| !name.is_empty()));
        for namespace in namespaces {
            // The gap is recorded already.
            if let Ok(lease) = self.reader.get(&self.api(namespace), &name).await {
                return Lookup::Found(vec![lease]);
            }
        }
        Lookup::Unknown
    }

    /// Storage classes of claims that have no volume yet.
    async fn read_classes(&mut self) {
        let claims = self.snapshot.claims.values().filter_map(Lookup::found);
        let pending = claims.filter(|claim| claim.volume_name().is_none());
        let names = pending.map(|claim| claim.storage_class().to_owned()).collect();
        let classes = self
            .lookup_new("storageclasses", names, &self.snapshot.classes)
            .await;
        self.snapshot.classes.extend(classes);
    }

    /// Events about pending pods, claims without a volume, attachments and volumes.
    async fn read_events(&mut self) {
        let snapshot = &self.snapshot;
        let pods = snapshot.pods.iter().filter(|pod| pod.phase() == "Pending");
        let pods = pods.map(|pod| ("Pod", pod.namespace(), pod.name()));
        let claims = snapshot.claims.iter().filter_map(|(name, claim)| {
            let is_unbound = claim.found()?.volume_name().is_none();
            is_unbound.then_some(("PersistentVolumeClaim", &*name.namespace, &*name.name))
        });
        let attachments = snapshot.attachments.iter();
        let attachments = attachments.map(|va| ("VolumeAttachment", CLUSTER_EVENTS_NAMESPACE, va.name()));
        let volumes = snapshot.volumes.keys();
        let volumes = volumes.map(|name| ("PersistentVolume", CLUSTER_EVENTS_NAMESPACE, name.as_str()));
        let sources = pods.chain(claims).chain(attachments).chain(volumes);
        let limit = if snapshot.resource.kind == ResourceKind::Cluster {
            MAX_OBJECTS
        } else {
            MAX_EVENT_SOURCES
        };
        let sources: Vec<_> = sources
            .filter(|(_, _, name)| is_object_name(name))
            .take(limit)
            .map(|(kind, namespace, name)| {
                let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
                (namespace.to_owned(), selector)
            })
            .collect();
        let this = &*self;
        // Owned strings: of a future with borrowed ones, the compiler cannot prove that it is Send.
        let events = concurrently(sources, |(namespace, selector): (String, String)| async move {
            let resources = format!("events in namespace {namespace}");
            let is_warning = |event: &Event| text(&event.type_) == "Warning";
            let api = this.api(&namespace);
            this.reader.list(&resources, &api, &selector, is_warning).await.0
        });
        let events: Vec<Vec<Event>> = events.await;
        self.snapshot.events.extend(events.into_iter().flatten());
    }
}

/// Claims of pods that do not run yet.
fn pending_claims(pods: &[Pod]) -> BTreeSet<NamespacedName> {
    let pending = pods.iter().filter(|pod| pod.phase() == "Pending");
    pending.flat_map(PodExt::claims).map(|(_, claim)| claim).collect()
}

async fn concurrently<K, T, F: Future<Output = T>>(
    keys: impl IntoIterator<Item = K>,
    read: impl FnMut(K) -> F,
) -> Vec<T> {
    stream::iter(keys)
        .map(read)
        .buffered(CONCURRENT_REQUESTS)
        .collect()
        .await
}
