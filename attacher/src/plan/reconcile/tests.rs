//! What a list can say, and what follows.

use super::*;
use crate::model::{Capabilities, Recorded, Source};
use crate::plan::tests::{mk_attachment, mk_driver, mk_node, mk_volume};

fn subject(change: impl FnOnce(&mut Attachment), other_node_id: Option<&str>, sight: ListedState) -> Subject {
    let mut attachment = mk_attachment("va");
    change(&mut attachment);
    Subject {
        attachment: attachment.into(),
        whereabouts: Whereabouts {
            target: PublishTarget {
                volume_id: "handle".into(),
                node_id: "id".into(),
            },
            other_node_id: other_node_id.map(Arc::from),
        },
        sight,
    }
}

#[test]
fn what_follows_from_each_sight() {
    use Drift::{Doubtful, InOrder, Leftover, Lost, Promising, Unguarded};
    use ListedState::{Absent, Elsewhere, Published, Unknown};
    #[rustfmt::skip]
    let table = [
        // deleting, finalizer, attached: absent, unknown, elsewhere, published
        (false, true,  true,  [Doubtful, InOrder, Lost,      InOrder]),
        // Attached without a call, or our finalizer was taken off.
        (false, false, true,  [Doubtful, InOrder, Lost,      Unguarded]),
        (false, true,  false, [InOrder,  InOrder, InOrder,   Promising]),
        (false, false, false, [InOrder,  InOrder, InOrder,   Promising]),
        (true,  true,  true,  [InOrder,  InOrder, Promising, InOrder]),
        (true,  true,  false, [InOrder,  InOrder, InOrder,   Promising]),
        (true,  false, true,  [InOrder,  InOrder, InOrder,   Leftover]),
        (true,  false, false, [InOrder,  InOrder, InOrder,   Leftover]),
    ];
    for (deleting, finalizer, attached, expected) in table {
        for (sight, expected) in [Absent, Unknown, Elsewhere, Published].into_iter().zip(expected) {
            let change = |attachment: &mut Attachment| {
                (attachment.deleting, attachment.finalizer, attachment.attached) =
                    (deleting, finalizer, attached);
            };
            assert_eq!(
                verdict(&subject(change, None, sight), false, false),
                expected,
                "deleting {deleting}, finalizer {finalizer}, attached {attached}: {sight:?}"
            );
        }
    }
}

#[test]
fn weak_evidence_counts_the_second_time() {
    let attached = |attachment: &mut Attachment| attachment.attached = true;
    for (other_node_id, sight, young, first) in [
        (None, ListedState::Elsewhere, false, Drift::Lost),
        (None, ListedState::Elsewhere, true, Drift::Doubtful),
        (None, ListedState::Absent, false, Drift::Doubtful),
        (
            Some("id-of-today"),
            ListedState::Elsewhere,
            false,
            Drift::Doubtful,
        ),
    ] {
        let subject = subject(attached, other_node_id, sight);
        let case = format!("{other_node_id:?} {sight:?} {young}");
        assert_eq!(verdict(&subject, false, young), first, "{case}");
        assert_eq!(verdict(&subject, true, young), Drift::Lost, "{case}");
    }
}

#[test]
fn a_list_is_looked_up_while_it_is_read() {
    let two_nodes = ["other".to_owned(), "id".to_owned()];
    let elsewhere = ["other".to_owned()];
    for (entries, expected) in [
        (&[][..], ListedState::Absent),
        (&[("another", Some(&two_nodes[..]))], ListedState::Absent),
        (&[("handle", None)], ListedState::Unknown),
        (&[("handle", Some(&[][..]))], ListedState::Elsewhere),
        (&[("handle", Some(&elsewhere[..]))], ListedState::Elsewhere),
        (&[("handle", Some(&two_nodes[..]))], ListedState::Published),
        // Twice, because pages changed while they were turned.
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
        let mut survey = ListVolumesResult::default();
        let Subject {
            attachment,
            whereabouts,
            ..
        } = subject(|_| (), None, ListedState::Absent);
        survey.add(attachment, whereabouts, "handle".into());
        for (handle, nodes) in entries {
            survey.see(handle, *nodes);
        }
        assert_eq!(survey.into_subjects()[0].sight, expected, "{entries:?}");
    }
}

#[test]
fn a_node_that_changed_its_id_is_found_under_either() {
    for listed in ["id", "id-of-today"] {
        let mut survey = ListVolumesResult::default();
        let Subject {
            attachment,
            whereabouts,
            ..
        } = subject(|_| (), Some("id-of-today"), ListedState::Absent);
        survey.add(attachment, whereabouts, "handle".into());
        survey.see("handle", Some(&[listed.to_owned()]));
        assert_eq!(
            survey.into_subjects()[0].sight,
            ListedState::Published,
            "{listed}"
        );
    }
}

#[test]
fn the_record_says_where_to_look_and_else_the_volume_and_the_node_do() {
    let recorded = |handle: Option<&str>, node_id: Option<&str>| Recorded {
        handle: handle.map(Arc::from),
        node_id: node_id.map(Arc::from),
        secret: None,
    };
    #[rustfmt::skip]
    let table = [
        // recorded, volume known, node's id of today; handle, node id, other node id
        (recorded(None, None),            true,  Some("id-2"), Some(("handle", "id-2", None))),
        (recorded(None, Some("id-1")),    true,  Some("id-2"), Some(("handle", "id-1", Some("id-2")))),
        (recorded(Some("h"), Some("id-1")), false, None,       Some(("h", "id-1", None))),
        (recorded(Some("h"), Some("id-1")), true, Some("id-1"), Some(("h", "id-1", None))),
        (recorded(None, Some("id-1")),    false, Some("id-2"), None),
        (recorded(None, None),            true,  None,         None),
    ];
    for (recorded, known, today, expected) in table {
        let facts = AttachInputs {
            attachment: Attachment {
                recorded: recorded.clone(),
                ..mk_attachment("va")
            }
            .into(),
            volume: known.then(|| mk_volume("pv").into()),
            node: Some(mk_node("node", today).into()),
        };
        let expected = expected.map(
            |(handle, node_id, other): (&str, &str, Option<&str>)| Whereabouts {
                target: PublishTarget {
                    volume_id: handle.into(),
                    node_id: node_id.into(),
                },
                other_node_id: other.map(Arc::from),
            },
        );
        assert_eq!(
            whereabouts(&facts, &mk_driver()),
            expected,
            "{recorded:?} {known} {today:?}"
        );
    }
}

#[test]
fn an_inline_volume_is_surveyed_and_another_drivers_is_not() {
    let spec = mk_volume("pv").spec;
    let facts = |driver: &str| {
        let mut spec = spec.clone();
        if let crate::model::VolumeSource::Csi(csi) = &mut spec.source {
            csi.driver = driver.to_owned();
        }
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
    assert!(whereabouts(&facts(&driver.name), &driver).is_some());
    assert_eq!(whereabouts(&facts("other.example"), &driver), None);
}

#[test]
fn a_handle_that_leaves_something_open_is_listed_as_the_node_id_fills_it_in() {
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
    // Not to be told from what is known; whoever compares it would call a volume lost that is not.
    assert_eq!(of(&pd, open, "i"), None);
    assert_eq!(of(&pd, "d", "i").as_deref(), Some("d"));
    assert_eq!(of(&mk_driver(), open, node).as_deref(), Some(open));
}
