//! Writes and reports after a call.

use super::*;

/// How the attacher learns that a VolumeAttachment is deleted whose attach wrote a finalizer to it.
#[derive(Clone, Copy, Debug)]
enum Vanishes {
    /// The watch shows it during the publish.
    During,
    /// Only the API server's response to the next write shows it: the watch is late.
    Unwatched,
    /// The watch shows it after the sync.
    After,
}

/// It may be published, and no detach follows.
#[tokio::test(start_paused = true)]
async fn undoes_an_uncertain_publish_if_the_attachment_is_gone() {
    for vanishes in [Vanishes::During, Vanishes::Unwatched, Vanishes::After] {
        for (code, undone) in [("DeadlineExceeded", 1), ("Internal", 0)] {
            let mut fixture = Fixture::new(mk_attachment("va"));
            fixture.world.state().refused_at.push(("publish", "id", code));
            fixture.world.state().silent.push("publish");
            let item = fixture.item().expect("an attach");
            let (gone, result) = {
                let mut run = std::pin::pin!(fixture.controller.sync(&item));
                assert!(timeout(FOREVER, run.as_mut()).await.is_err());
                let Attachment { name, uid, .. } = fixture.attachment();
                let gone = Event::Attachments(Change::Deleted { name, uid });
                match vanishes {
                    Vanishes::During => {
                        fixture.world.state().attachment = None;
                        fixture.state().handle(gone.clone());
                    }
                    Vanishes::Unwatched => fixture.world.state().attachment = None,
                    Vanishes::After => {}
                }
                fixture.world.respond.notify_one();
                (gone, run.await)
            };
            assert!(result.is_err());
            fixture.finish(&item, result);
            if let Vanishes::After = vanishes {
                assert!(fixture.state().orphans.is_empty());
                fixture.world.state().attachment = None;
                fixture.state().handle(gone);
            }
            let case = format!("{vanishes:?} {code}");
            assert_eq!(!fixture.state().orphans.is_empty(), undone == 1, "{case}");
            if undone == 1 {
                assert_eq!(fixture.unpublish_orphan().await, Ok(()), "{case}");
            }
            assert_eq!(fixture.world.state().unpublished.len(), undone, "{case}");
            assert!(fixture.state().is_idle(), "{case}");
        }
    }
}

/// Its result is not in the status yet.
#[tokio::test]
async fn undoes_a_publish_whose_status_write_failed_if_the_attachment_is_gone() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    let Attachment { name, uid, .. } = fixture.attachment();
    fixture.world.state().attachment = None;
    fixture
        .state()
        .handle(Event::Attachments(Change::Deleted { name, uid }));
    assert_eq!(fixture.unpublish_orphan().await, Ok(()));
    assert_eq!(fixture.world.state().unpublished.len(), 1);
    assert!(fixture.state().is_idle());
}

/// An attached VolumeAttachment is deleted without a detach only if an administrator removes its finalizer. Pods may use the
/// volume.
#[tokio::test]
async fn does_not_unpublish_an_attached_volume_if_the_attachment_is_gone() {
    for republished in [false, true] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        if republished {
            let refused = ("publish", "id", "DeadlineExceeded");
            fixture.world.state().refused_at.push(refused);
            let attached = fixture.attachment();
            fixture.state().attach_again(&attached);
            fixture.fails().await;
        }
        fixture.remove_by_hand();
        assert!(fixture.state().orphans.is_empty(), "{republished}");
    }
}

/// The API server executes the status write of an earlier attach late. Its publish context may be that of an earlier device.
#[tokio::test(start_paused = true)]
async fn writes_the_newest_publish_context_over_that_of_a_late_write() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    let result = fixture
        .attach_during("mark attached", |fixture| {
            let late = fixture.world.change(|attachment| {
                attachment.attached = true;
                let context = BTreeMap::from([("device".to_owned(), "/dev/sda".to_owned())]);
                attachment.metadata = Metadata::of(&context);
            });
            late.expect("it exists");
        })
        .await;
    assert_eq!(result, Ok(()));
    assert!(fixture.attachment().is_attached_with(&BTreeMap::new()));
    assert_eq!(fixture.world.state().published.len(), 1);
}

/// The watch shows the status although its response was lost.
#[tokio::test]
async fn does_not_unpublish_an_attached_volume_if_only_the_watch_showed_its_status() {
    for before_finish in [false, true] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.refuse("mark attached", Error::Unanswered("no response".into()));
        let item = fixture.item().expect("an attach");
        let result = fixture.controller.sync(&item).await;
        let show_status = |fixture: &Fixture| {
            let attached = fixture.world.change(|attachment| attachment.attached = true);
            let change = Change::Applied(attached.expect("it exists"));
            fixture.state().handle(Event::Attachments(change));
        };
        if before_finish {
            show_status(&fixture);
        }
        fixture.finish(&item, result);
        if !before_finish {
            show_status(&fixture);
        }
        fixture.remove_by_hand();
        assert!(fixture.state().orphans.is_empty(), "{before_finish}");
    }
}

/// The response to an earlier status write was lost, and the watch is late.
#[tokio::test(start_paused = true)]
async fn does_not_unpublish_an_attached_volume_if_its_status_appears_during_a_publish() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    let refused = ("publish", "id", "DeadlineExceeded");
    fixture.world.state().refused_at.push(refused);
    // The response would show the status once more.
    fixture.refuse("problem", Error::Unanswered("no response".into()));
    fixture.world.state().silent.push("publish");
    let item = fixture.item().expect("an attach");
    let result = {
        let mut run = std::pin::pin!(fixture.controller.sync(&item));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let attached = fixture.world.change(|attachment| attachment.attached = true);
        let change = Change::Applied(attached.expect("it exists"));
        fixture.state().handle(Event::Attachments(change));
        fixture.world.respond.notify_one();
        run.await
    };
    assert!(result.is_err());
    fixture.finish(&item, result);
    fixture.remove_by_hand();
    assert!(fixture.state().orphans.is_empty());
}

/// A republish makes no difference: a pod may use the volume.
#[tokio::test(start_paused = true)]
async fn does_not_unpublish_an_attached_volume_if_the_attachment_vanishes_during_a_republish() {
    for vanishes in [Vanishes::During, Vanishes::Unwatched] {
        for code in [None, Some("DeadlineExceeded")] {
            let mut fixture = Fixture::new(mk_attachment("va"));
            assert_eq!(fixture.sync_next().await, Some(Ok(())));
            let attached = fixture.attachment();
            fixture.state().attach_again(&attached);
            let refused = code.map(|code| ("publish", "id", code));
            fixture.world.state().refused_at.extend(refused);
            fixture.world.state().silent.push("publish");
            let item = fixture.item().expect("a repair");
            let result = {
                let mut run = std::pin::pin!(fixture.controller.sync(&item));
                assert!(timeout(FOREVER, run.as_mut()).await.is_err());
                match vanishes {
                    Vanishes::During => fixture.remove_by_hand(),
                    Vanishes::Unwatched | Vanishes::After => fixture.world.state().attachment = None,
                }
                fixture.world.respond.notify_one();
                run.await
            };
            fixture.finish(&item, result);
            assert!(fixture.state().orphans.is_empty(), "{vanishes:?} {code:?}");
        }
    }
}

/// A repair must call the driver, although an earlier result was never confirmed.
#[tokio::test]
async fn a_repair_does_not_repeat_an_old_status_write() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    let attached = fixture.world.change(|attachment| attachment.attached = true);
    let attached = attached.expect("it exists");
    fixture
        .state()
        .handle(Event::Attachments(Change::Applied(attached.clone())));
    assert!(fixture.item().is_none());
    fixture.seen();
    fixture.state().attach_again(&attached);
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(fixture.seen().contains(&"publish"));
}

#[tokio::test]
async fn keeps_an_orphan_while_the_driver_has_no_publish_calls() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    let refused = ("publish", "id", "DeadlineExceeded");
    fixture.world.state().refused_at.push(refused);
    fixture.fails().await;
    fixture.remove_by_hand();
    assert!(!fixture.state().orphans.is_empty());
    fixture.world.state().without_publish = true;
    assert!(fixture.unpublish_orphan().await.is_err());
    assert_eq!(fixture.world.state().unpublished, []);
    assert!(!fixture.state().is_idle());
    fixture.world.state().without_publish = false;
    assert_eq!(fixture.unpublish_orphan().await, Ok(()));
    assert_eq!(fixture.world.state().unpublished.len(), 1);
}

/// A driver may return NOT_FOUND for unknown credentials, and shutdown begins no call.
#[tokio::test(start_paused = true)]
async fn an_orphan_waits_for_its_secret() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    fixture.remove_by_hand();
    fixture.refuse("get secret", Error::Unanswered("no response".into()));
    assert!(fixture.unpublish_orphan().await.is_err());
    assert_eq!(fixture.world.state().unpublished, []);

    fixture.world.state().silent.push("get secret");
    let item = fixture.item().expect("the target must be retried");
    let result = {
        let mut run = std::pin::pin!(fixture.controller.sync(&item));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        fixture.controller.draining.cancel();
        run.await
    };
    assert!(result.is_err());
    fixture.finish(&item, result);
    assert_eq!(fixture.world.state().unpublished, []);
    assert!(!fixture.state().orphans.is_empty());
}

/// DeleteVolume may follow the removal of our finalizer.
#[tokio::test]
async fn keeps_pv_finalizer_while_a_target_of_the_volume_is_an_orphan() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    let deleting = Volume {
        version: Version(3),
        deleting: true,
        finalizer: true,
        ..mk_secret_volume()
    };
    fixture
        .state()
        .handle(Event::Volumes(Change::Applied(deleting.clone())));
    fixture.remove_by_hand();
    assert!(!fixture.state().removes_pv_finalizer(&deleting.name));
    assert_eq!(fixture.unpublish_orphan().await, Ok(()));
    assert!(fixture.state().removes_pv_finalizer(&deleting.name));
    fixture.seen();
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.seen(), ["remove PV finalizer"]);
}

/// Its first attempt may have been executed and the response lost, or the watch is late.
#[tokio::test]
async fn conflict_of_a_pv_finalizers_removal_is_followed_by_a_live_read() {
    const REMOVE: &str = "remove PV finalizer";
    for (is_left, expected) in [
        (false, &[REMOVE, "get volume"][..]),
        (true, &[REMOVE, "get volume", REMOVE]),
    ] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.remove_by_hand();
        let deleting = Volume {
            version: Version(3),
            deleting: true,
            finalizer: true,
            ..mk_secret_volume()
        };
        fixture.world.state().volume = Some(Volume {
            version: Version(4),
            finalizer: is_left,
            ..deleting.clone()
        });
        fixture.state().handle(Event::Volumes(Change::Applied(deleting)));
        let status = 409;
        let message = "the object has been modified".into();
        let retry_after = None;
        fixture.refuse(
            REMOVE,
            Error::Rejected {
                status,
                message,
                retry_after,
            },
        );
        fixture.seen();
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        assert_eq!(fixture.seen(), expected);
    }
}

impl Fixture {
    /// An administrator removes the finalizer, and the VolumeAttachment is deleted without a detach.
    pub(super) fn remove_by_hand(&self) {
        let Attachment { name, uid, .. } = self.attachment();
        self.world.state().attachment = None;
        self.state()
            .handle(Event::Attachments(Change::Deleted { name, uid }));
    }

    /// Syncs the next orphan.
    pub(super) async fn unpublish_orphan(&mut self) -> Result<(), SyncError> {
        loop {
            let item = self.item().expect("the target must be retried");
            if matches!(item, Item::Subject(Subject::Orphan(_))) {
                let result = self.controller.sync(&item).await;
                self.finish(&item, result.clone());
                return result;
            }
            self.finish(&item, Err(SyncError::outdated()));
        }
    }
}

/// The driver may be disconnected. A successor of the same name may be deleted before it stores a finalizer, or be attached
/// elsewhere.
#[tokio::test(start_paused = true)]
async fn retries_to_unpublish_an_orphan_until_success_or_another_attachment_uses_it() {
    for (successor, ends, calls) in [
        (None, true, 2),
        (Some((false, "id", false)), false, 4),
        (Some((true, "other-id", false)), false, 4),
        // Both ids may name one machine, where a pod uses the volume.
        (Some((true, "other-id", true)), false, 1),
        (Some((true, "id", false)), true, 1),
    ] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.world.state().silent.push("publish");
        let refused = ("unpublish", "id", "Unavailable");
        fixture.world.state().refused_at.push(refused);
        let item = fixture.item().expect("an attach");
        let (gone, result) = {
            let mut run = std::pin::pin!(fixture.controller.sync(&item));
            assert!(timeout(FOREVER, run.as_mut()).await.is_err());
            let gone = fixture.attachment();
            fixture.world.state().attachment = None;
            fixture.world.respond.notify_one();
            // It holds neither its lane slot nor the lock of its target during the backoff.
            let result = timeout(Duration::from_millis(500), run.as_mut()).await;
            (gone, result.expect("it must not wait"))
        };
        fixture.finish(&item, result);
        assert!(fixture.unpublish_orphan().await.is_err(), "the first attempt");
        assert_eq!(fixture.world.state().unpublished.len(), 1);
        assert!(
            !fixture.state().is_idle(),
            "a lease that is released now lets a successor attach"
        );
        let target = fixture.world.state().unpublished[0].clone();
        assert!(
            fixture
                .controller
                .target_mutexes
                .lock(&target)
                .now_or_never()
                .is_some()
        );
        if let Some((finalizer, node_id, attached)) = successor {
            let successor = Attachment {
                uid: "successor".into(),
                finalizer,
                attached,
                recorded: Recorded {
                    node_id: Some(node_id.into()),
                    ..gone.recorded.clone()
                },
                ..gone
            };
            fixture
                .state()
                .handle(Event::Attachments(Change::Applied(successor)));
        } else {
            fixture.world.state().refused_at.clear();
        }
        for _ in 0..if ends { 1 } else { 3 } {
            let result = fixture.unpublish_orphan().await;
            assert_eq!(result.is_ok(), ends, "{successor:?}: {result:?}");
        }
        assert_eq!(fixture.world.state().unpublished.len(), calls, "{successor:?}");
        assert_eq!(!fixture.state().orphans.is_empty(), !ends, "{successor:?}");
    }
}

/// Otherwise ten throttled writes would block all attaches for the period of Retry-After.
#[tokio::test(start_paused = true)]
async fn requeues_a_throttled_status_write_and_frees_lane_and_lock() {
    let after = Duration::from_secs(300);
    let mut fixture = Fixture::new(mk_attachment("va"));
    let message = "later".into();
    fixture.refuse(
        "mark attached",
        Error::Rejected {
            status: 503,
            message,
            retry_after: Some(after),
        },
    );
    let begun = tokio::time::Instant::now();
    fixture.fails().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(fixture.state().is_idle());
    assert_eq!(fixture.attachment().attach_error, None, "the volume is attached");
    let now = fixture.now;
    assert!(
        fixture
            .state()
            .start(now + after - Duration::from_millis(1))
            .is_none()
    );
    let item = fixture.state().start(now + after).expect("the period is over");
    assert_eq!(fixture.controller.sync(&item).await, Ok(()));
    assert!(fixture.attachment().attached);
    let seen = fixture.seen();
    assert_eq!(seen.iter().filter(|seen| **seen == "publish").count(), 1);
}

/// A restarted driver may have lost the publish, or return another context.
#[tokio::test]
async fn a_reconnect_drops_pending_publish_results() {
    for during_the_sync in [false, true] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.refuse("mark attached", Error::Unanswered("no response".into()));
        let back = Event::DriverConnected(mk_driver().capabilities);
        let item = fixture.item().expect("an attach");
        let result = fixture.controller.sync(&item).await;
        if during_the_sync {
            fixture.state().handle(back);
            fixture.finish(&item, result);
        } else {
            fixture.finish(&item, result);
            fixture.state().handle(back);
        }
        fixture.seen();
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        assert!(fixture.seen().contains(&"publish"), "{during_the_sync}");
    }
}

#[tokio::test(start_paused = true)]
async fn drops_a_publish_result_of_the_previous_connection() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.world.state().silent.push("mark attached");
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    let item = fixture.item().expect("an attach");
    let result = {
        let mut run = std::pin::pin!(fixture.controller.sync(&item));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let back = Event::DriverConnected(mk_driver().capabilities);
        fixture.state().handle(back);
        fixture.world.respond.notify_one();
        run.await
    };
    fixture.finish(&item, result);
    fixture.world.state().silent.clear();
    fixture.seen();
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(fixture.seen().contains(&"publish"));
}

/// The publish context may be too large until the driver is fixed.
#[tokio::test]
async fn publishes_again_only_if_the_api_server_rejects_the_result() {
    // Status, calls, whether the attachError shows it.
    for (status, calls, shown) in [(401, 1, false), (403, 1, false), (422, 2, true)] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        let message = "no".into();
        let retry_after = None;
        let refused = Error::Rejected {
            status,
            message,
            retry_after,
        };
        fixture.refuse("mark attached", refused);
        fixture.fails().await;
        assert_eq!(fixture.attachment().attach_error.is_some(), shown, "{status}");
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        let seen = fixture.seen();
        let made = seen.iter().filter(|seen| **seen == "publish").count();
        assert_eq!(made, calls, "{status}");
    }
}

/// Another client changed the object, or an earlier write was executed late.
#[tokio::test]
async fn decides_again_from_the_newest_version_after_a_conflict() {
    for write in ["record", "mark attached"] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.world.state().silent.push(write);
        let item = fixture.item().expect("an attach");
        let sync = fixture.controller.sync(&item);
        let edit = async {
            while fixture.world.state().seen.last() != Some(&write) {
                tokio::task::yield_now().await;
            }
            // The watch is late.
            fixture.world.change(|_| ()).expect("the attachment exists");
            fixture.world.state().silent.clear();
            fixture.world.respond.notify_one();
        };
        let result = async { futures::join!(sync, edit).0 }.await;
        assert_eq!(result, Ok(()), "{write}");
        fixture.finish(&item, result);
        let seen = fixture.seen();
        let count = |request| seen.iter().filter(|seen| **seen == request).count();
        assert_eq!((count(write), count("publish")), (2, 1), "{seen:?}");
        assert!(fixture.attachment().attached);
        assert_eq!(fixture.attachment().attach_error, None);
    }
}

/// A proxy may answer so, and no write would end it.
#[tokio::test]
async fn a_conflict_with_the_known_version_is_retried_with_backoff() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", conflict());
    fixture.fails().await;
    let seen = fixture.seen();
    assert_eq!(seen.iter().filter(|seen| **seen == "mark attached").count(), 1);
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(!fixture.seen().contains(&"publish"));
}

#[tokio::test]
async fn retries_the_status_write_after_the_finalizer_is_removed() {
    let deleting = Attachment {
        deleting: true,
        finalizer: true,
        attached: true,
        recorded: Recorded {
            node_id: Some("id".into()),
            handle: Some("handle".into()),
            secret: None,
        },
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new(deleting);
    // The watch has not shown it yet.
    if let Some(attachment) = &mut fixture.world.state().attachment {
        attachment.foreign_finalizers = true;
    }
    for attempt in 0..3 {
        fixture.refuse("mark detached", Error::Unanswered("no response".into()));
        fixture.fails().await;
        let seen = fixture.seen();
        let called = seen.contains(&"unpublish") || seen.contains(&"remove finalizer");
        assert_eq!(called, attempt == 0, "{attempt}: {seen:?}");
        assert!(fixture.attachment().attached && !fixture.attachment().finalizer);
    }
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.seen(), ["mark detached"]);
    assert!(!fixture.attachment().has_attached_status());
    assert!(fixture.item().is_none());
}

/// The Go sidecar causes it by a crash between its two writes, and this attacher if another client adds a finalizer.
#[tokio::test]
async fn corrects_a_wrong_status_after_a_crash_without_finalizer() {
    let left = Attachment {
        attached: true,
        finalizer: false,
        foreign_finalizers: true,
        ..mk_deleting()
    };
    let mut fixture = Fixture::new(left.clone());
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(
        fixture.seen(),
        [
            "get attachment",
            "ready",
            "get secret",
            "unpublish",
            "mark detached"
        ]
    );
    let after = fixture.attachment();
    assert!(!after.has_attached_status() && !after.finalizer && after.foreign_finalizers);
    assert!(fixture.item().is_none());

    // Not before the volume is unpublished.
    let mut fixture = Fixture::new(left.clone());
    fixture
        .world
        .state()
        .refused_at
        .push(("unpublish", "id", "Internal"));
    fixture.fails().await;
    let after = fixture.attachment();
    assert!(after.attached && after.detach_error.is_some() && !after.finalizer);
    fixture.world.state().refused_at.clear();
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(!fixture.attachment().has_attached_status());

    // Another VolumeAttachment that uses the target keeps it.
    let mut fixture = Fixture::new(left.clone());
    let active = Attachment {
        finalizer: true,
        attached: true,
        ..mk_attachment("active")
    };
    fixture
        .state()
        .handle(Event::Attachments(Change::Applied(active)));
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().unpublished, []);
    assert!(!fixture.attachment().has_attached_status());

    // A successor of the same name is left alone.
    let mut fixture = Fixture::new(left);
    fixture.world.state().attachment = None;
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.seen(), ["get attachment"]);
}

/// `attached: true` may be true: another client may have removed our finalizer and the record.
#[tokio::test]
async fn corrects_a_wrong_status_without_a_call_if_nothing_is_recorded() {
    let left = Attachment {
        attached: false,
        detach_error: Some(Box::default()),
        finalizer: false,
        foreign_finalizers: true,
        recorded: Recorded::default(),
        ..mk_deleting()
    };
    let mut fixture = Fixture::new(left.clone());
    let node = mk_node("node", None);
    fixture.state().handle(Event::Nodes(Change::Applied(Node {
        version: Version(2),
        ..node
    })));
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().unpublished, []);
    assert!(!fixture.attachment().has_attached_status());

    let mut fixture = Fixture::new(Attachment {
        attached: true,
        ..left
    });
    let node = mk_node("node", None);
    fixture.state().handle(Event::Nodes(Change::Applied(Node {
        version: Version(2),
        ..node
    })));
    fixture.fails().await;
    assert!(fixture.attachment().attached);
}

#[tokio::test]
async fn writes_a_pending_result_without_the_driver() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    assert!(!fixture.attachment().attached);
    fixture.world.state().disconnected = true;
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(fixture.attachment().attached);
    let calls = fixture.seen();
    assert_eq!(calls.iter().filter(|seen| **seen == "publish").count(), 1);
}

/// The current plan refuses the attach, but the volume is published.
#[tokio::test]
async fn writes_a_pending_result_although_an_input_is_missing() {
    let no_volume = |fixture: &Fixture| {
        let Volume { name, uid, .. } = mk_secret_volume();
        let version = None;
        let gone = Change::LocallyDeleted { name, uid, version };
        fixture.state().handle(Event::Volumes(gone));
    };
    let inputs: [(_, fn(&Fixture)); 3] = [
        ("no node", Fixture::delete_csinode),
        ("no volume", no_volume),
        ("a deleting volume", Fixture::delete_volume),
    ];
    for (missing, change) in inputs {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.refuse("mark attached", Error::Unanswered("no response".into()));
        fixture.fails().await;
        change(&fixture);
        fixture.refuse("get volume", Error::Unanswered("no response".into()));
        fixture.seen();
        // A failed write keeps the result.
        fixture.refuse("mark attached", Error::Unanswered("no response".into()));
        fixture.fails().await;
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{missing}");
        assert!(fixture.attachment().attached, "{missing}");
        assert_eq!(fixture.attachment().attach_error, None, "{missing}");
        assert_eq!(fixture.seen(), ["mark attached"; 2], "{missing}");
    }
}

/// Another client removed our finalizer, so no detach would follow.
#[tokio::test]
async fn drops_a_pending_result_without_finalizer_if_an_input_is_missing() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    let edited = fixture.world.change(|attachment| attachment.finalizer = false);
    let edited = Change::Applied(edited.expect("it exists"));
    fixture.state().handle(Event::Attachments(edited));
    fixture.delete_csinode();
    fixture.fails().await;
    assert!(!fixture.attachment().attached);
    let error = fixture.attachment().attach_error.expect("users must see it");
    assert!(error.message.contains("not found"), "{error:?}");
}

#[tokio::test]
async fn reports_a_panic_in_the_status() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.world.state().panics = true;
    fixture.fails().await;
    let error = fixture.attachment().attach_error.expect("users must see it");
    assert!(error.message.contains("internal error (panic)"), "{error:?}");
}

/// INVALID_ARGUMENT does not show that the volume is not published.
#[tokio::test(start_paused = true)]
async fn retries_an_orphan_after_invalid_argument() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    fixture.remove_by_hand();
    let refused = ("unpublish", "id", "InvalidArgument");
    fixture.world.state().refused_at.push(refused);
    assert!(fixture.unpublish_orphan().await.is_err());
    fixture.world.state().refused_at.clear();
    assert_eq!(fixture.unpublish_orphan().await, Ok(()));
    assert!(fixture.state().is_idle());
}

/// As an attach leaves it that was interrupted between its record and its status write.
fn mk_recorded() -> Attachment {
    Attachment {
        deleting: false,
        recorded: Recorded {
            secret: SecretRef::parse("ns/secret"),
            ..mk_deleting().recorded
        },
        ..mk_deleting()
    }
}

/// A watch that goes back past the deletion shows the VolumeAttachment once more, with its record.
#[tokio::test]
async fn publishes_for_no_attachment_that_only_the_watch_shows() {
    let mut fixture = Fixture::new(mk_recorded());
    fixture.world.state().attachment = None;
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(
        fixture.seen(),
        ["ready", "get secret", "add PV finalizer", "get attachment"]
    );
    assert!(fixture.item().is_none());
}

/// One read, or the response to the record's write, suffices while the object is in the store.
#[tokio::test]
async fn confirms_an_attachment_once() {
    for (attachment, reads) in [(mk_attachment("va"), 0), (mk_recorded(), 1)] {
        let mut fixture = Fixture::new(attachment);
        fixture
            .world
            .state()
            .refused_at
            .push(("publish", "id", "Aborted"));
        for _ in 0..3 {
            fixture.fails().await;
        }
        let seen = fixture.seen();
        let count = |request| seen.iter().filter(|seen| **seen == request).count();
        assert_eq!((count("get attachment"), count("publish")), (reads, 3));
    }
}

#[tokio::test]
async fn republish_writes_only_what_it_changes() {
    let attached = Attachment {
        attached: true,
        ..mk_recorded()
    };
    let other = BTreeMap::from([("device".to_owned(), "/dev/x".to_owned())]);
    let failed = Some(Box::new(Problem::default()));
    for (case, attachment, writes) in [
        ("the same context", attached.clone(), false),
        (
            "another context",
            Attachment {
                metadata: Metadata::of(&other),
                ..attached.clone()
            },
            true,
        ),
        (
            "an error",
            Attachment {
                attach_error: failed,
                ..attached
            },
            true,
        ),
    ] {
        let mut fixture = Fixture::new(attachment);
        let attachment = fixture.attachment();
        fixture.state().attach_again(&attachment);
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{case}");
        assert_eq!(fixture.seen().contains(&"mark attached"), writes, "{case}");
        let after = fixture.attachment();
        assert!(after.is_attached_with(&BTreeMap::new()), "{case}");
        assert!(fixture.item().is_none(), "{case}");
    }
}

/// The API server executes the request after the attacher gave it up, and after the status of the next sync.
#[tokio::test]
async fn a_late_error_does_not_replace_a_later_status() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture
        .world
        .state()
        .refused_at
        .push(("publish", "id", "Internal"));
    fixture.refuse("problem", Error::Unanswered("no response".into()));
    fixture.fails().await;
    let sent = fixture.attachment();
    fixture.world.state().refused_at.clear();
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    let problem = Problem::default();
    let late = fixture.world.save_error(&sent, Operation::Attach, &problem);
    assert!(late.await.is_err_and(|error| error.is_conflict()));
    let attachment = fixture.attachment();
    assert!(attachment.attached && attachment.attach_error.is_none());
}

/// It asked for a pause.
#[tokio::test]
async fn writes_no_error_to_an_api_server_that_throttles() {
    let throttled = Error::Rejected {
        status: 429,
        message: "too many requests".into(),
        retry_after: Some(Duration::from_secs(60)),
    };
    for (attachment, write) in [
        (mk_attachment("va"), "record"),
        (mk_attachment("va"), "add PV finalizer"),
        (mk_deleting(), "remove finalizer"),
    ] {
        let mut fixture = Fixture::new(attachment);
        fixture.refuse(write, throttled.clone());
        let result = fixture.sync_next().await.expect("it needs a sync");
        let error = result.expect_err("the write was refused");
        assert_eq!(error.retry_after, Some(Duration::from_secs(60)), "{write}");
        assert!(!fixture.seen().contains(&"problem"), "{write}");
    }
}

/// A webhook, or another client at once, undoes the write.
#[tokio::test]
async fn a_write_that_is_not_stored_backs_off() {
    let outliving = Attachment {
        attached: true,
        foreign_finalizers: true,
        ..mk_deleting()
    };
    let webhook: fn(&mut Attachment) = |attachment| {
        attachment.finalizer = true;
        attachment.attached = attachment.foreign_finalizers;
    };
    for (attachment, write) in [
        (mk_attachment("va"), "add PV finalizer"),
        (mk_deleting(), "remove finalizer"),
        (outliving, "mark detached"),
    ] {
        let mut fixture = Fixture::new(attachment.clone());
        fixture.world.state().strips_pv_finalizers = true;
        fixture.world.state().webhook = attachment.deleting.then_some(webhook);
        fixture.fails().await;
        let seen = fixture.seen();
        assert_eq!(seen.iter().filter(|seen| **seen == write).count(), 1, "{seen:?}");
        assert!(
            seen.contains(&"problem") && !seen.contains(&"publish"),
            "{seen:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_orphan_of_an_earlier_term_is_unpublished() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture
        .world
        .state()
        .refused_at
        .push(("publish", "id", "DeadlineExceeded"));
    fixture.fails().await;
    fixture.remove_by_hand();
    let orphans = fixture.state().orphans();
    assert_eq!(orphans.len(), 1);
    let mut next_term = Fixture::on(fixture.world.clone());
    for orphan in orphans {
        next_term.state().resume_orphan(&orphan);
    }
    assert_eq!(next_term.unpublish_orphan().await, Ok(()));
    assert_eq!(next_term.world.state().unpublished.len(), 1);
    assert!(next_term.state().is_idle());
}

/// A stray DELETED event, or the list of a proxy; a pod uses the volume.
#[tokio::test]
async fn an_orphan_whose_attachment_exists_is_left_alone() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    let Attachment { name, uid, .. } = fixture.attachment();
    fixture
        .state()
        .handle(Event::Attachments(Change::Deleted { name, uid }));
    assert!(fixture.unpublish_orphan().await.is_err());
    assert_eq!(fixture.world.state().unpublished, []);
    fixture.world.state().attachment = None;
    assert_eq!(fixture.unpublish_orphan().await, Ok(()));
    assert_eq!(fixture.world.state().unpublished.len(), 1);
}
