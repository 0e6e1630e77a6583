//! Drifts, and how they follow from lists.

use super::*;
use crate::model::{Capabilities, Recorded, Source};
use crate::plan::tests::{mk_attachment, mk_driver, mk_node, mk_volume};

fn candidate(
    change: impl FnOnce(&mut Attachment),
    other_node_id: Option<&str>,
    listed_state: ListedState,
) -> Candidate {
    let mut attachment = mk_attachment("va");
    change(&mut attachment);
    Candidate {
        attachment: attachment.into(),
        expected: DetachPlan {
            target: PublishTarget {
                volume_id: "handle".into(),
                node_id: "id".into(),
            },
            node: other_node_id.map_or(NodeState::SameId, |id| NodeState::OtherId(id.into())),
            secret: None,
            recorded_secret: None,
            migrated: false,
        },
        listed_state,
    }
}

#[test]
fn drift_follows_from_status_and_listed_state() {
    use Drift::{InSync, Lost, RetryMaySucceed, StillPublished, Suspected};
    use ListedState::{Absent, Elsewhere, Published, Unknown};
    #[rustfmt::skip]
    let table = [
        // deleting, finalizer, attached: absent, unknown, elsewhere, published
        (false, true,  true,  [Suspected, InSync, Lost,      InSync]),
        // Attached without a call, or our finalizer was removed.
        (false, false, true,  [Suspected, InSync, Lost,      InSync]),
        (false, true,  false, [InSync,  InSync, InSync,   RetryMaySucceed]),
        (false, false, false, [InSync,  InSync, InSync,   RetryMaySucceed]),
        (true,  true,  true,  [InSync,  InSync, RetryMaySucceed, InSync]),
        (true,  true,  false, [InSync,  InSync, InSync,   RetryMaySucceed]),
        (true,  false, true,  [InSync,  InSync, InSync,   StillPublished]),
        (true,  false, false, [InSync,  InSync, InSync,   StillPublished]),
    ];
    for (deleting, finalizer, attached, expected) in table {
        for (listed_state, expected) in [Absent, Unknown, Elsewhere, Published].into_iter().zip(expected) {
            let change = |attachment: &mut Attachment| {
                (attachment.deleting, attachment.finalizer, attachment.attached) =
                    (deleting, finalizer, attached);
            };
            assert_eq!(
                drift(&candidate(change, None, listed_state), false, false),
                expected,
                "deleting {deleting}, finalizer {finalizer}, attached {attached}: {listed_state:?}"
            );
        }
    }
}

#[test]
fn weak_evidence_needs_two_lists() {
    let attached = |attachment: &mut Attachment| attachment.attached = true;
    for (other_node_id, listed_state, newly_attached, first) in [
        (None, ListedState::Elsewhere, false, Drift::Lost),
        (None, ListedState::Elsewhere, true, Drift::Suspected),
        (None, ListedState::Absent, false, Drift::Suspected),
        (
            Some("present-id"),
            ListedState::Elsewhere,
            false,
            Drift::Suspected,
        ),
    ] {
        let candidate = candidate(attached, other_node_id, listed_state);
        let case = format!("{other_node_id:?} {listed_state:?} {newly_attached}");
        assert_eq!(drift(&candidate, false, newly_attached), first, "{case}");
        assert_eq!(drift(&candidate, true, newly_attached), Drift::Lost, "{case}");
    }
}

#[test]
fn combines_the_entries_of_a_list() {
    let two_nodes = ["other".to_owned(), "id".to_owned()];
    let elsewhere = ["other".to_owned()];
    for (entries, expected) in [
        (&[][..], ListedState::Absent),
        (&[("another", Some(&two_nodes[..]))], ListedState::Absent),
        (&[("handle", None)], ListedState::Unknown),
        (&[("handle", Some(&[][..]))], ListedState::Elsewhere),
        (&[("handle", Some(&elsewhere[..]))], ListedState::Elsewhere),
        (&[("handle", Some(&two_nodes[..]))], ListedState::Published),
        // Twice, as the list changed between two pages.
        (
            &[("handle", Some(&two_nodes[..])), ("handle", Some(&two_nodes[..]))],
            ListedState::Published,
        ),
        (
            &[("handle", Some(&two_nodes[..])), ("handle", Some(&elsewhere[..]))],
            ListedState::Unknown,
        ),
        (
            &[("handle", Some(&elsewhere[..])), ("handle", None)],
            ListedState::Unknown,
        ),
    ] {
        let mut result = ListVolumesResult::default();
        let Candidate {
            attachment,
            expected: target,
            ..
        } = candidate(|_| (), None, ListedState::Absent);
        result.add(attachment, target, "handle".into());
        for (handle, nodes) in entries {
            result.add_entry(handle, *nodes);
        }
        assert_eq!(result.candidates[0].listed_state, expected, "{entries:?}");
    }
}

#[test]
fn finds_a_volume_under_either_node_id() {
    for listed in ["id", "present-id"] {
        let mut result = ListVolumesResult::default();
        let Candidate {
            attachment,
            expected: target,
            ..
        } = candidate(|_| (), Some("present-id"), ListedState::Absent);
        result.add(attachment, target, "handle".into());
        result.add_entry("handle", Some(&[listed.to_owned()]));
        assert_eq!(
            result.candidates[0].listed_state,
            ListedState::Published,
            "{listed}"
        );
    }
}

#[test]
fn expected_target_follows_from_record_volume_and_node() {
    let recorded = |handle: Option<&str>, node_id: Option<&str>| Recorded {
        handle: handle.map(Arc::from),
        node_id: node_id.map(Arc::from),
        secret: None,
    };
    #[rustfmt::skip]
    let table = [
        // recorded, volume known, node's present id; handle, node id, other node id
        (recorded(None, None),            true,  Some("id-2"), Some(("handle", "id-2", None))),
        (recorded(None, Some("id-1")),    true,  Some("id-2"), Some(("handle", "id-1", Some("id-2")))),
        (recorded(Some("h"), Some("id-1")), false, None,       Some(("h", "id-1", None))),
        (recorded(Some("h"), Some("id-1")), true, Some("id-1"), Some(("h", "id-1", None))),
        (recorded(None, Some("id-1")),    false, Some("id-2"), None),
        (recorded(None, None),            true,  None,         None),
    ];
    for (recorded, known, present_id, expected) in table {
        let inputs = AttachInputs {
            attachment: Attachment {
                recorded: recorded.clone(),
                ..mk_attachment("va")
            }
            .into(),
            volume: known.then(|| mk_volume("pv").into()),
            node: Some(mk_node("node", present_id).into()),
        };
        let plan = expected_target(&inputs, &mk_driver());
        let present = plan.as_ref().and_then(DetachPlan::present_target);
        let found = plan.as_ref().map(|plan| {
            let PublishTarget { volume_id, node_id } = &plan.target;
            let other = present.as_ref().map(|present| &*present.node_id);
            (&**volume_id, &**node_id, other)
        });
        assert_eq!(found, expected, "{recorded:?} {known} {present_id:?}");
    }
}

#[test]
fn expects_inline_volumes_but_not_another_drivers() {
    let spec = mk_volume("pv").spec;
    let inputs = |driver: &str| {
        let mut spec = spec.clone();
        spec.csi.as_mut().unwrap().driver = driver.to_owned();
        AttachInputs {
            attachment: Attachment {
                source: Source::Inline(Box::new(spec)),
                ..mk_attachment("va")
            }
            .into(),
            volume: None,
            node: Some(mk_node("node", Some("id")).into()),
        }
    };
    let driver = mk_driver();
    assert!(expected_target(&inputs(&driver.name), &driver).is_some());
    assert_eq!(expected_target(&inputs("other.example"), &driver), None);
}

#[test]
fn listed_handle_is_completed_by_the_node_id() {
    let pd = Driver::new("pd.csi.storage.gke.io", Capabilities::default(), "");
    let open = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
    let of = |driver: &Driver, handle: &str, node_id: &str| {
        let target = PublishTarget {
            volume_id: handle.into(),
            node_id: node_id.into(),
        };
        listed_handle(&target, driver).map(|handle| handle.to_string())
    };
    let node = "projects/p/zones/us-east1-b/instances/i";
    assert_eq!(
        of(&pd, open, node).as_deref(),
        Some("projects/p/zones/us-east1-b/disks/d")
    );
    // The listed handle cannot be known, so the volume is not compared.
    assert_eq!(of(&pd, open, "i"), None);
    assert_eq!(of(&pd, "d", "i").as_deref(), Some("d"));
    assert_eq!(of(&mk_driver(), open, node).as_deref(), Some(open));
}
