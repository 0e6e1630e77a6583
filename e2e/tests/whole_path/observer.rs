//! What the contract observes of a history, and the timeline that a failure prints.
//!
//! Objects are observed while the API server stores them, calls when they arrive and end, and the array before each of them,
//! so the order is exact.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use attacher_contract::observation::{Pod as SeenPod, Target};
use attacher_contract::{Clause, Contract, Observation, Settings};
use csi_e2e::fixture::{OUT_OF_SERVICE, attacher_finalizer};
use csi_e2e::mutex::lock;
use csi_e2e::observe;
use csi_mock_driver::driver::Driver;
use embedded_cluster::apiserver::ApiServer;
use embedded_cluster::volume::UniqueVolumeName;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use crate::driver::{Mounts, VolumeCall};
use crate::history::FaultKind;
use crate::timeline::Timeline;
use crate::world::DRIVER;

/// The observer of one history. Clones share it.
#[derive(Clone)]
pub(crate) struct Observer(Arc<Mutex<State>>);

struct State {
    timeline: Timeline,
    contract: Contract,
    array: Arc<Driver>,
    has_faults: bool,
    finalizer: String,
    began: Instant,
    start: Timestamp,
    /// Number of calls and lists so far.
    count: u64,
    /// Names of the array's volumes by handle, including deleted ones.
    names: BTreeMap<String, String>,
    /// Handles of the array's volumes.
    volumes: BTreeSet<String>,
    /// What is mounted on the running machines, by node ID.
    machines: BTreeMap<String, Mounts>,
    /// Volumes and nodes of the controller's forced detaches that are not observed yet.
    forced: UnboundedReceiver<(UniqueVolumeName, String)>,
    /// Names of the PersistentVolumes of claims.
    claims: BTreeMap<String, String>,
    /// The latest line about each object.
    lines: BTreeMap<(String, String), String>,
    /// A failure that no clause covers.
    failure: Option<String>,
}

/// An object in one line of the timeline.
struct Line {
    volume: Option<String>,
    text: String,
}

// === impl Observer ===

impl Observer {
    /// Observes the objects of `server`, the controller's forced detaches, and the volumes of `array`, which have these faults.
    pub(crate) fn new(
        server: &ApiServer,
        forced: UnboundedReceiver<(UniqueVolumeName, String)>,
        array: Arc<Driver>,
        faults: &[FaultKind],
    ) -> Self {
        // No volume has a Secret.
        let mut settings = Settings::honest().without(Clause::NoSecretShown);
        let has_faults = !faults.is_empty();
        if has_faults {
            settings = settings.without(Clause::Uneventful);
        }
        // The controller lists a volume again if its update of the Node before the detach fails.
        let are_harmless = |kind: &FaultKind| matches!(kind, FaultKind::MovePod | FaultKind::FailingDetach);
        if !faults.iter().all(are_harmless) {
            settings = settings.without(Clause::ListedWhileAttached);
        }
        let observer = Self(Arc::new(Mutex::new(State {
            timeline: Timeline::default(),
            contract: Contract::new(settings),
            array,
            has_faults,
            finalizer: attacher_finalizer(DRIVER),
            began: Instant::now(),
            start: server.clock().now(),
            count: 0,
            names: BTreeMap::new(),
            volumes: BTreeSet::new(),
            machines: BTreeMap::new(),
            forced,
            claims: BTreeMap::new(),
            lines: BTreeMap::new(),
            failure: None,
        })));
        observer.watch(server, State::node);
        observer.watch(server, State::csi_node);
        observer.watch(server, State::attachment);
        observer.watch(server, State::volume);
        observer.watch(server, State::claim);
        observer.watch(server, State::pod);
        observer.watch(server, State::lease);
        observer
    }

    fn watch<K>(&self, server: &ApiServer, observe: impl Fn(&mut State, &K, bool) + Send + 'static)
    where
        K: Resource<DynamicType = ()> + serde::de::DeserializeOwned,
    {
        let observer = self.clone();
        server.on_change(move |object: &K, deleted| observe(&mut observer.lock(), object, deleted));
    }

    /// Adds an event of `component` about the volume with this name, or about all volumes, to the timeline.
    pub(crate) fn note(&self, component: &str, volume: Option<&str>, text: impl std::fmt::Display) {
        self.lock().note(component, volume, text);
    }

    /// A fault, or another disturbance of `component`.
    pub(crate) fn fault(&self, component: &str, text: impl std::fmt::Display) {
        let mut state = self.lock();
        state.note(component, None, &text);
        state.observe(Observation::Fault(format!("{component} {text}")));
    }

    pub(crate) fn observe(&self, seen: Observation) {
        self.lock().observe(seen);
    }

    /// A failure that no clause covers.
    pub(crate) fn fail(&self, text: impl std::fmt::Display) {
        self.lock().fail(text);
    }

    /// A machine starts: nothing is mounted.
    pub(crate) fn machine_on(&self, id: &str) {
        self.lock().machines.insert(id.to_owned(), Mounts::default());
    }

    pub(crate) fn machine_off(&self, id: &str) {
        let mut state = self.lock();
        state.machines.remove(id);
        let mounted: Vec<_> = state.contract.world().mounted.keys().cloned().collect();
        for target in mounted.into_iter().filter(|target| &*target.node == id) {
            state.observe(Observation::Mounted(target, false));
        }
    }

    /// A kubelet starts again on its machine. It finds the directories of pods, and forgets volumes that are staged only, which it
    /// reports as not in use (kubernetes#85476, #121937): they are detached while they are staged, and do not count as mounted.
    pub(crate) fn kubelet_starts(&self, id: &str) {
        let mut state = self.lock();
        let Some(mounts) = state.machines.get_mut(id) else {
            return;
        };
        for volume in mounts.forget_staged() {
            state.note(
                id,
                Some(&volume),
                "kubelet does not know that the volume is staged",
            );
            let target = Target::new(&volume, id);
            state.observe(Observation::Mounted(target, false));
        }
    }

    /// Whether the history is not uneventful.
    pub(crate) fn has_faults(&self) -> bool {
        self.lock().has_faults
    }

    /// The number of the next call or list.
    pub(crate) fn next_number(&self) -> u64 {
        let mut state = self.lock();
        state.count += 1;
        state.count
    }

    /// A call of a driver process succeeded.
    pub(crate) fn succeeded(&self, process: &str, call: &VolumeCall) {
        let mut state = self.lock();
        let Some(mounts) = state.machines.get_mut(process) else {
            return;
        };
        mounts.apply(call);
        let is_mounted = mounts.has(&call.volume);
        let target = Target::new(&call.volume, process);
        if state.contract.world().mounted.contains_key(&target) != is_mounted {
            state.observe(Observation::Mounted(target, is_mounted));
        }
    }

    /// The timeline's name of the volume with this handle: for a provisioned one, the name of its PersistentVolume.
    pub(crate) fn name_of(&self, handle: &str) -> String {
        let mut state = self.lock();
        state.observe_array();
        state.names.get(handle).map_or(handle, String::as_str).to_owned()
    }

    /// Names of the array's provisioned volumes.
    pub(crate) fn provisioned(&self) -> BTreeSet<String> {
        let mut state = self.lock();
        state.observe_array();
        let state = &*state;
        let names = state.volumes.iter().filter_map(|handle| state.names.get(handle));
        names.cloned().collect()
    }

    /// Names of the pods.
    pub(crate) fn pods(&self) -> BTreeSet<String> {
        let state = self.lock();
        let pods = state.contract.world().pods.keys();
        pods.map(ToString::to_string).collect()
    }

    /// Makes the observation if the contract allows it, or else returns what is missing.
    pub(crate) fn observe_in_order(&self, seen: &Observation) -> Result<(), String> {
        let mut state = self.lock();
        state.observe_array();
        let missing = state.contract.preview(state.began.elapsed(), seen);
        match missing.first() {
            Some(missing) => Err(missing.to_string()),
            None => {
                state.observe(seen.clone());
                Ok(())
            }
        }
    }

    /// The whole timeline.
    pub(crate) fn timeline(&self) -> String {
        self.lock().timeline.of(None)
    }

    /// Fails with the first violation and the timeline of its volume.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut state = self.lock();
        state.observe_array();
        let Some(violation) = state.contract.violations().first() else {
            return match &state.failure {
                Some(failure) => Err(format!("{failure}\n{}", state.timeline.of(None))),
                None => Ok(()),
            };
        };
        let volume = state.volume_in(&violation.subject);
        let timeline = state.timeline.of(volume.as_deref());
        Err(format!("{violation}\n{timeline}"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

// === impl State ===

impl State {
    fn note(&mut self, component: &str, volume: Option<&str>, text: impl std::fmt::Display) {
        self.timeline.note(self.began.elapsed(), component, volume, text);
    }

    fn fail(&mut self, text: impl std::fmt::Display) {
        self.note("HISTORY", None, &text);
        self.failure.get_or_insert_with(|| text.to_string());
    }

    fn observe(&mut self, seen: Observation) {
        while let Ok((volume, node)) = self.forced.try_recv() {
            self.note(
                "controllers",
                None,
                format_args!("detach {volume} from {node} by force"),
            );
            let handle = volume.rsplit('^').next().unwrap_or_default();
            self.add(Observation::Forced(handle.into(), node.as_str().into()));
        }
        self.observe_array();
        self.add(seen);
    }

    fn add(&mut self, seen: Observation) {
        let found = self.contract.observe(self.began.elapsed(), seen);
        let found: Vec<_> = found
            .iter()
            .map(|violation| {
                (
                    violation.subject.clone(),
                    format!("{}: {}", violation.clause.rule().name, violation.text),
                )
            })
            .collect();
        for (subject, text) in found {
            let volume = self.volume_in(&subject);
            self.note("CONTRACT", volume.as_deref(), format!("{subject}: {text}"));
        }
    }

    /// Observes what has changed in the array.
    fn observe_array(&mut self) {
        let handles = self.array.store.peek(|array| {
            let mut handles = BTreeSet::new();
            for volume in array.volumes() {
                let handle = volume.spec.id.to_string();
                // An initial volume has no name.
                if !volume.spec.name.is_empty() {
                    self.names.insert(handle.clone(), volume.spec.name.clone());
                }
                handles.insert(handle);
            }
            handles
        });
        let known = std::mem::replace(&mut self.volumes, handles);
        let deleted: Vec<_> = known.difference(&self.volumes).cloned().collect();
        for handle in deleted {
            self.add(Observation::VolumeDeleted(handle.as_str().into()));
        }
        let changes = self
            .array
            .store
            .peek(|array| observe::array_changes(array, self.contract.world()));
        for seen in changes {
            self.add(seen);
        }
    }

    /// The timeline's name of the volume that the subject of a violation is about.
    fn volume_in(&self, subject: &str) -> Option<String> {
        let mut history = self.contract.history().iter().rev();
        let attachment = history.find_map(|(_, seen)| {
            let Observation::Attachment(attachment) = seen else {
                return None;
            };
            (&*attachment.name == subject).then_some(&attachment.volume)
        });
        let is_named = |name: &str| subject.split(' ').any(|word| word == name);
        let mut volumes = self.contract.world().volumes.values();
        let mut named = || volumes.find(|volume| is_named(&volume.name) || is_named(&volume.handle));
        let name = attachment.or_else(|| named().map(|volume| &volume.name))?;
        Some(volume_of(name))
    }

    /// Adds the present state of an object to the timeline, unless the last line says the same.
    fn line<K: Resource<DynamicType = ()>>(&mut self, object: &K, is_deleted: bool, line: Line) {
        let (kind, name) = (K::kind(&()), object.meta().name.clone().unwrap_or_default());
        // The hash in the name of a VolumeAttachment adds no information.
        let shown = if name.starts_with("csi-") { "" } else { &name };
        let text = if is_deleted { "deleted" } else { &line.text };
        let text = format!("{shown} {text}");
        let key = (kind.to_string(), name.clone());
        let is_new = self.lines.get(&key) != Some(&text);
        if is_new {
            self.note(&kind, line.volume.as_deref(), &text);
            self.lines.insert(key, text);
        }
    }

    fn attachment(&mut self, attachment: &VolumeAttachment, is_deleted: bool) {
        let line = attachment_line(attachment);
        self.line(attachment, is_deleted, line);
        let seen = observe::attachment(attachment, &self.finalizer, self.start);
        let name = seen.name.clone();
        self.observe(match is_deleted {
            true => Observation::AttachmentGone(name),
            false => Observation::Attachment(seen),
        });
    }

    fn node(&mut self, node: &Node, is_deleted: bool) {
        let name = node.name_any();
        let (line, is_healthy) = node_line(node);
        self.line(node, is_deleted, line);
        let attached = node
            .status
            .iter()
            .flat_map(|status| status.volumes_attached.iter().flatten());
        let handles = attached.filter_map(|volume| volume.name.rsplit_once('^'));
        let handles = handles.map(|(_, handle)| handle.into()).collect();
        self.observe(Observation::VolumesAttached(name.as_str().into(), handles));
        self.observe(Observation::Node {
            node: name.as_str().into(),
            healthy: is_healthy && !is_deleted,
        });
    }

    fn csi_node(&mut self, csi_node: &CSINode, is_deleted: bool) {
        let ids: Vec<_> = csi_node
            .spec
            .drivers
            .iter()
            .map(|driver| &driver.node_id)
            .collect();
        let text = format!("nodeIDs={ids:?}");
        self.line(csi_node, is_deleted, Line { volume: None, text });
        let registration = observe::registration(Some(csi_node).filter(|_| !is_deleted), DRIVER);
        self.observe(Observation::CsiNode(
            csi_node.name_any().as_str().into(),
            registration,
        ));
    }

    fn volume(&mut self, volume: &PersistentVolume, is_deleted: bool) {
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        let (deleting, finalizers) = (deleting(volume), volume.finalizers());
        // The contract knows the attacher's only.
        let distinct: BTreeSet<_> = finalizers.iter().collect();
        if distinct.len() < finalizers.len()
            && finalizers.iter().filter(|held| **held == self.finalizer).count() < 2
        {
            self.fail(format_args!(
                "{} has a finalizer twice: {finalizers:?}",
                volume.name_any()
            ));
        }
        let line = Line {
            volume: Some(volume_of(&volume.name_any())),
            text: format!(
                "{}{deleting} finalizers={finalizers:?}",
                phase.unwrap_or_default()
            ),
        };
        self.line(volume, is_deleted, line);
        if is_deleted {
            self.observe(Observation::VolumeGone(volume.name_any().as_str().into()));
        } else if let Some(seen) = observe::volume(volume, DRIVER, &self.finalizer) {
            self.observe(Observation::Volume(Arc::new(seen)));
        }
    }

    fn claim(&mut self, claim: &PersistentVolumeClaim, is_deleted: bool) {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let line = Line {
            volume: volume.map(volume_of),
            text: format!("{}{}", phase.unwrap_or_default(), deleting(claim)),
        };
        self.line(claim, is_deleted, line);
        let volume = volume.filter(|_| !is_deleted).map(str::to_owned);
        match volume {
            Some(volume) => self.claims.insert(claim.name_any(), volume),
            None => self.claims.remove(&claim.name_any()),
        };
    }

    fn pod(&mut self, pod: &Pod, is_deleted: bool) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let claim = claim_of(pod).unwrap_or_default();
        // Only static claims (`claim-N`) always have the same volume; a claim from a template gets a new one after each deletion.
        let number = claim.strip_prefix("claim-");
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let (deleting, on) = (deleting(pod), node.unwrap_or("no node"));
        let line = Line {
            volume: number.map(|number| format!("vol-{number}")),
            text: format!("{} on {on}{deleting}", phase.unwrap_or_default()),
        };
        self.line(pod, is_deleted, line);
        let name = pod.name_any().as_str().into();
        if is_deleted {
            return self.observe(Observation::PodGone(name));
        }
        let volume = self.claims.get(claim).map(|volume| volume.as_str().into());
        self.observe(Observation::Pod(Arc::new(SeenPod {
            name,
            node: node.map(Into::into),
            volume,
            running: phase == Some("Running") && deleting.is_empty(),
        })));
    }

    fn lease(&mut self, lease: &Lease, _: bool) {
        // Kubelets and controllers have leases in other namespaces.
        if lease.namespace().as_deref() == Some("default") {
            let holder = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_deref());
            let holder = holder.filter(|holder| !holder.is_empty()).map(Into::into);
            let known = self.contract.world().leader.as_ref().map(|(_, holder)| holder);
            if known != Some(&holder) {
                self.observe(Observation::Lease(holder));
            }
        }
    }
}

// === functions ===

/// The timeline's name of a PersistentVolume's volume: its handle, which has the same number, or, for a provisioned one, the
/// PersistentVolume's name.
pub(crate) fn volume_of(name: &str) -> String {
    match name.strip_prefix("pv-") {
        Some(number) => format!("vol-{number}"),
        None => name.to_owned(),
    }
}

/// The name of the pod's claim.
fn claim_of(pod: &Pod) -> Option<&str> {
    let mut volumes = pod.spec.as_ref()?.volumes.iter().flatten();
    volumes.find_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// The end of a line about an object that is being deleted; else empty.
fn deleting(object: &impl ResourceExt) -> &'static str {
    match object.meta().deletion_timestamp {
        Some(_) => " deleting",
        None => "",
    }
}

fn attachment_line(attachment: &VolumeAttachment) -> Line {
    let spec = &attachment.spec;
    let status = attachment.status.clone().unwrap_or_default();
    let mut text = format!("on {}: attached={}", spec.node_name, status.attached);
    text += deleting(attachment);
    if attachment.finalizers().is_empty() {
        text += " without finalizer";
    }
    for (side, error) in [
        ("attachError", status.attach_error),
        ("detachError", status.detach_error),
    ] {
        if let Some(message) = error.and_then(|error| error.message) {
            text += &format!(" {side}={message:?}");
        }
    }
    Line {
        volume: spec.source.persistent_volume_name.as_deref().map(volume_of),
        text,
    }
}

/// The line, and whether the node is ready and in service.
fn node_line(node: &Node) -> (Line, bool) {
    let status = node.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions
        .find(|condition| condition.type_ == "Ready")
        .map_or("", |condition| condition.status.as_str());
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let in_service = !taints.any(|taint| taint.key == OUT_OF_SERVICE);
    let short = |name: &String| name.rsplit('^').next().unwrap_or_default().to_owned();
    let in_use: Vec<_> = status.volumes_in_use.iter().flatten().map(short).collect();
    let attached = status.volumes_attached.iter().flatten();
    let attached: Vec<_> = attached.map(|volume| short(&volume.name)).collect();
    let mut text = format!("ready={ready} volumesInUse={in_use:?} volumesAttached={attached:?}");
    if !in_service {
        text += " out of service";
    }
    (Line { volume: None, text }, ready == "True" && in_service)
}
