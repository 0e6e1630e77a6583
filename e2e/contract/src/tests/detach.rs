//! Histories of the clauses about the end of an attachment.

use super::*;

pub(super) fn rows() -> Vec<Row> {
    vec![
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
    ]
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
    let moved = || Attachment {
        node_id: Some("id-c".into()),
        ..attached("a")
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
            "attached again under another ID, and NOT_FOUND for the former one",
            true,
            renamed(history().attach("a"))
                .unpublish("a", "NOT_FOUND")
                .va(moved())
                .va(deleting(moved(), 9)),
        ),
        (
            "attached again under another ID, and the former one not unpublished",
            false,
            renamed(history().attach("a"))
                .va(moved())
                .va(deleting(moved(), 9)),
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

/// What excuses a violation ends: afterwards the same is a violation.
#[test]
fn each_excuse_of_a_detach_ends() {
    let taken = || Observation::FinalizerTaken("uid-a".into());
    let bare = || Attachment {
        finalizer: false,
        ..attached("a")
    };
    let operator = || {
        let of_operator = |settings: &mut Settings| {
            settings.assume_unpublished_after = Some(Duration::from_secs(300));
        };
        let unlisted = history()
            .with(of_operator)
            .attach("a")
            .delete("a")
            .lists(0..2, &[("other", Some(&[]))]);
        (0..3).fold(unlisted, |history, _| {
            history.pass(200).unpublish("a", "NOT_FOUND")
        })
    };
    let released = || {
        let history = history()
            .watched()
            .attach("a")
            .unpublish("a", OK)
            .publish("a", OK);
        history.pass(20)
    };
    let deleted = |history: History, second: u64| history.va(deleting(attached("a"), second)).gone("a");
    for (excuse, clause, excused, ended) in [
        (
            "finalizer taken",
            Clause::FinalizerWithProof,
            history().attach("a").add(taken()).va(bare()),
            history()
                .attach("a")
                .add(taken())
                .va(bare())
                .va(attached("a"))
                .va(bare()),
        ),
        (
            "not listed",
            Clause::FinalizerWithProof,
            operator().gone("a"),
            operator().lists(2..3, &[("vol", Some(&["id-a"]))]).gone("a"),
        ),
        (
            "the watch shows the end late",
            Clause::FinalizerWithProof,
            deleted(released(), 9),
            deleted(released(), 30),
        ),
    ] {
        expect_end(excuse, clause, excused, ended);
    }
}

#[test]
fn each_excuse_of_a_publish_ends() {
    let unguarded = || {
        let taken = Observation::FinalizerTaken("uid-a".into());
        let history = history().va(guarded("a")).add(taken);
        history.va(va("a")).publish("a", OK)
    };
    let again = unguarded().va(guarded("a")).publish("a", OK);
    let forgotten = |history: History| {
        let gone = history.array("a", true).gone("a").add(volume(0));
        gone.add(Observation::CleanedUp)
    };
    expect_end(
        "publish while the finalizer was taken",
        Clause::NothingLeft,
        forgotten(unguarded()),
        forgotten(unguarded().va(guarded("a")).publish("a", OK)),
    );
    expect_end(
        "publish after the finalizer was taken",
        Clause::FinalizerBeforePublish,
        unguarded(),
        again.va(va("a")).publish("a", OK),
    );
    // The next VolumeAttachment was attached by a driver without publish calls.
    let next = |history: History| {
        let next = Attachment {
            uid: "uid-next".into(),
            finalizer: false,
            ..attached("a")
        };
        history.array("a", true).gone("a").va(next).gone("a")
    };
    expect_end(
        "publish while the finalizer was taken, and a VolumeAttachment after it",
        Clause::NothingForgotten,
        next(unguarded()),
        next(unguarded().va(guarded("a")).publish("a", OK)),
    );
    let refused = || {
        let history = history().va(guarded("a")).add(Observation::Healed);
        history
            .publish("a", "ABORTED")
            .va(failed("a", "the port is locked"))
    };
    expect_end(
        "refused by the driver",
        Clause::Recovers,
        refused().add(Observation::Settled),
        refused().publish("a", OK).add(Observation::Settled),
    );
}

fn expect_end(excuse: &str, clause: Clause, excused: History, ended: History) {
    assert!(!excused.broken().contains(&clause), "{excuse}: the excuse");
    assert!(ended.broken().contains(&clause), "{excuse}: its end");
}
