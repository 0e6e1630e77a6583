//! For each clause a history that breaks it and no other clause, and one like it that is in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::observation::*;
use super::*;

/// A history: volume `vol` (PersistentVolume `pv`, one node) and the nodes `a` and `b` with the IDs `id-a` and `id-b`.
#[derive(Clone)]
struct History {
    contract_settings: Settings,
    seen: Vec<(Duration, Observation)>,
    now: Duration,
    calls: u64,
}

const OK: &str = "OK";

fn history() -> History {
    let history = History {
        contract_settings: Settings::exact(),
        seen: Vec::new(),
        now: Duration::ZERO,
        calls: 0,
    };
    history
        .add(volume(1))
        .add(Observation::CsiNode("a".into(), Registration::Id("id-a".into())))
        .add(Observation::CsiNode("b".into(), Registration::Id("id-b".into())))
}

fn volume(finalizers: usize) -> Observation {
    volume_with(finalizers, |_| {})
}

fn volume_with(finalizers: usize, change: impl FnOnce(&mut Volume)) -> Observation {
    let mut volume = Volume {
        name: "pv".into(),
        handle: "vol".into(),
        single_node: true,
        finalizers,
        ..Volume::default()
    };
    change(&mut volume);
    Observation::Volume(Arc::new(volume))
}

fn va(node: &str) -> Attachment {
    Attachment {
        name: format!("va-{node}").as_str().into(),
        uid: format!("uid-{node}").as_str().into(),
        node: node.into(),
        volume: "pv".into(),
        ..Attachment::default()
    }
}

fn guarded(node: &str) -> Attachment {
    Attachment {
        finalizer: true,
        node_id: Some(format!("id-{node}").as_str().into()),
        handle: Some("vol".into()),
        ..va(node)
    }
}

fn attached(node: &str) -> Attachment {
    Attachment {
        attached: true,
        ..guarded(node)
    }
}

fn deleting(attachment: Attachment, second: u64) -> Attachment {
    Attachment {
        deleting: Some(Duration::from_secs(second)),
        ..attachment
    }
}

fn target(node: &str) -> Target {
    Target::new("vol", &format!("id-{node}"))
}

impl History {
    fn add(mut self, seen: Observation) -> Self {
        self.now += Duration::from_secs(1);
        self.seen.push((self.now, seen));
        self
    }

    fn va(self, attachment: Attachment) -> Self {
        self.add(Observation::Attachment(Arc::new(attachment)))
    }

    fn gone(self, node: &str) -> Self {
        self.add(Observation::AttachmentGone(format!("va-{node}").as_str().into()))
    }

    fn array(self, node: &str, published: bool) -> Self {
        self.add(Observation::Array(target(node), published))
    }

    fn begin(mut self, method: Method, node: &str, change: impl FnOnce(&mut Call)) -> Self {
        self.calls += 1;
        let mut call = Call {
            number: self.calls,
            by: None,
            method,
            target: target(node),
            secret: None,
            request: None,
        };
        change(&mut call);
        self.add(Observation::CallBegan(Arc::new(call)))
    }

    fn end(self, code: &str) -> Self {
        let number = self.calls;
        self.end_of(number, code)
    }

    fn end_of(self, number: u64, code: &str) -> Self {
        let answer = Answer {
            code: code.into(),
            message: if code == OK {
                String::new()
            } else {
                "the port is locked".to_owned()
            },
            context: BTreeMap::new(),
        };
        self.add(Observation::CallEnded(number, answer))
    }

    fn publish(self, node: &str, code: &str) -> Self {
        let history = self.begin(Method::Publish, node, |_| {});
        let history = if code == OK {
            history.array(node, true)
        } else {
            history
        };
        history.end(code)
    }

    fn unpublish(self, node: &str, code: &str) -> Self {
        let history = self.begin(Method::Unpublish, node, |_| {});
        let history = if code == OK {
            history.array(node, false)
        } else {
            history
        };
        history.end(code)
    }

    /// Attached to node `a`, without anything odd.
    fn attach(self, node: &str) -> Self {
        self.va(va(node))
            .va(guarded(node))
            .publish(node, OK)
            .va(attached(node))
    }

    /// The request for the deletion of the attached VolumeAttachment.
    fn delete(self, node: &str) -> Self {
        let second = self.now.as_secs() + 1;
        self.va(deleting(attached(node), second))
    }

    fn detach(self, node: &str) -> Self {
        self.delete(node).unpublish(node, OK).gone(node)
    }

    fn pass(mut self, seconds: u64) -> Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    fn lists(self, rounds: std::ops::Range<u64>, list: &[(&str, Option<&[&str]>)]) -> Self {
        let list: List = list
            .iter()
            .map(|(volume, nodes)| {
                let nodes = nodes.map(|nodes| nodes.iter().map(|&node| node.into()).collect());
                ((*volume).into(), nodes)
            })
            .collect();
        rounds.fold(self, |history, round| {
            history
                .add(Observation::ListBegan(round))
                .add(Observation::ListEnded(round, list.clone()))
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.contract_settings);
        self
    }

    fn watched(self) -> Self {
        self.with(|settings| settings.order = Order::Watched)
    }

    fn judge(self) -> Contract {
        let mut contract = Contract::new(self.contract_settings);
        for (at, seen) in self.seen {
            contract.observe(at, seen);
        }
        contract
    }

    fn broken(self) -> BTreeSet<Clause> {
        let contract = self.judge();
        contract
            .violations()
            .iter()
            .map(|violation| violation.clause)
            .collect()
    }
}

fn write(by: Option<&str>, empty: bool, changed: bool) -> Observation {
    Observation::Write(Write {
        by: by.map(Name::from),
        object: "VolumeAttachment va-a".to_owned(),
        empty,
        changed,
    })
}

fn by(process: &str) -> impl FnOnce(&mut Call) {
    let process = process.into();
    |call| call.by = Some(process)
}

fn mounted(node: &str, is: bool) -> Observation {
    Observation::Mounted(target(node), is)
}

fn unhealthy(node: &str) -> Observation {
    Observation::Node {
        node: node.into(),
        healthy: false,
    }
}

fn text(text: &str) -> Observation {
    Observation::Text("the log".to_owned(), text.into())
}

fn failed(node: &str, message: &str) -> Attachment {
    Attachment {
        attach_error: Some(message.to_owned()),
        ..guarded(node)
    }
}

/// The histories of each clause: broken, and in order.
#[expect(clippy::too_many_lines, reason = "a table")]
fn table() -> Vec<(Clause, History, History)> {
    let secret =
        |history: History| history.with(|settings| settings.secrets = vec!["hunter2-hunter2".to_owned()]);
    let shared = || history().add(volume_with(1, |volume| volume.single_node = false));
    vec![
        (
            Clause::FinalizerBeforePublish,
            history()
                .va(va("a"))
                .publish("a", OK)
                .va(guarded("a"))
                .va(attached("a")),
            history().attach("a"),
        ),
        (
            Clause::RecordBeforePublish,
            history()
                .va(va("a"))
                .va(Attachment {
                    handle: None,
                    ..guarded("a")
                })
                .publish("a", OK)
                .va(Attachment {
                    handle: None,
                    ..attached("a")
                }),
            history()
                .with(|settings| settings.record = Record::NodeId)
                .va(va("a"))
                .va(Attachment {
                    handle: None,
                    ..guarded("a")
                })
                .publish("a", OK),
        ),
        (
            Clause::OneCallAtATime,
            history()
                .va(guarded("a"))
                .begin(Method::Publish, "a", |_| {})
                .begin(Method::Publish, "a", |_| {})
                .end_of(1, "ABORTED")
                .end_of(2, "ABORTED"),
            history()
                .va(guarded("a"))
                .publish("a", "ABORTED")
                .publish("a", "ABORTED"),
        ),
        (
            Clause::OnlyTheLeader,
            history()
                .va(guarded("a"))
                .add(Observation::Lease(Some("one".into())))
                .begin(Method::Publish, "a", by("two"))
                .end("ABORTED"),
            history()
                .va(guarded("a"))
                .add(Observation::Lease(Some("one".into())))
                .begin(Method::Publish, "a", by("one"))
                .end("ABORTED"),
        ),
        (
            Clause::OwnVolumesOnly,
            history()
                .add(volume_with(1, |volume| volume.foreign = true))
                .attach("a"),
            history().attach("a"),
        ),
        (
            Clause::SecretSent,
            history()
                .add(volume_with(1, |volume| volume.secret = true))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| call.secret = Some(false))
                .end("ABORTED"),
            history()
                .add(volume_with(1, |volume| volume.secret = true))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| call.secret = Some(true))
                .end("ABORTED"),
        ),
        (
            Clause::RequestMatchesVolume,
            history()
                .add(volume_with(1, |volume| volume.request = Some(Arc::default())))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| {
                    call.request = Some(PublishRequest {
                        readonly: true,
                        ..PublishRequest::default()
                    });
                })
                .end("ABORTED"),
            history()
                .add(volume_with(1, |volume| volume.request = Some(Arc::default())))
                .va(guarded("a"))
                .begin(Method::Publish, "a", |call| {
                    call.request = Some(PublishRequest::default())
                })
                .end("ABORTED"),
        ),
        (
            // The array lost it, so that NOT_FOUND happens to be true.
            Clause::FinalizerWithProof,
            history()
                .attach("a")
                .array("a", false)
                .delete("a")
                .unpublish("a", "NOT_FOUND")
                .gone("a"),
            history()
                .attach("a")
                .array("a", false)
                .delete("a")
                .unpublish("a", "NOT_FOUND")
                .unpublish("a", OK)
                .gone("a"),
        ),
        (
            // Published by an attacher that the record does not show.
            Clause::NothingForgotten,
            history().array("a", true).va(attached("a")).delete("a").gone("a"),
            history().array("a", true).va(attached("a")).detach("a"),
        ),
        (
            Clause::NoDetachUnderAttachment,
            history().attach("a").unpublish("a", OK),
            history().attach("a").delete("a").unpublish("a", OK),
        ),
        (
            Clause::AttachedWhilePublished,
            history().va(va("a")).va(guarded("a")).va(attached("a")),
            history()
                .add(Observation::PublishCapability(false))
                .va(va("a"))
                .va(Attachment {
                    attached: true,
                    ..va("a")
                }),
        ),
        (
            Clause::ContextReported,
            history()
                .va(va("a"))
                .va(guarded("a"))
                .publish("a", OK)
                .va(Attachment {
                    metadata: BTreeMap::from([("device".to_owned(), "sda".to_owned())]),
                    ..attached("a")
                }),
            history().attach("a"),
        ),
        (
            Clause::ErrorReported,
            history()
                .va(guarded("a"))
                .publish("a", "ABORTED")
                .va(failed("a", "failed"))
                .add(Observation::Settled),
            history()
                .va(guarded("a"))
                .publish("a", "ABORTED")
                .va(failed("a", "rpc error: the port is locked"))
                .add(Observation::Settled),
        ),
        (
            Clause::ErrorCleared,
            history()
                .attach("a")
                .va(Attachment {
                    attached: true,
                    ..failed("a", "the port is locked")
                })
                .add(Observation::Settled),
            history()
                .va(guarded("a"))
                .publish("a", "ABORTED")
                .va(failed("a", "the port is locked"))
                .publish("a", OK)
                .va(attached("a"))
                .add(Observation::Settled),
        ),
        (
            Clause::VolumeGuarded,
            history().attach("a").add(volume(0)),
            history().attach("a").detach("a").add(volume(0)),
        ),
        (
            Clause::FinalizerOnce,
            history().add(volume(2)),
            history().add(volume(1)),
        ),
        (
            Clause::NoIdleWrite,
            history().add(write(None, true, false)),
            history().add(write(None, false, true)),
        ),
        (
            Clause::NoSecretShown,
            secret(history()).add(text("password: aHVudGVyMi1odW50ZXIy")),
            secret(history()).add(text("password: ***stripped***")),
        ),
        (
            Clause::Uneventful,
            history()
                .va(va("a"))
                .va(guarded("a"))
                .publish("a", OK)
                .publish("a", OK)
                .va(attached("a")),
            history()
                .va(va("a"))
                .va(guarded("a"))
                .add(Observation::Disturbed("restart".to_owned()))
                .publish("a", OK)
                .publish("a", OK)
                .va(attached("a")),
        ),
        (
            Clause::Settles,
            history().va(va("a")).add(Observation::Settled),
            history()
                .va(va("a"))
                .va(Attachment {
                    attach_error: Some("no slot".to_owned()),
                    ..va("a")
                })
                .add(Observation::Settled),
        ),
        (
            Clause::ArrayAgrees,
            history().array("a", true).add(Observation::Settled),
            history().attach("a").add(Observation::Settled),
        ),
        (
            Clause::NothingLeft,
            history().attach("a").detach("a").add(Observation::CleanedUp),
            history()
                .attach("a")
                .detach("a")
                .add(volume(0))
                .add(Observation::CleanedUp),
        ),
        (
            Clause::OneNode,
            history().attach("a").attach("b"),
            shared().attach("a").attach("b"),
        ),
        (
            Clause::OneMount,
            history().add(mounted("a", true)).add(mounted("b", true)),
            history()
                .add(mounted("a", true))
                .add(Observation::Forced("vol".into(), "a".into()))
                .add(mounted("b", true)),
        ),
        (
            Clause::MountedIsPublished,
            history()
                .attach("a")
                .add(mounted("a", true))
                .delete("a")
                .add(unhealthy("a"))
                .unpublish("a", OK)
                .gone("a"),
            history()
                .attach("a")
                .add(mounted("a", true))
                .add(unhealthy("a"))
                .detach("a"),
        ),
        (
            Clause::NoPanic,
            history().add(Observation::Panicked("kubelet of a".to_owned())),
            history(),
        ),
        (
            Clause::RecordComplete,
            history()
                .add(Observation::GapBegan("watch".to_owned()))
                .add(Observation::Settled),
            history()
                .add(Observation::GapBegan("watch".to_owned()))
                .add(Observation::GapEnded("watch".to_owned()))
                .add(Observation::Settled),
        ),
    ]
}

#[test]
fn each_clause_alone_finds_its_history() {
    for (clause, broken, fine) in table() {
        let name = clause.rule().name;
        assert_eq!(
            broken.broken(),
            BTreeSet::from([clause]),
            "{name}: the broken history"
        );
        assert_eq!(fine.broken(), BTreeSet::new(), "{name}: the history in order");
    }
}

/// The situations of attacher.md, Ours 3: code of the unpublish of the recorded ID, that of the present one, and the rest.
#[expect(clippy::too_many_lines, reason = "a table")]
#[test]
fn finalizer_goes_with_each_kind_of_proof_only() {
    let renamed =
        |history: History| history.add(Observation::CsiNode("a".into(), Registration::Id("id-c".into())));
    let registration = |registration| Observation::CsiNode("a".into(), registration);
    let attached_a = || history().attach("a").delete("a");
    let refusals = |history: History, seconds| {
        (0..3).fold(history, |history, _| {
            history.pass(seconds).unpublish("a", "NOT_FOUND")
        })
    };
    let cases: Vec<(&str, bool, History)> = vec![
        ("OK", true, attached_a().unpublish("a", OK)),
        ("no unpublish", false, attached_a()),
        (
            "deadline",
            false,
            attached_a().unpublish("a", "DEADLINE_EXCEEDED"),
        ),
        ("NOT_FOUND", false, attached_a().unpublish("a", "NOT_FOUND")),
        (
            "A1 i: NOT_FOUND without the driver's entry",
            false,
            attached_a()
                .add(registration(Registration::NoDriver))
                .unpublish("a", "NOT_FOUND"),
        ),
        (
            "A1 ii: both IDs NOT_FOUND",
            false,
            renamed(attached_a())
                .unpublish("a", "NOT_FOUND")
                .unpublish("c", "NOT_FOUND"),
        ),
        (
            "A1 iii: NOT_FOUND without the Secret",
            false,
            attached_a()
                .begin(Method::Unpublish, "a", |call| call.secret = Some(false))
                .end("NOT_FOUND"),
        ),
        (
            "A1 iv: recorded ID NOT_FOUND once, present one OK",
            false,
            renamed(attached_a())
                .unpublish("a", "NOT_FOUND")
                .unpublish("c", OK),
        ),
        (
            "A1 v: NOT_FOUND without CSINode",
            false,
            attached_a()
                .add(registration(Registration::NoCsiNode))
                .unpublish("a", "NOT_FOUND"),
        ),
        (
            "A2: no publish calls",
            false,
            attached_a().add(Observation::PublishCapability(false)),
        ),
        (
            "three NOT_FOUND over a minute, present ID OK",
            true,
            refusals(renamed(attached_a()), 30).unpublish("c", OK),
        ),
        (
            "three NOT_FOUND in three seconds, present ID OK",
            false,
            refusals(renamed(attached_a()), 0).unpublish("c", OK),
        ),
        ("three NOT_FOUND over a minute, present ID NOT_FOUND", false, {
            // A publish of the present ID makes it a target of its own.
            let history = refusals(renamed(attached_a()), 30);
            history
                .begin(Method::Publish, "c", |_| {})
                .end("NOT_FOUND")
                .unpublish("c", "NOT_FOUND")
        }),
        (
            "the Go sidecar's issue 12: only the present ID is unpublished",
            false,
            renamed(attached_a()).unpublish("c", OK),
        ),
        (
            "two lists without the node",
            true,
            attached_a().lists(0..2, &[("vol", Some(&[]))]),
        ),
        (
            "one list without the node",
            false,
            attached_a().lists(0..1, &[("vol", Some(&[]))]),
        ),
        (
            "two lists without an entry",
            false,
            attached_a().lists(0..2, &[("other", Some(&[]))]),
        ),
        ("two empty lists", false, attached_a().lists(0..2, &[])),
        (
            "two lists without a status",
            false,
            attached_a().lists(0..2, &[("vol", None)]),
        ),
        (
            "two lists, one with the node",
            false,
            attached_a()
                .lists(0..1, &[("vol", Some(&[]))])
                .lists(1..2, &[("vol", Some(&["id-a"]))]),
        ),
        (
            "another attachment has the target",
            true,
            attached_a().va(Attachment {
                name: "other".into(),
                uid: "other".into(),
                ..guarded("a")
            }),
        ),
        (
            "another attachment without finalizer",
            false,
            attached_a().va(Attachment {
                name: "other".into(),
                uid: "other".into(),
                ..va("a")
            }),
        ),
        (
            "never published",
            true,
            history().va(guarded("a")).va(deleting(guarded("a"), 4)),
        ),
        (
            "publish without answer",
            false,
            history().va(guarded("a")).begin(Method::Publish, "a", |_| {}),
        ),
        (
            "publish failed",
            false,
            history().va(guarded("a")).publish("a", "ABORTED"),
        ),
        (
            "unpublish OK, then published again",
            false,
            attached_a().unpublish("a", OK).publish("a", OK),
        ),
        (
            "another client removed it",
            true,
            attached_a().add(Observation::FinalizerTaken("uid-a".into())),
        ),
        (
            "operator, node gone",
            true,
            refusals(
                attached_a()
                    .with(|settings| settings.assume_unpublished_after = Some(Duration::from_secs(300)))
                    .add(registration(Registration::NoCsiNode)),
                200,
            ),
        ),
        (
            "operator, node still there",
            false,
            refusals(
                attached_a()
                    .with(|settings| settings.assume_unpublished_after = Some(Duration::from_secs(300))),
                200,
            ),
        ),
        (
            "operator, too early",
            false,
            refusals(
                attached_a()
                    .with(|settings| settings.assume_unpublished_after = Some(Duration::from_secs(300)))
                    .add(registration(Registration::NoCsiNode)),
                2,
            ),
        ),
    ];
    for (case, proven, history) in cases {
        let broken = history.gone("a").broken();
        assert_eq!(
            !broken.contains(&Clause::FinalizerWithProof),
            proven,
            "{case}: {broken:?}"
        );
    }
}

#[test]
fn a_force_that_begins_later_excuses_nothing() {
    let mounted_a = || history().attach("a").add(mounted("a", true));
    let force = || Observation::Forced("vol".into(), "a".into());
    assert_eq!(mounted_a().add(force()).detach("a").broken(), BTreeSet::new());
    let before = BTreeSet::from([Clause::MountedIsPublished]);
    assert_eq!(mounted_a().detach("a").add(force()).broken(), before);
    // The detach begins on a healthy node, which fails before the call.
    assert_eq!(
        mounted_a()
            .delete("a")
            .add(unhealthy("a"))
            .va(deleting(attached("a"), 9))
            .unpublish("a", OK)
            .broken(),
        before
    );
    // A new attachment ends the force of the old one.
    let again = mounted_a().add(unhealthy("a")).detach("a");
    let again = again.add(Observation::Node {
        node: "a".into(),
        healthy: true,
    });
    let again = again.va(va("a")).va(Attachment {
        uid: "uid-2".into(),
        ..guarded("a")
    });
    let again = again.publish("a", OK).va(Attachment {
        uid: "uid-2".into(),
        ..attached("a")
    });
    assert!(
        again
            .unpublish("a", OK)
            .broken()
            .contains(&Clause::MountedIsPublished)
    );
}

/// A watch shows states after calls that were sent later.
#[test]
fn late_watch_is_no_violation() {
    let late = history()
        .watched()
        .begin(Method::Publish, "a", |_| {})
        .array("a", true)
        .va(va("a"))
        .va(guarded("a"))
        .end(OK)
        .va(attached("a"))
        .unpublish("a", OK)
        .va(deleting(attached("a"), 9))
        .gone("a")
        .add(Observation::Settled);
    assert_eq!(late.broken(), BTreeSet::new());
    let live = history()
        .watched()
        .attach("a")
        .unpublish("a", OK)
        .publish("a", OK)
        .pass(20);
    let requested = live.now.as_secs();
    let deleted = live.va(deleting(attached("a"), requested));
    assert_eq!(
        deleted.broken(),
        BTreeSet::from([Clause::NoDetachUnderAttachment])
    );
    let chain = history().watched().va(va("a")).publish("a", OK).va(Attachment {
        attached: true,
        ..va("a")
    });
    assert_eq!(chain.broken(), BTreeSet::from([Clause::FinalizerBeforePublish]));
    let chain = history()
        .watched()
        .va(Attachment {
            node_id: None,
            ..guarded("a")
        })
        .publish("a", OK)
        .va(attached("a"));
    assert_eq!(chain.broken(), BTreeSet::from([Clause::RecordBeforePublish]));
}

/// The next attachment of the same name is published before the watch shows that the first one is gone.
#[test]
fn late_end_of_an_attachment_is_no_violation() {
    let again = |history: History| {
        let history = history.attach("a").unpublish("a", OK).publish("a", OK);
        let requested = history.now.as_secs() - 6;
        history.va(deleting(attached("a"), requested)).gone("a")
    };
    let second = || Attachment {
        uid: "uid-2".into(),
        ..attached("a")
    };
    let settled = again(history().watched()).va(second()).add(Observation::Settled);
    assert_eq!(settled.broken(), BTreeSet::new());
    let without_next = again(history().watched()).add(Observation::CleanedUp);
    assert!(without_next.broken().contains(&Clause::NothingForgotten));
    assert!(again(history()).broken().contains(&Clause::NothingForgotten));
}

#[test]
fn process_that_ends_takes_its_calls_along() {
    let ended = history()
        .va(guarded("a"))
        .begin(Method::Publish, "a", by("one"))
        .add(Observation::ProcessEnded("one".into()));
    let next = ended.begin(Method::Publish, "a", by("two")).end("ABORTED");
    assert_eq!(next.broken(), BTreeSet::new());
}

#[test]
fn checks_ahead_without_a_trace() {
    let mut contract = history().va(va("a")).judge();
    let now = Duration::from_secs(60);
    assert!(contract.would_break(now, &Observation::Settled));
    assert_eq!(contract.violations(), []);
    contract.observe(now, Observation::Settled);
    assert_eq!(contract.violations().len(), 1);
}

#[test]
fn violation_shows_its_evidence_and_source() {
    let contract = history()
        .attach("a")
        .delete("a")
        .unpublish("a", "NOT_FOUND")
        .gone("a")
        .judge();
    let found = contract
        .violations()
        .iter()
        .find(|violation| violation.clause == Clause::FinalizerWithProof);
    let text = found.expect("the clause is broken").to_string();
    for part in [
        "finalizer-with-proof: va-a",
        "NOT_FOUND",
        "CSI spec",
        "ControllerPublishVolume of volume vol on node id-a",
        "is deleted",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn rules_are_in_the_order_of_the_enum() {
    for (number, rule) in CLAUSES.iter().enumerate() {
        assert_eq!(rule.clause as usize, number, "{}", rule.name);
        assert_eq!(rule.clause.rule().name, rule.name);
    }
    let tested: BTreeSet<_> = table().into_iter().map(|(clause, ..)| clause).collect();
    assert_eq!(tested.len(), CLAUSES.len(), "each clause has a row in the table");
}
