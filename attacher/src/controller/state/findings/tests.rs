//! Which events and lists lead to which findings.

use super::*;
use crate::controller::state::reconcile::tests::attached;
use crate::controller::state::tests::{mk_listing, mk_state};
use crate::controller::state::{Event, Round};
use crate::informer::Change;
use crate::model::{Recorded, Version};
use crate::plan::reconcile::ListVolumesResult;
use crate::plan::tests::{mk_attachment, mk_node, mk_volume};

fn put(state: &mut ControllerState, attachment: Attachment) {
    state.handle(Event::Attachments(Change::Applied(attachment)));
}

fn on(node: &str, attachment: Attachment) -> Attachment {
    Attachment {
        node: node.into(),
        ..attachment
    }
}

/// VolumeAttachments of findings, with the other object that each finding names.
fn pairs(state: &mut ControllerState) -> Vec<(String, String)> {
    let pair = |finding| match finding {
        Finding::NodeIdNotUnique {
            attachment, other, ..
        } => (attachment.name.to_string(), other.to_string()),
        Finding::AttachedTwice { attachment, other } => (attachment.name.to_string(), other.name.to_string()),
        Finding::PublishedWithoutAttachment { volume, node, .. } => {
            (volume.name.to_string(), node.to_string())
        }
        Finding::Drift { .. } => panic!("no list differs"),
    };
    state.take_findings().into_iter().map(pair).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
        .collect()
}

#[test]
fn finds_both_nodes_with_one_id() {
    let mut state = mk_state(1);
    let node = |name: &str, id: &str, version: u64| {
        Event::Nodes(Change::Applied(crate::model::Node {
            version: Version(version),
            ..mk_node(name, Some(id))
        }))
    };
    state.handle(node("a", "i-1", 1));
    state.handle(node("b", "i-2", 1));
    put(&mut state, on("a", mk_attachment("va-a")));
    put(&mut state, on("b", mk_attachment("va-b")));
    assert_eq!(pairs(&mut state), []);
    assert_eq!(state.index.by_node_id.shared(), 0);
    // The metadata service answers for another machine.
    state.handle(node("b", "i-1", 2));
    assert_eq!(pairs(&mut state), owned(&[("va-a", "b"), ("va-b", "a")]));
    assert_eq!(state.index.by_node_id.shared(), 1);
    // Neither an unrelated change nor a third node repeats it.
    state.handle(node("b", "i-1", 3));
    put(
        &mut state,
        Attachment {
            version: Version(2),
            attached: true,
            ..on("a", mk_attachment("va-a"))
        },
    );
    state.handle(node("c", "i-1", 1));
    assert_eq!(pairs(&mut state), []);
    put(&mut state, on("c", mk_attachment("va-c")));
    assert_eq!(pairs(&mut state), owned(&[("va-c", "a")]));
    state.handle(node("b", "i-2", 4));
    state.handle(node("c", "i-3", 2));
    assert_eq!(state.index.by_node_id.shared(), 0);
}

#[test]
fn finds_two_attached_without_record_on_two_nodes() {
    let unrecorded = |name: &str, node: &str| Attachment {
        attached: true,
        ..on(node, mk_attachment(name))
    };
    type Change = fn(&mut Attachment);
    for (case, change, access_mode, is_found) in [
        ("both", (|_| {}) as Change, "ReadWriteOnce", true),
        ("multi-node volume", |_| {}, "ReadWriteMany", false),
        ("same node", |b| b.node = "a".into(), "ReadWriteOnce", false),
        ("not attached", |b| b.attached = false, "ReadWriteOnce", false),
        ("deleting", |b| b.deleting = true, "ReadWriteOnce", false),
        (
            "recorded",
            |b| b.recorded.node_id = Some("id-b".into()),
            "ReadWriteOnce",
            false,
        ),
    ] {
        for is_volume_first in [true, false] {
            let mut state = mk_state(1);
            let mut volume = mk_volume("pv");
            volume.spec.access_modes = vec![access_mode.to_owned()];
            let mut b = unrecorded("va-b", "b");
            change(&mut b);
            if is_volume_first {
                state.handle(Event::Volumes(crate::informer::Change::Applied(volume.clone())));
            }
            put(&mut state, unrecorded("va-a", "a"));
            put(&mut state, b);
            if !is_volume_first {
                state.handle(Event::Volumes(crate::informer::Change::Applied(volume)));
            }
            let expected = match is_found {
                true => owned(&[("va-a", "va-b"), ("va-b", "va-a")]),
                false => Vec::new(),
            };
            assert_eq!(pairs(&mut state), expected, "{case}");
            assert_eq!(state.attached_twice(), usize::from(is_found), "{case}");
        }
    }
}

/// A state with one volume, the nodes `node` and `other`, and a driver that lists.
fn mk_two_nodes() -> (ControllerState, crate::model::Driver) {
    let (mut state, driver) = mk_listing(1);
    state.handle(Event::Nodes(Change::Applied(mk_node("other", Some("id-2")))));
    (state, driver)
}

/// A complete list with the volume published on these node ids. `meanwhile` happens while it is read.
fn list(
    (state, driver): &mut (ControllerState, crate::model::Driver),
    ids: &[&str],
    meanwhile: impl FnOnce(&mut ControllerState),
) -> Vec<(String, String)> {
    #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
    let now = std::time::Instant::now();
    state.start(now);
    let mut result: ListVolumesResult = state.begin_reconcile(driver).expect("the driver lists");
    meanwhile(state);
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    result.add_entry("handle", Some(&ids));
    result.add_entry("foreign", Some(&ids));
    let round = Round {
        ended: now,
        took: std::time::Duration::ZERO,
        listed: 2,
    };
    state.handle(Event::VolumesListed(result, round));
    pairs(state)
}

#[test]
fn finds_a_volume_that_two_lists_show_without_attachment() {
    let mut listing = mk_two_nodes();
    assert_eq!(list(&mut listing, &["id"], |_| {}), []);
    assert_eq!(listing.0.unattached(), 0);
    assert_eq!(list(&mut listing, &["id"], |_| {}), owned(&[("pv", "node")]));
    assert_eq!(listing.0.unattached(), 1);
    // Each list repeats it, so that the Event lasts.
    assert_eq!(list(&mut listing, &["id"], |_| {}), owned(&[("pv", "node")]));
    assert_eq!(list(&mut listing, &[], |_| {}), []);
    assert_eq!(listing.0.unattached(), 0);
    assert_eq!(
        list(&mut listing, &["id"], |_| {}),
        [],
        "it must be listed twice in a row"
    );
    #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
    let now = std::time::Instant::now();
    assert!(listing.0.start(now).is_none(), "a list never detaches");
}

#[test]
fn does_not_find_volumes_with_attachment_or_on_foreign_machines() {
    let recorded = |id: &str| Recorded {
        node_id: Some(id.into()),
        ..Recorded::default()
    };
    for (case, ids, attachment) in [
        ("attached", "id", Some(attached("va"))),
        ("being attached", "id", Some(mk_attachment("va"))),
        (
            "deleting",
            "id",
            Some(Attachment {
                deleting: true,
                ..attached("va")
            }),
        ),
        (
            "recorded id",
            "id",
            Some(Attachment {
                recorded: recorded("id"),
                ..on("gone", attached("va"))
            }),
        ),
        ("unknown node", "id", Some(on("gone", mk_attachment("va")))),
        ("foreign machine", "id-9", None),
    ] {
        let mut listing = mk_two_nodes();
        if let Some(attachment) = attachment {
            put(&mut listing.0, attachment);
        }
        for _ in 0..3 {
            assert_eq!(list(&mut listing, &[ids], |_| {}), [], "{case}");
        }
    }
    // An attachment to another node explains nothing.
    let mut listing = mk_two_nodes();
    put(&mut listing.0, attached("va"));
    assert_eq!(list(&mut listing, &["id", "id-2"], |_| {}), []);
    assert_eq!(
        list(&mut listing, &["id", "id-2"], |_| {}),
        owned(&[("pv", "other")])
    );
    // It was attached while the driver listed.
    let mut listing = mk_two_nodes();
    list(&mut listing, &["id"], |_| {});
    assert_eq!(
        list(&mut listing, &["id"], |state| put(state, mk_attachment("va"))),
        []
    );
}
