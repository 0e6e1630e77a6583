//! Several VolumeAttachments of one volume and node.

use super::*;
use crate::plan::Orphan;

#[tokio::test]
async fn detach_unpublishes_although_an_attach_without_finalizer_begins() {
    let mut fixture = Fixture::new(mk_deleting());
    let starting = Change::Applied(mk_attachment("other"));
    fixture.state().handle(Event::Attachments(starting));
    fixture.world.state().silent.push("record");
    let attach = fixture.item().expect("an attach");
    let attach = fixture.controller.sync(&attach);
    let mut attach = std::pin::pin!(attach);
    assert!(attach.as_mut().now_or_never().is_none());
    let now = fixture.now;
    let detach = fixture.state().start(now).expect("a detach");
    assert!(matches!(
        detach,
        Item::Subject(Subject::Attachment(Operation::Detach, _))
    ));
    let result = fixture.controller.sync(&detach).await;
    assert_eq!(result, Ok(()));
    assert_eq!(fixture.world.state().unpublished.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn detach_rechecks_other_users_after_reading_the_secret() {
    for (finalizer, unpublished, done) in [(true, 0, true), (false, 0, false)] {
        let mut fixture = Fixture::new(mk_deleting());
        fixture.world.state().silent.push("get secret");
        let item = fixture.item().expect("a detach");
        let run = fixture.controller.sync(&item);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let active = Attachment {
            finalizer,
            attached: true,
            ..mk_attachment("other")
        };
        fixture
            .state()
            .handle(Event::Attachments(Change::Applied(active)));
        fixture.world.respond.notify_one();
        let result = run.await;
        assert_eq!(result.is_ok(), done, "{:?}", result);
        assert_eq!(fixture.world.state().unpublished.len(), unpublished);
    }
}

#[tokio::test(start_paused = true)]
async fn detach_holds_the_targets_lock_during_its_call() {
    let mut fixture = Fixture::new(mk_deleting());
    fixture.world.state().silent.push("unpublish");
    let detach = fixture.item().expect("a detach");
    let run = fixture.controller.sync(&detach);
    let mut run = std::pin::pin!(run);
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    assert!(
        fixture
            .controller
            .target_mutexes
            .lock(&target)
            .now_or_never()
            .is_none()
    );
    fixture.world.respond.notify_one();
    assert_eq!(run.await, Ok(()));
    assert!(
        fixture
            .controller
            .target_mutexes
            .lock(&target)
            .now_or_never()
            .is_some()
    );
}

/// A detach in between could unpublish the volume before its status is written.
#[tokio::test(start_paused = true)]
async fn attach_holds_the_targets_lock_until_its_status_is_written() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.world.state().silent.push("mark attached");
    let item = fixture.item().expect("an attach");
    let mut run = std::pin::pin!(fixture.controller.sync(&item));
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    assert!(fixture.seen().contains(&"mark attached"));
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    let is_free = || {
        let lock = fixture.controller.target_mutexes.lock(&target);
        lock.now_or_never().is_some()
    };
    assert!(!is_free());
    fixture.world.respond.notify_one();
    assert_eq!(run.await, Ok(()));
    assert!(is_free());
}

/// Its finalizer was stored, so other detaches may have skipped the unpublish because of it.
#[tokio::test]
async fn detach_unpublishes_although_the_attach_never_published() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("add PV finalizer", forbidden());
    fixture.fails().await;
    assert!(fixture.attachment().finalizer);
    let deleting = Attachment {
        name: "deleting".into(),
        uid: "deleting".into(),
        ..mk_deleting()
    };
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    assert!(fixture.state().is_used_by_another(&deleting.into(), &target));
    fixture.seen();
    fixture.delete();
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().unpublished, [target]);
    assert_eq!(fixture.world.state().attachment, None);
}

/// Two VolumeAttachments of one volume on a node that has another id now. The record of the first is being changed to that
/// id. The second must neither skip the unpublish of the recorded id, nor send it while the first may be published on the same
/// machine.
#[tokio::test(start_paused = true)]
async fn detach_waits_for_an_attachment_whose_record_changes_to_another_node_id() {
    for response in ["in time", "lost"] {
        let updated = Attachment {
            finalizer: true,
            recorded: Recorded {
                node_id: Some("old-id".into()),
                ..mk_deleting().recorded
            },
            ..mk_attachment("va")
        };
        let other = Attachment {
            name: "other".into(),
            uid: "other".into(),
            attached: true,
            ..updated.clone()
        };
        let mut fixture = Fixture::new(updated);
        fixture
            .state()
            .handle(Event::Attachments(Change::Applied(other.clone())));
        fixture.world.state().silent.push("record");
        if response == "lost" {
            fixture.refuse("record", Error::Unanswered("lost".into()));
        }
        let attach = fixture.item().expect("an attach");
        let mut attach = std::pin::pin!(fixture.controller.sync(&attach));
        assert!(timeout(FOREVER, attach.as_mut()).await.is_err());
        assert_eq!(
            fixture.world.state().unpublished,
            [],
            "the other attachment uses it"
        );
        let deleting = Attachment {
            deleting: true,
            version: Version(9),
            ..other
        };
        let applied = Change::Applied(deleting.clone());
        fixture.state().handle(Event::Attachments(applied));
        fixture.now += FOREVER;
        let now = fixture.now;
        let detach = fixture.state().start(now).expect("a detach");
        assert_eq!(name_of(&detach), "other");
        let mut detach = std::pin::pin!(fixture.controller.sync(&detach));
        assert!(
            timeout(FOREVER, detach.as_mut()).await.is_err(),
            "it waits for the lock"
        );
        fixture.world.respond.notify_one();
        let (_, detached) = futures::join!(attach.as_mut(), detach.as_mut());
        assert!(detached.is_err(), "{response}");
        assert!(!fixture.seen().contains(&"remove finalizer"), "{response}");
        assert_eq!(fixture.world.state().unpublished, [], "{response}");
    }
}

/// The record of a publish to this node id.
fn recorded(node_id: &str) -> Recorded {
    Recorded {
        node_id: Some(node_id.into()),
        ..mk_deleting().recorded
    }
}

/// The node registered again under another id, and may be the same machine: an unpublish of one of the ids could detach the
/// volume of the other VolumeAttachment's pod, and removing the finalizer without an unpublish could leave it published.
#[tokio::test]
async fn detach_waits_for_an_attachment_that_was_published_under_another_id_of_the_node() {
    for (recorded, others) in [("old-id", "id"), ("id", "old-id"), ("old-id", "older-id")] {
        let mut fixture = Fixture::new(Attachment {
            recorded: Recorded {
                node_id: Some(recorded.into()),
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        });
        let other = Attachment {
            finalizer: true,
            attached: true,
            recorded: Recorded {
                node_id: Some(others.into()),
                ..mk_deleting().recorded
            },
            ..mk_attachment("other")
        };
        fixture
            .state()
            .handle(Event::Attachments(Change::Applied(other.clone())));
        fixture.fails().await;
        assert_eq!(fixture.world.state().unpublished, [], "{recorded} {others}");
        let attachment = fixture.attachment();
        assert!(attachment.finalizer);
        let error = attachment.detach_error.expect("users must see it");
        assert!(error.message.contains("under another node id"), "{error:?}");
        let Attachment { name, uid, .. } = other;
        fixture
            .state()
            .handle(Event::Attachments(Change::Deleted { name, uid }));
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{recorded} {others}");
        let unpublished = fixture.world.state().unpublished.clone();
        assert_eq!(unpublished[0].node_id, recorded.into());
        assert_eq!(unpublished.len(), if recorded == "id" { 1 } else { 2 });
        assert_eq!(fixture.world.state().attachment, None);
    }
}

/// An attach failed before the node registered again; its undo waits like a detach.
#[tokio::test]
async fn undo_waits_for_an_attachment_that_was_published_under_another_id_of_the_node() {
    let mut fixture = Fixture::new(Attachment {
        finalizer: true,
        recorded: recorded("old-id"),
        ..mk_attachment("va")
    });
    let other = Attachment {
        finalizer: true,
        attached: true,
        recorded: recorded("id"),
        ..mk_attachment("other")
    };
    fixture
        .state()
        .handle(Event::Attachments(Change::Applied(other.clone())));
    fixture.fails().await;
    let attachment = fixture.attachment();
    assert_eq!(fixture.world.state().unpublished, []);
    assert_eq!(attachment.recorded.node_id, Some("old-id".into()));
    let error = attachment.attach_error.expect("users must see it");
    assert!(error.message.contains("under another node id"), "{error:?}");
    let Attachment { name: gone, uid, .. } = other;
    fixture
        .state()
        .handle(Event::Attachments(Change::Deleted { name: gone, uid }));
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    let unpublished = fixture.world.state().unpublished.clone();
    assert_eq!(unpublished.len(), 1);
    assert_eq!(unpublished[0].node_id, "old-id".into());
    assert!(fixture.attachment().attached);
}

/// The watch is late: the other one may be attached by now, on the same machine.
#[tokio::test]
async fn an_unpublish_beside_an_attachment_on_the_node_needs_a_live_read_of_that() {
    for is_orphan in [false, true] {
        for live in ["as it was", "attached", "gone"] {
            let case = format!("{is_orphan} {live}");
            let mut fixture = Fixture::new(Attachment {
                finalizer: true,
                recorded: recorded("old-id"),
                ..mk_attachment("va")
            });
            let other = Attachment {
                finalizer: true,
                recorded: recorded("id"),
                ..mk_attachment("other")
            };
            match live {
                "gone" => fixture.world.state().gone.push(other.uid.clone()),
                "attached" => {
                    fixture.world.state().live = Some(Attachment {
                        attached: true,
                        version: Version(9),
                        ..other.clone()
                    });
                }
                _ => {}
            }
            let mut item = fixture.item().expect("an attach");
            if is_orphan {
                let attachment = Arc::new(fixture.attachment());
                fixture.remove_by_hand();
                fixture.finish(&item, Err(SyncError::outdated()));
                fixture.state().add_orphan(Orphan {
                    target: PublishTarget {
                        volume_id: "handle".into(),
                        node_id: "old-id".into(),
                    },
                    secret: None,
                    migrated: false,
                    attachment,
                });
                item = fixture.item().expect("an orphan");
            }
            fixture.state().handle(Event::Attachments(Change::Applied(other)));
            let result = fixture.controller.sync(&item).await;
            let waits = live == "attached";
            assert_eq!(result.is_err(), waits, "{case}: {result:?}");
            let reads = fixture.seen().into_iter().filter(|seen| *seen == "get user");
            assert_eq!(reads.count(), 1, "{case}");
            assert_eq!(fixture.world.state().unpublished.is_empty(), waits, "{case}");
        }
    }
}

/// As above, but its finalizer is gone, so that only its status is wrong.
#[tokio::test]
async fn corrects_a_status_without_unpublishing_under_another_id_of_the_node() {
    let mut fixture = Fixture::new(Attachment {
        finalizer: false,
        foreign_finalizers: true,
        attached: true,
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_deleting().recorded
        },
        ..mk_deleting()
    });
    let other = Attachment {
        finalizer: true,
        attached: true,
        recorded: mk_deleting().recorded,
        ..mk_attachment("other")
    };
    fixture.state().handle(Event::Attachments(Change::Applied(other)));
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().unpublished, []);
    assert!(!fixture.attachment().has_attached_status());
}

/// The watch does not show the PersistentVolume, and the Go sidecar recorded no handle.
#[tokio::test]
async fn detach_finds_other_users_of_a_volume_that_only_a_live_read_shows() {
    let mut fixture = Fixture::new(Attachment {
        recorded: Recorded {
            handle: None,
            ..mk_deleting().recorded
        },
        ..mk_deleting()
    });
    let Volume { name, uid, .. } = mk_secret_volume();
    fixture
        .state()
        .handle(Event::Volumes(Change::Deleted { name, uid }));
    let user = Attachment {
        finalizer: true,
        attached: true,
        recorded: mk_deleting().recorded,
        ..mk_attachment("other")
    };
    fixture.state().handle(Event::Attachments(Change::Applied(user)));
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(fixture.seen().contains(&"get volume"));
    assert_eq!(fixture.world.state().unpublished, [], "a pod uses it");
    assert_eq!(fixture.world.state().attachment, None);
}

/// An administrator removed its finalizer and deleted it, and the watch is late.
#[tokio::test]
async fn detach_unpublishes_if_a_live_read_shows_that_the_other_user_is_gone() {
    for (is_gone, unpublished) in [(false, 0), (true, 1)] {
        let mut fixture = Fixture::new(mk_deleting());
        let user = Attachment {
            finalizer: true,
            attached: true,
            recorded: mk_deleting().recorded,
            ..mk_attachment("other")
        };
        if is_gone {
            fixture.world.state().gone.push(user.uid.clone());
        }
        fixture.state().handle(Event::Attachments(Change::Applied(user)));
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{is_gone}");
        assert!(fixture.seen().contains(&"get user"));
        assert_eq!(fixture.world.state().unpublished.len(), unpublished, "{is_gone}");
        assert_eq!(fixture.world.state().attachment, None, "{is_gone}");
    }
}

/// The handle that csi-translation-lib makes of a PersistentVolume with a zone label, and the one of an inline volume.
const LABELLED: &str = "projects/UNSPECIFIED/zones/us-east1-a/disks/d";
const INLINE: &str = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
const INSTANCE: &str = "projects/p/zones/us-east1-a/instances/i";

/// A VolumeAttachment of the disk `handle` on `node_id`.
fn mk_migrated(name: &str, handle: &str, node_id: &str) -> Attachment {
    Attachment {
        finalizer: true,
        attached: true,
        recorded: Recorded {
            node_id: Some(node_id.into()),
            handle: Some(handle.into()),
            secret: None,
        },
        ..mk_attachment(name)
    }
}

/// `va` is deleted, and `other` is attached; both are on a node with this id.
fn mk_both_on(node_id: &'static str, [deleting, other]: [&str; 2]) -> Fixture {
    let fixture = Fixture::new(Attachment {
        deleting: true,
        ..mk_migrated("va", deleting, node_id)
    });
    let node = Node {
        version: Version(2),
        ..mk_node("node", Some(node_id))
    };
    fixture.state().handle(Event::Nodes(Change::Applied(node)));
    let other = Change::Applied(mk_migrated("other", other, node_id));
    fixture.state().handle(Event::Attachments(other));
    fixture
}

/// The driver completes a handle from the node, so that several handles name one disk.
#[tokio::test]
async fn detach_leaves_a_disk_to_an_attachment_with_another_form_of_its_handle() {
    let complete = "projects/p/zones/us-east1-a/disks/d";
    for (handles, node_id, unpublished) in [
        ([INLINE, LABELLED], INSTANCE, 0),
        ([LABELLED, INLINE], INSTANCE, 0),
        ([INLINE, complete], INSTANCE, 0),
        ([complete, LABELLED], INSTANCE, 0),
        (["projects/p/zones/UNSPECIFIED/disks/d", LABELLED], INSTANCE, 0),
        (
            [INLINE, "projects/UNSPECIFIED/zones/us-east1-b/disks/d"],
            INSTANCE,
            1,
        ),
        (
            [INLINE, "projects/UNSPECIFIED/zones/us-east1-a/disks/e"],
            INSTANCE,
            1,
        ),
        (
            [INLINE, "projects/UNSPECIFIED/regions/us-east1/disks/d"],
            INSTANCE,
            1,
        ),
        ([INLINE, "projects/q/zones/us-east1-a/disks/d"], INSTANCE, 1),
        ([complete, "projects/q/zones/us-east1-a/disks/d"], "i", 1),
    ] {
        let mut fixture = mk_both_on(node_id, handles);
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{handles:?} {node_id}");
        let sent = fixture.world.state().unpublished.clone();
        assert_eq!(sent.len(), unpublished, "{handles:?} {node_id}");
        // As it is recorded.
        assert!(sent.iter().all(|target| *target.volume_id == *handles[0]));
        assert_eq!(fixture.world.state().attachment, None, "{handles:?} {node_id}");
    }
}

/// Nothing determines the zone: an unpublish could take the disk from the pod of the other, and without one it may stay published.
#[tokio::test]
async fn detach_waits_for_an_attachment_whose_handle_may_name_its_disk() {
    let complete = "projects/p/zones/us-east1-a/disks/d";
    for handles in [[INLINE, LABELLED], [complete, INLINE]] {
        let mut fixture = mk_both_on("i", handles);
        fixture.fails().await;
        assert_eq!(fixture.world.state().unpublished, [], "{handles:?}");
        assert!(fixture.attachment().finalizer, "{handles:?}");
        let Attachment { name, uid, .. } = mk_attachment("other");
        let deleted = Change::Deleted { name, uid };
        fixture.state().handle(Event::Attachments(deleted));
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{handles:?}");
        assert_eq!(fixture.world.state().unpublished.len(), 1, "{handles:?}");
    }
}

#[tokio::test]
async fn forms_of_a_handle_share_a_lock() {
    let at = |handle: &str, node_id: &str| PublishTarget {
        volume_id: handle.into(),
        node_id: node_id.into(),
    };
    let mutexes = KeyedMutex::default();
    let _inline = mutexes.lock(&at(INLINE, INSTANCE)).await;
    for (other, node_id, is_free) in [
        (LABELLED, INSTANCE, false),
        (INLINE, "projects/p/zones/us-east1-a/instances/j", true),
        ("projects/UNSPECIFIED/zones/us-east1-b/disks/d", INSTANCE, true),
    ] {
        let lock = mutexes.lock(&at(other, node_id)).now_or_never();
        assert_eq!(lock.is_some(), is_free, "{other} {node_id}");
    }
}
