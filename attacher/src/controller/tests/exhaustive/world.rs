//! The model: API server, CSINodes, driver and array, and a judge that knows the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::RETRY;
use super::choices::Choices;
use super::digest::Digest;
use crate::controller::SyncError;
use crate::controller::state::{ControllerState, Event, Item, key};
use crate::informer::Change;
use crate::model::{Attachment, Capabilities, Node, PublishTarget, Recorded, Secrets, Uid, Version, Volume};
use crate::plan::tests::{mk_attachment, mk_driver, mk_node, mk_volume};
use crate::plan::{
    Command, Next, Operation, Orphan, PublishEnd, Published, Stop, Subject, SyncContext, UnpublishResult,
};
use crate::workqueue::{Backoff, Class, Limits};

/// How a history begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// A VolumeAttachment is created.
    Created,
    /// One is attached without our finalizer and record, and the volume is published.
    Unguarded,
    /// An attach stored its record and published, and the node registers another id now.
    Moved,
    /// One is attached, and the node registers another id now.
    AttachedMoved,
    /// One is attached, and a second one of the volume is created for another node.
    TwoNodes,
    /// One is attached, and a second one of the volume is created for the same node.
    TwoOnOneNode,
}

/// A wrong rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A1: NOT_FOUND is a proof of detach.
    NotFoundIsProof,
    /// A2: without publish calls the finalizer goes without a call.
    NoCallsIsProof,
    /// A3: what was decided without publish calls outlives the connection.
    DecisionOutlivesConnection,
    /// A4: any 404 means that the VolumeAttachment is gone.
    StrayNotFoundIsGone,
    /// A17: an attached VolumeAttachment without finalizer and record is left alone.
    UnguardedIsLeft,
    /// Go's issue 3: writes without the UID.
    WritesWithoutUid,
    /// What the watch shows is published without a live answer.
    WatchIsTrusted,
    /// Go's issue 12: a detach unpublishes the present node id alone.
    PresentNodeIdAlone,
}

/// The answer to a call, and whether the array executed it. A crash instead of the answer ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Ok,
    OkWithoutEffect,
    Code(i32),
    Deadline { effect: bool },
    Crash { effect: bool },
}

/// The answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Ok,
    Lost {
        effect: bool,
    },
    /// A 404 of a proxy.
    Stray,
    Crash {
        effect: bool,
    },
    /// No response, and the API server executes it later.
    Late,
}

/// A change of the world between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    None,
    Register(&'static str),
    Unregister,
    DeleteNode,
    Reconnect {
        calls: bool,
    },
    Delete,
    ExecuteLate,
    /// The watch goes back past the deletion of a VolumeAttachment.
    GoBack,
}

const CALLS: [Call; 8] = [
    Call::Ok,
    Call::OkWithoutEffect,
    Call::Code(5),
    Call::Code(3),
    Call::Code(10),
    Call::Deadline { effect: true },
    Call::Deadline { effect: false },
    Call::Crash { effect: true },
];
const WRITES: [Write; 5] = [
    Write::Ok,
    Write::Lost { effect: true },
    Write::Lost { effect: false },
    Write::Stray,
    Write::Crash { effect: true },
];
/// Steps after which the driver has its publish calls and the node its driver again.
const BROKEN: u32 = 12;

/// One sync.
#[derive(Clone)]
struct Sync {
    item: Item,
    subject: Subject,
    locked: Vec<PublishTarget>,
    failed: bool,
}

/// The driver's answers about a target since its last publish.
#[derive(Clone, Default)]
struct Answered {
    ok: bool,
    unknown: Vec<Instant>,
}

/// See the module.
#[derive(Clone)]
pub(super) struct World {
    pub(super) choices: Choices,
    scope: Scope,
    bug: Option<Bug>,
    api: BTreeMap<Arc<str>, Attachment>,
    version: u64,
    nodes: BTreeMap<Arc<str>, Node>,
    array: BTreeSet<PublishTarget>,
    answered: BTreeMap<PublishTarget, Answered>,
    /// Left to an orphan by the contract: an attach to a node with another id whose old target the driver does not know.
    waived: BTreeSet<PublishTarget>,
    has_calls: bool,
    session: Instant,
    now: Instant,
    state: ControllerState,
    syncs: Vec<Sync>,
    /// Syncs that failed in a row.
    failed: usize,
    /// A finalizer's removal that the API server executes later.
    late: Option<(Arc<str>, Uid)>,
    /// A VolumeAttachment that is deleted or being deleted, as it was when its record was stored.
    former: Option<Attachment>,
    decided_without_calls: BTreeSet<Uid>,
    is_recreated: bool,
    /// For how many steps the driver or the node has been broken.
    broken: u32,
    /// What happened, if it is wanted.
    pub(super) story: Option<Vec<String>>,
}

type Judged = Result<(), String>;

// === impl Scope ===

impl Scope {
    pub(super) const ALL: [Self; 6] = [
        Self::Created,
        Self::Unguarded,
        Self::Moved,
        Self::AttachedMoved,
        Self::TwoNodes,
        Self::TwoOnOneNode,
    ];

    /// The most faults of its histories.
    pub(super) fn faults(self) -> usize {
        match self {
            Self::Created | Self::Unguarded | Self::Moved | Self::AttachedMoved => 3,
            Self::TwoNodes | Self::TwoOnOneNode => 2,
        }
    }
}

// === impl Bug ===

impl Bug {
    pub(super) const ALL: [Self; 8] = [
        Self::NotFoundIsProof,
        Self::NoCallsIsProof,
        Self::DecisionOutlivesConnection,
        Self::StrayNotFoundIsGone,
        Self::UnguardedIsLeft,
        Self::WritesWithoutUid,
        Self::WatchIsTrusted,
        Self::PresentNodeIdAlone,
    ];
}

// === impl World ===

impl World {
    pub(super) fn new(scope: Scope, bug: Option<Bug>, choices: Choices) -> Self {
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let now = Instant::now();
        let mut world = Self {
            choices,
            scope,
            bug,
            api: BTreeMap::new(),
            version: 10,
            nodes: BTreeMap::new(),
            array: BTreeSet::new(),
            answered: BTreeMap::new(),
            waived: BTreeSet::new(),
            has_calls: true,
            session: now,
            now,
            state: mk_state(now),
            syncs: Vec::new(),
            failed: 0,
            late: None,
            former: None,
            decided_without_calls: BTreeSet::new(),
            is_recreated: false,
            broken: 0,
            story: None,
        };
        let registered = if matches!(scope, Scope::Moved | Scope::AttachedMoved) {
            "id-2"
        } else {
            "id-1"
        };
        world
            .nodes
            .insert("node".into(), mk_node("node", Some(registered)));
        world
            .nodes
            .insert("other".into(), mk_node("other", Some("other-id")));
        let recorded = Recorded {
            node_id: Some("id-1".into()),
            handle: Some("handle".into()),
            secret: None,
        };
        let begun = Attachment {
            finalizer: true,
            recorded,
            ..mk_attachment("va")
        };
        let attached = Attachment {
            attached: true,
            ..begun.clone()
        };
        let first = match scope {
            Scope::Created => mk_attachment("va"),
            Scope::Unguarded => Attachment {
                attached: true,
                ..mk_attachment("va")
            },
            Scope::Moved => begun,
            Scope::AttachedMoved | Scope::TwoNodes | Scope::TwoOnOneNode => attached,
        };
        if scope != Scope::Created {
            world.array.insert(at("id-1"));
        }
        world.api.insert(first.name.clone(), first);
        if matches!(scope, Scope::TwoNodes | Scope::TwoOnOneNode) {
            let node = if scope == Scope::TwoNodes { "other" } else { "node" };
            let second = Attachment {
                node: node.into(),
                ..mk_attachment("vb")
            };
            world.api.insert(second.name.clone(), second);
        }
        world.start_process();
        world
    }

    /// A process lists all objects.
    fn start_process(&mut self) {
        self.syncs.clear();
        self.decided_without_calls.clear();
        self.state = mk_state(self.now);
        let volume = Volume {
            finalizer: true,
            ..mk_volume("pv")
        };
        self.state
            .handle(Event::DriverConnected(capabilities(self.has_calls)));
        self.state.handle(Event::Volumes(Change::Applied(volume)));
        for node in self.nodes.values() {
            self.state.handle(Event::Nodes(Change::Applied(node.clone())));
        }
        for attachment in self.api.values() {
            self.state
                .handle(Event::Attachments(Change::Applied(attachment.clone())));
        }
    }

    /// Executes one step: a change of the world, then a command of one sync. Returns whether another one follows.
    pub(super) fn advance(&mut self) -> Result<bool, String> {
        self.change_world()?;
        self.mend();
        self.start_syncs();
        // Users do not wait for ever, and an orphan may wait for the VolumeAttachment.
        if self.failed >= 8 {
            self.failed = 0;
            self.delete();
            self.judge()?;
        }
        if !self.syncs.is_empty() {
            let runs: Vec<usize> = (0..self.syncs.len()).collect();
            let run = self.choices.of(&runs);
            self.step(run)?;
        } else if self.api.is_empty() {
            return Ok(false);
        } else {
            self.idle()?;
        }
        Ok(true)
    }

    /// What decides about the histories that follow, as a number.
    pub(super) fn state(&self) -> u64 {
        let Self {
            choices,
            scope: _,
            bug: _,
            api,
            version: _,
            nodes,
            array,
            answered,
            waived,
            has_calls,
            session,
            now,
            state,
            syncs,
            failed,
            late,
            former,
            decided_without_calls,
            is_recreated,
            broken,
            story: _,
        } = self;
        let syncs: Vec<_> = syncs.iter().map(|s| (&s.subject, &s.locked, s.failed)).collect();
        let answered: Vec<_> = answered
            .iter()
            .map(|(target, a)| (target, a.ok, a.bounds()))
            .collect();
        let flags = (has_calls, failed, is_recreated, broken, choices.left());
        let objects = (api, nodes, array, waived, late, former, decided_without_calls);
        let mut digest = Digest::default();
        let all = (now, session, flags, objects, answered, syncs);
        write!(digest, "{all:?}").expect("a digest takes everything");
        state.digest(&mut digest);
        digest.number()
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(what());
        }
    }

    /// Ends what has been broken for long enough.
    fn mend(&mut self) {
        if self.is_attachable() {
            self.broken = 0;
            return;
        }
        self.broken += 1;
        if self.broken < BROKEN {
            return;
        }
        if !self.has_calls {
            self.reconnect(true);
        }
        if self.nodes.get("node").is_none_or(|node| node.id.is_none()) {
            self.set_node(Some(Some("id-1")));
        }
        // kube's watcher lists again.
        for attachment in self.api.values() {
            let again = Change::Applied(attachment.clone());
            self.state.handle(Event::Attachments(again));
        }
    }

    fn start_syncs(&mut self) {
        self.now += RETRY;
        let begun = self.syncs.len();
        while let Some(item) = self.state.start(self.now) {
            let Item::Subject(subject) = item.clone() else {
                self.state.finish(&item, Ok(()), self.now);
                continue;
            };
            let is_left = matches!(&subject, Subject::Attachment(Operation::Attach, attachment) if attachment.attached && !attachment.finalizer);
            if is_left && self.bug == Some(Bug::UnguardedIsLeft) {
                self.state
                    .finish(&item, Err(SyncError::new(Class::Refused, "")), self.now);
                continue;
            }
            let progress = self.state.progress(&subject);
            progress.sync = Default::default();
            progress.is_confirmed |= self.bug == Some(Bug::WatchIsTrusted);
            self.syncs.push(Sync {
                item,
                subject,
                locked: Vec::new(),
                failed: false,
            });
        }
        // The queue's order depends on what it started before.
        self.syncs[begun..].sort_by_cached_key(|sync| key(&sync.subject));
    }

    /// Nothing is to be done: users delete the first VolumeAttachment.
    fn idle(&mut self) -> Judged {
        let waiting = self.api.values().find(|a| !a.deleting && !a.attached);
        let is_waiting = self.state.queue.next_advance().is_some();
        match waiting {
            Some(waiting) if !is_waiting && self.is_attachable() => Err(format!(
                "{} is not attached, and nothing is to be done",
                waiting.name
            )),
            _ if is_waiting => Ok(()),
            _ => {
                self.delete();
                self.judge()
            }
        }
    }

    fn is_attachable(&self) -> bool {
        self.has_calls && self.nodes.get("node").is_some_and(|node| node.id.is_some())
    }

    /// Users delete the first VolumeAttachment that is not being deleted.
    fn delete(&mut self) {
        let Some(first) = self.api.values().find(|a| !a.deleting) else {
            return;
        };
        let name = first.name.clone();
        if self.scope == Scope::Unguarded && !first.finalizer && !self.is_attachable() {
            // The attacher cannot publish it once more.
            self.waived.insert(at("id-1"));
        }
        self.tell(|| format!("users delete {name}"));
        self.write(&name, None, |attachment| attachment.deleting = true);
        self.show(&name);
    }

    fn change_world(&mut self) -> Judged {
        let mut options = vec![Happening::None];
        let node = self.nodes.get("node").and_then(|node| node.id.clone());
        // Nothing shows where an unguarded volume is published, other than the id that its node keeps until it is recorded.
        let is_recorded = self.scope != Scope::Unguarded || self.api.values().all(|a| a.finalizer);
        for id in ["id-1", "id-2"] {
            if node.as_deref() != Some(id) && (id == "id-1" || is_recorded) {
                options.push(Happening::Register(id));
            }
        }
        if node.is_some() {
            options.extend([Happening::Unregister, Happening::DeleteNode]);
        }
        options.extend([false, true].map(|calls| Happening::Reconnect { calls }));
        // Without our finalizer, nothing keeps the object until the attacher has seen it.
        if self
            .api
            .values()
            .find(|a| !a.deleting)
            .is_some_and(|a| a.finalizer)
        {
            options.push(Happening::Delete);
        }
        if self.late.is_some() {
            options.push(Happening::ExecuteLate);
        }
        let is_gone = |former: &Attachment| self.api.values().all(|a| a.uid != former.uid);
        if self.former.as_ref().is_some_and(is_gone) {
            options.push(Happening::GoBack);
        }
        let change = self.choices.of(&options);
        if change != Happening::None {
            self.tell(|| format!("{change:?}"));
        }
        match change {
            Happening::None => {}
            Happening::Register(id) => self.set_node(Some(Some(id))),
            Happening::Unregister => self.set_node(Some(None)),
            Happening::DeleteNode => self.set_node(None),
            Happening::Reconnect { calls } => self.reconnect(calls),
            Happening::Delete => self.delete(),
            Happening::GoBack => {
                if let Some(former) = self.former.take() {
                    let Attachment { name, uid, .. } = former.clone();
                    self.state
                        .handle(Event::Attachments(Change::Deleted { name, uid }));
                    self.state.handle(Event::Attachments(Change::Applied(former)));
                }
            }
            Happening::ExecuteLate => {
                if let Some((name, uid)) = self.late.take() {
                    let uid = (self.bug != Some(Bug::WritesWithoutUid)).then_some(uid);
                    self.write(&name, uid.as_ref(), |attachment| attachment.finalizer = false);
                    self.show(&name);
                    self.judge()?;
                }
            }
        }
        Ok(())
    }

    fn set_node(&mut self, id: Option<Option<&str>>) {
        self.version += 1;
        let change = match id {
            None => {
                let Some(Node { name, uid, .. }) = self.nodes.remove("node") else {
                    return;
                };
                Change::Deleted { name, uid }
            }
            Some(id) => {
                let node = Node {
                    version: Version(self.version),
                    ..mk_node("node", id)
                };
                self.nodes.insert("node".into(), node.clone());
                Change::Applied(node)
            }
        };
        self.state.handle(Event::Nodes(change));
    }

    fn reconnect(&mut self, calls: bool) {
        self.has_calls = calls;
        self.now += Duration::from_millis(1);
        self.session = self.now;
        self.state.handle(Event::DriverConnected(capabilities(calls)));
    }

    /// Executes a write, if the object exists and has this UID.
    fn write(
        &mut self,
        name: &Arc<str>,
        uid: Option<&Uid>,
        change: impl FnOnce(&mut Attachment),
    ) -> Option<Attachment> {
        let stored = self.api.get_mut(name);
        let attachment = stored.filter(|stored| uid.is_none_or(|uid| *uid == stored.uid))?;
        self.version += 1;
        attachment.version = Version(self.version);
        let before = attachment.clone();
        change(attachment);
        let after = attachment.clone();
        if after.deleting && !before.deleting && before.finalizer {
            self.former = Some(Attachment {
                attached: false,
                ..before
            });
        }
        if after.deleting && !after.finalizer {
            self.api.remove(name);
            // Controllers create it again, for the next pod.
            if self.late.is_some() && !std::mem::replace(&mut self.is_recreated, true) {
                self.version += 1;
                let successor = Attachment {
                    uid: "uid-of-the-next".into(),
                    version: Version(self.version),
                    ..mk_attachment("va")
                };
                self.api.insert(name.clone(), successor);
            }
        }
        Some(after)
    }

    /// The watch shows the newest version.
    fn show(&mut self, name: &Arc<str>) {
        let known = self.state.index.attachments.get(name).cloned();
        let newest = self.api.get(name).cloned();
        if let Some(gone) = known.filter(|known| newest.as_ref().is_none_or(|newest| newest.uid != known.uid))
        {
            let Attachment { name, uid, .. } = (*gone).clone();
            self.state
                .handle(Event::Attachments(Change::Deleted { name, uid }));
        }
        if let Some(newest) = newest {
            self.state.handle(Event::Attachments(Change::Applied(newest)));
        }
    }

    fn step(&mut self, run: usize) -> Judged {
        let driver = mk_driver();
        let subject = self.syncs[run].subject.clone();
        if self.has_calls && self.decided_without_calls.contains(&subject.attachment().uid) {
            let Attachment { name, uid, .. } = (**subject.attachment()).clone();
            self.write(&name, Some(&uid), |attachment| attachment.finalizer = false);
            self.finish(run, Ok(()));
            return self.judge();
        }
        let context = SyncContext {
            driver: &driver,
            session: Some(self.session),
            assume_after: Duration::ZERO,
            locked: &self.syncs[run].locked,
        };
        self.state.queue.now = self.now;
        match self.state.next(&subject, context) {
            Next::Done => self.finish(run, Ok(())),
            Next::Stop(stop) => {
                self.tell(|| format!("{:?} stops: {stop:?}", key(&subject)));
                let class = match stop {
                    Stop::Refused(_) => Class::Refused,
                    Stop::NoPublishCalls => return self.stop_without_calls(run, &subject),
                    Stop::Unproven(_)
                    | Stop::Failed
                    | Stop::MissingFinalizer(_)
                    | Stop::AmbiguousNodeId(_) => Class::Unproven,
                };
                self.finish(run, Err(SyncError::new(class, "stopped")));
            }
            Next::Lock(targets) => {
                let holder = |target: &PublishTarget| {
                    let mut others = self.syncs.iter().enumerate().filter(|(other, _)| *other != run);
                    others
                        .find(|(_, other)| other.locked.contains(target))
                        .map(|(at, _)| at)
                };
                match targets.iter().find_map(holder) {
                    None => self.syncs[run].locked = targets,
                    // It waits for the other sync, which has its turn.
                    Some(holder) => {
                        self.syncs[run].locked.clear();
                        return self.step(holder);
                    }
                }
            }
            Next::Act(commands) => {
                for command in commands {
                    if !self.command(run, &subject, command)? {
                        return Ok(());
                    }
                }
                if self.syncs[run].failed {
                    self.finish(run, Err(SyncError::new(Class::Uncertain, "failed")));
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, run: usize, result: Result<(), SyncError>) {
        let sync = self.syncs.remove(run);
        self.failed = if result.is_ok() { 0 } else { self.failed + 1 };
        self.state.finish(&sync.item, result, self.now);
        // The watch shows writes whose response was lost.
        let name = sync.subject.attachment().name.clone();
        if self.bug != Some(Bug::StrayNotFoundIsGone) {
            self.show(&name);
        }
    }

    fn stop_without_calls(&mut self, run: usize, subject: &Subject) -> Judged {
        let attachment = subject.attachment().clone();
        if subject.operation() == Some(Operation::Detach) {
            let uid = Some(&attachment.uid);
            if self.bug == Some(Bug::NoCallsIsProof) {
                self.write(&attachment.name, uid, |attachment| attachment.finalizer = false);
            } else if self.bug == Some(Bug::DecisionOutlivesConnection) {
                self.decided_without_calls.insert(attachment.uid.clone());
            }
        }
        self.finish(run, Err(SyncError::new(Class::Unproven, "no publish calls")));
        self.judge()
    }

    fn get_attachment(&mut self, run: usize, subject: &Subject) {
        let Attachment { name, uid, .. } = &**subject.attachment();
        let exists = self.api.get(name).is_some_and(|stored| stored.uid == *uid);
        self.syncs[run].failed |= exists && matches!(subject, Subject::Orphan(_));
        self.show(name);
        let progress = self.state.progress(subject);
        progress.is_confirmed = true;
        progress.sync.is_attachment_read = true;
    }

    /// Executes a command of the sync. Returns whether the process still runs.
    fn command(&mut self, run: usize, subject: &Subject, command: Command) -> Result<bool, String> {
        let attachment = subject.attachment().clone();
        let (name, uid) = (&attachment.name, &attachment.uid);
        match command {
            Command::Connect => {
                let driver = (Some(self.session), capabilities(self.has_calls));
                self.state.progress(subject).sync.driver = Some(driver);
            }
            Command::GetAttachment => self.get_attachment(run, subject),
            Command::GetOther(user) => {
                self.show(&user);
                let uid = self.api.get(&user).map(|user| user.uid.clone());
                self.state.progress(subject).sync.others_read.extend(uid);
            }
            Command::GetVolume(_) => {
                self.state.progress(subject).sync.volume = Some(Some(mk_volume("pv").into()))
            }
            Command::GetNode(node) => {
                let exists = self.nodes.contains_key(&node);
                self.state.progress(subject).sync.node_exists = Some(exists);
            }
            Command::GetSecret { secret, .. } => self
                .state
                .progress(subject)
                .sync
                .secrets
                .push((secret, Some(Secrets::default()))),
            Command::AddPvFinalizer(finalizer) => {
                self.state.progress(subject).sync.pv_finalizer = Some(finalizer.uid);
            }
            Command::Publish(plan) => return self.publish(run, subject, &plan.target),
            Command::Unpublish { target, .. } => return self.unpublish(run, subject, &target),
            Command::KeepOrphan(orphan) => {
                self.waived.insert(orphan.target.clone());
                self.state.add_orphan(orphan);
            }
            Command::EndOrphan => self.state.progress(subject).sync.is_done = true,
            Command::KeepProof(proof) => self.state.progress(subject).proof = Some(proof),
            Command::Record(record) => {
                let annotations = record.annotations.clone();
                let known = self.state.index.attachments.get(name).cloned();
                let changes = known.is_some_and(|k| k.finalizer && !k.recorded.has_same_target(&annotations));
                self.state.progress(subject).is_record_uncertain |= changes;
                let written = self.send(run, subject, |attachment| {
                    attachment.finalizer = true;
                    attachment.recorded = annotations;
                });
                if written == Some(true) {
                    let progress = self.state.progress(subject);
                    (progress.is_confirmed, progress.is_record_uncertain) = (true, false);
                }
                return self.judge().map(|()| written.is_some());
            }
            Command::SaveUndoError(_) => return Ok(self.save_undo_error(run, subject)),
            Command::MarkAttached(_) => return Ok(self.mark_attached(run, subject)),
            Command::MarkDetached => {
                let written = self.send(run, subject, |attachment| attachment.attached = false);
                return Ok(written.is_some());
            }
            Command::RemoveFinalizer(_) => {
                self.state.progress(subject).uncertain = None;
                if self.scope == Scope::Created && self.choices.of(&[Write::Ok, Write::Late]) == Write::Late {
                    self.tell(|| "the removal of the finalizer is late".to_owned());
                    self.late = Some((name.clone(), uid.clone()));
                    self.syncs[run].failed = true;
                    return Ok(true);
                }
                let written = self.send(run, subject, |attachment| attachment.finalizer = false);
                if written == Some(true) {
                    self.state.progress(subject).sync.is_attachment_read = true;
                }
                return self.judge().map(|()| written.is_some());
            }
        }
        Ok(true)
    }

    fn save_undo_error(&mut self, run: usize, subject: &Subject) -> bool {
        let error = Some(Box::default());
        let written = self.send(run, subject, |attachment| attachment.attach_error = error);
        if written == Some(true) {
            self.state.progress(subject).sync.is_undo_saved = true;
        }
        written.is_some()
    }

    fn mark_attached(&mut self, run: usize, subject: &Subject) -> bool {
        let written = self.send(run, subject, |attachment| {
            (attachment.attached, attachment.attach_error) = (true, None);
        });
        if written == Some(true) {
            self.state.progress(subject).sync.is_done = true;
        }
        written.is_some()
    }

    /// Sends a write. Returns whether it was answered, and `None` after a crash.
    fn send(&mut self, run: usize, subject: &Subject, change: impl FnOnce(&mut Attachment)) -> Option<bool> {
        let Attachment { name, uid, .. } = &**subject.attachment();
        let answer = self.choices.of(&WRITES);
        if answer != Write::Ok {
            self.tell(|| format!("{:?}: write {answer:?}", key(subject)));
        }
        let has_effect = matches!(
            answer,
            Write::Ok | Write::Lost { effect: true } | Write::Crash { effect: true }
        );
        let after = has_effect.then(|| self.write(name, Some(uid), change)).flatten();
        let gone = || Change::LocallyDeleted {
            name: name.clone(),
            uid: uid.clone(),
            version: None,
        };
        match answer {
            Write::Ok => {
                let change = match after {
                    Some(after) if !after.is_deleted() => Change::LocallyUpdated(after),
                    Some(_) | None => gone(),
                };
                self.state.handle(Event::Attachments(change));
                Some(true)
            }
            Write::Crash { .. } => {
                self.start_process();
                None
            }
            Write::Stray if self.bug == Some(Bug::StrayNotFoundIsGone) => {
                self.state.handle(Event::Attachments(gone()));
                Some(true)
            }
            Write::Stray | Write::Lost { .. } | Write::Late => {
                self.syncs[run].failed = true;
                Some(false)
            }
        }
    }

    fn publish(&mut self, run: usize, subject: &Subject, target: &PublishTarget) -> Result<bool, String> {
        let Attachment { name, uid, .. } = &**subject.attachment();
        if self.api.get(name).is_none_or(|stored| stored.uid != *uid) {
            return Err(format!("a publish is sent for {name}, which is gone"));
        }
        let connection = self.state.publish_begins(&subject.attachment().uid, target);
        self.answered.insert(target.clone(), Answered::default());
        let call = self.call(subject, "publish", target);
        if has_effect(call) {
            self.array.insert(target.clone());
        }
        if let Call::Crash { .. } = call {
            self.start_process();
            return Ok(false);
        }
        let end = match call {
            Call::Deadline { .. } | Call::Code(10) => PublishEnd::Unknown,
            Call::Ok | Call::OkWithoutEffect => PublishEnd::Succeeded,
            Call::Code(_) | Call::Crash { .. } => PublishEnd::NoEffect,
        };
        self.state.publish_ended(&subject.attachment().uid, end);
        let is_ok = matches!(call, Call::Ok | Call::OkWithoutEffect);
        if is_ok || matches!(call, Call::Deadline { .. } | Call::Code(10)) {
            self.state.may_be_published(Orphan {
                target: target.clone(),
                secret: None,
                migrated: false,
                attachment: subject.attachment().clone(),
            });
        }
        if is_ok {
            self.state.progress(subject).publish_succeeded(Published {
                target: target.clone(),
                context: BTreeMap::new(),
                connection,
            });
        } else {
            self.syncs[run].failed = true;
        }
        Ok(true)
    }

    fn unpublish(&mut self, run: usize, subject: &Subject, target: &PublishTarget) -> Result<bool, String> {
        let mut asked = target.clone();
        let node = self.nodes.get("node").and_then(|node| node.id.clone());
        if let (Some(Bug::PresentNodeIdAlone), Some(present)) = (self.bug, node) {
            asked.node_id = present;
        }
        let (session, call) = (self.session, self.call(subject, "unpublish", &asked));
        if has_effect(call) {
            let user = self.api.values().find(|a| {
                let is_other = a.uid != subject.attachment().uid || matches!(subject, Subject::Orphan(_));
                is_other
                    && a.attached
                    && !a.deleting
                    && a.finalizer
                    && a.recorded.node_id.as_ref() == Some(&asked.node_id)
            });
            if let Some(user) = user {
                return Err(format!(
                    "{asked:?} is unpublished, and a pod of {} uses it",
                    user.name
                ));
            }
            self.array.remove(&asked);
        }
        if let Call::Crash { .. } = call {
            self.start_process();
            return Ok(false);
        }
        let answered = self.answered.entry(asked).or_default();
        let result = match call {
            Call::Ok | Call::OkWithoutEffect => {
                answered.ok = true;
                UnpublishResult::Unpublished
            }
            Call::Code(code) => {
                let result = UnpublishResult::from_code(code, true);
                if result != UnpublishResult::Failed {
                    answered.unknown.push(self.now);
                }
                let is_trusted = self.bug == Some(Bug::NotFoundIsProof);
                if result == UnpublishResult::NotFound && is_trusted {
                    UnpublishResult::Unpublished
                } else {
                    result
                }
            }
            Call::Deadline { .. } | Call::Crash { .. } => UnpublishResult::Failed,
        };
        self.state.unpublish_ended(subject, target, session, result);
        self.syncs[run].failed |= result == UnpublishResult::Failed;
        Ok(true)
    }

    fn call(&mut self, subject: &Subject, what: &str, target: &PublishTarget) -> Call {
        let call = self.choices.of(&CALLS);
        self.tell(|| format!("{:?}: {what} {}: {call:?}", key(subject), target.node_id));
        call
    }

    /// A volume must not be forgotten: published, without a finalizer that keeps it and without a proof.
    fn judge(&self) -> Judged {
        for target in &self.array {
            let is_recorded = |a: &Attachment| {
                a.finalizer && a.recorded.node_id.as_ref().is_none_or(|id| *id == target.node_id)
            };
            // Before the attacher has seen them.
            let is_unguarded = |a: &Attachment| self.scope == Scope::Unguarded && a.attached && !a.finalizer;
            let is_kept = self.api.values().any(|a| is_recorded(a) || is_unguarded(a));
            let answered = self.answered.get(target);
            let is_proven = answered.is_some_and(|answered| answered.ok || answered.is_repeated());
            if !is_kept
                && !is_proven
                && !self.waived.contains(target)
                && !self.state.orphans.contains_key(target)
            {
                return Err(format!("the volume is forgotten at {:?}", target.node_id));
            }
        }
        Ok(())
    }
}

// === impl Answered ===

impl Answered {
    /// The number of answers, the first and the last of them, as far as [`Self::is_repeated`] distinguishes them.
    fn bounds(&self) -> (usize, Option<Instant>, Option<Instant>) {
        let unknown = &self.unknown;
        match self.ok {
            true => (0, None, None),
            false => (
                unknown.len().min(3),
                unknown.first().copied(),
                unknown.last().copied(),
            ),
        }
    }

    /// Three answers over a minute (docs/adr/0004), which the machine takes only where the other id is proven.
    fn is_repeated(&self) -> bool {
        let [first, .., last] = self.unknown[..] else {
            return false;
        };
        self.unknown.len() >= 3 && last - first >= Duration::from_secs(60)
    }
}

fn has_effect(call: Call) -> bool {
    matches!(
        call,
        Call::Ok | Call::Deadline { effect: true } | Call::Crash { effect: true }
    )
}

fn at(node_id: &str) -> PublishTarget {
    PublishTarget {
        volume_id: "handle".into(),
        node_id: node_id.into(),
    }
}

fn capabilities(publish: bool) -> Capabilities {
    Capabilities {
        publish,
        ..Capabilities::default()
    }
}

/// Its backoff is shorter than [`RETRY`].
fn mk_state(now: Instant) -> ControllerState {
    let limits = Limits {
        attach: 4,
        detach: 4,
        volume: 4,
        driver_calls: 0,
        adaptive: false,
    };
    let backoff = Backoff {
        start: Duration::from_millis(1),
        max: Duration::from_millis(1),
    };
    ControllerState::new(limits, backoff, 1, now)
}
