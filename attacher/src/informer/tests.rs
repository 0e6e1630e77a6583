//! The indexes against a scan, and the races between watch, lists and responses to our writes.

use proptest::prelude::*;

use super::*;
use crate::model::{Source, Version};
use crate::plan::tests::mk_attachment;

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

/// The UIDs of the only delta: before and after.
fn uids(deltas: &[StoreDelta<Attachment>]) -> (Option<&str>, Option<&str>) {
    let [delta] = deltas else {
        panic!("one object must change: {deltas:?}");
    };
    let uid = |attachment: &'_ Option<Arc<Attachment>>| attachment.as_ref().map(|a| a.uid.0.to_string());
    let known = |uid: Option<String>| {
        ["u", "u1", "u2"]
            .into_iter()
            .find(|known| Some(*known) == uid.as_deref())
    };
    (known(uid(&delta.before)), known(uid(&delta.after)))
}

#[test]
fn watch_event_of_our_own_write_is_stale() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    let written = Attachment {
        finalizer: true,
        ..va("a", "u", 2, "pv", "n")
    };
    let deltas = index.attachments_changed(Change::LocallyUpdated(written.clone()));
    assert_eq!(uids(&deltas), (Some("u"), Some("u")));
    assert_eq!(index.attachments_changed(Change::Applied(written)), []);
    // An older event must not undo the write.
    let older = Change::Applied(va("a", "u", 1, "pv", "n"));
    assert_eq!(index.attachments_changed(older), []);
    assert!(index.attachments.get("a").is_some_and(|a| a.finalizer));
}

#[test]
fn older_events_do_not_restore_a_deleted_object() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    let deleted = Change::LocallyDeleted {
        name: "a".into(),
        uid: "u".into(),
        version: Some(Version(3)),
    };
    assert_eq!(uids(&index.attachments_changed(deleted)), (Some("u"), None));
    let older = Change::Applied(va("a", "u", 2, "pv", "n"));
    assert_eq!(index.attachments_changed(older), []);
    assert_eq!(index.by_volume.get("pv").count(), 0);
    // Another object has the same name.
    let deltas = index.attachments_changed(Change::Applied(va("a", "u2", 4, "pv", "n")));
    assert_eq!(uids(&deltas), (None, Some("u2")));
    // The deletion of the first one, late, does not remove the second.
    let deleted = Change::Deleted {
        name: "a".into(),
        uid: "u".into(),
    };
    assert_eq!(index.attachments_changed(deleted), []);
    assert_eq!(names(index.by_volume.get("pv")), ["a"]);
}

/// A4: the 404 was not about the object, or the API server had not caught up.
#[test]
fn a_later_event_revives_an_object_that_a_response_reported_as_deleted() {
    for (version, revived_by) in [(None, 2), (Some(Version(3)), 4)] {
        let mut index = Informer::default();
        index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
        let (name, uid) = ("a".into(), "u".into());
        index.attachments_changed(Change::LocallyDeleted { name, uid, version });
        let event = |version| Change::Applied(va("a", "u", version, "pv", "n"));
        assert_eq!(index.attachments_changed(event(revived_by - 1)), []);
        let deltas = index.attachments_changed(event(revived_by));
        assert_eq!(uids(&deltas), (None, Some("u")), "{version:?}");
        assert_eq!(names(index.by_volume.get("pv")), ["a"]);
    }
}

#[test]
fn response_to_a_write_does_not_restore_a_deleted_object() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    index.attachments_changed(Change::Deleted {
        name: "a".into(),
        uid: "u".into(),
    });
    let late = Change::LocallyUpdated(va("a", "u", 2, "pv", "n"));
    assert_eq!(index.attachments_changed(late), []);
    assert!(index.attachments.get("a").is_none());
}

#[test]
fn list_removes_absent_objects_and_keeps_newer_ones() {
    let mut index = Informer::default();
    for name in ["a", "b"] {
        index.attachments_changed(Change::Applied(va(name, name, 1, "pv", "n")));
    }
    index.attachments_changed(Change::ReplaceStarted);
    index.attachments_changed(Change::Applied(va("a", "a", 1, "pv", "n")));
    // This write is newer than the list.
    index.attachments_changed(Change::LocallyUpdated(va("a", "a", 5, "pv", "n")));
    let deltas = index.attachments_changed(Change::Replaced);
    assert_eq!(deltas.iter().map(|delta| &*delta.name).collect::<Vec<_>>(), ["b"]);
    assert_eq!(index.attachments.get("a").map(|a| a.version), Some(Version(5)));
    assert_eq!(names(index.by_node.get("n")), ["a"]);
}

#[test]
fn list_after_a_restore_replaces_newer_versions() {
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
            .attachments
            .get("a")
            .is_some_and(|a| !a.attached && a.version == Version(3))
    );
}

#[test]
fn list_with_an_equal_version_is_stale_unless_the_version_is_unknown() {
    for (version, is_stale) in [(4, true), (0, false)] {
        let mut index = Informer::default();
        index.attachments_changed(Change::Applied(va("a", "u", version, "pv", "n")));
        index.attachments_changed(Change::ReplaceStarted);
        let deltas = index.attachments_changed(Change::Applied(va("a", "u", version, "pv", "n")));
        assert_eq!(deltas.is_empty(), is_stale, "version {version}");
    }
}

#[test]
fn list_restores_an_object_that_a_response_reported_as_deleted() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    index.attachments_changed(Change::LocallyDeleted {
        name: "a".into(),
        uid: "u".into(),
        version: None,
    });
    index.attachments_changed(Change::ReplaceStarted);
    index.attachments_changed(Change::Applied(va("a", "u", 1, "pv", "n")));
    index.attachments_changed(Change::Replaced);
    assert!(index.attachments.get("a").is_some());
}

#[test]
fn writes_after_the_request_of_a_list_override_it() {
    let mut index = Informer::default();
    for name in ["written", "deleted", "untouched"] {
        index.attachments_changed(Change::Applied(va(name, name, 4, "pv", "n")));
    }
    index.attachments_changed(Change::RelistStarting);
    index.attachments_changed(Change::LocallyUpdated(va("written", "written", 9, "pv", "n")));
    let (name, uid) = ("deleted".into(), "deleted".into());
    index.attachments_changed(Change::LocallyDeleted {
        name,
        uid,
        version: None,
    });
    // Both come before `ReplaceStarted`.
    index.attachments_changed(Change::ReplaceStarted);
    for name in ["written", "deleted", "untouched"] {
        index.attachments_changed(Change::Applied(va(name, name, 3, "pv", "n")));
    }
    index.attachments_changed(Change::Replaced);
    let version = |name| index.attachments.get(name).map(|known| known.version);
    assert_eq!(version("written"), Some(Version(9)));
    assert_eq!(version("deleted"), None);
    // The API server's store was restored from a backup.
    assert_eq!(version("untouched"), Some(Version(3)));
    // The next list contains the deleted object.
    index.attachments_changed(Change::RelistStarting);
    index.attachments_changed(Change::ReplaceStarted);
    index.attachments_changed(Change::Applied(va("deleted", "deleted", 3, "pv", "n")));
    index.attachments_changed(Change::Replaced);
    assert_eq!(index.attachments.len(), 1);
}

#[test]
fn writes_belong_to_the_list_that_was_pending() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "a", 4, "pv", "n")));
    index.attachments_changed(Change::RelistStarting);
    // The first list fails, and the reflector announces the second while the first's `ReplaceStarted` is still queued.
    index.attachments_changed(Change::RelistStarting);
    index.attachments_changed(Change::LocallyUpdated(va("a", "a", 9, "pv", "n")));
    for version in [3, 4] {
        index.attachments_changed(Change::ReplaceStarted);
        index.attachments_changed(Change::Applied(va("a", "a", version, "pv", "n")));
    }
    index.attachments_changed(Change::Replaced);
    assert_eq!(
        index.attachments.get("a").map(|known| known.version),
        Some(Version(9))
    );
}

#[test]
fn replaced_object_leaves_the_indexes() {
    let mut index = Informer::default();
    index.attachments_changed(Change::Applied(va("a", "u1", 1, "pv-1", "n-1")));
    let deltas = index.attachments_changed(Change::Applied(va("a", "u2", 2, "pv-2", "n-2")));
    assert_eq!(uids(&deltas), (Some("u1"), Some("u2")));
    assert_eq!(index.by_volume.get("pv-1").count(), 0);
    assert_eq!(index.by_node.get("n-1").count(), 0);
    assert_eq!(names(index.by_volume.get("pv-2")), ["a"]);
}

#[test]
fn unknown_version_is_never_stale() {
    for (version, stale) in [
        (Version(12), true),
        (Version(11), true),
        (Version(13), false),
        (Version::UNKNOWN, false),
    ] {
        let mut index = Informer::default();
        index.attachments_changed(Change::Applied(va("a", "u1", 12, "pv-1", "n-1")));
        let next = Attachment {
            version,
            ..va("a", "u1", 12, "pv-1", "n-1")
        };
        let deltas = index.attachments_changed(Change::Applied(next));
        assert_eq!(deltas.is_empty(), stale, "{version:?}");
    }
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
    Delete {
        name: u8,
        uid: u8,
    },
    List(Vec<(u8, u8)>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6u8, 0..3u8, 0..3u8, 0..3u8, 0..4u8)
            .prop_map(|(name, uid, volume, node, handle)| Step::Put { name, uid, volume, node, handle }),
        2 => (0..6u8, 0..3u8).prop_map(|(name, uid)| Step::Delete { name, uid }),
        1 => prop::collection::vec((0..6u8, 0..3u8), 0..6).prop_map(Step::List),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn indexes_equal_a_full_scan(steps in steps()) {
        let mut index = Informer::default();
        let mut version = 0;
        let mut next = || { version += 1; version };
        let uid_of = |name: u8, uid: u8| format!("{name}-{uid}");
        for step in steps {
            match step {
                Step::Put { name, uid, volume, node, handle } => {
                    // Volume and node of one UID never change: spec is immutable.
                    let (volume, node) = ((volume + uid) % 3, (node + uid) % 3);
                    let known = index.attachments.get(&name.to_string()).cloned();
                    let mut put = va(
                        &name.to_string(), &uid_of(name, uid), next(), &volume.to_string(), &node.to_string(),
                    );
                    if let Some(known) = known.filter(|known| known.uid == put.uid) {
                        (put.source, put.node) = (known.source.clone(), known.node.clone());
                    }
                    // The recorded handle may be absent, and may change.
                    put.recorded.handle = (handle < 3).then(|| handle.to_string().as_str().into());
                    index.attachments_changed(Change::Applied(put));
                }
                Step::Delete { name, uid } => {
                    let deleted = Change::Deleted {
                        name: name.to_string().as_str().into(),
                        uid: uid_of(name, uid).as_str().into(),
                    };
                    index.attachments_changed(deleted);
                }
                Step::List(listed) => {
                    index.attachments_changed(Change::ReplaceStarted);
                    for (name, uid) in listed {
                        let put = va(&name.to_string(), &uid_of(name, uid), next(), "v", "n");
                        let known = index.attachments.get(&put.name).filter(|known| known.uid == put.uid);
                        let put = match known {
                            Some(known) => Attachment { version: put.version, ..(**known).clone() },
                            None => put,
                        };
                        index.attachments_changed(Change::Applied(put));
                    }
                    index.attachments_changed(Change::Replaced);
                }
            }
            let all: Vec<_> = index.attachments.iter().cloned().collect();
            for referred in ["0", "1", "2", "v", "n"] {
                let mut by_volume: Vec<_> = all.iter()
                    .filter(|a| a.volume_name().is_some_and(|v| &**v == referred))
                    .map(|a| &*a.name).collect();
                by_volume.sort_unstable();
                prop_assert_eq!(names(index.by_volume.get(referred)), by_volume);
                let mut by_node: Vec<_> =
                    all.iter().filter(|a| &*a.node == referred).map(|a| &*a.name).collect();
                by_node.sort_unstable();
                prop_assert_eq!(names(index.by_node.get(referred)), by_node);
                let mut by_handle: Vec<_> = all.iter()
                    .filter(|a| a.recorded.handle.as_deref() == Some(referred))
                    .map(|a| &*a.name).collect();
                by_handle.sort_unstable();
                prop_assert_eq!(names(index.by_handle.get(referred)), by_handle);
            }
        }
    }
}
