//! The index against a naive model, and the races that it exists for.

use proptest::prelude::*;

use super::*;
use crate::model::{Source, Version};
use crate::plan::tests::{mk_attachment, mk_node, mk_volume};

fn va(name: &str, uid: &str, version: u64, volume: &str, node: &str) -> Attachment {
    Attachment {
        uid: uid.into(),
        version: Version(version),
        source: Source::Volume(volume.into()),
        node: node.into(),
        ..mk_attachment(name)
    }
}

fn names<'i>(names: impl Iterator<Item = &'i Arc<str>>) -> Vec<&'i str> {
    names.map(|name| &**name).collect()
}

fn only(mut effects: Vec<(Arc<str>, StoreDelta<Attachment>)>) -> StoreDelta<Attachment> {
    assert_eq!(effects.len(), 1, "{effects:?}");
    effects.remove(0).1
}

#[test]
fn the_echo_of_our_own_write_is_stale() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    let written = Attachment {
        finalizer: true,
        ..va("a", "u", 2, "pv", "n")
    };
    assert!(matches!(
        only(index.attachments_changed(Change::LocallyUpdated(written.clone()))),
        StoreDelta::Changed { .. }
    ));
    assert_eq!(
        only(index.attachments_changed(Change::Applied(written))),
        StoreDelta::Stale
    );
    // An event that was on its way before our write must not undo it.
    assert_eq!(
        only(index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")))),
        StoreDelta::Stale
    );
    assert!(index.attachment("a").is_some_and(|a| a.finalizer));
}

#[test]
fn an_object_that_departed_is_not_brought_back_by_events_from_before() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    let departed = Change::LocallyDeleted {
        name: "a".into(),
        uid: "u".into(),
    };
    assert!(matches!(
        only(index.attachments_changed(departed)),
        StoreDelta::Gone { .. }
    ));
    assert_eq!(
        only(index.attachments_changed(Change::Applied(va("a", "u", 2, "pv", "n")))),
        StoreDelta::Stale
    );
    assert_eq!(index.attachments_of_volume("pv").len(), 0);
    // Its successor of the same name is another object.
    assert!(matches!(
        only(index.attachments_changed(Change::Applied(va("a", "u2", 4, "pv", "n")))),
        StoreDelta::New { .. }
    ));
    // The watch's word of the first one's deletion, late, leaves the second alone.
    let gone = Change::Deleted {
        name: "a".into(),
        uid: "u".into(),
    };
    assert_eq!(only(index.attachments_changed(gone)), StoreDelta::Stale);
    assert_eq!(names(index.attachments_of_volume("pv")), ["a"]);
}

#[test]
fn an_answer_about_an_object_that_went_meanwhile_does_not_revive_it() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    index.attachments_changed(Change::Deleted {
        name: "a".into(),
        uid: "u".into(),
    });
    assert_eq!(
        only(index.attachments_changed(Change::LocallyUpdated(va("a", "u", 2, "pv", "n")))),
        StoreDelta::Stale
    );
    assert!(index.attachment("a").is_none());
}

#[test]
fn a_list_drops_what_it_does_not_name_and_keeps_what_is_newer() {
    let mut index = Informer::default();
    for name in ["a", "b"] {
        index.attachments_changed(Change::Applied(va(name, name, 1, "pv", "n")));
    }
    index.attachments_changed(Change::ReplaceStarted);
    index.attachments_changed(Change::Applied(va("a", "a", 1, "pv", "n")));
    // The list was made before this write.
    index.attachments_changed(Change::LocallyUpdated(va("a", "a", 5, "pv", "n")));
    let effects = index.attachments_changed(Change::Replaced);
    assert_eq!(effects.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["b"]);
    assert_eq!(index.attachment("a").map(|a| a.version), Some(Version(5)));
    assert_eq!(names(index.attachments_of_node("n")), ["a"]);
}

#[test]
fn a_list_after_a_restore_counts_although_its_versions_are_lower() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(Attachment {
        attached: true,
        ..va("a", "u", 9, "pv", "n")
    }));
    index.attachments_changed(Change::ReplaceStarted);
    index.attachments_changed(Change::Applied(va("a", "u", 3, "pv", "n")));
    index.attachments_changed(Change::Replaced);
    assert!(
        index
            .attachment("a")
            .is_some_and(|a| !a.attached && a.version == Version(3))
    );
}

#[test]
fn a_list_that_shows_the_known_version_is_stale_unless_the_version_is_unknown() {
    for (version, is_stale) in [(4, true), (0, false)] {
        let mut index = Informer::default();
        index.attachments_changed(Change::Applied(va("a", "u", version, "pv", "n")));
        index.attachments_changed(Change::ReplaceStarted);
        let effect = only(index.attachments_changed(Change::Applied(va("a", "u", version, "pv", "n"))));
        assert_eq!(effect == StoreDelta::Stale, is_stale, "version {version}");
    }
}

#[test]
fn a_list_brings_back_what_was_wrongly_told_to_be_gone() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    index.attachments_changed(Change::LocallyDeleted {
        name: "a".into(),
        uid: "u".into(),
    });
    index.attachments_changed(Change::ReplaceStarted);
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    index.attachments_changed(Change::Replaced);
    assert!(index.attachment("a").is_some());
}

#[test]
fn what_was_told_since_a_list_was_asked_for_counts_more_than_the_list() {
    let mut index = Informer::default();
    for name in ["written", "departed", "untouched"] {
        index.attachments_changed(Change::Applied(va(name, name, 4, "pv", "n")));
    }
    index.attachments_changed(Change::RelistStarting);
    index.attachments_changed(Change::LocallyUpdated(va("written", "written", 9, "pv", "n")));
    let (name, uid) = ("departed".into(), "departed".into());
    index.attachments_changed(Change::LocallyDeleted { name, uid });
    // All of it before the event that the list begins.
    index.attachments_changed(Change::ReplaceStarted);
    for name in ["written", "departed", "untouched"] {
        index.attachments_changed(Change::Applied(va(name, name, 3, "pv", "n")));
    }
    index.attachments_changed(Change::Replaced);
    let version = |name| index.attachment(name).map(|known| known.version);
    assert_eq!(version("written"), Some(Version(9)));
    assert_eq!(version("departed"), None);
    // The API server's store was restored from a backup.
    assert_eq!(version("untouched"), Some(Version(3)));
    // The next list is another one.
    index.attachments_changed(Change::RelistStarting);
    index.attachments_changed(Change::ReplaceStarted);
    index.attachments_changed(Change::Applied(va("departed", "departed", 3, "pv", "n")));
    index.attachments_changed(Change::Replaced);
    assert_eq!(index.known().attachments, 1);
}

#[test]
fn the_beginning_of_a_list_that_failed_is_not_taken_for_that_of_the_next_one() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "a", 4, "pv", "n")));
    index.attachments_changed(Change::RelistStarting);
    // The first list fails, and the second one is announced while the beginning of the first is still queued.
    index.attachments_changed(Change::RelistStarting);
    index.attachments_changed(Change::LocallyUpdated(va("a", "a", 9, "pv", "n")));
    for version in [3, 4] {
        index.attachments_changed(Change::ReplaceStarted);
        index.attachments_changed(Change::Applied(va("a", "a", version, "pv", "n")));
    }
    index.attachments_changed(Change::Replaced);
    assert_eq!(index.attachment("a").map(|known| known.version), Some(Version(9)));
}

#[test]
fn a_replaced_object_leaves_the_reverse_maps() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u1", 1, "pv-1", "n-1")));
    let effect = only(index.attachments_changed(Change::Applied(va("a", "u2", 2, "pv-2", "n-2"))));
    assert!(matches!(effect, StoreDelta::New { replaced: Some(old) } if *old.uid.0 == *"u1"));
    assert_eq!(index.attachments_of_volume("pv-1").len(), 0);
    assert_eq!(index.attachments_of_node("n-1").len(), 0);
    assert_eq!(names(index.attachments_of_volume("pv-2")), ["a"]);
}

#[test]
fn inputs_join_attachment_volume_and_node() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(mk_attachment("a")));
    index.volumes_changed(Change::Applied(mk_volume("pv")));
    index.nodes_changed(Change::Applied(mk_node("node", Some("id"))));
    let inputs = index.inputs(index.attachment("a").unwrap());
    assert_eq!(inputs.volume.map(|v| v.name.clone()).as_deref(), Some("pv"));
    assert_eq!(inputs.node.and_then(|n| n.id.clone()).as_deref(), Some("id"));
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        name: u8,
        uid: u8,
        volume: u8,
        node: u8,
        handle: u8,
    },
    Gone {
        name: u8,
        uid: u8,
    },
    List(Vec<(u8, u8)>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6u8, 0..3u8, 0..3u8, 0..3u8, 0..4u8)
            .prop_map(|(name, uid, volume, node, handle)| Step::Put { name, uid, volume, node, handle }),
        2 => (0..6u8, 0..3u8).prop_map(|(name, uid)| Step::Gone { name, uid }),
        1 => prop::collection::vec((0..6u8, 0..3u8), 0..6).prop_map(Step::List),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn reverse_maps_hold_what_a_scan_would_find(steps in steps()) {
        let mut index = Informer::default();
        let mut version = 0;
        let mut next = || { version += 1; version };
        let uid_of = |name: u8, uid: u8| format!("{name}-{uid}");
        for step in steps {
            match step {
                Step::Put { name, uid, volume, node, handle } => {
                    // A volume and a node belong to an object for life, as spec is immutable.
                    let (volume, node) = ((volume + uid) % 3, (node + uid) % 3);
                    let known = index.attachment(&name.to_string()).cloned();
                    let mut put = va(
                        &name.to_string(), &uid_of(name, uid), next(), &volume.to_string(), &node.to_string(),
                    );
                    if let Some(known) = known.filter(|known| known.uid == put.uid) {
                        (put.source, put.node) = (known.source.clone(), known.node.clone());
                    }
                    // What is recorded may change at any time; nothing may be.
                    put.recorded.handle = (handle < 3).then(|| handle.to_string().as_str().into());
                    index.attachments_changed(Change::Applied(put));
                }
                Step::Gone { name, uid } => {
                    let gone = Change::Deleted {
                        name: name.to_string().as_str().into(),
                        uid: uid_of(name, uid).as_str().into(),
                    };
                    index.attachments_changed(gone);
                }
                Step::List(listed) => {
                    index.attachments_changed(Change::ReplaceStarted);
                    for (name, uid) in listed {
                        let put = va(&name.to_string(), &uid_of(name, uid), next(), "v", "n");
                        let known = index.attachment(&put.name).filter(|known| known.uid == put.uid);
                        let put = match known {
                            Some(known) => Attachment { version: put.version, ..(**known).clone() },
                            None => put,
                        };
                        index.attachments_changed(Change::Applied(put));
                    }
                    index.attachments_changed(Change::Replaced);
                }
            }
            let all: Vec<_> = index.attachments().cloned().collect();
            for referred in ["0", "1", "2", "v", "n"] {
                let mut by_volume: Vec<_> = all.iter()
                    .filter(|a| a.volume_name().is_some_and(|v| &**v == referred))
                    .map(|a| &*a.name).collect();
                by_volume.sort_unstable();
                prop_assert_eq!(names(index.attachments_of_volume(referred)), by_volume);
                let mut by_node: Vec<_> =
                    all.iter().filter(|a| &*a.node == referred).map(|a| &*a.name).collect();
                by_node.sort_unstable();
                prop_assert_eq!(names(index.attachments_of_node(referred)), by_node);
                let mut by_handle: Vec<_> = all.iter()
                    .filter(|a| a.recorded.handle.as_deref() == Some(referred))
                    .map(|a| &*a.name).collect();
                by_handle.sort_unstable();
                prop_assert_eq!(names(index.attachments_of_handle(referred)), by_handle);
            }
        }
    }
}
