//! The state of a fake API server and driver, which the contract observes.

mod array;
mod choices;
mod client;
mod cluster;
mod driver;
mod nodes;
mod observer;
mod users;
mod watch;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use attacher_contract::observation::Method;
use attacher_contract::{Clause, Contract, Observation, Settings};
use csi_attacher::controller::state::Event;
use csi_attacher::informer::Change;
use csi_attacher::model::{
    Attachment, CsiSource, Metadata, Node, PublishTarget, Recorded, SecretRef, Source, Uid, Version, Volume,
    VolumeSpec,
};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::election::server::Server;

use array::Array;
pub(super) use choices::Choices;
pub(super) use client::Client;
pub(super) use cluster::FakeCluster;
pub(super) use driver::FakeDriver;
pub(super) use users::Environment;

pub(super) const DRIVER: &str = "sim.example";
/// The process without leader election.
const PROCESS: &str = "attacher";
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
    /// The kinds of untrue answers, as bits of [`Lie`].
    lies: u16,
    /// Whether the driver takes one call of a node at a time, and refuses others.
    locks_nodes: bool,
}

/// A kind of untrue answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lie {
    /// NOT_FOUND of a driver whose node cache is cold.
    NotFound,
    /// OK of the driver without effect.
    OkWithoutEffect,
    /// DEADLINE_EXCEEDED, and the call takes effect later.
    EffectLater,
    /// A CSINode without the driver's entry on a living node.
    CsiNode,
    /// A CSINode that is deleted, and created again.
    CsiNodeGone,
    /// Two nodes with one node ID.
    SharedNodeId,
    /// NotFound for a VolumeAttachment that exists.
    StrayNotFound,
    /// 404, 408, 425, 429, 502 or 504 of a proxy, with or without effect of the request.
    StrayStatus,
    /// The API server loses a finalizer that it accepted during the deletion.
    LostFinalizer,
    /// A watch skips events, until the next list.
    SkippedEvents,
    /// A watch goes back, and repeats events.
    RepeatedEvents,
    /// The wall clock jumps.
    ClockJumps,
    /// The Secret may not be read for a while.
    SecretForbidden,
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
    /// Effects of calls that ended with an error, and when they come.
    late: Vec<(Instant, Method, PublishTarget)>,
    /// Writes that were answered by an error, and when they are executed.
    late_writes: Vec<(Instant, LateWrite)>,
    /// Whether one of them is executed. It was sent when its process led.
    executes_late: bool,
    /// How many times each target became published.
    devices: HashMap<PublishTarget, usize>,
    /// `status.attachmentMetadata` by UID.
    contexts: HashMap<Uid, BTreeMap<String, String>>,
    /// When the finalizer was added, by UID.
    finalizer_added: HashMap<Uid, Instant>,
    secret_forbidden_until: Option<Instant>,
    /// The node all of whose calls fail.
    broken_node: Option<Arc<str>>,
    /// Node IDs of removed machines, whose publishes no longer exist.
    removed_ids: HashSet<Arc<str>>,
    /// Former IDs of machines that have another one now, and until when the driver still knows them. Afterwards the driver
    /// behaves as vSphere's: it refuses a publish, and an unpublish does nothing and succeeds.
    former_ids: HashMap<Arc<str>, FormerId>,
    /// Running calls by target.
    calling: HashMap<PublishTarget, usize>,
    calls: Calls,
    writes: Writes,
    reads_of_secrets: usize,
    /// The server of the replicas' lease.
    lease: Option<Server>,
    contract: Contract,
    began: Instant,
    random: fastrand::Rng,
    faults: Faults,
    /// Faults that are enumerated, and not random.
    choices: Option<Choices>,
    had_chosen_fault: bool,
    bug: Option<Bug>,
    /// The process must be killed.
    crashed: bool,
    /// There are new watch events.
    changed: Arc<Notify>,
}

/// A bug of an attacher, injected between the attacher and its API server or driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Issue 3 of the Go sidecar: writes reach a re-created object of the same name.
    WritesWithoutUid,
    /// Issue 4: the finalizer of a PersistentVolume is appended without a test.
    PvFinalizerAppended,
    /// Issue 12: a detach uses the present node ID, and not the recorded one.
    PresentNodeId,
    /// NOT_FOUND counts as a proof of detach.
    NotFoundIsProof,
    /// The loss of publish calls counts as a proof of detach.
    CapabilityIsProof,
}

type LateWrite = Box<dyn FnOnce(&mut State) + Send>;

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
    begun: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    pub(super) attachments: usize,
    pub(super) volumes: usize,
}

thread_local! {
    /// Error of the wall clock, in seconds.
    static CLOCK_ERROR: Cell<i64> = const { Cell::new(0) };
}

/// The publish target in the VolumeAttachment's annotations.
fn recorded(attachment: &Attachment) -> Option<PublishTarget> {
    let Recorded { node_id, handle, .. } = attachment.recorded.clone();
    Some(PublishTarget {
        volume_id: handle?,
        node_id: node_id?,
    })
}

// === impl Lie ===

impl Lie {
    pub(super) const ALL: [Self; 13] = [
        Self::NotFound,
        Self::OkWithoutEffect,
        Self::EffectLater,
        Self::CsiNode,
        Self::CsiNodeGone,
        Self::SharedNodeId,
        Self::StrayNotFound,
        Self::StrayStatus,
        Self::LostFinalizer,
        Self::SkippedEvents,
        Self::RepeatedEvents,
        Self::ClockJumps,
        Self::SecretForbidden,
    ];

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

// === impl Faults ===

impl Faults {
    /// Without faults, the cost of an operation has a bound.
    fn settings(self) -> Settings {
        let quiet = self.api == 0 && self.driver == 0 && self.lies == 0 && !self.locks_nodes;
        match quiet {
            true => Settings::exact(),
            false => Settings::exact().without(Clause::Uneventful),
        }
    }

    pub(super) const NONE: Self = Self {
        api: 0,
        driver: 0,
        list: 0,
        array: false,
        fickle: false,
        lies: 0,
        locks_nodes: false,
    };
    pub(super) const SOME: Self = Self {
        api: 15,
        driver: 20,
        list: 40,
        array: true,
        fickle: false,
        lies: 0,
        locks_nodes: false,
    };
    pub(super) const FICKLE: Self = Self {
        fickle: true,
        ..Self::SOME
    };
    pub(super) const LIES: Self = Self {
        lies: u16::MAX,
        ..Self::FICKLE
    };
    /// As `SOME`, with one kind of untrue answers.
    pub(super) fn with_lie(lie: Lie) -> Self {
        Self {
            lies: lie.bit(),
            ..Self::SOME
        }
    }
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
        CLOCK_ERROR.set(0);
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
            late: Vec::new(),
            late_writes: Vec::new(),
            executes_late: false,
            devices: HashMap::new(),
            contexts: HashMap::new(),
            finalizer_added: HashMap::new(),
            secret_forbidden_until: None,
            broken_node: None,
            removed_ids: HashSet::new(),
            former_ids: HashMap::new(),
            calling: HashMap::new(),
            calls: Calls::default(),
            writes: Writes::default(),
            reads_of_secrets: 0,
            lease: None,
            contract: Contract::new(faults.settings()),
            began: Instant::now(),
            random: fastrand::Rng::with_seed(seed),
            faults,
            choices: None,
            had_chosen_fault: false,
            bug: None,
            crashed: false,
            changed: Arc::default(),
        };
        for node in 0..NODES {
            state.register_node(node);
        }
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self
            .0
            .lock()
            .expect("no test must panic while the world is locked");
        state.take_late_effects();
        state
    }

    /// As `new`, but only the holder of `lease` may write and call.
    pub(super) fn with_lease(seed: u64, faults: Faults, lease: Server) -> Self {
        let world = Self::new(seed, faults);
        world.state().lease = Some(lease);
        world
    }

    /// As `new`, with enumerated faults and a bug.
    pub(super) fn with_choices(choices: Choices, bug: Option<Bug>) -> Self {
        let world = Self::new(0, Faults::NONE);
        let mut state = world.state();
        state.contract = Contract::new(Settings::exact().without(Clause::Uneventful));
        state.choices = Some(choices);
        state.bug = bug;
        (0..NODES).for_each(|node| state.observe_node(&format!("node-{node}")));
        drop(state);
        world
    }

    /// The choices of a history that has ended.
    pub(super) fn take_choices(&self) -> Option<Choices> {
        self.state().choices.take()
    }

    /// Kills the attacher. Never returns.
    async fn crash(&self) {
        {
            let mut state = self.state();
            state.crashed = true;
            state.changed.notify_waiters();
        }
        std::future::pending().await
    }

    /// Waits until the attacher must be killed.
    pub(super) async fn crashed(&self) {
        let changed = self.state().changed.clone();
        loop {
            let notified = changed.notified();
            if std::mem::take(&mut self.state().crashed) {
                return;
            }
            notified.await;
        }
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

    /// Forgets the running calls of a dead process, which no longer count against the next one.
    pub(super) fn attacher_died(&self) {
        let mut state = self.state();
        state.calling.clear();
        state.observe(Observation::ProcessEnded(PROCESS.into()));
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
        self.until_at_once(|state| state.calls.publish > 0).await;
    }

    /// Waits for the first write, which precedes the first call.
    pub(super) async fn first_write(&self) {
        self.until_at_once(|state| state.writes.attachments > 0).await;
    }

    /// The wall clock of a controller, which may jump by hours.
    pub(super) fn wall_clock() -> Timestamp {
        let error = SignedDuration::from_secs(CLOCK_ERROR.get());
        // Far from the epoch, so that it can be set back.
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(100_000) + error
    }

    /// Each look polls the whole attacher, so it is worth few of them.
    async fn until(&self, condition: impl Fn(&State) -> bool) {
        while !condition(&self.state()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn until_at_once(&self, condition: impl Fn(&State) -> bool) {
        while !condition(&self.state()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

// === impl State ===

impl State {
    fn percent(&mut self, percent: u8) -> bool {
        self.random.u8(0..100) < percent
    }

    /// Whether this kind of lie happens now.
    fn lies(&mut self, lie: Lie, percent: u8) -> bool {
        self.faults.lies & lie.bit() != 0 && self.percent(percent)
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    fn next_uid(&mut self) -> csi_attacher::model::Uid {
        self.uids += 1;
        format!("uid-{}", self.uids).as_str().into()
    }

    fn emit(&mut self, event: Event) {
        self.log.push(event);
        self.changed.notify_waiters();
    }

    fn put_attachment(&mut self, mut attachment: Attachment) -> Attachment {
        attachment.version = self.next_version();
        let name = attachment.name.to_string();
        if attachment.deleting && !attachment.finalizer && !attachment.foreign_finalizers {
            self.attachments.remove(&name);
            self.observe(Observation::AttachmentGone(attachment.name.clone()));
            let gone = Change::Deleted {
                name: attachment.name.clone(),
                uid: attachment.uid.clone(),
            };
            self.emit(Event::Attachments(gone));
        } else {
            self.attachments.insert(name, attachment.clone());
            self.observe_attachment(&attachment);
            self.emit(Event::Attachments(Change::Applied(attachment.clone())));
        }
        attachment
    }

    fn put_volume(&mut self, mut volume: Volume) -> Volume {
        volume.version = self.next_version();
        let name = volume.name.to_string();
        if volume.deleting && !volume.finalizer {
            self.volumes.remove(&name);
            self.observe(Observation::VolumeGone(volume.name.clone()));
            let gone = Change::Deleted {
                name: volume.name.clone(),
                uid: volume.uid.clone(),
            };
            self.emit(Event::Volumes(gone));
        } else {
            self.volumes.insert(name, volume.clone());
            self.observe_volume(&volume, volume.finalizer.into());
            self.emit(Event::Volumes(Change::Applied(volume.clone())));
        }
        volume
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
            created: None,
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
            // All nodes are older.
            created: Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1)),
            requested_at: None,
            finalizer: false,
            foreign_finalizers,
            node: format!("node-{}", number % NODES).as_str().into(),
            source: Source::Volume(format!("pv-{}", number % VOLUMES).as_str().into()),
            recorded: Recorded::default(),
            attached: false,
            metadata: Metadata::default(),
            attach_error: None,
            detach_error: None,
        };
        self.put_attachment(attachment);
    }
}
