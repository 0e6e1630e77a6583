//! Histories of the clauses about the status.

use super::*;

pub(super) fn rows() -> Vec<Row> {
    vec![
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
    ]
}

#[test]
fn each_version_that_says_attached_needs_an_honest_array() {
    let lost = || {
        history().attach("a").array("a", false).va(Attachment {
            attach_error: Some("the volume is lost".to_owned()),
            ..attached("a")
        })
    };
    assert_eq!(lost().broken(), BTreeSet::new());
    assert_eq!(
        lost().with(honest).broken(),
        BTreeSet::from([Clause::AttachedWhilePublished])
    );
}

/// A client may delete the attachment as soon as it is stored as attached, before a watch has shown it to the harness.
#[test]
fn a_watch_may_show_attached_while_the_volume_is_unpublished() {
    let late = || {
        history()
            .va(guarded("a"))
            .publish("a", OK)
            .array("a", true)
            .begin(Method::Unpublish, "a", |_| {})
            .array("a", false)
            .va(attached("a"))
    };
    assert_eq!(late().watched().broken(), BTreeSet::new());
    assert_eq!(late().broken(), BTreeSet::from([Clause::AttachedWhilePublished]));
}

/// The next attachment of the node needs a publish of its own, and has a context of its own.
#[test]
fn an_answer_confirms_only_the_attachment_for_which_it_was_given() {
    let next = Attachment {
        uid: "next".into(),
        ..attached("a")
    };
    let unpublished = history().attach("a").detach("a").va(Attachment {
        attached: false,
        ..next.clone()
    });
    let unpublished = unpublished.va(next.clone());
    assert_eq!(
        unpublished.watched().broken(),
        BTreeSet::from([Clause::AttachedWhilePublished])
    );
    // The watch shows the former attachment after the publish for the next one.
    let late = history()
        .va(guarded("a"))
        .publish("a", OK)
        .unpublish("a", OK)
        .va(Attachment {
            attached: false,
            name: "va-next".into(),
            ..next
        })
        .publish("a", OK)
        .va(Attachment {
            metadata: BTreeMap::from([("device".to_owned(), "sda".to_owned())]),
            ..attached("a")
        });
    assert!(!late.watched().broken().contains(&Clause::ContextReported));
}

/// The array may have executed a publish that failed.
#[test]
fn an_effect_alone_confirms_nothing() {
    let failed = || {
        let guarded = history().va(va("a")).va(guarded("a"));
        guarded.begin(Method::Publish, "a", |_| {}).array("a", true)
    };
    let unconfirmed = BTreeSet::from([Clause::AttachedWhilePublished]);
    for code in ["ABORTED", "DEADLINE_EXCEEDED"] {
        let attached = failed().end(code).va(attached("a"));
        assert_eq!(attached.clone().broken(), unconfirmed, "{code}");
        assert_eq!(attached.with(honest).broken(), unconfirmed, "{code}");
    }
    let running = failed().va(attached("a"));
    assert_eq!(running.broken(), unconfirmed);
    let confirmed = failed().end("ABORTED").publish("a", OK).va(attached("a"));
    assert_eq!(confirmed.broken(), BTreeSet::new());
}

#[test]
fn an_answer_to_a_former_attachment_confirms_nothing() {
    let next = |attached| Attachment {
        uid: "next".into(),
        attached,
        ..guarded("a")
    };
    let taken = || {
        let history = history()
            .attach("a")
            .add(Observation::FinalizerTaken("uid-a".into()));
        history.gone("a").va(next(false))
    };
    let unconfirmed = BTreeSet::from([Clause::AttachedWhilePublished]);
    assert_eq!(taken().va(next(true)).broken(), unconfirmed);
    assert_eq!(
        taken().publish("a", "ABORTED").va(next(true)).broken(),
        unconfirmed
    );
    assert_eq!(taken().publish("a", OK).va(next(true)).broken(), BTreeSet::new());
    // The attacher did not write the version of a creation.
    let created = history().array("a", true).va(attached("a"));
    assert_eq!(created.broken(), BTreeSet::new());
}

#[test]
fn each_context_that_is_stored_is_that_of_a_publish() {
    let stored = |device: &str| Attachment {
        metadata: BTreeMap::from([("device".to_owned(), device.to_owned())]),
        ..attached("a")
    };
    let published = |history: History, device: &str| {
        let mut history = history.publish("a", OK);
        let Some((_, Observation::CallEnded(_, answer))) = history.seen.last_mut() else {
            panic!("a publish ends with its answer");
        };
        answer.context = stored(device).metadata;
        history
    };
    let attach = || published(history().va(va("a")).va(guarded("a")), "sda").va(stored("sda"));
    let found = BTreeSet::from([Clause::ContextReported]);
    assert_eq!(attach().add(Observation::Settled).broken(), BTreeSet::new());
    assert_eq!(attach().va(attached("a")).broken(), found, "it is lost");
    assert_eq!(attach().va(stored("sdb")).broken(), found, "it is another one");
    // Another publish returns another one, which the attacher stores later.
    let again = || published(attach(), "sdb");
    assert_eq!(again().broken(), BTreeSet::new());
    assert_eq!(again().add(Observation::Settled).broken(), found);
    let updated = again().va(stored("sdb")).add(Observation::Settled);
    assert_eq!(updated.broken(), BTreeSet::new());
    // It may be that of another attachment of the volume and node.
    let twin = Attachment {
        name: "twin".into(),
        uid: "twin".into(),
        ..guarded("a")
    };
    let shared = published(attach().va(twin), "sdb").add(Observation::Settled);
    assert!(!shared.broken().contains(&Clause::ContextReported));
}
