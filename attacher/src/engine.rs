//! The core of the attacher: events in, jobs out, reports back in.
//!
//! It joins [`Index`], [`Queue`] and [`decide`] and is as pure as they are: no await,
//! no client, no clock, and its randomness comes from a seed. Whoever drives it carries out the
//! [`Job`]s, one after the other or thousands at once, and hands back a [`Report`] for each.
//!
//! Invariants: one job a key at a time; a job gets the newest state there is when it starts; the
//! echo of our own write starts nothing; a failure is waited out unless something changed that the
//! work depends on.

mod census;
mod events;
mod gone;
mod holder;
mod job;
mod reconcile;
mod repair;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

pub use census::{Census, LaneCensus, LastFailure, Listed, Pending, Reached};

use crate::decide::reconcile::Survey;
use crate::decide::{self, Wanted, release};
use crate::index::{Change, Index, Reverse};
use crate::model::{Attachment, Capabilities, Node, Uid, Volume};
use crate::queue::{Backoff, Class, Failed, Finished, Key, Lane, Limits, Queue};
pub use holder::{Held, UsedBy};
pub use job::{Answer, Job, Outcome, Report, Subject};
pub use reconcile::{Fault, Finding, LastRound, Round, Tally};
use repair::{Repairs, lane};

/// See the module.
#[derive(Debug)]
pub struct Engine {
    index: Index,
    /// By name, those that are gone while their attachments do not tell what they were.
    gone_volumes: HashMap<Arc<str>, Arc<Volume>>,
    queue: Queue,
    /// What the driver answered where it could not be written down yet. The write is then tried
    /// again by itself, without another driver call.
    answers: HashMap<Uid, Answer>,
    /// Attachments whose job began before the driver was last back: what it is told by may be the one before.
    outlived: HashSet<Uid>,
    /// Attachments whose record is being changed to another target: the one that is known is none to rely on.
    moving: HashSet<Uid>,
    /// Attachments whose last failure was for want of room on their node, and some whose was not.
    short_of_room: Reverse,
    listed: Listed,
    reached: Reached,
    random: fastrand::Rng,
    /// What the driver can do, since it was first there.
    capabilities: Option<Capabilities>,
    repairs: Repairs,
    /// Whether work has begun: before all lists are complete, a node that is not listed yet looks like
    /// one that does not exist.
    started: bool,
}

/// Something that happened outside.
#[derive(Clone, Debug)]
pub enum Event {
    /// To VolumeAttachments of our driver.
    Attachments(Change<Attachment>),
    /// To PersistentVolumes that concern us.
    Volumes(Change<Volume>),
    /// To CSINodes.
    Nodes(Change<Node>),
    /// The driver can be called, for the first time or again, and this is what it can do now.
    DriverBack(Capabilities),
    /// A survey that [`Engine::begin_survey`] began is complete.
    Surveyed(Survey, Round),
    /// It came to nothing, for this reason.
    SurveyFailed(Round, Arc<str>),
    /// Time to look at everything again (`--resync`).
    Resync,
}

// === impl Event ===

impl Event {
    /// What is to be handled before the watch that said this goes on, ahead of all that still waits to be:
    /// it is about to ask for a list.
    pub fn announcement(&self) -> Option<Self> {
        match self {
            Self::Attachments(Change::Listing) => Some(Self::Attachments(Change::Announced)),
            Self::Volumes(Change::Listing) => Some(Self::Volumes(Change::Announced)),
            Self::Nodes(Change::Listing) => Some(Self::Nodes(Change::Announced)),
            Self::Attachments(_)
            | Self::Volumes(_)
            | Self::Nodes(_)
            | Self::DriverBack(_)
            | Self::Surveyed(..)
            | Self::SurveyFailed(..)
            | Self::Resync => None,
        }
    }
}

// === impl Engine ===

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(limits: Limits, backoff: Backoff, seed: u64) -> Self {
        Self {
            index: Index::default(),
            gone_volumes: HashMap::new(),
            queue: Queue::new(limits, backoff),
            answers: HashMap::new(),
            outlived: HashSet::new(),
            moving: HashSet::new(),
            short_of_room: Reverse::default(),
            listed: Listed::default(),
            reached: Reached::default(),
            random: fastrand::Rng::with_seed(seed),
            capabilities: None,
            repairs: Repairs::default(),
            started: false,
        }
    }

    /// Takes in what happened outside.
    pub fn handle(&mut self, event: Event) {
        self.listed.note(&event);
        match event {
            Event::Attachments(change) => self.attachments_changed(change),
            Event::Volumes(change) => self.volumes_changed(change),
            Event::Nodes(change) => self.nodes_changed(change),
            Event::DriverBack(capabilities) => self.driver_back(capabilities),
            Event::Surveyed(survey, round) => self.surveyed(survey, round),
            Event::SurveyFailed(round, why) => self.survey_failed(round, why),
            Event::Resync => self.consider_all(),
        }
    }

    /// The next job, if any is due and its lane has a free place.
    pub fn start(&mut self, now: Instant) -> Option<Job> {
        self.started = true;
        self.queue.advance(now);
        while let Some((key, lane)) = self.queue.start() {
            let job = match &key {
                Key::Attachment(name) => self.attachment_job(name, lane),
                Key::Volume(name) => self.volume_job(name),
            };
            if job.is_some() {
                return job;
            }
            // What the key waited for is no longer wanted; what is, follows from the newest state.
            let Finished { .. } = self.queue.finish(&key);
            self.consider(&key);
        }
        None
    }

    /// When [`Engine::start`] is next worth calling if nothing happens before.
    pub fn next_start(&self) -> Option<Instant> {
        self.queue.next_advance()
    }

    /// Takes in how a job ended.
    pub fn finish(&mut self, report: Report, now: Instant) {
        let Report { subject, outcome } = report;
        self.queue.tell(now);
        match subject {
            Subject::Attachment(wanted, attachment) => {
                self.attachment_finished(wanted, &attachment, outcome, now);
            }
            Subject::Volume(volume) => {
                let key = Key::Volume(volume.name.clone());
                let finished = self.queue.finish(&key);
                let (class, code, message) = match outcome {
                    Outcome::Done => (Class::Final, None, LATE.into()),
                    Outcome::Failed {
                        class, code, message, ..
                    } => (class, code, message),
                };
                if self.wants_work_on(&volume.name) {
                    let failed = Failed {
                        uid: volume.uid.clone(),
                        lane: Lane::Volume,
                        class,
                        code,
                        message,
                    };
                    self.queue.fail(&key, finished, failed, now, self.random.f64());
                }
            }
        }
    }

    /// What the driver can do, as far as was told.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.capabilities
    }

    /// What is known now about this VolumeAttachment.
    pub fn attachment(&self, name: &str) -> Option<&Arc<Attachment>> {
        self.index.attachment(name)
    }

    /// What is known now about this PersistentVolume.
    pub fn volume(&self, name: &str) -> Option<&Arc<Volume>> {
        self.index.volume(name)
    }

    fn attachment_job(&mut self, name: &str, lane: Lane) -> Option<Job> {
        let attachment = self.index.attachment(name)?.clone();
        let wanted = self
            .wanted(&attachment)
            .filter(|wanted| repair::lane(*wanted, &attachment) == lane)?;
        self.disturb(&attachment.name);
        Some(Job::Attachment {
            wanted,
            facts: self.facts(&attachment)?,
            answer: self.answers.remove(&attachment.uid),
            repair: decide::wanted(&attachment, self.publishes()).is_none(),
        })
    }

    fn volume_job(&self, name: &str) -> Option<Job> {
        if let Some(bequest) = self.bequest(name) {
            return Some(bequest);
        }
        let volume = self.index.volume(name).filter(|_| self.is_releasable(name))?;
        Some(Job::Release {
            volume: volume.clone(),
        })
    }

    fn attachment_finished(
        &mut self,
        done: Wanted,
        attachment: &Arc<Attachment>,
        outcome: Outcome,
        now: Instant,
    ) {
        let key = Key::Attachment(attachment.name.clone());
        let mut finished = self.queue.finish(&key);
        self.short_of_room.remove(&attachment.node, &attachment.name);
        self.disturb(&attachment.name);
        if outcome == Outcome::Done {
            self.repair_finished(done, attachment);
            self.note_fresh(attachment);
            if done == Wanted::Detach {
                self.wake_those_that_waited_for(attachment);
            }
        }
        let outlived = self.outlived.remove(&attachment.uid);
        let newest = self.index.attachment(&attachment.name).cloned();
        let (
            Some(newest),
            Outcome::Failed {
                class,
                code,
                answer,
                message,
            },
        ) = (&newest, &outcome)
        else {
            return self.reconsider(done, attachment, newest.as_ref(), finished, now);
        };
        // First, since the work that is left may follow from nothing else.
        if newest.uid == attachment.uid
            && let Some(answer) = answer
            && !(outlived && answer.is_of_its_time())
        {
            self.answers.insert(newest.uid.clone(), answer.clone());
        }
        if newest.uid != attachment.uid || self.wanted(newest) != Some(done) {
            self.answers.remove(&attachment.uid);
            return self.reconsider(done, attachment, Some(newest), finished, now);
        }
        // The driver came back while this run told of its absence: nothing else will wake it.
        finished.again |= outlived && *class == Class::Disconnected;
        if *class == Class::Refused && self.rest(done, newest, finished.again) {
            return;
        }
        if *code == Some(RESOURCE_EXHAUSTED) {
            self.short_of_room.insert(&newest.node, &newest.name);
        }
        let failed = Failed {
            uid: newest.uid.clone(),
            lane: lane(done, newest),
            class: *class,
            code: *code,
            message: message.clone(),
        };
        self.queue.fail(&key, finished, failed, now, self.random.f64());
    }

    /// What follows when a job left nothing to repeat.
    fn reconsider(
        &mut self,
        done: Wanted,
        attachment: &Attachment,
        newest: Option<&Arc<Attachment>>,
        finished: Finished,
        now: Instant,
    ) {
        let Some((newest, next)) = newest.and_then(|newest| Some((newest, self.wanted(newest)?))) else {
            return;
        };
        let key = Key::Attachment(newest.name.clone());
        if next == done && newest.uid == attachment.uid {
            // The object that we knew is no more, and the watch has not told yet what took its
            // place. It will; until then there is nothing to do but not to spin.
            let failed = Failed {
                uid: newest.uid.clone(),
                lane: lane(next, newest),
                class: Class::Final,
                code: None,
                message: LATE.into(),
            };
            self.queue.fail(&key, finished, failed, now, self.random.f64());
        } else {
            self.queue.wake(&key, lane(next, newest));
        }
    }

    /// A detach frees the volume for another node, and a place on its node for another volume.
    /// Attaches that failed for want of either need not wait out their backoff.
    fn wake_those_that_waited_for(&mut self, detached: &Attachment) {
        if let Some(volume) = detached.volume_name() {
            for name in self.index.attachments_of_volume(volume) {
                let key = Key::Attachment(name.clone());
                self.queue.wake_if_pending_in(&key, &ATTACHES);
            }
        }
        for name in self.short_of_room.get(&detached.node) {
            let key = Key::Attachment(name.clone());
            let newest = self.index.attachment(name);
            // Not what the status says: API servers may keep no code there.
            if newest.and_then(|newest| self.queue.failed_with(&key, &newest.uid)) == Some(RESOURCE_EXHAUSTED)
            {
                self.queue.wake_if_pending_in(&key, &ATTACHES);
            }
        }
    }

    /// Queues what the newest state of `key` asks for.
    fn consider(&mut self, key: &Key) {
        let lane = match key {
            Key::Attachment(name) => self
                .index
                .attachment(name)
                .and_then(|attachment| self.lane(attachment)),
            Key::Volume(name) => self.wants_work_on(name).then_some(Lane::Volume),
        };
        match lane {
            Some(lane) => self.queue.wake(key, lane),
            None => self.queue.forget(key),
        }
    }

    /// Queues whatever any object's newest state asks for, also what waits out a backoff.
    fn consider_all(&mut self) {
        let attachments = self.index.attachments().map(|a| Key::Attachment(a.name.clone()));
        let volumes = self.index.volumes().map(|v| Key::Volume(v.name.clone()));
        let mut keys: Vec<Key> = attachments.chain(volumes).collect();
        // The index has no order, and the same calls are to give the same one.
        keys.sort_unstable();
        for key in keys {
            self.consider(&key);
        }
    }

    /// Whether our finalizer is to come off this PersistentVolume.
    pub fn is_releasable(&self, volume: &str) -> bool {
        self.index.volume(volume).is_some_and(|v| {
            release(
                v,
                self.index.attachments_of_volume(volume).len(),
                self.publishes(),
            )
        })
    }
}

/// Why a job that left nothing to repeat is looked at again all the same.
const LATE: &str = "the watch has not told yet what became of the object";

/// The lanes of those who wait for room or for a volume.
const ATTACHES: [Lane; 2] = [Lane::Attach, Lane::Repair];

/// gRPC's RESOURCE_EXHAUSTED: for ControllerPublishVolume, the node has no room for another volume.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Locks the one engine that dispatcher, worker and reconciler share. Jobs lock it themselves, so it must not be
/// held while they are polled.
pub fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    engine
        .lock()
        .expect("nothing must panic while the engine is locked")
}

#[cfg(test)]
pub(crate) mod tests;
