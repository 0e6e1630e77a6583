//! Who is answerable for a volume on a node, case by case.

use crate::decide::Wanted;
use crate::decide::tests::{mk_attachment, mk_volume};
use crate::engine::reconcile::tests::{Bench, attached, let_go, newer};
use crate::engine::{Event, Held, Outcome, UsedBy};
use crate::index::Change;
use crate::model::{Attachment, Recorded, Target};

/// How a volume is held on a node besides by `va`, if there is also `other`.
fn held_beside(other: Attachment) -> Held {
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    let va = attached("va");
    let bench = Bench::new([]);
    let mut engine = bench.engine;
    let twin = crate::model::Volume {
        name: "pv-twin".into(),
        uid: "uid-twin".into(),
        ..mk_volume("pv")
    };
    engine.handle(Event::Attachments(Change::Put(va.clone())));
    engine.handle(Event::Attachments(Change::Put(other)));
    engine.handle(Event::Volumes(Change::Put(twin)));
    while engine.start(bench.now).is_some() {}
    engine.held_besides(&va, &target, UsedBy::Record)
}

#[test]
fn who_else_holds_a_volume_on_a_node() {
    let leaving = Attachment {
        deleting: true,
        ..attached("other")
    };
    for (name, other, expected) in [
        ("an attached one", attached("other"), Held::ByLiving),
        ("one that is being detached", leaving, Held::ByLeaving),
        ("one that was let go of", let_go("other"), Held::ByNobody),
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
            Held::ByNobody,
        ),
        (
            "one of another volume object with the same handle",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                ..attached("other")
            },
            Held::ByLiving,
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
            Held::ByNobody,
        ),
    ] {
        assert_eq!(held_beside(other), expected, "{name}");
    }
}

/// The answer to the write that moves the record may be lost, and then nobody knows where it stands.
#[test]
fn whose_record_is_being_moved_holds_nothing() {
    let (va, other) = (attached("va"), attached("other"));
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    let mut engine = Bench::new([va.clone(), other.clone()]).engine;
    assert_eq!(engine.held_besides(&va, &target, UsedBy::Record), Held::ByLiving);
    engine.moves(&other);
    assert_eq!(engine.held_besides(&va, &target, UsedBy::Record), Held::ByNobody);
    engine.stays(&other);
    assert_eq!(engine.held_besides(&va, &target, UsedBy::Record), Held::ByLiving);
    engine.moves(&other);
    let gone = Change::Gone {
        name: other.name.clone(),
        uid: other.uid.clone(),
    };
    engine.handle(Event::Attachments(gone));
    assert!(!engine.is_moving(&other), "nothing is kept of what is gone");
}

#[test]
fn a_volume_is_held_by_its_handle_and_the_node_s_id_whatever_they_are_called() {
    for (name, other, expected) in [
        (
            "one on another node that has this id by now",
            Attachment {
                node: "node-2".into(),
                ..attached("other")
            },
            Held::ByLiving,
        ),
        (
            "one of another volume object and another node, with the same handle and id",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                node: "node-2".into(),
                ..attached("other")
            },
            Held::ByLiving,
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
            Held::ByLiving,
        ),
        (
            "one that is attached without our finalizer",
            Attachment {
                finalizer: false,
                ..attached("other")
            },
            Held::ByUnguarded,
        ),
        (
            "one that is about to be attached for the first time",
            Attachment {
                source: crate::model::Source::Volume("pv-twin".into()),
                ..mk_attachment("other")
            },
            Held::ByNobody,
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
            Held::ByLiving,
        ),
    ] {
        assert_eq!(held_beside(other), expected, "{name}");
    }
}

#[test]
fn who_holds_a_volume_without_our_finalizer_is_attached_again_to_have_it() {
    let unguarded = Attachment {
        finalizer: false,
        recorded: Recorded::default(),
        ..attached("other")
    };
    let mut bench = Bench::new([unguarded.clone()]);
    assert!(bench.start().is_none(), "it asks for nothing by itself");
    let va = Attachment {
        deleting: true,
        ..attached("va")
    };
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    bench.engine.guard_besides(&va, &target, UsedBy::Record);
    let job = bench.starts(Wanted::Attach);
    bench.engine.guard_besides(&va, &target, UsedBy::Record);
    let guarded = Attachment {
        finalizer: true,
        ..newer(&unguarded)
    };
    bench.put(guarded);
    bench.finish(&job, Outcome::Done);
    assert!(bench.start().is_none());
}
