//! Several VolumeAttachments of one volume and node.

use super::*;

#[tokio::test]
async fn detach_unpublishes_although_an_attach_without_finalizer_begins() {
    let mut bench = Bench::new(mk_leaving());
    let starting = Change::Applied(mk_attachment("other"));
    bench.state().handle(Event::Attachments(starting));
    bench.world.state().silent.push("record");
    let attach = bench.item().expect("an attach");
    let attach = bench.controller.sync(&attach);
    let mut attach = std::pin::pin!(attach);
    assert!(attach.as_mut().now_or_never().is_none());
    let now = bench.now;
    let detach = bench.state().start(now).expect("a detach");
    assert!(matches!(
        detach,
        Item::Attachment {
            operation: Operation::Detach,
            ..
        }
    ));
    let result = bench.controller.sync(&detach).await;
    assert_eq!(result, Ok(()));
    assert_eq!(bench.world.state().unpublished.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn detach_rechecks_other_users_after_reading_the_secret() {
    for (finalizer, unpublished, done) in [(true, 0, true), (false, 0, false)] {
        let mut bench = Bench::new(mk_leaving());
        bench.world.state().silent.push("get secret");
        let item = bench.item().expect("a detach");
        let run = bench.controller.sync(&item);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let living = Attachment {
            finalizer,
            attached: true,
            ..mk_attachment("other")
        };
        bench.state().handle(Event::Attachments(Change::Applied(living)));
        bench.world.answer.notify_one();
        let result = run.await;
        assert_eq!(result.is_ok(), done, "{:?}", result);
        assert_eq!(bench.world.state().unpublished.len(), unpublished);
    }
}

#[tokio::test(start_paused = true)]
async fn detach_holds_the_targets_lock_during_its_call() {
    let mut bench = Bench::new(mk_leaving());
    bench.world.state().silent.push("unpublish");
    let detach = bench.item().expect("a detach");
    let run = bench.controller.sync(&detach);
    let mut run = std::pin::pin!(run);
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    assert!(
        bench
            .controller
            .target_mutexes
            .lock(&target)
            .now_or_never()
            .is_none()
    );
    bench.world.answer.notify_one();
    assert_eq!(run.await, Ok(()));
    assert!(
        bench
            .controller
            .target_mutexes
            .lock(&target)
            .now_or_never()
            .is_some()
    );
}

/// Its finalizer was stored, so other detaches may have left the volume to it.
#[tokio::test]
async fn detach_unpublishes_although_the_attach_never_published() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("claim", forbidden());
    bench.fails().await;
    assert!(bench.attachment().finalizer);
    let leaving = Attachment {
        name: "leaving".into(),
        uid: "leaving".into(),
        ..mk_leaving()
    };
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    assert_eq!(
        bench.state().usage_besides(&leaving, &target, UsedBy::Record),
        TargetUsage::InUse
    );
    bench.seen();
    bench.delete();
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.world.state().unpublished, [target]);
    assert_eq!(bench.world.state().attachment, None);
}

/// Two VolumeAttachments of one volume on a node that has another id now. The record of the first is being changed to that id,
/// so the second must not leave the recorded one to it, nor unpublish it while the first may be published on the same machine.
#[tokio::test(start_paused = true)]
async fn detach_waits_for_an_attachment_whose_record_changes_to_another_node_id() {
    for answer in ["in time", "lost"] {
        let moving = Attachment {
            finalizer: true,
            recorded: Recorded {
                node_id: Some("old-id".into()),
                ..mk_leaving().recorded
            },
            ..mk_attachment("va")
        };
        let staying = Attachment {
            name: "other".into(),
            uid: "other".into(),
            attached: true,
            ..moving.clone()
        };
        let mut bench = Bench::new(moving);
        bench
            .state()
            .handle(Event::Attachments(Change::Applied(staying.clone())));
        bench.world.state().silent.push("record");
        if answer == "lost" {
            bench.refuse("record", Error::Unanswered("lost".into()));
        }
        let attach = bench.item().expect("an attach");
        let mut attach = std::pin::pin!(bench.controller.sync(&attach));
        assert!(timeout(FOREVER, attach.as_mut()).await.is_err());
        assert_eq!(bench.world.state().unpublished, [], "it is left to the other one");
        let leaving = Attachment {
            deleting: true,
            version: Version(9),
            ..staying
        };
        let gone = Change::Applied(leaving.clone());
        bench.state().handle(Event::Attachments(gone));
        bench.now += FOREVER;
        let now = bench.now;
        let detach = bench.state().start(now).expect("a detach");
        assert_eq!(name_of(&detach), "other");
        let mut detach = std::pin::pin!(bench.controller.sync(&detach));
        assert!(
            timeout(FOREVER, detach.as_mut()).await.is_err(),
            "it waits for the lock"
        );
        bench.world.answer.notify_one();
        let (_, detached) = futures::join!(attach.as_mut(), detach.as_mut());
        assert!(detached.is_err(), "{answer}");
        assert!(!bench.seen().contains(&"release"), "{answer}");
        assert_eq!(bench.world.state().unpublished, [], "{answer}");
    }
}

/// The node registered again under another id, and may be the same machine: to unpublish one of the ids could take the volume
/// away from the pod of the other VolumeAttachment, and to release the finalizer without that could leave it published.
#[tokio::test]
async fn detach_waits_for_an_attachment_that_was_published_under_another_id_of_the_node() {
    for (recorded, others) in [("old-id", "id"), ("id", "old-id"), ("old-id", "older-id")] {
        let mut bench = Bench::new(Attachment {
            recorded: Recorded {
                node_id: Some(recorded.into()),
                ..mk_leaving().recorded
            },
            ..mk_leaving()
        });
        let other = Attachment {
            finalizer: true,
            attached: true,
            recorded: Recorded {
                node_id: Some(others.into()),
                ..mk_leaving().recorded
            },
            ..mk_attachment("other")
        };
        bench
            .state()
            .handle(Event::Attachments(Change::Applied(other.clone())));
        bench.fails().await;
        assert_eq!(bench.world.state().unpublished, [], "{recorded} {others}");
        let attachment = bench.attachment();
        assert!(attachment.finalizer);
        let error = attachment.detach_error.expect("users must see it");
        assert!(error.message.contains("under another node id"), "{error:?}");
        let Attachment { name, uid, .. } = other;
        bench
            .state()
            .handle(Event::Attachments(Change::Deleted { name, uid }));
        assert_eq!(bench.sync_next().await, Some(Ok(())), "{recorded} {others}");
        let unpublished = bench.world.state().unpublished.clone();
        assert_eq!(unpublished[0].node_id, recorded.into());
        assert_eq!(unpublished.len(), if recorded == "id" { 1 } else { 2 });
        assert_eq!(bench.world.state().attachment, None);
    }
}

/// An attach failed before the node registered again; its undo waits like a detach.
#[tokio::test]
async fn undo_waits_for_an_attachment_that_was_published_under_another_id_of_the_node() {
    for (attached, name) in [(false, "undo"), (true, "republish")] {
        let recorded = |node_id: &str| Recorded {
            node_id: Some(node_id.into()),
            ..mk_leaving().recorded
        };
        let mut bench = Bench::new(Attachment {
            finalizer: !attached,
            attached,
            recorded: recorded("old-id"),
            ..mk_attachment("va")
        });
        let unknown = ("publish", "old-id", "NotFound");
        bench.world.state().refused_at.push(unknown);
        let other = Attachment {
            finalizer: true,
            attached: true,
            recorded: recorded("id"),
            ..mk_attachment("other")
        };
        bench
            .state()
            .handle(Event::Attachments(Change::Applied(other.clone())));
        bench.fails().await;
        let attachment = bench.attachment();
        assert_eq!(bench.world.state().unpublished, [], "{name}");
        assert_eq!(attachment.recorded.node_id, Some("old-id".into()), "{name}");
        let error = attachment.attach_error.expect("users must see it");
        assert!(
            error.message.contains("under another node id"),
            "{name}: {error:?}"
        );
        let Attachment { name: gone, uid, .. } = other;
        bench
            .state()
            .handle(Event::Attachments(Change::Deleted { name: gone, uid }));
        assert_eq!(bench.sync_next().await, Some(Ok(())), "{name}");
        let unpublished = bench.world.state().unpublished.clone();
        assert_eq!(unpublished.len(), 1, "{name}");
        assert_eq!(unpublished[0].node_id, "old-id".into(), "{name}");
        assert!(bench.attachment().attached, "{name}");
    }
}

/// As above, but its finalizer is gone, so that only its status is wrong.
#[tokio::test]
async fn corrects_a_status_without_unpublishing_under_another_id_of_the_node() {
    let mut bench = Bench::new(Attachment {
        finalizer: false,
        foreign_finalizers: true,
        attached: true,
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_leaving().recorded
        },
        ..mk_leaving()
    });
    let other = Attachment {
        finalizer: true,
        attached: true,
        recorded: mk_leaving().recorded,
        ..mk_attachment("other")
    };
    bench.state().handle(Event::Attachments(Change::Applied(other)));
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.world.state().unpublished, []);
    assert!(!bench.attachment().says_attached());
}
