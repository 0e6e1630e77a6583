//! Which targets a detach unpublishes beside other VolumeAttachments of the volume.

use super::*;
use crate::plan::{OtherAttachment, TargetUsage, UsedBy, target_usage};

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

/// How `other` uses `node_id`, which is to be unpublished for a VolumeAttachment on "node".
fn usage(node_id: &str, used_by: UsedBy, other: &Attachment, present_id: &str, certain: bool) -> TargetUsage {
    let other = OtherAttachment {
        attachment: other,
        present_id: Some(&present_id.into()),
        is_record_certain: certain,
    };
    target_usage(&mk_attachment("va"), &target("handle", node_id), used_by, other)
}

/// The node was registered as "a" and is now registered as "b".
#[test]
fn detach_waits_for_another_attachment_that_was_published_under_another_id_of_the_node() {
    use TargetUsage::*;
    use UsedBy::*;
    for (node_id, used_by, node, recorded, present, expected) in [
        // On the same node. Published under the same id: its detach unpublishes that.
        ("a", Record, "node", Some("a"), "b", InUse),
        ("b", RecordOrPresentId, "node", Some("a"), "b", InUse),
        // Published under another id, which may name the same machine.
        ("a", Record, "node", Some("b"), "b", Ambiguous),
        ("b", Record, "node", Some("a"), "b", Ambiguous),
        ("a", Record, "node", Some("older"), "b", Ambiguous),
        // Of the Go sidecar, which published it under the id of that time.
        ("b", Record, "node", None, "b", InUse),
        ("a", Record, "node", None, "b", Ambiguous),
        // On another node.
        ("a", Record, "node-2", Some("a"), "a", InUse),
        ("a", Record, "node-2", Some("c"), "c", Unused),
        ("a", Record, "node-2", Some("c"), "a", Unused),
        ("b", RecordOrPresentId, "node-2", Some("c"), "b", InUse),
    ] {
        let other = mk_other(node, recorded);
        assert_eq!(
            usage(node_id, used_by, &other, present, true),
            expected,
            "{node_id} {used_by:?}: {node} {recorded:?} {present}"
        );
        let deleting = Attachment {
            deleting: true,
            ..other.clone()
        };
        // Two detaches never wait for each other.
        let of_deleting = if expected == InUse { Deleting } else { Unused };
        assert_eq!(usage(node_id, used_by, &deleting, present, true), of_deleting);
        let without_finalizer = Attachment {
            finalizer: false,
            ..other.clone()
        };
        let of_unprotected = if expected == InUse {
            MissingFinalizer
        } else {
            expected
        };
        assert_eq!(
            usage(node_id, used_by, &without_finalizer, present, true),
            of_unprotected
        );
        let never_attached = Attachment {
            attached: false,
            ..without_finalizer
        };
        assert_eq!(usage(node_id, used_by, &never_attached, present, true), Unused);
    }
}

#[test]
fn usage_on_the_same_node_is_ambiguous_while_a_record_update_is_pending() {
    for (node, expected) in [("node", TargetUsage::Ambiguous), ("node-2", TargetUsage::Unused)] {
        let other = mk_other(node, Some("a"));
        assert_eq!(usage("a", UsedBy::Record, &other, "b", false), expected);
    }
}
