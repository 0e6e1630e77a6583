//! The machine as a table, which docs/architecture.md has, too.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::*;
use crate::plan::{
    Command, DetachEvidence, Next, Orphan, OtherAttachment, Progress, Published, Stop, Subject, SyncContext,
    View, next,
};

/// A view that the rows change.
struct Situation {
    attachment: Attachment,
    volume: Option<Volume>,
    node: Option<Node>,
    operation: Operation,
    needed: Option<Operation>,
    is_orphan: bool,
    progress: Progress,
    other: Option<Attachment>,
    evidence: DetachEvidence,
    assume_after: Duration,
    now: Instant,
}

// === impl Situation ===

impl Situation {
    /// A first attach, to a connected driver.
    fn attach() -> Self {
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let now = Instant::now();
        let mut situation = Self {
            attachment: mk_attachment("va"),
            volume: Some(mk_volume("pv")),
            node: Some(mk_node("node", Some("id-1"))),
            operation: Operation::Attach,
            needed: Some(Operation::Attach),
            is_orphan: false,
            progress: Progress::default(),
            other: None,
            evidence: DetachEvidence::default(),
            assume_after: Duration::ZERO,
            now,
        };
        situation.progress.sync.driver = Some((Some(now), mk_driver().capabilities));
        situation
    }

    /// An attach whose record is stored.
    fn recorded() -> Self {
        let mut situation = Self::attach();
        let (attachment, volume) = (&mut situation.attachment, &mut situation.volume);
        attachment.finalizer = true;
        attachment.recorded.node_id = Some("id-1".into());
        attachment.recorded.handle = Some("handle".into());
        volume.as_mut().unwrap().finalizer = true;
        situation.progress.is_confirmed = true;
        situation
    }

    /// Of an attached volume.
    fn detach() -> Self {
        let mut situation = Self::recorded();
        situation.attachment.deleting = true;
        situation.attachment.attached = true;
        situation.operation = Operation::Detach;
        situation.needed = Some(Operation::Detach);
        situation
    }

    /// Of an attach that was not completed.
    fn orphan() -> Self {
        Self {
            is_orphan: true,
            ..Self::recorded()
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The node registers another id.
    fn moved(self) -> Self {
        self.with(|s| s.node = Some(mk_node("node", Some("id-2"))))
    }

    fn read(self) -> Self {
        self.with(|s| s.progress.sync.is_attachment_read = true)
    }

    fn with_read_user(self) -> Self {
        self.with(|s| s.progress.sync.others_read.push("other".into()))
    }

    fn without_calls(self) -> Self {
        self.with(|s| s.progress.sync.driver = Some((Some(s.now), Capabilities::default())))
    }

    fn disconnected(self) -> Self {
        self.with(|s| s.progress.sync.driver = None)
    }

    fn with_secret(self) -> Self {
        self.with(|s| csi_of(s.volume.as_mut().unwrap()).publish_secret = SecretRef::parse("ns/secret"))
    }

    fn answered(self, node_id: &str, result: UnpublishResult) -> Self {
        self.with(|s| {
            let uid = s.uid();
            let target = target("handle", node_id);
            for at in [0, 60, 120] {
                let now = s.now + Duration::from_secs(at);
                s.evidence.answered(&uid, &target, s.now, result, now);
            }
            s.progress.sync.unpublished.push((target, result));
        })
    }

    fn uid(&self) -> Uid {
        match self.is_orphan {
            true => mk_orphan(&Arc::new(self.attachment.clone())).uid(),
            false => self.attachment.uid.clone(),
        }
    }

    fn proven(self) -> Self {
        self.with(|s| s.progress.proof = Some(mk_proof(&s.attachment.uid)))
    }

    /// Another VolumeAttachment is attached.
    fn beside(self, change: impl FnOnce(&mut Attachment)) -> Self {
        self.with(|s| {
            let mut other = Attachment {
                deleting: false,
                attached: true,
                uid: "other".into(),
                ..s.attachment.clone()
            };
            change(&mut other);
            s.other = Some(other);
        })
    }

    /// The next commands, in words, with the node ids whose targets must be locked.
    fn next(self) -> String {
        let uid = self.uid();
        let attachment = Arc::new(self.attachment);
        let subject = if self.is_orphan {
            Subject::Orphan(mk_orphan(&attachment))
        } else {
            // It was not attached when the sync began.
            let before = Attachment {
                attached: self.operation == Operation::Detach,
                ..(*attachment).clone()
            };
            Subject::Attachment(self.operation, before.into())
        };
        let inputs = AttachInputs {
            attachment: Arc::new(Attachment {
                uid,
                ..(*attachment).clone()
            }),
            volume: self.volume.map(Arc::new),
            node: self.node.map(Arc::new),
        };
        let present = inputs.node.as_ref().and_then(|node| node.id.clone());
        let handle = "handle".into();
        let others = self.other.as_ref().map(|other| OtherAttachment {
            attachment: other,
            handle: Some(&handle),
            present_id: present.as_ref(),
            is_record_uncertain: false,
            may_be_attached: other.attached,
        });
        let driver = mk_driver();
        let mut progress = self.progress;
        let view = View {
            context: SyncContext {
                driver: &driver,
                session: Some(self.now),
                assume_after: self.assume_after,
                locked: &[],
            },
            subject: &subject,
            inputs: Some(inputs),
            operation: self.needed,
            others: others.into_iter().collect(),
            orphans: &BTreeMap::new(),
            evidence: &self.evidence,
            connection: 0,
        };
        progress.expire(&view);
        let locked = match next(&view, &progress, self.now) {
            Next::Lock(targets) => targets,
            next @ (Next::Done | Next::Stop(_) | Next::Act(_)) => return in_words(&next),
        };
        let view = View {
            context: SyncContext {
                locked: &locked,
                ..view.context
            },
            ..view
        };
        let ids: Vec<_> = locked.iter().map(|target| &*target.node_id).collect();
        format!(
            "{} (locks {})",
            in_words(&next(&view, &progress, self.now)),
            ids.join(", ")
        )
    }
}

fn mk_orphan(attachment: &Arc<Attachment>) -> Arc<Orphan> {
    Arc::new(Orphan {
        target: target("handle", "id-1"),
        secret: None,
        migrated: false,
        attachment: attachment.clone(),
    })
}

fn in_words(next: &Next) -> String {
    match next {
        Next::Done => "done".to_owned(),
        Next::Stop(stop) => format!(
            "stop: {}",
            match stop {
                Stop::Refused(_) => "refused",
                Stop::NoPublishCalls => "no publish calls",
                Stop::Unproven(_) => "unproven",
                Stop::Failed => "failed",
                Stop::MissingFinalizer(_) => "missing finalizer",
                Stop::AmbiguousNodeId(_) => "ambiguous node id",
            }
        ),
        Next::Lock(_) => "lock".to_owned(),
        Next::Act(commands) => {
            let words = commands.iter().map(|command| match command {
                Command::Connect => "Connect".to_owned(),
                Command::GetAttachment => "GetAttachment".to_owned(),
                Command::GetOther(_) => "GetOther".to_owned(),
                Command::GetVolume(_) => "GetVolume".to_owned(),
                Command::GetNode(_) => "GetNode".to_owned(),
                Command::GetSecret { .. } => "GetSecret".to_owned(),
                Command::AddPvFinalizer(_) => "AddPvFinalizer".to_owned(),
                Command::Record(_) => "Record".to_owned(),
                Command::SaveUndoError(target) => format!("SaveUndoError {}", target.node_id),
                Command::Publish(plan) => format!("Publish {}", plan.target.node_id),
                Command::Unpublish { target, .. } => format!("Unpublish {}", target.node_id),
                Command::KeepOrphan(_) => "KeepOrphan".to_owned(),
                Command::EndOrphan => "EndOrphan".to_owned(),
                Command::KeepProof(_) => "KeepProof".to_owned(),
                Command::MarkAttached(_) => "MarkAttached".to_owned(),
                Command::MarkDetached => "MarkDetached".to_owned(),
                Command::RemoveFinalizer(_) => "RemoveFinalizer".to_owned(),
            });
            words.collect::<Vec<_>>().join(" + ")
        }
    }
}

/// The rows of docs/architecture.md: its first column, and the situation.
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn rows() -> Vec<(&'static str, Situation)> {
    use UnpublishResult::{NotFound, Unpublished};
    let (attach, recorded, detach, orphan) = (
        Situation::attach,
        Situation::recorded,
        Situation::detach,
        Situation::orphan,
    );
    let published = |s: &mut Situation| {
        s.progress.published = Some(Published {
            target: target("handle", "id-1"),
            context: BTreeMap::new(),
            connection: 0,
        });
    };
    let unguarded = |s: &mut Situation| {
        s.attachment.finalizer = false;
        s.attachment.foreign_finalizers = true;
    };
    vec![
        (
            "attach: being deleted",
            attach().with(|s| s.attachment.deleting = true),
        ),
        (
            "attach: the status of an earlier sync appeared",
            recorded().with(|s| s.attachment.attached = true),
        ),
        (
            "attach: published, the status is not written",
            recorded().with(published),
        ),
        ("attach: no session", attach().disconnected()),
        (
            "attach: driver without publish calls, no record",
            attach().without_calls(),
        ),
        (
            "attach: driver without publish calls, recorded",
            recorded().without_calls(),
        ),
        (
            "attach: the store lacks the volume",
            attach().with(|s| s.volume = None),
        ),
        ("attach: an object is invalid", attach().with(|s| s.node = None)),
        ("attach: another id is recorded", recorded().moved()),
        ("attach: the same, read live", recorded().moved().read()),
        (
            "attach: the same, error saved",
            recorded()
                .moved()
                .read()
                .with(|s| s.progress.sync.is_undo_saved = true),
        ),
        (
            "attach: the same, NOT_FOUND",
            recorded().moved().read().answered("id-1", NotFound),
        ),
        (
            "attach: the same, OK",
            recorded().moved().read().answered("id-1", Unpublished),
        ),
        ("attach: the Secret is not read", attach().with_secret()),
        ("attach: no finalizers and record", attach()),
        (
            "attach: all is stored, the watch alone shows the VolumeAttachment",
            recorded().with(|s| s.progress.is_confirmed = false),
        ),
        ("attach: all is stored", recorded()),
        ("detach: nothing is needed", detach().with(|s| s.needed = None)),
        (
            "detach: a stale status without our finalizer",
            detach().with(unguarded),
        ),
        ("detach: no session", detach().disconnected()),
        (
            "detach: no recorded handle, the store lacks the volume",
            detach().with(|s| {
                s.attachment.recorded.handle = None;
                s.volume = None;
            }),
        ),
        (
            "detach: an object is missing",
            detach().with(|s| {
                s.attachment.recorded = Recorded::default();
                s.node = None;
            }),
        ),
        (
            "detach: never published, a stale error",
            detach().read().with(unguarded).with(|s| {
                s.attachment.recorded = Recorded::default();
                s.attachment.attached = false;
                s.attachment.detach_error = Some(Box::default());
                s.node = None;
            }),
        ),
        (
            "detach: `attached: true` without finalizer and record, an object is missing",
            detach().read().with(unguarded).with(|s| {
                s.attachment.recorded = Recorded::default();
                s.node = None;
            }),
        ),
        ("detach: driver without publish calls", detach().without_calls()),
        ("detach: the Secret is not read", detach().with_secret()),
        ("detach: the recorded id is not unpublished", detach()),
        ("detach: OK", detach().answered("id-1", Unpublished)),
        (
            "detach: OK, the node registers another id",
            detach().moved().answered("id-1", Unpublished),
        ),
        (
            "detach: OK for both ids",
            detach()
                .moved()
                .answered("id-1", Unpublished)
                .answered("id-2", Unpublished),
        ),
        ("detach: NOT_FOUND", detach().answered("id-1", NotFound)),
        (
            "detach: NOT_FOUND, the operator's word, no CSINode",
            detach().answered("id-1", NotFound).with(|s| {
                s.assume_after = Duration::from_secs(60);
                s.node = None;
            }),
        ),
        (
            "detach: the same, a live read agrees",
            detach().answered("id-1", NotFound).with(|s| {
                s.assume_after = Duration::from_secs(60);
                s.node = None;
                s.progress.sync.node_exists = Some(false);
            }),
        ),
        (
            "detach: another VolumeAttachment records the target",
            detach().beside(|_| ()),
        ),
        (
            "detach: the same, a live read shows it",
            detach().beside(|_| ()).with_read_user(),
        ),
        (
            "detach: the same without our finalizer",
            detach().beside(|other| other.finalizer = false),
        ),
        (
            "detach: another one on the node records another id",
            detach().beside(|other| {
                other.recorded.node_id = Some("id-0".into());
            }),
        ),
        ("detach: proven", detach().proven()),
        (
            "detach: proven, others' finalizers",
            detach().proven().with(|s| s.attachment.foreign_finalizers = true),
        ),
        ("orphan: no session", orphan().disconnected()),
        ("orphan: only the watch shows the deletion", orphan()),
        (
            "orphan: driver without publish calls",
            orphan().read().without_calls(),
        ),
        ("orphan: the target is not unpublished", orphan().read()),
        ("orphan: NOT_FOUND", orphan().read().answered("id-1", NotFound)),
        (
            "orphan: another one on the node records another id",
            orphan().read().beside(|other| {
                other.recorded.node_id = Some("id-0".into());
            }),
        ),
        ("orphan: OK", orphan().read().answered("id-1", Unpublished)),
        (
            "orphan: a VolumeAttachment records the target, a live read shows it",
            orphan().read().beside(|_| ()).with_read_user(),
        ),
    ]
}

/// The first two columns of the table.
fn documented() -> Vec<(String, String)> {
    let text = include_str!("../../../../docs/architecture.md");
    let (_, table) = text
        .split_once("| situation | next | what follows |\n|---|---|---|\n")
        .expect("the table");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let columns = rows.map(|row| {
        let mut columns = row.split('|').map(str::trim).skip(1);
        let mut column = || columns.next().expect("three columns").to_owned();
        (column(), column())
    });
    columns.collect()
}

#[test]
fn next_follows_from_the_situation_as_documented() {
    let rows = rows()
        .into_iter()
        .map(|(name, situation)| (name.to_owned(), situation.next()));
    assert_eq!(rows.collect::<Vec<_>>(), documented());
}

#[test]
fn progress_ends_with_what_it_rests_on() {
    let published = |node_id: &'static str, connection| {
        Situation::recorded().with(|s| {
            s.progress.published = Some(Published {
                target: target("handle", node_id),
                context: BTreeMap::new(),
                connection,
            });
        })
    };
    let other_session = |s: &mut Situation| {
        let other = s.now + Duration::from_secs(1);
        s.progress.sync.driver = Some((Some(other), mk_driver().capabilities));
    };
    for (name, situation, expected) in [
        (
            "another session",
            Situation::attach().with(other_session),
            "Connect",
        ),
        ("a publish", published("id-1", 0), "MarkAttached (locks id-1)"),
        (
            "of another connection",
            published("id-1", 1),
            "Publish id-1 (locks id-1)",
        ),
        ("to another id", published("id-0", 0), "Publish id-1 (locks id-1)"),
        ("a proof", Situation::detach().proven(), "RemoveFinalizer"),
        (
            "of another id",
            Situation::detach().moved().proven(),
            "Unpublish id-1 (locks id-1, id-2)",
        ),
    ] {
        assert_eq!(situation.next(), expected, "{name}");
    }
}

/// Two syncs that need the same locks never wait for each other.
#[test]
fn asks_for_locks_in_sorted_order() {
    for (present, expected) in [("id-0", "id-0, id-1"), ("id-2", "id-1, id-2")] {
        let moved = Situation::detach().with(|s| s.node = Some(mk_node("node", Some(present))));
        assert_eq!(moved.next(), format!("Unpublish id-1 (locks {expected})"));
    }
}
