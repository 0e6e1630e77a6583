//! Queries on a snapshot, without I/O and without a clock.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};

use crate::objects::{
    AttachmentExt, ClaimExt, EventExt, LeaseExt, NodeExt, ObjectExt, PodExt, VolumeExt, text,
};
use crate::report::{Actor, Cause, Finding, State};
use crate::rules::{self, CsiSource, Refusal};
use crate::snapshot::{Lookup, NamespacedName, Snapshot};
use crate::time;

/// A snapshot, the current time, and the duration after which a step counts as stuck.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterView<'s> {
    pub(crate) snapshot: &'s Snapshot,
    pub(crate) now: Timestamp,
    pub(crate) stuck_after: Duration,
}

/// One volume on its way to or from one node, as far as its objects are known.
#[derive(Clone, Debug)]
pub(crate) struct VolumePath<'s> {
    pub(crate) view: ClusterView<'s>,
    /// A pod that needs the volume on the node.
    pub(crate) pod: Option<&'s Pod>,
    /// The pod's name for the volume.
    pub(crate) pod_volume: Option<&'s str>,
    pub(crate) claim: Option<NamespacedName>,
    /// Name of the PersistentVolume.
    pub(crate) volume_name: Option<String>,
    pub(crate) attachment: Option<&'s VolumeAttachment>,
    pub(crate) node_name: Option<&'s str>,
}

/// The leader of a driver's attacher, by its lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Leader<'s> {
    /// The leases could not be read.
    Unknown,
    /// There is no lease: no attacher has run, or it runs without leader election.
    NoLease,
    /// The last leader released the lease.
    Released(&'s Lease),
    /// The holder stopped renewing the lease.
    Expired(&'s Lease),
    Held(&'s Lease),
}

// === impl ClusterView ===

impl<'s> ClusterView<'s> {
    /// The state of a step that has been due since then.
    pub(crate) fn pending(&self, since: Option<Timestamp>) -> State {
        match since {
            Some(since) if self.age(since) >= self.stuck_after => State::Stuck,
            Some(_) | None => State::Progressing,
        }
    }

    pub(crate) fn age(&self, since: Timestamp) -> Duration {
        time::age(since, self.now)
    }

    pub(crate) fn node(&self, name: &str) -> &'s Lookup<Node> {
        self.snapshot.nodes.get(name).unwrap_or(&Lookup::Unknown)
    }

    pub(crate) fn csi_node(&self, name: &str) -> &'s Lookup<CSINode> {
        self.snapshot.csi_nodes.get(name).unwrap_or(&Lookup::Unknown)
    }

    pub(crate) fn claim(&self, name: &NamespacedName) -> &'s Lookup<PersistentVolumeClaim> {
        self.snapshot.claims.get(name).unwrap_or(&Lookup::Unknown)
    }

    pub(crate) fn volume(&self, name: &str) -> &'s Lookup<PersistentVolume> {
        self.snapshot.volumes.get(name).unwrap_or(&Lookup::Unknown)
    }

    /// Whether the CSIDriver object says `attachRequired: false`.
    pub(crate) fn needs_no_attachment(&self, driver: &str) -> bool {
        let driver = self.snapshot.drivers.get(driver).and_then(Lookup::found);
        driver.is_some_and(|driver| driver.spec.attach_required == Some(false))
    }

    /// Pods that mount the claim and are not terminated, each with its name for the volume.
    pub(crate) fn pods_using(
        &self,
        claim: &NamespacedName,
    ) -> impl Iterator<Item = (&'s Pod, &'s str)> + use<'s> {
        let wanted = claim.clone();
        let pods = self.snapshot.pods.iter().filter(|pod| !pod.is_terminated());
        pods.filter_map(move |pod| {
            let (volume, _) = pod.claims().find(|(_, claim)| *claim == wanted)?;
            Some((pod, volume))
        })
    }

    /// Warnings about an object, the newest first.
    pub(crate) fn events(&self, kind: &str, object: &NamespacedName) -> Vec<&'s Event> {
        let about = |event: &&Event| {
            let involved = &event.involved_object;
            let namespace = text(&involved.namespace);
            text(&involved.kind) == kind
                && text(&involved.name) == object.name
                && (namespace.is_empty() || namespace == object.namespace)
        };
        let mut events: Vec<_> = self.snapshot.events.iter().filter(about).collect();
        events.sort_by_key(|event| Reverse(event.last_seen()));
        events
    }

    /// The leader by the newest lease; the attacher may have been moved to another namespace.
    pub(crate) fn leader(&self, driver: &str) -> Leader<'s> {
        let Some(leases) = self.snapshot.leases.get(driver).and_then(Lookup::found) else {
            return Leader::Unknown;
        };
        let Some(lease) = leases.iter().max_by_key(|lease| lease.renewed_at()) else {
            return Leader::NoLease;
        };
        if lease.holder().is_empty() {
            Leader::Released(lease)
        } else if lease.expires_at().is_none_or(|end| end < self.now) {
            Leader::Expired(lease)
        } else {
            Leader::Held(lease)
        }
    }

    /// The released or expired lease; `None` if the attacher has written since, because then it runs without leader
    /// election.
    pub(crate) fn ended_lease(&self, driver: &str, last_write: Option<Timestamp>) -> Option<Leader<'s>> {
        let leader = self.leader(driver);
        match leader {
            Leader::Expired(lease) | Leader::Released(lease) if lease.expires_at() >= last_write => {
                Some(leader)
            }
            Leader::Expired(_)
            | Leader::Released(_)
            | Leader::Unknown
            | Leader::NoLease
            | Leader::Held(_) => None,
        }
    }

    /// The pod that holds a lease.
    pub(crate) fn holder(&self, lease: &Lease) -> &'s Lookup<Pod> {
        let holder = NamespacedName::new(lease.namespace(), lease.holder());
        self.snapshot.holders.get(&holder).unwrap_or(&Lookup::Unknown)
    }
}

// === impl VolumePath ===

impl<'s> VolumePath<'s> {
    /// The path of an attachment. Of the pods on the node, one that is still pending comes first.
    pub(crate) fn of_attachment(view: ClusterView<'s>, attachment: &'s VolumeAttachment) -> Self {
        let volume_name = attachment.volume_name().map(str::to_owned);
        let claim = volume_name.as_deref().and_then(|name| claim_of(view, name));
        let mut path = Self {
            attachment: Some(attachment),
            node_name: Some(&attachment.spec.node_name),
            ..Self::unused(view, claim, volume_name)
        };
        let mut pods = path.pods_on_node();
        pods.sort_by_key(|(pod, _)| (pod.phase() == "Running", pod.created_at()));
        if let Some((pod, volume)) = pods.first() {
            (path.pod, path.pod_volume) = (Some(*pod), Some(*volume));
        }
        path
    }

    /// The path of a pod's volume to the pod's node.
    pub(crate) fn of_pod(
        view: ClusterView<'s>,
        pod: &'s Pod,
        pod_volume: &'s str,
        claim: NamespacedName,
    ) -> Self {
        let volume_name = view.claim(&claim).found().and_then(ClaimExt::volume_name);
        let node_name = Some(pod.node_name()).filter(|node| !node.is_empty());
        let attachment = view.snapshot.attachments.iter().find(|va| {
            volume_name.is_some()
                && va.volume_name() == volume_name
                && node_name == Some(va.spec.node_name.as_str())
        });
        Self {
            pod: Some(pod),
            pod_volume: Some(pod_volume),
            attachment,
            node_name,
            ..Self::unused(view, Some(claim), volume_name.map(str::to_owned))
        }
    }

    /// A volume or a claim that no pod needs.
    pub(crate) fn unused(
        view: ClusterView<'s>,
        claim: Option<NamespacedName>,
        volume_name: Option<String>,
    ) -> Self {
        Self {
            view,
            pod: None,
            pod_volume: None,
            claim,
            volume_name,
            attachment: None,
            node_name: None,
        }
    }

    /// The finding that a step has been due since then.
    pub(crate) fn due(
        &self,
        since: Option<Timestamp>,
        cause: Cause,
        actor: Actor,
        summary: impl Into<String>,
    ) -> Finding {
        Finding::new(cause, self.view.pending(since), actor, summary).since(since)
    }

    /// Pods on the node that use the volume and are not terminated.
    pub(crate) fn pods_on_node(&self) -> Vec<(&'s Pod, &'s str)> {
        let Some(claim) = &self.claim else {
            return Vec::new();
        };
        let on_node = |(pod, _): &(&Pod, &str)| Some(pod.node_name()) == self.node_name;
        self.view.pods_using(claim).filter(on_node).collect()
    }

    /// The PersistentVolume, if it was read.
    pub(crate) fn volume(&self) -> Option<&'s PersistentVolume> {
        self.view.volume(self.volume_name.as_deref()?).found()
    }

    /// Name of the driver: the attachment's, else the volume's.
    pub(crate) fn driver(&self) -> Option<String> {
        match self.attachment {
            Some(va) => Some(va.spec.attacher.clone()),
            None => rules::driver_of(self.volume()?),
        }
    }

    /// The CSI source of the volume.
    pub(crate) fn csi(&self) -> Option<CsiSource> {
        match self.attachment {
            Some(va) if va.is_inline() => rules::inline_csi_source(va),
            Some(_) | None => rules::csi_source(self.volume()?),
        }
    }

    /// Whether the volume is specified on the attachment itself.
    pub(crate) fn is_inline(&self) -> bool {
        self.attachment.is_some_and(AttachmentExt::is_inline)
    }

    /// The volume's unique name, by which a node's status lists it.
    pub(crate) fn unique_name(&self) -> Option<String> {
        let csi = self.csi()?;
        Some(format!("kubernetes.io/csi/{}^{}", csi.driver, csi.handle))
    }

    /// Whether several nodes may have the volume.
    pub(crate) fn is_multi_node(&self) -> bool {
        self.volume().is_some_and(rules::is_multi_node)
    }

    /// The node, if it was read.
    pub(crate) fn node(&self) -> Option<&'s Node> {
        self.view.node(self.node_name?).found()
    }

    /// Whether the Node object does not exist.
    pub(crate) fn node_is_gone(&self) -> bool {
        self.node_name
            .is_some_and(|name| self.view.node(name).is_not_found())
    }

    /// If the node is not ready: since when, and the message of its condition.
    pub(crate) fn node_not_ready(&self) -> Option<(Option<Timestamp>, &'s str)> {
        let ready = self.node()?.ready()?;
        (ready.status != "True").then(|| {
            let message = match text(&ready.message) {
                "" => text(&ready.reason),
                message => message,
            };
            (ready.last_transition_time.as_ref().map(|time| time.0), message)
        })
    }

    /// Whether `node.status.volumesAttached` lists the volume, for which kubelet waits.
    pub(crate) fn is_in_volumes_attached(&self) -> Option<bool> {
        let (node, name) = (self.node()?, self.unique_name()?);
        Some(node.lists_attached(&name))
    }

    /// Whether kubelet reports the volume in `node.status.volumesInUse`.
    pub(crate) fn is_in_use(&self) -> bool {
        let (Some(node), Some(name)) = (self.node(), self.unique_name()) else {
            return false;
        };
        node.lists_in_use(&name)
    }

    /// The reason why the attacher refuses to attach or detach, if enough was read to apply its rules.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let volume = match self.volume_name.as_deref().map(|name| self.view.volume(name)) {
            Some(Lookup::Found(volume)) => Some(volume),
            Some(Lookup::NotFound) | None => None,
            Some(Lookup::Unknown) => return None,
        };
        let node = match self.view.csi_node(self.node_name?) {
            Lookup::Found(node) => Some(node),
            Lookup::NotFound => None,
            Lookup::Unknown => return None,
        };
        let va = self.attachment?;
        let refusal = rules::refusal(va, volume, node)?;
        // The Go sidecar does not have this one, and only the text shows which attacher it is.
        let is_written = || {
            let text = refusal.to_string();
            let mut errors = [va.attach_error(), va.detach_error()].into_iter().flatten();
            errors.any(|error| error.message.as_ref() == Some(&text))
        };
        (!matches!(refusal, Refusal::VolumeRecreated(_)) || is_written()).then_some(refusal)
    }

    /// The finalizer of the driver's attacher.
    pub(crate) fn finalizer(&self) -> Option<String> {
        Some(rules::finalizer(&self.driver()?))
    }

    /// The volume's attachments to other nodes.
    pub(crate) fn attachments_elsewhere(&self) -> impl Iterator<Item = &'s VolumeAttachment> {
        self.view.snapshot.attachments.iter().filter(|va| {
            self.volume_name.is_some()
                && va.volume_name() == self.volume_name.as_deref()
                && Some(va.spec.node_name.as_str()) != self.node_name
        })
    }
}

/// The claim that a volume is bound to.
pub(crate) fn claim_of(view: ClusterView<'_>, volume: &str) -> Option<NamespacedName> {
    view.volume(volume).found()?.claim()
}
