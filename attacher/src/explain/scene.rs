//! Questions that diagnoses ask of a snapshot, answered without I/O and without a clock.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::objects::{Attachment, Claim, CsiNode, Event, Lease, Node, Pod, Volume};
use super::report::State;
use super::snapshot::{Look, Place, Snapshot};
use crate::decide::{self, Facts, Refusal};
use crate::model;
use crate::model::{Capabilities, CsiSource, Driver};

/// A snapshot and the moment at which it is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'s> {
    pub(super) snapshot: &'s Snapshot,
    pub(super) now: Timestamp,
    /// How long a step may take before it counts as stuck.
    pub(super) patience: Duration,
}

/// One volume on its way to or from one node, as far as its objects are known.
#[derive(Clone, Debug)]
pub(super) struct Way<'s> {
    pub(super) scene: Scene<'s>,
    /// A pod that wants the volume on the node.
    pub(super) pod: Option<&'s Pod>,
    /// The pod's own name for the volume.
    pub(super) pod_volume: Option<&'s str>,
    pub(super) claim: Option<Place>,
    /// Name of the PersistentVolume.
    pub(super) volume: Option<String>,
    pub(super) attachment: Option<&'s Attachment>,
    /// Name of the node.
    pub(super) node: Option<&'s str>,
}

/// What the leases tell of a driver's attacher.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Leader<'s> {
    /// The leases could not be read.
    Unknown,
    /// There is none: no attacher ran here yet, or it runs without leader election.
    NoLease,
    /// The last leader gave it back.
    Released(&'s Lease),
    /// Its holder stopped renewing it.
    Stale(&'s Lease),
    /// Somebody leads.
    Held(&'s Lease),
}

// === impl Scene ===

impl<'s> Scene<'s> {
    /// How a step stands that somebody has been expected to take since then.
    pub(super) fn waiting(&self, since: Option<Timestamp>) -> State {
        match since {
            Some(since) if self.age(since) >= self.patience => State::Stuck,
            Some(_) | None => State::Progressing,
        }
    }

    /// How long ago something was; what other clocks put into the future is now.
    pub(super) fn age(&self, since: Timestamp) -> Duration {
        let age: SignedDuration = self.now.duration_since(since);
        Duration::try_from(age).unwrap_or_default()
    }

    pub(super) fn node(&self, name: &str) -> &'s Look<Node> {
        self.snapshot.nodes.get(name).unwrap_or(&Look::Unknown)
    }

    pub(super) fn csi_node(&self, name: &str) -> &'s Look<CsiNode> {
        self.snapshot.csi_nodes.get(name).unwrap_or(&Look::Unknown)
    }

    pub(super) fn claim(&self, place: &Place) -> &'s Look<Claim> {
        self.snapshot.claims.get(place).unwrap_or(&Look::Unknown)
    }

    pub(super) fn volume(&self, name: &str) -> &'s Look<Volume> {
        self.snapshot.volumes.get(name).unwrap_or(&Look::Unknown)
    }

    /// Whether the driver says that its volumes need no attachment.
    pub(super) fn needs_no_attachment(&self, driver: &str) -> bool {
        let driver = self.snapshot.drivers.get(driver).and_then(Look::found);
        driver.is_some_and(|driver| driver.spec.attach_required == Some(false))
    }

    /// Pods that mount the claim and have not ended.
    pub(super) fn pods_using(&self, place: &Place) -> impl Iterator<Item = (&'s Pod, &'s str)> + use<'s> {
        let place = place.clone();
        let pods = self.snapshot.pods.iter();
        pods.filter(|pod| !pod.is_over()).filter_map(move |pod| {
            let (volume, _) = pod
                .claims()
                .find(|(_, claim)| pod.metadata.namespace == place.0 && *claim == place.1)?;
            Some((pod, volume))
        })
    }

    /// Warnings about an object, the newest first.
    pub(super) fn events(&self, kind: &str, namespace: &str, name: &str) -> Vec<&'s Event> {
        let about = |event: &&Event| {
            let object = &event.involved_object;
            object.kind == kind
                && object.name == name
                && (object.namespace.is_empty() || object.namespace == namespace)
        };
        let mut events: Vec<_> = self.snapshot.events.iter().filter(about).collect();
        events.sort_by_key(|event| std::cmp::Reverse(event.seen()));
        events
    }

    /// What the leases of `driver` tell. The newest counts: attachers may have moved between namespaces.
    pub(super) fn leader(&self, driver: &str) -> Leader<'s> {
        let Some(leases) = self.snapshot.leases.get(driver).and_then(Look::found) else {
            return Leader::Unknown;
        };
        let Some(lease) = leases.iter().max_by_key(|lease| lease.spec.renew_time) else {
            return Leader::NoLease;
        };
        let holder = lease.spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() {
            Leader::Released(lease)
        } else if lease_end(lease).is_none_or(|end| end < self.now) {
            Leader::Stale(lease)
        } else {
            Leader::Held(lease)
        }
    }

    /// Whether nobody serves `driver`: its lease says so, and nothing was written since by which an
    /// attacher without leader election would show.
    pub(super) fn nobody_leads(&self, driver: &str, last_sign: Option<Timestamp>) -> Option<Leader<'s>> {
        let leader = self.leader(driver);
        match leader {
            Leader::Stale(lease) | Leader::Released(lease) if lease_end(lease) >= last_sign => Some(leader),
            Leader::Stale(_) | Leader::Released(_) | Leader::Unknown | Leader::NoLease | Leader::Held(_) => {
                None
            }
        }
    }

    /// The pod that holds a lease.
    pub(super) fn holder(&self, lease: &Lease) -> &'s Look<Pod> {
        let holder = lease.spec.holder_identity.clone().unwrap_or_default();
        let place = (lease.metadata.namespace.clone(), holder);
        self.snapshot.holders.get(&place).unwrap_or(&Look::Unknown)
    }
}

// === impl Way ===

impl<'s> Way<'s> {
    /// The way of an attachment. Its pod is one that still waits, if there is one.
    pub(super) fn of_attachment(scene: Scene<'s>, attachment: &'s Attachment) -> Self {
        let volume = attachment.volume_name();
        let claim = volume.as_deref().and_then(|name| claim_of(scene, name));
        let mut way = Self {
            scene,
            pod: None,
            pod_volume: None,
            claim,
            volume,
            attachment: Some(attachment),
            node: Some(&attachment.spec.node_name),
        };
        let mut pods = way.pods_on_node();
        pods.sort_by_key(|(pod, _)| (pod.status.phase == "Running", pod.metadata.creation_timestamp));
        if let Some((pod, volume)) = pods.first() {
            (way.pod, way.pod_volume) = (Some(*pod), Some(*volume));
        }
        way
    }

    /// The way of a pod's volume to the pod's node.
    pub(super) fn of_pod(scene: Scene<'s>, pod: &'s Pod, pod_volume: &'s str, claim: String) -> Self {
        let place = (pod.metadata.namespace.clone(), claim);
        let bound = scene
            .claim(&place)
            .found()
            .map(|claim| claim.spec.volume_name.clone());
        let volume = bound.filter(|name| !name.is_empty());
        let node = Some(pod.spec.node_name.as_str()).filter(|node| !node.is_empty());
        let attachment = scene.snapshot.attachments.iter().find(|va| {
            volume.is_some() && va.volume_name() == volume && node == Some(va.spec.node_name.as_str())
        });
        Self {
            scene,
            pod: Some(pod),
            pod_volume: Some(pod_volume),
            claim: Some(place),
            volume,
            attachment,
            node,
        }
    }

    /// A volume or a claim that no pod wants.
    pub(super) fn unused(scene: Scene<'s>, claim: Option<Place>, volume: Option<String>) -> Self {
        Self {
            scene,
            pod: None,
            pod_volume: None,
            claim,
            volume,
            attachment: None,
            node: None,
        }
    }

    /// Pods on the way's node that use the volume and have not ended.
    pub(super) fn pods_on_node(&self) -> Vec<(&'s Pod, &'s str)> {
        let Some(claim) = &self.claim else {
            return Vec::new();
        };
        let here = |(pod, _): &(&Pod, &str)| Some(pod.spec.node_name.as_str()) == self.node;
        self.scene.pods_using(claim).filter(here).collect()
    }

    /// The PersistentVolume, if it was read.
    pub(super) fn volume(&self) -> Option<&'s Volume> {
        self.scene.volume(self.volume.as_deref()?).found()
    }

    /// Name of the driver: the attachment's, else the volume's, be it by CSI migration.
    pub(super) fn driver(&self) -> Option<String> {
        if let Some(va) = self.attachment {
            return Some(va.spec.attacher.clone());
        }
        self.volume()?.model().spec.driver().map(str::to_owned)
    }

    /// The CSI source of the volume.
    pub(super) fn csi(&self) -> Option<CsiSource> {
        let inline = self
            .attachment
            .and_then(|va| va.spec.source.inline_volume_spec.as_ref());
        match inline {
            Some(inline) => inline.csi.clone().map(|csi| *Box::<CsiSource>::from(csi)),
            None => self.volume()?.model().spec.csi().cloned(),
        }
    }

    /// Whether the volume is specified on the attachment itself.
    pub(super) fn is_inline(&self) -> bool {
        self.attachment
            .is_some_and(|va| va.spec.source.inline_volume_spec.is_some())
    }

    /// The name of the volume in a node's status.
    pub(super) fn unique_name(&self) -> Option<String> {
        let csi = self.csi()?;
        Some(format!("kubernetes.io/csi/{}^{}", csi.driver, csi.handle))
    }

    /// Whether more nodes than one may have the volume.
    pub(super) fn is_multi_node(&self) -> bool {
        self.volume().is_some_and(|volume| {
            let modes = volume.model().spec.access_modes;
            modes.read_write_many || modes.read_only_many
        })
    }

    /// The node, if it was read.
    pub(super) fn node(&self) -> Option<&'s Node> {
        self.scene.node(self.node?).found()
    }

    /// Whether the Node object is gone.
    pub(super) fn node_is_gone(&self) -> bool {
        self.node.is_some_and(|name| self.scene.node(name).is_absent())
    }

    /// Since when the node is not ready, if it is not.
    pub(super) fn node_unready(&self) -> Option<(Option<Timestamp>, String)> {
        let ready = self.node()?.ready()?;
        (ready.status != "True").then(|| {
            let said = if ready.message.is_empty() {
                &ready.reason
            } else {
                &ready.message
            };
            (ready.last_transition_time, said.clone())
        })
    }

    /// Whether the attach/detach controller has told kubelet that the volume is attached.
    pub(super) fn node_told(&self) -> Option<bool> {
        let (node, name) = (self.node()?, self.unique_name()?);
        Some(
            node.status
                .volumes_attached
                .iter()
                .any(|volume| volume.name == name),
        )
    }

    /// Whether kubelet says that it uses the volume.
    pub(super) fn in_use(&self) -> bool {
        let (Some(node), Some(name)) = (self.node(), self.unique_name()) else {
            return false;
        };
        node.status.volumes_in_use.contains(&name)
    }

    /// The attacher's own rule on why the attachment cannot be attached or detached as things stand, if
    /// enough was read to ask it.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        let va = self.attachment?;
        // The driver's capabilities are not known here; what depends on them is not refused.
        let capabilities = Capabilities {
            publish: true,
            ..Capabilities::default()
        };
        let driver = Driver::new(&va.spec.attacher, capabilities, "");
        let attachment = model::Attachment::from_wire(va.wire(), &driver)?;
        let volume = match self.volume.as_deref().map(|name| self.scene.volume(name)) {
            Some(Look::Found(volume)) => {
                Some(Arc::new(model::Volume::from_wire(volume.wire.clone(), &driver)))
            }
            Some(Look::Absent) | None => None,
            Some(Look::Unknown) => return None,
        };
        let node = match self.scene.csi_node(self.node?) {
            Look::Found(node) => Some(Arc::new(model::Node::from_wire(node.wire.clone(), &driver))),
            Look::Absent => None,
            Look::Unknown => return None,
        };
        let wanted = decide::wanted(&attachment, driver.capabilities.publish)?;
        let facts = Facts {
            attachment: Arc::new(attachment),
            volume,
            node,
        };
        match wanted {
            decide::Wanted::Attach => decide::attach(&facts, &driver).err(),
            decide::Wanted::Detach => decide::detach(&facts, &driver).err(),
        }
    }

    /// The finalizer of the attacher of the way's driver.
    pub(super) fn finalizer(&self) -> Option<String> {
        let driver = Driver::new(&self.driver()?, Capabilities::default(), "");
        Some(driver.finalizer.to_string())
    }

    /// Other attachments of the volume, which keep it from this node unless it may be on many.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = &'s Attachment> {
        let others = self.scene.snapshot.attachments.iter();
        others.filter(|va| {
            self.volume.is_some()
                && va.volume_name() == self.volume
                && Some(va.spec.node_name.as_str()) != self.node
        })
    }
}

/// The claim that a volume is bound to.
pub(super) fn claim_of(scene: Scene<'_>, volume: &str) -> Option<Place> {
    let claim = scene.volume(volume).found()?.more.spec.claim_ref.as_ref()?;
    Some((claim.namespace.clone(), claim.name.clone()))
}

/// When a lease ends or ended by its holder's last renewal.
fn lease_end(lease: &Lease) -> Option<Timestamp> {
    let seconds = lease.spec.lease_duration_seconds.unwrap_or_default();
    let length = SignedDuration::from_secs(i64::from(seconds));
    lease.spec.renew_time?.checked_add(length).ok()
}
