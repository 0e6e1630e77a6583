//! The state of a fake API server and driver. Checks the attacher's invariants at each request and call.

mod array;
mod client;
mod cluster;
mod driver;
mod users;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use csi_attacher::controller::state::Event;
use csi_attacher::informer::Change;
use csi_attacher::model::{
    Attachment, CsiSource, Node, PublishTarget, Recorded, SecretRef, Source, Version, Volume, VolumeSpec,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::election::server::Server;

use array::Array;
pub(super) use client::Client;
pub(super) use cluster::FakeCluster;
pub(super) use driver::FakeDriver;

pub(super) const DRIVER: &str = "sim.example";
const VOLUMES: usize = 3;
const NODES: usize = 4;
/// The node whose machine may be registered again under another node ID.
const RENAMED_NODE: usize = 3;

/// Probabilities of faults, in percent of all requests and calls.
#[derive(Clone, Copy)]
pub(super) struct Faults {
    api: u8,
    driver: u8,
    /// Of ListVolumes. Every second list is correct.
    list: u8,
    /// Whether the array loses publishes.
    array: bool,
    /// Whether the driver loses and regains its publish capability.
    fickle: bool,
    /// Whether untrue answers occur: NOT_FOUND for a node that exists, a CSINode without the driver on a living node, and 404
    /// for a VolumeAttachment that exists.
    lies: bool,
    /// Whether the driver takes one call of a node at a time, and refuses others.
    locks_nodes: bool,
}

#[derive(Clone)]
pub(super) struct World(Arc<Mutex<State>>);

struct State {
    attachments: BTreeMap<String, Attachment>,
    volumes: BTreeMap<String, Volume>,
    nodes: BTreeMap<String, Node>,
    /// IDs of nodes whose driver is not registered at the moment.
    unregistered: BTreeMap<String, Arc<str>>,
    /// All watch events, in order.
    log: Vec<Event>,
    version: u64,
    uids: u64,
    published: HashSet<PublishTarget>,
    array: Array,
    /// Node IDs of removed machines, whose publishes no longer exist.
    removed_ids: HashSet<Arc<str>>,
    /// Former IDs of machines that have another one now, and until when the driver still knows them. Afterwards the driver
    /// behaves as vSphere's: it refuses a publish, and an unpublish does nothing and succeeds.
    former_ids: HashMap<Arc<str>, FormerId>,
    /// Running calls by target: the attacher must not send two at a time for one target.
    calling: HashMap<PublishTarget, usize>,
    calls: Calls,
    writes: Writes,
    reads_of_secrets: usize,
    /// The server of the replicas' lease.
    lease: Option<Server>,
    violations: Vec<String>,
    /// All writes, calls and faults in order, printed when a history fails.
    timeline: Vec<String>,
    began: Instant,
    random: fastrand::Rng,
    faults: Faults,
}

struct FormerId {
    next: Arc<str>,
    known_until: Instant,
}

/// Longer than a detach needs to send its calls if it read the CSINode before the change.
const FORMER_ID_KNOWN: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) publish: usize,
    pub(super) unpublish: usize,
    /// Those that were refused because of another call of the node.
    pub(super) locked: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    pub(super) attachments: usize,
    pub(super) volumes: usize,
}

/// The publish target in the VolumeAttachment's annotations.
fn recorded(attachment: &Attachment) -> Option<PublishTarget> {
    let Recorded { node_id, handle, .. } = attachment.recorded.clone();
    Some(PublishTarget {
        volume_id: handle?,
        node_id: node_id?,
    })
}

/// Whether a deleting attachment is detached and only has finalizers of other controllers, so that the attacher sends no call.
fn is_released(attachment: &Attachment) -> bool {
    attachment.deleting && !attachment.finalizer && !attachment.has_attached_status()
}

// === impl Faults ===

impl Faults {
    pub(super) const NONE: Self = Self {
        api: 0,
        driver: 0,
        list: 0,
        array: false,
        fickle: false,
        lies: false,
        locks_nodes: false,
    };
    pub(super) const SOME: Self = Self {
        api: 15,
        driver: 20,
        list: 40,
        array: true,
        fickle: false,
        lies: false,
        locks_nodes: false,
    };
    pub(super) const FICKLE: Self = Self {
        fickle: true,
        ..Self::SOME
    };
    pub(super) const LIES: Self = Self {
        lies: true,
        ..Self::FICKLE
    };
    pub(super) const LOCKS: Self = Self {
        locks_nodes: true,
        ..Self::NONE
    };
    pub(super) const SOME_AND_LOCKS: Self = Self {
        locks_nodes: true,
        ..Self::SOME
    };
}

// === impl World ===

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        let mut state = State {
            attachments: BTreeMap::new(),
            volumes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            unregistered: BTreeMap::new(),
            log: Vec::new(),
            version: 0,
            uids: 0,
            published: HashSet::new(),
            array: Array::default(),
            removed_ids: HashSet::new(),
            former_ids: HashMap::new(),
            calling: HashMap::new(),
            calls: Calls::default(),
            writes: Writes::default(),
            reads_of_secrets: 0,
            lease: None,
            violations: Vec::new(),
            timeline: Vec::new(),
            began: Instant::now(),
            random: fastrand::Rng::with_seed(seed),
            faults,
        };
        for node in 0..NODES {
            state.register_node(node);
        }
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("no test must panic while the world is locked")
    }

    /// As `new`, but only the holder of `lease` may write and call.
    pub(super) fn with_lease(seed: u64, faults: Faults, lease: Server) -> Self {
        let world = Self::new(seed, faults);
        world.state().lease = Some(lease);
        world
    }

    pub(super) fn cluster(&self, client: &Client) -> FakeCluster {
        FakeCluster {
            world: self.clone(),
            client: client.clone(),
        }
    }

    pub(super) fn driver(&self, client: &Client) -> FakeDriver {
        FakeDriver {
            world: self.clone(),
            client: client.clone(),
        }
    }

    /// All watches of a process, each with its own delays. The watch of attachments begins after `leads`.
    pub(super) async fn watch(&self, events_tx: mpsc::Sender<Event>, leads: impl Future<Output = ()>) {
        let attachments = async {
            leads.await;
            self.watch_kind(&events_tx, |event| matches!(event, Event::Attachments(_)))
                .await;
        };
        futures::join!(
            attachments,
            self.watch_kind(&events_tx, |event| matches!(event, Event::Volumes(_))),
            self.watch_kind(&events_tx, |event| matches!(event, Event::Nodes(_))),
            self.watch_kind(&events_tx, |event| matches!(event, Event::DriverConnected(_))),
        );
    }

    /// Sends a list, then each later event with a delay.
    async fn watch_kind(&self, events_tx: &mpsc::Sender<Event>, is_kind: fn(&Event) -> bool) {
        let (list, mut seen) = {
            let state = self.state();
            (state.list(), state.log.len())
        };
        for event in list.into_iter().filter(is_kind) {
            events_tx.send(event).await.ok();
        }
        loop {
            let (event, delay) = {
                let mut state = self.state();
                let delay = state.random.u64(1..15);
                let next = state.log[seen..].iter().position(is_kind);
                seen = next.map_or(state.log.len(), |next| seen + next + 1);
                let event = next.map(|_| state.log[seen - 1].clone());
                (event, Duration::from_millis(delay))
            };
            tokio::time::sleep(delay).await;
            if let Some(event) = event {
                events_tx.send(event).await.ok();
            }
        }
    }

    /// Forgets the running calls of a dead process, which no longer count against the next one.
    pub(super) fn attacher_died(&self) {
        let mut state = self.state();
        state.calling.clear();
        state.note(format_args!("the attacher died"));
    }

    pub(super) fn writes(&self) -> Writes {
        self.state().writes
    }

    pub(super) fn calls(&self) -> Calls {
        self.state().calls
    }

    pub(super) fn reads_of_secrets(&self) -> usize {
        self.state().reads_of_secrets
    }

    pub(super) fn attached(&self) -> usize {
        self.state()
            .attachments
            .values()
            .filter(|attachment| attachment.attached)
            .count()
    }

    pub(super) async fn all_attached(&self) {
        self.until(|state| state.attachments.values().all(|attachment| attachment.attached))
            .await;
    }

    pub(super) async fn first_call(&self) {
        self.until(|state| state.calls.publish > 0).await;
    }

    /// Waits for the first write, which precedes the first call.
    pub(super) async fn first_write(&self) {
        self.until(|state| state.writes.attachments > 0).await;
    }

    /// Waits until all attachments and all deleting volumes are gone.
    pub(super) async fn settled(&self) {
        self.until(|state| state.attachments.is_empty() && state.volumes.values().all(|v| !v.deleting))
            .await;
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        while !condition(&self.state()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn timeline(&self) -> String {
        self.state().timeline.join("\n")
    }

    pub(super) fn describe(&self) -> String {
        let state = self.state();
        format!(
            "attachments {:?},\nvolumes {:?},\npublished {:?}, violations {:?}",
            state.attachments.values(),
            state.volumes.values(),
            state.published,
            state.violations
        )
    }

    /// Returns the first violation of an invariant, or a publish that no attachment accounts for.
    pub(super) fn verify(&self) -> Result<(), String> {
        let state = self.state();
        if let Some(violation) = state.violations.first() {
            return Err(violation.clone());
        }
        let recorded = state.attachments.values().filter_map(recorded);
        let wanted: HashSet<_> = recorded.map(|target| state.present(&target)).collect();
        let is_leaked =
            |target: &&PublishTarget| !wanted.contains(*target) && !state.array.abandoned.contains(*target);
        match state.published.iter().find(is_leaked) {
            Some(leaked) => Err(format!("leaked publish: {leaked:?}")),
            None => Ok(()),
        }
    }
}

// === impl State ===

impl State {
    fn note(&mut self, text: std::fmt::Arguments<'_>) {
        let at = self.began.elapsed();
        self.timeline.push(format!("{:>9.3} {text}", at.as_secs_f64()));
    }

    fn percent(&mut self, percent: u8) -> bool {
        self.random.u8(0..100) < percent
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    fn next_uid(&mut self) -> csi_attacher::model::Uid {
        self.uids += 1;
        format!("uid-{}", self.uids).as_str().into()
    }

    fn list(&self) -> Vec<Event> {
        let mut list = vec![
            Event::DriverConnected(self.array.capabilities()),
            Event::Attachments(Change::ReplaceStarted),
            Event::Volumes(Change::ReplaceStarted),
            Event::Nodes(Change::ReplaceStarted),
        ];
        list.extend(
            self.attachments
                .values()
                .cloned()
                .map(|a| Event::Attachments(Change::Applied(a))),
        );
        list.extend(
            self.volumes
                .values()
                .cloned()
                .map(|v| Event::Volumes(Change::Applied(v))),
        );
        list.extend(
            self.nodes
                .values()
                .cloned()
                .map(|n| Event::Nodes(Change::Applied(n))),
        );
        list.extend([
            Event::Nodes(Change::Replaced),
            Event::Attachments(Change::Replaced),
            Event::Volumes(Change::Replaced),
        ]);
        list
    }

    fn put_attachment(&mut self, mut attachment: Attachment) -> Attachment {
        attachment.version = self.next_version();
        self.note(format_args!("{attachment:?}"));
        let name = attachment.name.to_string();
        if attachment.deleting && !attachment.finalizer && !attachment.foreign_finalizers {
            self.attachments.remove(&name);
            self.abandon_after_deletion(&attachment);
            let gone = Change::Deleted {
                name: attachment.name.clone(),
                uid: attachment.uid.clone(),
            };
            self.log.push(Event::Attachments(gone));
        } else {
            let known = self.attachments.insert(name, attachment.clone());
            if is_released(&attachment) && known.is_some_and(|known| !is_released(&known)) {
                self.abandon_after_release(&attachment);
            }
            self.log
                .push(Event::Attachments(Change::Applied(attachment.clone())));
        }
        attachment
    }

    fn put_volume(&mut self, mut volume: Volume) -> Volume {
        volume.version = self.next_version();
        self.note(format_args!("{volume:?}"));
        let name = volume.name.to_string();
        if volume.deleting && !volume.finalizer {
            self.volumes.remove(&name);
            let gone = Change::Deleted {
                name: volume.name.clone(),
                uid: volume.uid.clone(),
            };
            self.log.push(Event::Volumes(gone));
        } else {
            self.volumes.insert(name, volume.clone());
            self.log.push(Event::Volumes(Change::Applied(volume.clone())));
        }
        volume
    }

    /// The driver's pod on the node restarts: kubelet removes its entry, or adds it again. The machine lives.
    fn unregister_driver(&mut self, node: usize) {
        let name = format!("node-{node}");
        let Some(mut node) = self.nodes.get(&name).cloned() else {
            return;
        };
        node.id = match node.id.take() {
            // OK for the recorded id is a proof without a present one (docs/adr/0004-recorded-target.md), even if the machine
            // was renamed and its driver answers OK for the id that it does not know any more.
            Some(id) if self.former_ids.values().any(|former| former.next == id) => return,
            Some(id) => {
                self.unregistered.insert(name.clone(), id);
                None
            }
            None => self.unregistered.remove(&name),
        };
        node.version = self.next_version();
        self.note(format_args!("{name} registers {:?}", node.id));
        self.nodes.insert(name, node.clone());
        self.log.push(Event::Nodes(Change::Applied(node)));
    }

    /// Registers the node under another ID, as another machine, with or without removal of the previous one, or as the same
    /// machine.
    fn register_node(&mut self, node: usize) {
        let name = format!("node-{node}");
        let id: Arc<str> = format!("id-{node}-{}", self.uids).as_str().into();
        let before = self.nodes.get(&name).and_then(|node| node.id.clone());
        if let Some(before) = before.or_else(|| self.unregistered.remove(&name)) {
            let was_renamed = self.former_ids.values().any(|former| former.next == before);
            match self.random.u8(0..4) {
                0..2 => {
                    self.published.retain(|target| target.node_id != before);
                    self.note(format_args!("the machine {before} is removed"));
                    self.removed_ids.insert(before);
                }
                // Twice as likely for a machine that was renamed before: no record names all of its three IDs.
                2 if node == RENAMED_NODE => self.change_node_id(&before, &id),
                3 if was_renamed => self.change_node_id(&before, &id),
                _ => {}
            }
        }
        self.note(format_args!("{name} registers as {id}"));
        let node = Node {
            name: name.as_str().into(),
            uid: self.next_uid(),
            version: self.next_version(),
            id: Some(id),
        };
        self.nodes.insert(name, node.clone());
        self.log.push(Event::Nodes(Change::Applied(node)));
    }

    /// Changes the machine's node ID. Its publishes stay.
    fn change_node_id(&mut self, before: &Arc<str>, next: &Arc<str>) {
        let renamed = |targets: &mut HashSet<PublishTarget>| {
            *targets = std::mem::take(targets)
                .into_iter()
                .map(|target| match target.node_id == *before {
                    true => PublishTarget {
                        node_id: next.clone(),
                        ..target
                    },
                    false => target,
                })
                .collect();
        };
        self.note(format_args!("the node ID of the machine {before} is now {next}"));
        renamed(&mut self.published);
        self.array.all_targets().into_iter().for_each(renamed);
        let former = FormerId {
            next: next.clone(),
            known_until: Instant::now() + FORMER_ID_KNOWN,
        };
        self.former_ids.insert(before.clone(), former);
    }

    /// The target with the present ID of its machine.
    fn present(&self, target: &PublishTarget) -> PublishTarget {
        let mut target = target.clone();
        while let Some(former) = self.former_ids.get(&target.node_id) {
            target.node_id = former.next.clone();
        }
        target
    }

    /// Whether the driver knows the machine by another ID only.
    fn is_unknown_id(&self, target: &PublishTarget) -> bool {
        self.former_ids
            .get(&target.node_id)
            .is_some_and(|former| Instant::now() >= former.known_until)
    }

    fn create_volume(&mut self, volume: usize, left_in_tree: bool) {
        let name = format!("pv-{volume}");
        if self.volumes.contains_key(&name) {
            return;
        }
        let uid = self.next_uid();
        let has_secret = self.faults.api > 0 && self.random.bool();
        let source = CsiSource {
            driver: DRIVER.into(),
            handle: format!("handle-of-{uid}").as_str().into(),
            publish_secret: has_secret.then(|| SecretRef::parse("ns/secret")).flatten(),
            ..CsiSource::default()
        };
        let spec = VolumeSpec {
            csi: Ok(source),
            migrated: left_in_tree,
            access_modes: vec!["ReadWriteMany".to_owned()],
            ..VolumeSpec::default()
        };
        let version = Version::UNKNOWN;
        let name = name.as_str().into();
        self.array
            .handles
            .extend(spec.csi().map(|csi| csi.handle.clone()));
        self.put_volume(Volume {
            name,
            uid,
            version,
            deleting: false,
            finalizer: false,
            left_in_tree,
            spec,
        });
    }

    fn create_attachment(&mut self, number: usize, foreign_finalizers: bool) {
        let name = format!("va-{number}");
        if self.attachments.contains_key(&name) {
            return;
        }
        let attachment = Attachment {
            name: name.as_str().into(),
            uid: self.next_uid(),
            version: Version::UNKNOWN,
            deleting: false,
            requested_at: None,
            finalizer: false,
            foreign_finalizers,
            node: format!("node-{}", number % NODES).as_str().into(),
            source: Source::Volume(format!("pv-{}", number % VOLUMES).as_str().into()),
            recorded: Recorded::default(),
            attached: false,
            metadata_keys: Box::default(),
            attach_error: None,
            detach_error: None,
        };
        self.put_attachment(attachment);
    }
}
