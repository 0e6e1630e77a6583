//! How other VolumeAttachments use a target, case by case.

use crate::controller::state::reconcile::tests::{Fixture, attached, newer, without_finalizer};
use crate::controller::state::{ControllerState, Event};
use crate::informer::Change;
use crate::model::{Attachment, PublishTarget, Recorded};
use crate::plan::tests::{mk_attachment, mk_volume};
use crate::plan::{self, Operation, Stop, TargetUsage};

fn target() -> PublishTarget {
    PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    }
}

/// Whether `other` uses the target of `va`.
fn usage_beside(other: Attachment) -> TargetUsage {
    let target = target();
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
    usage(&state, &va, &target)
}

/// Whether another VolumeAttachment uses the target of `va`, which is being detached.
fn usage(state: &ControllerState, va: &Attachment, target: &PublishTarget) -> TargetUsage {
    let va = Attachment {
        deleting: true,
        ..va.clone()
    };
    let others = state.inputs(&va.clone().into());
    let others = state.others(&others, Some(target));
    plan::target_usage(&va, target, false, &others)
}

#[test]
fn usage_follows_from_finalizer_deletion_volume_and_node() {
    let deleting = Attachment {
        deleting: true,
        ..attached("other")
    };
    for (name, other, expected) in [
        ("an attached one", attached("other"), TargetUsage::Yes),
        ("one that is being detached", deleting, TargetUsage::No),
        (
            "one without our finalizer",
            without_finalizer("other"),
            TargetUsage::No,
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
            TargetUsage::No,
        ),
        (
            "one of another volume object with the same handle",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                ..attached("other")
            },
            TargetUsage::Yes,
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
            TargetUsage::No,
        ),
    ] {
        assert_eq!(usage_beside(other), expected, "{name}");
    }
}

/// The response to the write that changes the record may be lost.
#[test]
fn an_uncertain_record_makes_the_usage_ambiguous() {
    let (va, other) = (attached("va"), attached("other"));
    let target = target();
    let mut state = Fixture::new([va.clone(), other.clone()]).state;
    assert_eq!(usage(&state, &va, &target), TargetUsage::Yes);
    state.state_of(&other.uid).progress.is_record_uncertain = true;
    assert_eq!(
        usage(&state, &va, &target),
        TargetUsage::Wait(Stop::AmbiguousNodeId(target.clone()))
    );
    state.state_of(&other.uid).progress.is_record_uncertain = false;
    assert_eq!(usage(&state, &va, &target), TargetUsage::Yes);
    state.state_of(&other.uid).progress.is_record_uncertain = true;
    let deleted = Change::Deleted {
        name: other.name.clone(),
        uid: other.uid.clone(),
    };
    state.handle(Event::Attachments(deleted));
    assert!(
        !state.state_of(&other.uid).progress.is_record_uncertain,
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
            TargetUsage::Yes,
        ),
        (
            "one of another volume object and another node, with the same handle and id",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                node: "node-2".into(),
                ..attached("other")
            },
            TargetUsage::Yes,
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
            TargetUsage::Yes,
        ),
        (
            "one that is attached without our finalizer",
            Attachment {
                finalizer: false,
                ..attached("other")
            },
            TargetUsage::Wait(Stop::MissingFinalizer(target())),
        ),
        (
            "one that is about to be attached for the first time",
            Attachment {
                source: crate::model::Source::Volume("pv-twin".into()),
                ..mk_attachment("other")
            },
            TargetUsage::No,
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
            TargetUsage::Yes,
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
