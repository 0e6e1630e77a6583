//! Reads the objects that one explanation is about, from the subject outwards.
//!
//! The walk is bounded: a list is read in pages of which only what is concerned is kept, and of the
//! objects that are read one by one there are at most [`MANY`] of a kind.

use std::collections::BTreeSet;

use futures::{StreamExt, stream};

use super::objects::{Attachment, Claim, CsiNode, Event, Lease, Pod, Volume};
use super::reader::{Reader, Trouble, segment};
use super::snapshot::{Look, Place, Snapshot};
use super::subject::{Kind, Subject};

/// Objects of one kind that are read one by one.
const MANY: usize = 500;
/// Reads under way at once.
const AT_ONCE: usize = 16;
/// Objects whose events are read.
const TALKERS: usize = 16;
/// Namespaces in which attachers are often found, for readers who may not list leases everywhere.
const LIKELY_NAMESPACES: [&str; 2] = ["kube-system", "default"];
/// Where events about objects of the whole cluster are kept.
const CLUSTER_EVENTS: &str = "default";

/// The walk so far.
struct Walk<'r> {
    reader: &'r Reader,
    snapshot: Snapshot,
}

/// Reads all that concerns `subject`.
///
/// # Errors
///
/// The subject itself cannot be read; anything else is only a gap.
pub(super) async fn gather(
    reader: &Reader,
    subject: Subject,
    driver: Option<&str>,
) -> Result<Snapshot, Trouble> {
    let mut walk = Walk {
        reader,
        snapshot: Snapshot {
            subject,
            ..Snapshot::default()
        },
    };
    walk.subject().await?;
    walk.claims_and_volumes().await;
    walk.pods().await;
    walk.attachments().await;
    // Attachments of a node name volumes that no pod does any more.
    walk.claims_and_volumes().await;
    walk.nodes().await;
    if walk.has_no_trace_of_node() {
        return Err(Trouble::Absent);
    }
    walk.drivers(driver).await;
    walk.classes().await;
    walk.events().await;
    Ok(walk.snapshot)
}

// === impl Walk ===

impl Walk<'_> {
    async fn subject(&mut self) -> Result<(), Trouble> {
        let subject = self.snapshot.subject.clone();
        let name = &subject.name;
        match subject.kind {
            Kind::Pod => {
                let pod = self.reader.subject(&pod_path(&subject.namespace, name)).await?;
                self.snapshot.pods.push(pod);
            }
            Kind::Claim => {
                let claim = self.reader.subject(&claim_path(&subject.namespace, name)).await?;
                let place = (subject.namespace, subject.name);
                self.snapshot.claims.insert(place, Look::Found(claim));
            }
            Kind::Volume => {
                let volume = read_volume(self.reader, name).await?;
                self.snapshot.volumes.insert(subject.name, Look::Found(volume));
            }
            Kind::Attachment => {
                let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", segment(name));
                self.snapshot.attachments.push(self.reader.subject(&path).await?);
            }
            Kind::Node => {
                let node = self
                    .reader
                    .subject(&format!("/api/v1/nodes/{}", segment(name)))
                    .await;
                // Attachments outlive their node, and then this is what is to be explained.
                let node = match node {
                    Err(Trouble::Absent) => Look::Absent,
                    node => Look::Found(node?),
                };
                self.snapshot.nodes.insert(subject.name, node);
            }
        }
        Ok(())
    }

    /// Whether the explanation is to be of a node, and nothing tells that there ever was one of this name.
    fn has_no_trace_of_node(&self) -> bool {
        let Snapshot {
            subject,
            nodes,
            csi_nodes,
            attachments,
            attachments_complete,
            pods,
            pods_hidden,
            ..
        } = &self.snapshot;
        let is_absent = nodes.get(&subject.name).is_some_and(Look::is_absent)
            && csi_nodes.get(&subject.name).is_some_and(Look::is_absent);
        let is_named = !attachments.is_empty() || !attachments_complete || !pods.is_empty() || *pods_hidden;
        subject.kind == Kind::Node && is_absent && !is_named
    }

    /// Claims of the pods, volumes of the claims and attachments, claims of the volumes.
    async fn claims_and_volumes(&mut self) {
        let of_pods = self.snapshot.pods.iter().flat_map(|pod| {
            let namespace = &pod.metadata.namespace;
            pod.claims().map(|(_, claim)| (namespace.clone(), claim))
        });
        self.read_claims(of_pods.collect()).await;
        let of_claims = self.snapshot.claims.values().filter_map(Look::found);
        let of_claims = of_claims.map(|claim| claim.spec.volume_name.clone());
        let of_attachments = self
            .snapshot
            .attachments
            .iter()
            .filter_map(Attachment::volume_name);
        let names: BTreeSet<String> = of_claims
            .chain(of_attachments)
            .filter(|name| !name.is_empty() && !self.snapshot.volumes.contains_key(name))
            .take(MANY)
            .collect();
        let reader = self.reader;
        let volumes = each(names, |name| async move {
            let volume = read_volume(reader, &name).await;
            (name, reader.look("persistentvolumes", volume))
        });
        self.snapshot.volumes.extend(volumes.await);
        let of_volumes = self.snapshot.volumes.values().filter_map(Look::found);
        let of_volumes = of_volumes.filter_map(|volume| volume.more.spec.claim_ref.as_ref());
        let places = of_volumes.map(|claim| (claim.namespace.clone(), claim.name.clone()));
        self.read_claims(places.collect()).await;
    }

    async fn read_claims(&mut self, places: BTreeSet<Place>) {
        let known = &self.snapshot.claims;
        let wanted = places.into_iter().filter(|place| !known.contains_key(place));
        let wanted: BTreeSet<_> = wanted.take(MANY).collect();
        let reader = self.reader;
        let claims = each(wanted, |place: Place| async move {
            let path = claim_path(&place.0, &place.1);
            let claim = reader.get::<Claim>("persistentvolumeclaims", &path).await;
            (place, claim)
        });
        self.snapshot.claims.extend(claims.await);
    }

    /// Pods on the node in question, or that use a claim in question.
    async fn pods(&mut self) {
        if self.snapshot.subject.kind == Kind::Node {
            let selector = format!(
                "&fieldSelector=spec.nodeName%3D{}",
                segment(&self.snapshot.subject.name)
            );
            let keep = |pod: &Pod| pod.claims().next().is_some();
            let (mut found, complete) = self.reader.list("pods", "/api/v1/pods", &selector, keep).await;
            self.snapshot.pods.append(&mut found);
            self.snapshot.pods_hidden = !complete;
        }
        self.claims_and_volumes().await;
        let claims: BTreeSet<Place> = match self.snapshot.subject.kind {
            // Only what a pod waits for may be held by pods elsewhere.
            Kind::Node => awaited(&self.snapshot.pods),
            Kind::Pod | Kind::Claim | Kind::Volume | Kind::Attachment => {
                self.snapshot.claims.keys().cloned().collect()
            }
        };
        let known: BTreeSet<String> = uids(&self.snapshot.pods);
        let fresh = |pod: &Pod| !known.contains(&pod.metadata.uid);
        let (mut found, mut hidden) = (Vec::new(), self.snapshot.pods_hidden);
        let namespaces: BTreeSet<&String> = claims.iter().map(|(namespace, _)| namespace).collect();
        for namespace in namespaces {
            let path = format!("/api/v1/namespaces/{}/pods", segment(namespace));
            let uses = |pod: &Pod| {
                fresh(pod)
                    && pod
                        .claims()
                        .any(|(_, claim)| claims.contains(&(namespace.clone(), claim)))
            };
            let what = format!("pods in namespace {namespace}");
            let (pods, complete) = self.reader.list(&what, &path, "", uses).await;
            found.extend(pods);
            hidden |= !complete;
        }
        self.snapshot.pods.append(&mut found);
        self.snapshot.pods_hidden = hidden;
    }

    async fn attachments(&mut self) {
        let snapshot = &self.snapshot;
        let node = (snapshot.subject.kind == Kind::Node).then_some(&snapshot.subject.name);
        let known: BTreeSet<&String> = snapshot.attachments.iter().map(|va| &va.metadata.uid).collect();
        let concerned = |va: &Attachment| {
            let names_volume = || {
                va.volume_name()
                    .is_some_and(|name| snapshot.volumes.contains_key(&name))
            };
            !known.contains(&va.metadata.uid) && (node == Some(&va.spec.node_name) || names_volume())
        };
        let path = "/apis/storage.k8s.io/v1/volumeattachments";
        let (mut found, complete) = self.reader.list("volumeattachments", path, "", concerned).await;
        self.snapshot.attachments.append(&mut found);
        self.snapshot.attachments_complete = complete;
    }

    /// Nodes to which something is attached, or where a pod is.
    async fn nodes(&mut self) {
        let snapshot = &self.snapshot;
        let of_pods = snapshot.pods.iter().map(|pod| &pod.spec.node_name);
        let of_attachments = snapshot.attachments.iter().map(|va| &va.spec.node_name);
        let of_subject = snapshot.nodes.keys();
        let names = of_subject.chain(of_pods).chain(of_attachments);
        let names: BTreeSet<String> = names.filter(|name| !name.is_empty()).cloned().collect();
        let names: BTreeSet<String> = names.into_iter().take(MANY).collect();
        let reader = self.reader;
        let csi_nodes = each(names.clone(), |name: String| async move {
            let path = format!("/apis/storage.k8s.io/v1/csinodes/{}", segment(&name));
            let both = reader.subject_twice(&path).await;
            let node = both.map(|(more, wire)| CsiNode { more, wire });
            (name, reader.look("csinodes", node))
        });
        let csi_nodes = csi_nodes.await;
        let known = &self.snapshot.nodes;
        let names = names.into_iter().filter(|name| !known.contains_key(name));
        let nodes = each(names, |name: String| async move {
            let node = reader
                .get("nodes", &format!("/api/v1/nodes/{}", segment(&name)))
                .await;
            (name, node)
        });
        let nodes = nodes.await;
        self.snapshot.nodes.extend(nodes);
        self.snapshot.csi_nodes.extend(csi_nodes);
    }

    /// CSIDriver objects, and the leases of the drivers' attachers.
    async fn drivers(&mut self, named: Option<&str>) {
        let snapshot = &self.snapshot;
        let of_attachments = snapshot.attachments.iter().map(|va| va.spec.attacher.clone());
        let of_volumes = snapshot.volumes.values().filter_map(Look::found);
        let of_volumes = of_volumes.filter_map(|volume| volume.model().spec.driver().map(str::to_owned));
        let named = named.map(str::to_owned);
        let names = of_attachments.chain(of_volumes).chain(named);
        let names: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
        for name in names {
            let path = format!("/apis/storage.k8s.io/v1/csidrivers/{}", segment(&name));
            let driver = self.reader.get("csidrivers", &path).await;
            let leases = self.leases(&name).await;
            for lease in leases.found().into_iter().flatten() {
                let Some(holder) = lease
                    .spec
                    .holder_identity
                    .as_ref()
                    .filter(|holder| !holder.is_empty())
                else {
                    continue;
                };
                let place = (lease.metadata.namespace.clone(), holder.clone());
                let pod = self
                    .reader
                    .get("pods of attachers", &pod_path(&place.0, &place.1))
                    .await;
                self.snapshot.holders.insert(place, pod);
            }
            self.snapshot.drivers.insert(name.clone(), driver);
            self.snapshot.leases.insert(name, leases);
        }
    }

    /// The name is known; the namespace is that of the attacher, wherever it is.
    async fn leases(&self, driver: &str) -> Look<Vec<Lease>> {
        let name = crate::leader_election::name(driver);
        let selector = format!("&fieldSelector=metadata.name%3D{}", segment(&name));
        let path = "/apis/coordination.k8s.io/v1/leases";
        let (leases, complete) = self
            .reader
            .list("leases in all namespaces", path, &selector, |_| true)
            .await;
        if complete {
            return Look::Found(leases);
        }
        let subject = self.snapshot.subject.namespace.as_str();
        let mut namespaces: BTreeSet<&str> = LIKELY_NAMESPACES.into();
        namespaces.extend((!subject.is_empty()).then_some(subject));
        for namespace in namespaces {
            let path = format!(
                "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}",
                segment(namespace),
                segment(&name)
            );
            // That this is forbidden too goes without saying.
            if let Ok(lease) = self.reader.subject(&path).await {
                return Look::Found(vec![lease]);
            }
        }
        Look::Unknown
    }

    /// Storage classes of claims that have no volume yet.
    async fn classes(&mut self) {
        let claims = self.snapshot.claims.values().filter_map(Look::found);
        let pending = claims.filter(|claim| claim.spec.volume_name.is_empty());
        let names: BTreeSet<String> = pending
            .filter_map(|claim| claim.spec.storage_class_name.clone())
            .filter(|name| !name.is_empty())
            .collect();
        let reader = self.reader;
        let classes = each(names, |name: String| async move {
            let path = format!("/apis/storage.k8s.io/v1/storageclasses/{}", segment(&name));
            (name, reader.get("storageclasses", &path).await)
        });
        self.snapshot.classes.extend(classes.await);
    }

    /// Events about pods that wait, claims without volume, and attachments.
    async fn events(&mut self) {
        let snapshot = &self.snapshot;
        let pods = snapshot.pods.iter().filter(|pod| pod.status.phase == "Pending");
        let pods = pods.map(|pod| ("Pod", pod.metadata.namespace.as_str(), pod.metadata.name.as_str()));
        let claims = snapshot.claims.iter().filter_map(|(place, claim)| {
            let unbound = claim.found()?.spec.volume_name.is_empty();
            unbound.then_some(("PersistentVolumeClaim", place.0.as_str(), place.1.as_str()))
        });
        let attachments = snapshot.attachments.iter();
        let attachments =
            attachments.map(|va| ("VolumeAttachment", CLUSTER_EVENTS, va.metadata.name.as_str()));
        let talkers: Vec<_> = pods.chain(claims).chain(attachments).take(TALKERS).collect();
        let reader = self.reader;
        let events = each(talkers, |(kind, namespace, name)| async move {
            let path = format!("/api/v1/namespaces/{}/events", segment(namespace));
            let name = segment(name);
            let selector =
                format!("&fieldSelector=involvedObject.kind%3D{kind}%2CinvolvedObject.name%3D{name}");
            let what = format!("events in namespace {namespace}");
            let warns = |event: &Event| event.kind == "Warning";
            reader.list(&what, &path, &selector, warns).await.0
        });
        let events: Vec<Vec<Event>> = events.await;
        self.snapshot.events.extend(events.into_iter().flatten());
    }
}

async fn read_volume(reader: &Reader, name: &str) -> Result<Volume, Trouble> {
    let path = format!("/api/v1/persistentvolumes/{}", segment(name));
    let (more, wire) = reader.subject_twice(&path).await?;
    Ok(Volume { more, wire })
}

fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", segment(namespace), segment(name))
}

fn claim_path(namespace: &str, name: &str) -> String {
    let (namespace, name) = (segment(namespace), segment(name));
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
}

/// Claims of pods that do not run yet.
fn awaited(pods: &[Pod]) -> BTreeSet<Place> {
    let waiting = pods.iter().filter(|pod| pod.status.phase == "Pending");
    let claims = waiting.flat_map(|pod| {
        let namespace = &pod.metadata.namespace;
        pod.claims().map(|(_, claim)| (namespace.clone(), claim))
    });
    claims.collect()
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod.metadata.uid.clone()).collect()
}

/// Several reads at once.
async fn each<K, T, F: Future<Output = T>>(
    keys: impl IntoIterator<Item = K>,
    read: impl FnMut(K) -> F,
) -> Vec<T> {
    stream::iter(keys).map(read).buffered(AT_ONCE).collect().await
}
