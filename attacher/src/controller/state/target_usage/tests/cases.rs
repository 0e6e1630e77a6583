//! How other VolumeAttachments use a target, case by case.

use crate::controller::state::Event;
use crate::controller::state::reconcile::tests::{Fixture, attached, newer, without_finalizer};
use crate::informer::Change;
use crate::model::{Attachment, PublishTarget, Recorded};
use crate::plan::tests::{mk_attachment, mk_volume};
use crate::plan::{Operation, TargetUsage, UsedBy};

/// How `other` uses the target of `va`.
fn usage_beside(other: Attachment) -> TargetUsage {
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    let va = attached("va");
    let fixture = Fixture::new([]);
    let mut state = fixture.state;
    let same_handle = crate::model::Volume {
        name: "pv-twin".into(),
        uid: "uid-twin".into(),
        ..mk_volume("pv")
    };
    state.handle(Event::Attachments(Change::Applied(va.clone())));
    state.handle(Event::Attachments(Change::Applied(other)));
    state.handle(Event::Volumes(Change::Applied(same_handle)));
    while state.start(fixture.now).is_some() {}
    state.usage_besides(&va, &target, UsedBy::Record)
}

#[test]
fn usage_follows_from_finalizer_deletion_volume_and_node() {
    let deleting = Attachment {
        deleting: true,
        ..attached("other")
    };
    for (name, other, expected) in [
        ("an attached one", attached("other"), TargetUsage::InUse),
        ("one that is being detached", deleting, TargetUsage::Deleting),
        (
            "one without our finalizer",
            without_finalizer("other"),
            TargetUsage::Unused,
        ),
        (
            "one of another volume",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                recorded: Recorded {
                    handle: Some("handle-2".into()),
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            TargetUsage::Unused,
        ),
        (
            "one of another volume object with the same handle",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                ..attached("other")
            },
            TargetUsage::InUse,
        ),
        (
            "one on another node",
            Attachment {
                node: "node-2".into(),
                recorded: Recorded {
                    node_id: Some("id-2".into()),
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            TargetUsage::Unused,
        ),
    ] {
        assert_eq!(usage_beside(other), expected, "{name}");
    }
}

/// The response to the write that changes the record may be lost.
#[test]
fn pending_record_update_makes_the_usage_ambiguous() {
    let (va, other) = (attached("va"), attached("other"));
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    let mut state = Fixture::new([va.clone(), other.clone()]).state;
    assert_eq!(
        state.usage_besides(&va, &target, UsedBy::Record),
        TargetUsage::InUse
    );
    state.state_of(&other.uid).node_id_update_pending = true;
    assert_eq!(
        state.usage_besides(&va, &target, UsedBy::Record),
        TargetUsage::Ambiguous
    );
    state.state_of(&other.uid).node_id_update_pending = false;
    assert_eq!(
        state.usage_besides(&va, &target, UsedBy::Record),
        TargetUsage::InUse
    );
    state.state_of(&other.uid).node_id_update_pending = true;
    let deleted = Change::Deleted {
        name: other.name.clone(),
        uid: other.uid.clone(),
    };
    state.handle(Event::Attachments(deleted));
    assert!(
        !state.state_of(&other.uid).node_id_update_pending,
        "the state of a deleted attachment must be dropped"
    );
}

#[test]
fn usage_follows_from_handle_and_node_id_not_from_names() {
    for (name, other, expected) in [
        (
            "one on another node that has this id by now",
            Attachment {
                node: "node-2".into(),
                ..attached("other")
            },
            TargetUsage::InUse,
        ),
        (
            "one of another volume object and another node, with the same handle and id",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                node: "node-2".into(),
                ..attached("other")
            },
            TargetUsage::InUse,
        ),
        (
            "one of the Go sidecar, of another volume object with the same handle",
            Attachment {
                source: crate::model::Source::Volume("pv-twin".into()),
                recorded: Recorded {
                    handle: None,
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            TargetUsage::InUse,
        ),
        (
            "one that is attached without our finalizer",
            Attachment {
                finalizer: false,
                ..attached("other")
            },
            TargetUsage::MissingFinalizer,
        ),
        (
            "one that is about to be attached for the first time",
            Attachment {
                source: crate::model::Source::Volume("pv-twin".into()),
                ..mk_attachment("other")
            },
            TargetUsage::Unused,
        ),
        (
            "one of the Go sidecar, without a recorded handle",
            Attachment {
                recorded: Recorded {
                    handle: None,
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            TargetUsage::InUse,
        ),
    ] {
        assert_eq!(usage_beside(other), expected, "{name}");
    }
}

#[test]
fn restores_the_finalizer_of_another_user_once() {
    let without_finalizer = Attachment {
        finalizer: false,
        recorded: Recorded::default(),
        ..attached("other")
    };
    let mut fixture = Fixture::new([]);
    fixture.put(without_finalizer.clone());
    let item = fixture.starts(Operation::Attach);
    let restored = Attachment {
        finalizer: true,
        ..newer(&without_finalizer)
    };
    fixture.put(restored);
    fixture.finish(&item, Ok(()));
    assert!(fixture.start().is_none());
}
