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
            metadata: BTreeMap::from([("again".to_owned(), String::new())]),
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
