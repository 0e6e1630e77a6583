//! The contract of an attacher, checked at the end of every scenario.
//!
//! A [`WatchRecorder`](watch_recorder::WatchRecorder) collects [`Observations`] during the scenario. From them and the driver's journal
//! follows one stream, which the [contract](attacher_contract) judges. A call counts as late as possible for a publish, from its
//! answer on, and as early as possible for an unpublish, from its arrival on, so that an overlap of two nodes is certain.

mod lease;
pub mod observations;
pub mod watch_recorder;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use attacher_contract::observation::{
    Answer, Call as Begin, Method, Name, Observation, Registration, Target, Volume,
};
use attacher_contract::{Clause, Contract, Settings, Violation};
use jiff::Timestamp;
use kube::ResourceExt;

pub use observations::Observations;

use crate::driver::journal::{Call, Effect, PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::observe;

/// The observations of a scenario, by time, and, at one time, in this order.
struct Stream<'a> {
    observations: &'a Observations,
    start: Timestamp,
    seen: Vec<(Timestamp, Rank, Observation)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Setup,
    Mount,
    Begin,
    Effect,
    End,
    /// A watch event follows the write of its state.
    Watch,
}

/// Clauses that do not hold while the scenario makes a status wrong.
const EXEMPT: [Clause; 3] = [
    Clause::AttachedWhilePublished,
    Clause::ContextReported,
    Clause::NoDetachUnderAttachment,
];

/// Clauses that no scenario can break, because the observations lack their subjects: attributes of requests, volumes of other drivers,
/// the faults and their end, pods, volumesAttached and deletions of volumes. Gaps of the watch are closed by what is read at the end.
pub const UNOBSERVED: [Clause; 11] = [
    Clause::OwnVolumesOnly,
    Clause::RequestMatchesVolume,
    Clause::Uneventful,
    Clause::Recovers,
    Clause::KeptWhilePublished,
    Clause::PodsRun,
    Clause::AttachedForPods,
    Clause::PodsAttached,
    Clause::ListedWhileAttached,
    Clause::NoPanic,
    Clause::RecordComplete,
];

/// Fails with all violations and their evidence.
pub fn enforce(violations: &[Violation]) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = violations.iter().map(Violation::to_string).collect();
    bail!("{}", lines.join("\n"))
}

/// Checks the contract while attachments exist and no fault is active.
pub fn check_running(observations: &Observations) -> Vec<Violation> {
    check(observations, Observation::Settled)
}

/// Checks the contract after all objects were deleted.
pub fn check_cleaned_up(observations: &Observations) -> Vec<Violation> {
    check(observations, Observation::CleanedUp)
}

fn check(observations: &Observations, end: Observation) -> Vec<Violation> {
    let mut settings = Settings {
        secrets: observations.secrets.clone(),
        ..Settings::watched()
    };
    if !observations.makes_promises {
        settings = settings.without_promises();
    }
    settings.off.extend(UNOBSERVED);
    if !observations.gaps.is_empty() {
        // The Lease may have had other holders meanwhile.
        settings = settings.without(Clause::OnlyTheLeader);
    }
    let mut contract = Contract::new(settings);
    let mut stream = Stream {
        observations,
        start: observations.start(),
        seen: Vec::new(),
    };
    stream.collect();
    stream.seen.sort_by_key(|(at, rank, _)| (*at, *rank));
    let start = stream.start;
    let mut last = Duration::ZERO;
    for (at, _, seen) in stream.seen {
        last = last.max(Duration::try_from(at.duration_since(start)).unwrap_or_default());
        contract.observe(last, seen);
    }
    for seen in final_state(observations, &contract, start) {
        contract.observe(last, seen);
    }
    contract.observe(last, end);
    let violations = contract.violations().iter();
    let is_exempt = |violation: &&Violation| {
        EXEMPT.contains(&violation.clause) && observations.is_exempt(&violation.subject)
    };
    violations
        .filter(|violation| !is_exempt(violation))
        .cloned()
        .collect()
}

// === impl Stream ===

impl Stream<'_> {
    fn add(&mut self, at: Timestamp, rank: Rank, seen: Observation) {
        self.seen.push((at, rank, seen));
    }

    fn collect(&mut self) {
        let observations = self.observations;
        for (node, id) in &observations.node_ids {
            let registered = Registration::Id(id.as_str().into());
            self.add(
                self.start,
                Rank::Setup,
                Observation::CsiNode(node.as_str().into(), registered),
            );
        }
        for (pv, volume) in &observations.volumes {
            let volume = Volume {
                name: pv.as_str().into(),
                handle: volume.handle.as_str().into(),
                single_node: matches!(volume.access, Access::OnePod | Access::OneNode),
                secret: observations.has_secret(&volume.handle) == Some(true),
                ..Volume::default()
            };
            self.add(self.start, Rank::Setup, Observation::Volume(Arc::new(volume)));
        }
        for (number, call) in observations.calls.iter().enumerate() {
            // The request did not arrive whole, so the driver did not execute it.
            if call.volume.is_empty() && call.node.is_empty() {
                continue;
            }
            self.call(number as u64, call);
            // A running driver writes the end of each call: this one exited during the call, before the next one began.
            let mut later = observations.calls[number + 1..].iter();
            let next = later.find(|next| next.volume == call.volume && next.node == call.node);
            if let (None, Some(next)) = (&call.end, next) {
                let answer = Answer {
                    code: "CANCELLED".into(),
                    message: String::new(),
                    context: BTreeMap::new(),
                };
                let seen = Observation::CallEnded(number as u64, answer);
                self.add(next.start, Rank::Mount, seen);
            }
        }
        for event in &observations.mounts {
            if let Some(id) = observations.node_ids.get(&event.node) {
                let seen = Observation::Mounted(Target::new(&event.volume, id), event.mounted);
                self.add(event.at, Rank::Mount, seen);
            }
        }
        for ((volume, node), at) in &observations.force_detached {
            let seen = Observation::Forced(volume.as_str().into(), node.as_str().into());
            self.add(*at, Rank::Setup, seen);
        }
        self.versions();
        self.add(self.start, Rank::Setup, Observation::Lease(None));
        for (at, holder) in lease::holders(&observations.lease_events) {
            self.add(at, Rank::Setup, Observation::Lease(holder));
        }
        for (at, write) in &observations.writes {
            self.add(*at, Rank::Begin, Observation::Write(write.clone()));
        }
        for (at, what) in &observations.gaps {
            self.add(*at, Rank::Watch, Observation::GapBegan(what.clone()));
        }
    }

    /// Versions of VolumeAttachments and PersistentVolumes, ordered by resourceVersion unless a watch was interrupted. Each gets at most
    /// the time of any later version's event.
    fn versions(&mut self) {
        let observations = self.observations;
        let mut versions = Vec::new();
        for event in &observations.watch_events {
            let version = observe::attachment(&event.object, &observations.finalizer, self.start);
            let gone = event
                .gone
                .then(|| Observation::AttachmentGone(version.name.clone()));
            let seen = [Some(Observation::Attachment(version)), gone];
            versions.push((version_of(&event.object), event.at, seen));
        }
        for event in &observations.volume_events {
            let volume = observe::volume(&event.object, &observations.driver, &observations.finalizer);
            let name = event.object.metadata.name.as_deref().unwrap_or_default();
            let gone = event.gone.then(|| Observation::VolumeGone(name.into()));
            let version = volume.map(|volume| Observation::Volume(Arc::new(volume)));
            versions.push((version_of(&event.object), event.at, [version, gone]));
        }
        if observations.gaps.is_empty() {
            versions.sort_by_key(|(version, ..)| *version);
            let mut latest = Timestamp::MAX;
            for (_, at, _) in versions.iter_mut().rev() {
                latest = latest.min(*at);
                *at = latest;
            }
        }
        for (_, at, seen) in versions {
            for seen in seen.into_iter().flatten() {
                self.add(at, Rank::Watch, seen);
            }
        }
    }

    fn call(&mut self, number: u64, call: &Call) {
        let method = match call.method.as_str() {
            PUBLISH => Method::Publish,
            UNPUBLISH => Method::Unpublish,
            _ => return,
        };
        let target = Target::new(&call.volume, &call.node);
        let begin = Begin {
            number,
            by: call.by.and_then(|pid| self.observations.replicas.name(pid)),
            method,
            target: target.clone(),
            // Whether an unpublish needs one is not known.
            secret: (method == Method::Publish && self.observations.has_secret(&call.volume).is_some())
                .then_some(!call.secrets.is_empty()),
            request: None,
        };
        self.add(call.start, Rank::Begin, Observation::CallBegan(Arc::new(begin)));
        match (method, call.effect) {
            (Method::Publish, Effect::Done) => {
                let at = call.effect_by.unwrap_or(call.start);
                self.add(at, Rank::Effect, Observation::Array(target, true));
            }
            (Method::Unpublish, Effect::Done | Effect::Unknown) => {
                let ids = self.observations.node_ids.values();
                let ids: BTreeSet<_> = ids
                    .filter(|id| call.node.is_empty() || **id == call.node)
                    .collect();
                let targets = ids.into_iter().map(|id| Target::new(&call.volume, id));
                let targets: BTreeSet<_> = targets.chain([target]).collect();
                for target in targets {
                    self.add(call.start, Rank::Effect, Observation::Array(target, false));
                }
            }
            (Method::Publish, Effect::Nothing | Effect::Unknown) | (Method::Unpublish, Effect::Nothing) => {}
        }
        if let Some(end) = &call.end {
            let answer = Answer {
                code: end.code.as_str().into(),
                message: end.message.clone(),
                context: end.context.clone(),
            };
            self.add(end.at, Rank::End, Observation::CallEnded(number, answer));
        }
    }
}

// === functions ===

/// The number of the write that led to this version.
fn version_of(object: &impl ResourceExt) -> u64 {
    let version = object.resource_version();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// What was read at the end: objects, the array's list, and texts. It closes gaps of the watch.
fn final_state(observations: &Observations, contract: &Contract, start: Timestamp) -> Vec<Observation> {
    let mut seen = Vec::new();
    let attachments = observations.attachments.iter();
    let attachments =
        attachments.map(|attachment| observe::attachment(attachment, &observations.finalizer, start));
    let attachments: Vec<_> = attachments.collect();
    seen.extend(attachments.iter().cloned().map(Observation::Attachment));
    let left: BTreeSet<&Name> = attachments.iter().map(|attachment| &attachment.name).collect();
    let known = contract.world().attachments.keys();
    let gone = known.filter(|name| !left.contains(name));
    seen.extend(gone.cloned().map(Observation::AttachmentGone));
    for volume in &observations.persistent_volumes {
        let volume = observe::volume(volume, &observations.driver, &observations.finalizer);
        seen.extend(volume.map(|volume| Observation::Volume(Arc::new(volume))));
    }
    for (_, what) in &observations.gaps {
        seen.push(Observation::GapEnded(what.clone()));
    }
    let listed: BTreeSet<Target> = observations
        .published
        .iter()
        .flat_map(|(volume, nodes)| nodes.iter().map(move |node| Target::new(volume, node)))
        .collect();
    // An attach or detach was under way between the two lists: what the attachment says is right.
    let changing: BTreeMap<Target, bool> = observations
        .changing
        .iter()
        .map(|(volume, node)| {
            let is_attached = observations.attachments.iter().any(|attachment| {
                let status = attachment.status.as_ref();
                let target = observations.publish_target(attachment);
                status.is_some_and(|status| status.attached) && target == Some((volume, node))
            });
            (Target::new(volume, node), is_attached)
        })
        .collect();
    let is_published = |target: &Target| changing.get(target).copied().unwrap_or(listed.contains(target));
    let published = &contract.world().published;
    let lost = published.keys().filter(|target| !is_published(target));
    seen.extend(lost.map(|target| Observation::Array(target.clone(), false)));
    let found = listed.iter().chain(changing.keys());
    let found = found.filter(|target| is_published(target) && !published.contains_key(*target));
    seen.extend(found.map(|target| Observation::Array(target.clone(), true)));
    for (source, text) in &observations.texts {
        seen.push(Observation::Text(source.clone(), text.as_str().into()));
    }
    seen
}

#[cfg(test)]
mod tests;
