//! What the driver's answers and lists say about targets, by the VolumeAttachment or orphan that waits for a proof. It ends with the
//! connection to the driver, the VolumeAttachment, a change of the CSINode, or a publish to the target, so a restarted process starts
//! without any.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::proof::PUBLISH_MAY_RUN;
use super::reconcile::ListedState;
use super::{Answers, ListEvidence, TargetEvidence, UnpublishResult};
use crate::model::{PublishTarget, Uid};

/// What the end of a publish call says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishEnd {
    /// OK: no earlier call for the target takes effect later, either.
    Succeeded,
    /// The driver may still execute the call.
    Unknown,
    /// The call was not sent, or ended with a final code, which says nothing of earlier calls.
    NoEffect,
}

/// By target, and by what waits for the proof.
type ByTarget<T> = HashMap<PublishTarget, BTreeMap<Uid, T>>;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct DetachEvidence {
    /// Each VolumeAttachment or orphan counts its own unpublishes.
    answers: ByTarget<Answers>,
    lists: ByTarget<ListEvidence>,
    /// Targets of running publish calls, by VolumeAttachment.
    publishing: HashMap<Uid, PublishTarget>,
    /// When publish calls ended whose results are unknown.
    unknown_ends: HashMap<PublishTarget, Instant>,
    /// When this process first saw VolumeAttachments whose publish call an earlier process may have left running.
    seen_unattached: HashMap<Uid, Instant>,
    /// During a reconcile round: what happened since it began.
    round: Option<DuringRound>,
}

#[derive(Clone, Debug, Default)]
struct DuringRound {
    /// Targets of publish calls that ran.
    published: HashSet<PublishTarget>,
    forgotten: HashSet<Uid>,
}

// === impl DetachEvidence ===

impl DetachEvidence {
    /// The evidence about a target, whose last unpublish for the VolumeAttachment had this result.
    pub(crate) fn about(&self, uid: &Uid, target: &PublishTarget, result: UnpublishResult) -> TargetEvidence {
        let answers = of(&self.answers, target, uid).filter(|answers| answers.is_of(result));
        TargetEvidence {
            result,
            answers: answers.cloned(),
            lists: of(&self.lists, target, uid).copied().unwrap_or_default(),
        }
    }

    /// The evidence rests on one session with the driver.
    pub(crate) fn reconnected(&mut self) {
        self.answers.clear();
        self.lists.clear();
    }

    /// Forgets the answers and lists for a VolumeAttachment or orphan that is gone, or whose node registered again.
    pub(crate) fn forget(&mut self, uid: &Uid) {
        fn forget<T>(evidence: &mut ByTarget<T>, uid: &Uid) {
            evidence.retain(|_, of_target| {
                of_target.remove(uid);
                !of_target.is_empty()
            });
        }
        forget(&mut self.answers, uid);
        forget(&mut self.lists, uid);
        if let Some(round) = &mut self.round {
            round.forgotten.insert(uid.clone());
        }
    }

    fn forget_target(&mut self, target: &PublishTarget) {
        self.answers.remove(target);
        self.lists.remove(target);
    }

    pub(crate) fn publish_begins(&mut self, uid: &Uid, target: &PublishTarget) {
        self.forget_target(target);
        self.publishing.insert(uid.clone(), target.clone());
    }

    /// The publish call of the VolumeAttachment ended, if one was running. After a panic of its sync, that is unknown.
    pub(crate) fn publish_ended(&mut self, uid: &Uid, end: PublishEnd, now: Instant) {
        if let Some(target) = self.publishing.remove(uid) {
            self.published(target, end, now);
        }
    }

    pub(crate) fn published(&mut self, target: PublishTarget, end: PublishEnd, now: Instant) {
        self.forget_target(&target);
        if let Some(round) = &mut self.round {
            round.published.insert(target.clone());
        }
        match end {
            PublishEnd::Succeeded => drop(self.unknown_ends.remove(&target)),
            PublishEnd::Unknown => self.ended_unknown(target, now),
            PublishEnd::NoEffect => {}
        }
    }

    /// Drops ends that no list, which may run for some minutes, can need.
    fn ended_unknown(&mut self, target: PublishTarget, ended: Instant) {
        self.unknown_ends
            .retain(|_, before| ended.saturating_duration_since(*before) < 2 * PUBLISH_MAY_RUN);
        let latest = self.unknown_ends.entry(target).or_insert(ended);
        *latest = ended.max(*latest);
    }

    /// An earlier process may have sent a publish call for the VolumeAttachment.
    pub(crate) fn seen_unattached(&mut self, uid: &Uid, now: Instant) {
        self.seen_unattached.insert(uid.clone(), now);
    }

    /// The VolumeAttachment is gone, or its status shows that the call has ended.
    pub(crate) fn no_earlier_call(&mut self, uid: &Uid) {
        self.seen_unattached.remove(uid);
    }

    /// The earlier process's call was for this target, if that is known by now.
    pub(crate) fn earlier_call(&mut self, uid: &Uid, target: impl FnOnce() -> Option<PublishTarget>) {
        if let Some(seen) = self.seen_unattached.get(uid).copied()
            && let Some(target) = target()
        {
            self.seen_unattached.remove(uid);
            self.lists.remove(&target);
            self.ended_unknown(target, seen);
        }
    }

    /// Adds the answer to an unpublish in this session.
    pub(crate) fn answered(
        &mut self,
        uid: &Uid,
        target: &PublishTarget,
        session: Instant,
        result: UnpublishResult,
        now: Instant,
    ) {
        if result == UnpublishResult::Unpublished {
            self.unknown_ends.remove(target);
        }
        let of_target = self.answers.entry(target.clone()).or_default();
        let before = of_target.remove(uid);
        if matches!(
            result,
            UnpublishResult::NotFound | UnpublishResult::InvalidArgument
        ) {
            let answers = Answers::after(before.as_ref(), session, result, now);
            of_target.insert(uid.clone(), answers);
        } else if of_target.is_empty() {
            self.answers.remove(target);
        }
    }

    /// The answers, in order.
    #[cfg(test)]
    pub(crate) fn digest(&self) -> impl std::fmt::Debug + use<'_> {
        let answers: BTreeMap<_, _> = self.answers.iter().collect();
        let publishing: BTreeMap<_, _> = self.publishing.iter().collect();
        (answers, publishing)
    }

    /// The number of publishes and deletions that are kept for a round.
    #[cfg(test)]
    pub(crate) fn of_round(&self) -> usize {
        let sizes = self
            .round
            .iter()
            .map(|round| round.published.len() + round.forgotten.len());
        sizes.sum()
    }

    pub(crate) fn begin_round(&mut self) {
        self.round = Some(DuringRound {
            published: self.publishing.values().cloned().collect(),
            forgotten: HashSet::new(),
        });
    }

    pub(crate) fn end_round(&mut self) {
        self.round = None;
    }

    /// A list is incomplete, so nothing is known of that time.
    pub(crate) fn list_failed(&mut self) {
        for lists in self.lists.values_mut().flat_map(BTreeMap::values_mut) {
            lists.unlisted = None;
        }
    }

    /// Forgets the lists up to the complete one that follows.
    pub(crate) fn take_lists(&mut self) -> ByTarget<ListEvidence> {
        std::mem::take(&mut self.lists)
    }

    /// Adds a complete list with this number of entries, which began at `began`, to what `before` lists showed. Returns whether it
    /// makes them a proof.
    pub(crate) fn listed(
        &mut self,
        uid: Uid,
        target: PublishTarget,
        before: &ByTarget<ListEvidence>,
        state: ListedState,
        entries: u64,
        began: Instant,
    ) -> bool {
        let is_untouched =
            |round: &DuringRound| !round.published.contains(&target) && !round.forgotten.contains(&uid);
        if !self.round.as_ref().is_some_and(is_untouched) {
            return false;
        }
        let may_run = |ended: &Instant| began.saturating_duration_since(*ended) < PUBLISH_MAY_RUN;
        let may_change = self.unknown_ends.get(&target).is_some_and(may_run);
        let state = match state {
            ListedState::Elsewhere | ListedState::Absent if may_change => ListedState::Unknown,
            ListedState::Elsewhere | ListedState::Absent | ListedState::Unknown | ListedState::Published => {
                state
            }
        };
        let before = of(before, &target, &uid).copied().unwrap_or_default();
        let lists = before.with(state, entries, began);
        self.lists.entry(target).or_default().insert(uid, lists);
        lists.is_proof() && !before.is_proof()
    }
}

fn of<'e, T>(evidence: &'e ByTarget<T>, target: &PublishTarget, uid: &Uid) -> Option<&'e T> {
    evidence.get(target)?.get(uid)
}
