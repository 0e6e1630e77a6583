//! Proof of detach: whether every target of a VolumeAttachment, or of an orphaned publish, is unpublished.
//!
//! Our finalizer is all that keeps a volume from being forgotten, so the request that removes it takes a [`Proof`], which only
//! [`decide`] makes. See docs/adr/0004-recorded-target.md, whose table the table test holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::DetachPlan;
use super::reconcile::ListedState;
use crate::model::{Node, Uid};

/// Every target of the VolumeAttachment with this UID is unpublished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    uid: Uid,
    node_ids: Vec<Arc<str>>,
    by_answers: bool,
}

/// What the node's CSINode says about our driver, compared with the recorded node id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// It registers the recorded id.
    SameId,
    /// It registers another id. It may be the same machine, so that the volume may be attached under this id although it was
    /// published under the other one; or another machine of the same name.
    OtherId(Arc<str>),
    /// It exists without our driver: the node lives, and its driver pod may be restarting.
    Unregistered,
    /// There is no such object.
    Gone,
}

/// The result of the last ControllerUnpublishVolume for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnpublishResult {
    /// OK: the volume is not published there.
    Unpublished,
    /// Not called: another VolumeAttachment uses the volume there, and unpublishes it when it is deleted.
    InUse,
    /// NOT_FOUND, with the Secret that the volume has. Drivers also answer so while their caches are cold.
    NotFound,
    /// INVALID_ARGUMENT, with the Secret that the volume has. The driver may not understand the node id.
    InvalidArgument,
    /// Not called: the driver reports no publish calls.
    NoPublishCalls,
    /// Not called: another VolumeAttachment may use the volume on the same machine.
    Waits,
    /// Any other code, or a call without the Secret.
    Failed,
}

/// Equal answers in a row to unpublishes of one target for one VolumeAttachment or orphan, from one session with the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    /// When the session was opened, which identifies it.
    session: Instant,
    result: UnpublishResult,
    count: u32,
    first: Instant,
    last: Instant,
}

/// The complete lists in a row, of one session, that began after the last publish call for a target had ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListEvidence {
    /// Whether the last of them shows the volume on the node.
    pub(crate) is_published: bool,
    /// Lists that have an entry of the volume without the node.
    pub(crate) lacking: u32,
    /// When the first and the last of the lists began that have entries, but none of the volume.
    pub(crate) unlisted: Option<(Instant, Instant)>,
}

/// What is known about one target.
#[derive(Clone, Debug)]
pub(crate) struct TargetEvidence {
    pub(crate) result: UnpublishResult,
    /// The answers in a row that end with `result`, if that is NOT_FOUND or INVALID_ARGUMENT.
    pub(crate) answers: Option<Answers>,
    pub(crate) lists: ListEvidence,
}

/// What is known about all targets of a VolumeAttachment or an orphan.
#[derive(Clone, Debug)]
pub(crate) struct Evidence<'e> {
    pub(crate) uid: &'e Uid,
    pub(crate) plan: &'e DetachPlan,
    pub(crate) recorded: TargetEvidence,
    /// The target under the present id, once it is asked.
    pub(crate) present: Option<TargetEvidence>,
    /// Whether a live read has just shown that the CSINode does not exist.
    pub(crate) is_node_confirmed_gone: bool,
    /// `--assume-unpublished-after`; zero: never.
    pub(crate) assume_after: Duration,
    /// For how long the driver's session has lasted.
    pub(crate) session_age: Duration,
}

/// What follows from the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Released(Proof),
    /// The node's present id must be unpublished, too.
    UnpublishPresent,
    /// A live read of the CSINode must show that it does not exist.
    ConfirmNodeGone,
    /// A call failed, and must be repeated.
    Retry,
    /// Nothing proves that the volume is unpublished.
    Unproven,
}

/// A volume that is listed elsewhere, or a node that is unknown, in this many complete lists in a row is not published there.
const LISTS: u32 = 2;
/// A publish call that ended without a known result may take effect until then: lists that began earlier prove nothing.
pub(super) const PUBLISH_MAY_RUN: Duration = Duration::from_secs(10 * 60);
/// This many equal answers, over at least [`ANSWERS_OVER`], are more than a cold cache, where another proof covers the machine.
const ANSWERS: u32 = 3;
const ANSWERS_OVER: Duration = Duration::from_secs(60);

// === impl Proof ===

impl Proof {
    /// The UID of the VolumeAttachment.
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// The unpublished node ids.
    pub(crate) fn node_ids(&self) -> &[Arc<str>] {
        &self.node_ids
    }

    /// Whether it rests on OK alone. Such a proof stays true; any other one ends with the driver's session.
    pub(crate) fn is_by_answers(&self) -> bool {
        self.by_answers
    }
}

// === impl NodeState ===

impl NodeState {
    /// The state of the node's CSINode, if that exists.
    pub(crate) fn of(node: Option<&Node>, recorded: &Arc<str>) -> Self {
        match node.map(|node| &node.id) {
            None => Self::Gone,
            Some(None) => Self::Unregistered,
            Some(Some(present)) if present == recorded => Self::SameId,
            Some(Some(present)) => Self::OtherId(present.clone()),
        }
    }
}

// === impl UnpublishResult ===

impl UnpublishResult {
    /// The result of a call that failed with this gRPC code. Without the Secret that the volume has, NOT_FOUND and
    /// INVALID_ARGUMENT may be about the missing credentials.
    pub(crate) fn from_code(code: i32, with_secret: bool) -> Self {
        match (code, with_secret) {
            (5, true) => Self::NotFound,
            (3, true) => Self::InvalidArgument,
            _ => Self::Failed,
        }
    }
}

// === impl Answers ===

impl Answers {
    /// The answers that end with `result`. Another result or session resets them.
    pub(crate) fn after(
        before: Option<&Self>,
        session: Instant,
        result: UnpublishResult,
        now: Instant,
    ) -> Self {
        let same = before.filter(|before| (before.session, before.result) == (session, result));
        Self {
            session,
            result,
            count: same.map_or(0, |before| before.count).saturating_add(1),
            first: same.map_or(now, |before| before.first),
            last: now,
        }
    }

    pub(crate) fn is_of(&self, result: UnpublishResult) -> bool {
        self.result == result
    }

    fn lasted(&self, least: Duration) -> bool {
        self.count >= ANSWERS && self.last.saturating_duration_since(self.first) >= least
    }
}

// === impl ListEvidence ===

impl ListEvidence {
    /// The evidence after one more complete list, which began at `began` and has `entries`.
    pub(crate) fn with(self, listed: ListedState, entries: u64, began: Instant) -> Self {
        match listed {
            ListedState::Elsewhere => Self {
                lacking: self.lacking.saturating_add(1),
                ..Self::default()
            },
            ListedState::Published => Self {
                is_published: true,
                ..Self::default()
            },
            ListedState::Unknown => Self::default(),
            // A cold cache lists nothing.
            ListedState::Absent if entries == 0 => Self::default(),
            ListedState::Absent => Self {
                unlisted: Some((self.unlisted.map_or(began, |(first, _)| first), began)),
                ..Self::default()
            },
        }
    }

    pub(crate) fn is_proof(self) -> bool {
        self.lacking >= LISTS
    }
}

// === impl TargetEvidence ===

impl TargetEvidence {
    /// Without answers and lists.
    pub(crate) fn of(result: UnpublishResult) -> Self {
        Self {
            result,
            answers: None,
            lists: ListEvidence::default(),
        }
    }

    /// Whether the lists lacked the volume for at least this long while the driver gave the answers.
    fn is_unlisted(&self, answers: &Answers, least: Duration) -> bool {
        self.lists.unlisted.is_some_and(|(first, last)| {
            let (first, last) = (first.max(answers.first), last.min(answers.last));
            last.saturating_duration_since(first) >= least
        })
    }

    fn is_released(&self) -> bool {
        matches!(self.result, UnpublishResult::Unpublished | UnpublishResult::InUse)
    }

    /// The driver gave the same answer for so long that it is no cold cache, and its lists do not contradict it.
    fn is_repeated(&self) -> bool {
        let answers = self.answers.as_ref();
        !self.lists.is_published && answers.is_some_and(|answers| answers.lasted(ANSWERS_OVER))
    }
}

// === impl Evidence ===

impl Evidence<'_> {
    /// The operator's word (`--assume-unpublished-after`), the only place where it counts.
    fn is_assumed(&self, target: &TargetEvidence, is_node_gone: bool) -> bool {
        let after = self.assume_after;
        let answers = target.answers.as_ref();
        let lasted =
            |answers: &Answers| answers.lasted(after) && (is_node_gone || target.is_unlisted(answers, after));
        !after.is_zero()
            && match target.result {
                UnpublishResult::NotFound => answers.is_some_and(lasted),
                UnpublishResult::NoPublishCalls => self.session_age >= after,
                UnpublishResult::Unpublished
                | UnpublishResult::InUse
                | UnpublishResult::InvalidArgument
                | UnpublishResult::Waits
                | UnpublishResult::Failed => false,
            }
    }

    /// Whether the target alone is proven to be released; `is_confirmed` as below.
    fn is_proven(&self, target: &TargetEvidence, is_confirmed: bool) -> bool {
        let is_node_gone = self.plan.node == NodeState::Gone && is_confirmed;
        target.is_released() || target.lists.is_proof() || self.is_assumed(target, is_node_gone)
    }

    /// The node ids of the targets that nothing proves to be released.
    pub(crate) fn unproven_ids(&self) -> Vec<Arc<str>> {
        let present = self.present.as_ref().zip(self.plan.present_target());
        let present = present.map(|(evidence, target)| (evidence, target.node_id));
        let all = std::iter::once((&self.recorded, self.plan.target.node_id.clone())).chain(present);
        all.filter(|(evidence, _)| !self.is_proven(evidence, self.is_node_confirmed_gone))
            .map(|(_, node_id)| node_id)
            .collect()
    }

    /// Whether every target is released, if a live read of a CSINode that the cache lacks agrees (`is_confirmed`).
    fn releases_all(&self, is_confirmed: bool) -> bool {
        let is_proven = |target: &TargetEvidence| self.is_proven(target, is_confirmed);
        let recorded = &self.recorded;
        let Some(present) = &self.present else {
            return is_proven(recorded);
        };
        match (recorded.is_released(), present.is_released()) {
            (true, true) => true,
            (true, false) => {
                present.result == UnpublishResult::InvalidArgument
                    || is_proven(present)
                    || present.is_repeated()
            }
            (false, true) => is_proven(recorded) || recorded.is_repeated(),
            (false, false) => is_proven(recorded) && is_proven(present),
        }
    }
}

/// Decides whether all targets are released.
///
/// NOT_FOUND is no proof: drivers answer so while their node cache is cold, while a controller plugin restarts, or without a
/// tenant's credentials (CSI, ControllerUnpublishVolume errors). Neither is a CSINode without the driver, nor an empty list
/// of capabilities or volumes.
pub(crate) fn decide(evidence: &Evidence<'_>) -> Decision {
    let target = &evidence.plan.target;
    let mut node_ids = vec![target.node_id.clone()];
    if evidence.recorded.result == UnpublishResult::Failed {
        return Decision::Retry;
    }
    if let NodeState::OtherId(present) = &evidence.plan.node {
        node_ids.push(present.clone());
        match evidence.present.as_ref().map(|present| present.result) {
            None if evidence.recorded.result == UnpublishResult::NoPublishCalls => {}
            None => return Decision::UnpublishPresent,
            Some(UnpublishResult::Failed) => return Decision::Retry,
            Some(_) => {}
        }
    }
    if evidence.releases_all(evidence.is_node_confirmed_gone) {
        let all = std::iter::once(&evidence.recorded).chain(&evidence.present);
        return Decision::Released(Proof {
            uid: evidence.uid.clone(),
            node_ids,
            by_answers: all
                .into_iter()
                .all(|target| target.result == UnpublishResult::Unpublished),
        });
    }
    if evidence.releases_all(true) {
        return Decision::ConfirmNodeGone;
    }
    Decision::Unproven
}
