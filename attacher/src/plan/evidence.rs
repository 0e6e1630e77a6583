//! What the driver's answers and lists say about targets. It ends with the connection to the driver, the VolumeAttachment, a change
//! of the CSINode, or a publish to the target, so a restarted process starts without any.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::reconcile::ListedState;
use super::{Answers, ListEvidence, TargetEvidence, UnpublishResult};
use crate::model::{PublishTarget, Uid};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct DetachEvidence {
    /// By the VolumeAttachment or orphan whose unpublishes they answer: each counts its own ones.
    answers: HashMap<PublishTarget, BTreeMap<Uid, Answers>>,
    lists: HashMap<PublishTarget, ListEvidence>,
    /// Targets of running publish calls.
    publishing: HashSet<PublishTarget>,
    /// Targets of publish calls that ran since the last reconcile round began.
    published_in_round: HashSet<PublishTarget>,
}

// === impl DetachEvidence ===

impl DetachEvidence {
    /// The evidence about a target, whose last unpublish for the VolumeAttachment had this result.
    pub(crate) fn about(&self, uid: &Uid, target: &PublishTarget, result: UnpublishResult) -> TargetEvidence {
        let answers = self.answers.get(target).and_then(|of_target| of_target.get(uid));
        let answers = answers.filter(|answers| answers.is_of(result));
        TargetEvidence {
            result,
            answers: answers.cloned(),
            lists: self.lists.get(target).copied().unwrap_or_default(),
        }
    }

    /// The evidence rests on one session with the driver.
    pub(crate) fn reconnected(&mut self) {
        self.answers.clear();
        self.lists.clear();
    }

    /// Forgets the answers for a VolumeAttachment or orphan that is gone, or whose node registered again.
    pub(crate) fn forget(&mut self, uid: &Uid) {
        self.answers.retain(|_, of_target| {
            of_target.remove(uid);
            !of_target.is_empty()
        });
    }

    fn forget_target(&mut self, target: &PublishTarget) {
        self.answers.remove(target);
        self.lists.remove(target);
    }

    /// A publish call for the target begins.
    pub(crate) fn publish_begins(&mut self, target: &PublishTarget) {
        self.forget_target(target);
        self.publishing.insert(target.clone());
    }

    /// The publish call has ended, whatever its result.
    pub(crate) fn publish_ended(&mut self, target: &PublishTarget) {
        self.forget_target(target);
        self.publishing.remove(target);
        self.published_in_round.insert(target.clone());
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
        use std::collections::BTreeSet;
        let answers: BTreeMap<_, _> = self.answers.iter().collect();
        let publishing: BTreeSet<_> = self.publishing.iter().collect();
        (answers, publishing)
    }

    pub(crate) fn round_begins(&mut self) {
        self.published_in_round = self.publishing.clone();
    }

    /// Forgets the lists up to the complete one that follows.
    pub(crate) fn take_lists(&mut self) -> HashMap<PublishTarget, ListEvidence> {
        std::mem::take(&mut self.lists)
    }

    /// Adds a complete list with this number of entries, which began at `began`, to what `before` lists showed. Returns whether it
    /// makes them a proof.
    pub(crate) fn listed(
        &mut self,
        target: PublishTarget,
        before: ListEvidence,
        state: ListedState,
        entries: u64,
        began: Instant,
    ) -> bool {
        if self.published_in_round.contains(&target) {
            return false;
        }
        let lists = before.with(state, entries, began);
        self.lists.insert(target, lists);
        lists.is_proof() && !before.is_proof()
    }
}
