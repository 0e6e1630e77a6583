//! What the calls and lists so far say about one target.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::AttachmentState;
use crate::Order;
use crate::observation::{Answer, Call, List, Method, Name, Target};

/// Why a target counts as released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// No publish was sent.
    NeverPublished,
    /// ControllerUnpublishVolume answered OK after the last publish began.
    Unpublished,
    /// The target is another VolumeAttachment's, which has the finalizer.
    OtherAttachment,
    /// Two complete lists, both begun after the last publish ended, have the volume without the node.
    Lists,
    /// The driver did not know it when the attachment was published to another ID of its node: the attacher unpublishes it
    /// without the attachment.
    Orphan,
    /// Three refusals over a minute, while the node registers another ID, from which the volume is unpublished.
    Renamed,
    /// Three refusals over the time that the operator named, without a node, or without the volume in the lists.
    Operator,
}

/// Answers NOT_FOUND or INVALID_ARGUMENT to unpublishes with the Secret that the volume has, in a row.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// How many.
    pub count: usize,
    first: Option<Duration>,
    last: Duration,
}

/// What is known about one target.
#[derive(Debug, Default)]
pub struct TargetState {
    /// The UID of the attachment for which the last publish was sent.
    pub published_for: Option<Name>,
    /// The UIDs for which an unpublish answered OK, and when it did last.
    pub released_for: BTreeMap<Name, Duration>,
    /// Whether the last publish may have been for another attachment of the target.
    pub shared: bool,
    /// When the last publish began.
    pub publish_began: Option<usize>,
    /// When a publish last answered OK, with its `publish_context`.
    pub(crate) publish_ok: Option<(usize, Answer)>,
    /// Whether an unpublish began after the last publish.
    unpublish_sent: bool,
    /// Publishes and unpublishes since the present attachment's first publish.
    pub calls: (usize, usize),
    /// The last failed publish and unpublish, unless one succeeded since.
    pub failures: (Option<Answer>, Option<Answer>),
    /// When the last call began, if it failed.
    pub failed: Option<usize>,
    /// Refused unpublishes.
    pub refusals: Refusals,
    /// Complete lists, since the last publish ended and the last entry of the volume, without one.
    pub unlisted: usize,
    /// Whether another client removed the finalizer of the attachment for which it was published.
    pub taken: bool,
    /// Whether its attachment records another target, after the driver did not know this one.
    pub(super) orphaned: bool,
    publish_ended: Option<usize>,
    unpublished: bool,
    lists_without_node: usize,
}

// === impl Proof ===

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

// === impl Refusals ===

impl Refusals {
    /// How long the refusals must last where the node registers another ID.
    pub(crate) const MINUTE: Duration = Duration::from_secs(60);

    /// Whether there are three, over at least this time.
    pub fn last_for(&self, time: Duration) -> bool {
        self.count >= 3 && self.first.is_some_and(|first| self.last >= first + time)
    }

    fn add(&mut self, at: Duration) {
        self.count += 1;
        self.first.get_or_insert(at);
        self.last = at;
    }
}

// === impl TargetState ===

impl TargetState {
    /// The proof by calls and lists alone.
    pub fn proof(&self) -> Option<Proof> {
        if self.publish_began.is_none() {
            return Some(Proof::NeverPublished);
        }
        if self.unpublished {
            return Some(Proof::Unpublished);
        }
        (self.lists_without_node >= 2).then_some(Proof::Lists)
    }

    /// The OK of the last publish, if it was for this attachment. With `Watched`, a version may be seen after the next unpublish or
    /// publish began, so the UID of the publish decides. With `Exact`, the OK must come after the attachment's creation and before an
    /// unpublish.
    pub(crate) fn confirmed(&self, state: &AttachmentState, order: Order) -> Option<&(usize, Answer)> {
        let counts = |answered: usize| match order {
            Order::Exact => !self.unpublish_sent && answered > state.seen.0,
            Order::Watched => self.published_for.as_ref() == Some(&state.version.uid),
        };
        self.publish_ok.as_ref().filter(|(answered, _)| counts(*answered))
    }

    pub(super) fn publish_began(&mut self, number: usize, owner: Option<Name>) {
        if self.published_for != owner {
            self.calls = (0, 0);
        }
        self.published_for = owner;
        self.taken = false;
        self.orphaned = false;
        self.publish_began = Some(number);
        self.publish_ended = None;
        if self.unpublish_sent {
            self.publish_ok = None;
        }
        self.unpublish_sent = false;
        self.unpublished = false;
        self.lists_without_node = 0;
        self.unlisted = 0;
        self.refusals = Refusals::default();
        self.calls.0 += 1;
    }

    pub(super) fn unpublish_began(&mut self) {
        self.unpublish_sent = true;
        self.calls.1 += 1;
    }

    pub(super) fn answered(
        &mut self,
        number: usize,
        at: Duration,
        (began, call): (usize, &Call),
        answer: &Answer,
    ) {
        let is_ok = &*answer.code == "OK";
        self.failed = (!is_ok).then_some(began);
        match call.method {
            Method::Publish => {
                self.publish_ended = Some(number);
                self.failures.0 = (!is_ok).then(|| answer.clone());
                if is_ok {
                    self.publish_ok = Some((number, answer.clone()));
                }
            }
            Method::Unpublish => {
                self.failures.1 = (!is_ok).then(|| answer.clone());
                if self.publish_began.is_some_and(|publish| publish > began) {
                    return;
                }
                match &*answer.code {
                    "OK" => {
                        self.unpublished = true;
                        let owner = self.published_for.clone();
                        self.released_for.extend(owner.map(|owner| (owner, at)));
                    }
                    "NOT_FOUND" | "INVALID_ARGUMENT" if call.secret != Some(false) => self.refusals.add(at),
                    "NOT_FOUND" | "INVALID_ARGUMENT" => {}
                    _ => self.refusals = Refusals::default(),
                }
            }
        }
    }

    /// Whether the driver answered the last unpublish that it does not know the target.
    pub(super) fn is_unknown(&self) -> bool {
        let refused = self.failures.1.as_ref();
        refused.is_some_and(|answer| matches!(&*answer.code, "NOT_FOUND" | "INVALID_ARGUMENT"))
    }

    /// The publish ended without an answer.
    pub(super) fn publish_cut_off(&mut self, number: usize) {
        self.publish_ended.get_or_insert(number);
    }

    /// A complete list, whose round began at `began`.
    pub(super) fn listed(&mut self, began: usize, list: &List, target: &Target) {
        if self.publish_ended.is_none_or(|ended| ended > began) {
            return;
        }
        let entry = list.get(&target.volume);
        if entry.is_some() {
            self.unlisted = 0;
        }
        match entry {
            Some(Some(nodes)) if nodes.contains(&target.node) => self.lists_without_node = 0,
            Some(Some(_)) => self.lists_without_node += 1,
            Some(None) => {}
            None if list.is_empty() => {}
            None => self.unlisted += 1,
        }
    }
}
