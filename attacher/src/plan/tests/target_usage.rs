//! Which targets a detach unpublishes beside other VolumeAttachments of the volume.

use super::*;
use crate::plan::{OtherAttachment, Stop, TargetUsage, target_usage};

/// `other` is attached on `node`, which has `present_id` now, and records `recorded`.
fn mk_other(node: &str, recorded: Option<&str>) -> Attachment {
    Attachment {
        uid: "other".into(),
        node: node.into(),
        finalizer: true,
        attached: true,
        recorded: Recorded {
            node_id: recorded.map(Arc::from),
            ..Recorded::default()
        },
        ..mk_attachment("other")
    }
}

/// Whether `other` uses `node_id`, which is to be unpublished for `attachment` on "node".
fn usage(
    attachment: &Attachment,
    (node_id, is_present): (&str, bool),
    other: &Attachment,
    present_id: &str,
    is_record_uncertain: bool,
) -> TargetUsage {
    let other = OtherAttachment {
        attachment: other,
        handle: Some(&"handle".into()),
        present_id: Some(&present_id.into()),
        is_record_uncertain,
        may_be_attached: other.attached,
    };
    target_usage(attachment, &target("handle", node_id), is_present, &[other])
}

/// The node was registered as "a" and is now registered as "b".
#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn detach_waits_for_another_attachment_that_was_published_under_another_id_of_the_node() {
    use TargetUsage::*;
    let detached = Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    for (node_id, is_present, node, recorded, present, expected) in [
        // On the same node. Published under the same id: its detach unpublishes that.
        ("a", false, "node", Some("a"), "b", "yes"),
        ("b", true, "node", Some("a"), "b", "yes"),
        // Published under another id, which may name the same machine.
        ("a", false, "node", Some("b"), "b", "ambiguous"),
        ("b", false, "node", Some("a"), "b", "ambiguous"),
        ("a", false, "node", Some("older"), "b", "ambiguous"),
        // Of the Go sidecar, which published it under the id of that time.
        ("b", false, "node", None, "b", "yes"),
        ("a", false, "node", None, "b", "ambiguous"),
        // On another node.
        ("a", false, "node-2", Some("a"), "a", "yes"),
        ("a", false, "node-2", Some("c"), "c", "no"),
        ("a", false, "node-2", Some("c"), "a", "no"),
        ("b", true, "node-2", Some("c"), "b", "yes"),
    ] {
        let case = format!("{node_id} {is_present}: {node} {recorded:?} {present}");
        let asked = (node_id, is_present);
        let of = |word| match word {
            "yes" => Yes,
            "no" => No,
            "idle" => Idle,
            "missing" => Wait(Stop::MissingFinalizer(target("handle", node_id))),
            _ => Wait(Stop::AmbiguousNodeId(target("handle", node_id))),
        };
        let other = mk_other(node, recorded);
        assert_eq!(
            usage(&detached, asked, &other, present, false),
            of(expected),
            "{case}"
        );
        // Its detach ended before, or an undo before the other attach: then nothing waits.
        let without_finalizer = Attachment {
            finalizer: false,
            ..detached.clone()
        };
        let corrected = if expected == "ambiguous" { "yes" } else { expected };
        assert_eq!(
            usage(&without_finalizer, asked, &other, present, false),
            of(corrected),
            "{case}"
        );
        let not_attached = Attachment {
            attached: false,
            ..other.clone()
        };
        let undone = if expected == "ambiguous" { "idle" } else { expected };
        assert_eq!(
            usage(&mk_attachment("va"), asked, &not_attached, present, false),
            of(undone),
            "{case}"
        );
        assert_eq!(
            usage(&mk_attachment("va"), asked, &other, present, false),
            of(expected),
            "{case}"
        );
        // Two detaches never wait for each other.
        let deleting = Attachment {
            deleting: true,
            ..other.clone()
        };
        assert_eq!(usage(&detached, asked, &deleting, present, false), No, "{case}");
        let without_finalizer = Attachment {
            finalizer: false,
            ..other.clone()
        };
        let unprotected = if expected == "yes" && !is_present {
            "missing"
        } else {
            expected
        };
        assert_eq!(
            usage(&detached, asked, &without_finalizer, present, false),
            of(unprotected),
            "{case}"
        );
        let never_attached = Attachment {
            attached: false,
            ..without_finalizer
        };
        assert_eq!(
            usage(&detached, asked, &never_attached, present, false),
            No,
            "{case}"
        );
    }
}

#[test]
fn usage_on_the_same_node_is_ambiguous_while_the_record_is_uncertain() {
    let detached = Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let ambiguous = TargetUsage::Wait(Stop::AmbiguousNodeId(target("handle", "a")));
    for (node, expected) in [("node", ambiguous), ("node-2", TargetUsage::No)] {
        let other = mk_other(node, Some("a"));
        assert_eq!(usage(&detached, ("a", false), &other, "b", true), expected);
    }
}

/// Its PersistentVolume is gone or was re-created, so its detach may be refused, or be of another volume.
#[test]
fn an_attachment_of_unknown_handle_ensures_no_unpublish() {
    let detached = Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let (known, asked) = (mk_other("node", Some("a")), target("handle", "a"));
    for is_present in [false, true] {
        let other = OtherAttachment {
            attachment: &known,
            handle: None,
            present_id: None,
            is_record_uncertain: false,
            may_be_attached: true,
        };
        assert_eq!(
            target_usage(&detached, &asked, is_present, &[other]),
            TargetUsage::Wait(Stop::MissingFinalizer(asked.clone()))
        );
    }
}
