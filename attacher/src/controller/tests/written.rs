//! What is written and told after a call.

use super::*;

/// Nobody is left to detach it, and it may be published all the same.
#[tokio::test(start_paused = true)]
async fn an_attach_that_may_have_failed_is_undone_when_the_attachment_is_gone() {
    for (code, undone) in [("DeadlineExceeded", 1), ("Internal", 0)] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.world.state().refused_at.push(("publish", "id", code));
        bench.world.state().silent.push("publish");
        let item = bench.item().expect("an attach");
        let mut run = std::pin::pin!(bench.controller.sync(&item));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let Attachment { name, uid, .. } = bench.attachment();
        bench.world.state().attachment = None;
        bench
            .state()
            .handle(Event::Attachments(Change::Deleted { name, uid }));
        bench.world.answer.notify_one();
        assert!(run.await.is_err());
        assert_eq!(bench.world.state().unpublished.len(), undone, "{code}");
    }
}

impl Bench {
    /// Runs the next attempt to unpublish a target whose attachment is gone.
    async fn unpublish_abandoned(&mut self) -> Result<(), SyncError> {
        loop {
            let item = self.item().expect("the target must be retried");
            if matches!(item, Item::Target(_)) {
                let result = self.controller.sync(&item).await;
                self.finish(&item, result.clone());
                return result;
            }
        }
    }
}

/// The driver may be away at that moment. A successor of the same name may be deleted before it stores a finalizer, or be
/// attached elsewhere.
#[tokio::test(start_paused = true)]
async fn retries_to_unpublish_an_abandoned_target_until_it_works_or_another_attachment_holds_it() {
    for (successor, ends, calls) in [
        (None, true, 2),
        (Some((false, "id")), false, 4),
        (Some((true, "other-id")), false, 4),
        (Some((true, "id")), true, 1),
    ] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.world.state().silent.push("publish");
        let refused = ("unpublish", "id", "Unavailable");
        bench.world.state().refused_at.push(refused);
        let item = bench.item().expect("an attach");
        let (gone, result) = {
            let mut run = std::pin::pin!(bench.controller.sync(&item));
            assert!(timeout(FOREVER, run.as_mut()).await.is_err());
            let gone = bench.attachment();
            bench.world.state().attachment = None;
            bench.world.answer.notify_one();
            // It does not wait with a place in its lane and the lock of its target.
            let result = timeout(Duration::from_millis(500), run.as_mut()).await;
            (gone, result.expect("it must not wait"))
        };
        bench.finish(&item, result);
        assert_eq!(bench.world.state().unpublished.len(), 1, "the first attempt");
        assert!(
            !bench.state().is_idle(),
            "a lease that is released now lets a successor attach"
        );
        let target = bench.world.state().unpublished[0].clone();
        assert!(bench.controller.lock_target(&target).now_or_never().is_some());
        if let Some((finalizer, node_id)) = successor {
            let successor = Attachment {
                uid: "successor".into(),
                finalizer,
                recorded: Recorded {
                    node_id: Some(node_id.into()),
                    ..gone.recorded.clone()
                },
                ..gone
            };
            bench
                .state()
                .handle(Event::Attachments(Change::Applied(successor)));
        } else {
            bench.world.state().refused_at.clear();
        }
        for _ in 0..if ends { 1 } else { 3 } {
            let result = bench.unpublish_abandoned().await;
            assert_eq!(result.is_ok(), ends, "{successor:?}: {result:?}");
        }
        assert_eq!(bench.world.state().unpublished.len(), calls, "{successor:?}");
        assert_eq!(bench.state().has_abandoned_targets(), !ends, "{successor:?}");
    }
}

/// Ten of them would stop all attaches for as long as the API server asks.
#[tokio::test(start_paused = true)]
async fn requeues_a_throttled_status_write_and_frees_lane_and_lock() {
    let after = Duration::from_secs(300);
    let mut bench = Bench::new(mk_attachment("va"));
    let message = "later".into();
    bench.refuse(
        "mark attached",
        Error::Throttled {
            status: 503,
            message,
            after,
        },
    );
    let begun = tokio::time::Instant::now();
    bench.fails().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(bench.state().is_idle());
    assert_eq!(bench.attachment().attach_error, None, "the volume is attached");
    let now = bench.now;
    assert!(
        bench
            .state()
            .start(now + after - Duration::from_millis(1))
            .is_none()
    );
    let item = bench.state().start(now + after).expect("the time is over");
    assert_eq!(bench.controller.sync(&item).await, Ok(()));
    assert!(bench.attachment().attached);
    let seen = bench.seen();
    assert_eq!(seen.iter().filter(|seen| **seen == "publish").count(), 1);
}

/// It may have forgotten what was published, or publish it otherwise.
#[tokio::test]
async fn an_answer_does_not_outlive_the_driver_that_gave_it() {
    for while_it_is_written in [false, true] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.refuse("mark attached", Error::Unanswered("no answer".into()));
        let back = Event::DriverBack(mk_driver().capabilities);
        let item = bench.item().expect("an attach");
        let result = bench.controller.sync(&item).await;
        if while_it_is_written {
            bench.state().handle(back);
            bench.finish(&item, result);
        } else {
            bench.finish(&item, result);
            bench.state().handle(back);
        }
        bench.seen();
        assert_eq!(bench.sync_next().await, Some(Ok(())));
        assert!(bench.seen().contains(&"publish"), "{while_it_is_written}");
    }
}

/// Its context may be too large, say, until somebody mends the driver.
#[tokio::test]
async fn an_answer_that_the_api_server_refuses_is_asked_for_again() {
    // Status, calls, whether the attachError shows it.
    for (status, calls, shown) in [(401, 1, false), (403, 1, false), (409, 1, true), (422, 2, true)] {
        let mut bench = Bench::new(mk_attachment("va"));
        let message = "no".into();
        bench.refuse("mark attached", Error::Refused { status, message });
        bench.fails().await;
        assert_eq!(bench.attachment().attach_error.is_some(), shown, "{status}");
        assert_eq!(bench.sync_next().await, Some(Ok(())));
        let seen = bench.seen();
        let made = seen.iter().filter(|seen| **seen == "publish").count();
        assert_eq!(made, calls, "{status}");
    }
}

#[tokio::test]
async fn a_status_that_outlives_our_finalizer_is_written_however_often_that_fails() {
    let leaving = Attachment {
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
    let mut bench = Bench::new(leaving);
    // Which the watch has not told.
    if let Some(attachment) = &mut bench.world.state().attachment {
        attachment.foreign_finalizers = true;
    }
    for attempt in 0..3 {
        bench.refuse("mark detached", Error::Unanswered("no answer".into()));
        bench.fails().await;
        let seen = bench.seen();
        let called = seen.contains(&"unpublish") || seen.contains(&"release");
        assert_eq!(called, attempt == 0, "{attempt}: {seen:?}");
        assert!(bench.attachment().attached && !bench.attachment().finalizer);
    }
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.seen(), ["mark detached"]);
    assert!(!bench.attachment().says_attached());
    assert!(bench.item().is_none());
}

/// As the Go sidecar leaves it behind when it dies between its two writes, and we when a finalizer came that we had not
/// seen.
#[tokio::test]
async fn a_status_that_is_wrong_after_a_crash_is_put_right_without_our_finalizer() {
    let left = Attachment {
        attached: true,
        finalizer: false,
        foreign_finalizers: true,
        ..mk_leaving()
    };
    let mut bench = Bench::new(left.clone());
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(
        bench.seen(),
        [
            "get attachment",
            "ready",
            "get secret",
            "unpublish",
            "mark detached"
        ]
    );
    let after = bench.attachment();
    assert!(!after.says_attached() && !after.finalizer && after.foreign_finalizers);
    assert!(bench.item().is_none());

    // Not before it is certain that the volume is not there.
    let mut bench = Bench::new(left.clone());
    bench
        .world
        .state()
        .refused_at
        .push(("unpublish", "id", "Internal"));
    bench.fails().await;
    let after = bench.attachment();
    assert!(after.attached && after.detach_error.is_some() && !after.finalizer);
    bench.world.state().refused_at.clear();
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert!(!bench.attachment().says_attached());

    // Whoever else needs it there keeps it.
    let mut bench = Bench::new(left.clone());
    let living = Attachment {
        finalizer: true,
        attached: true,
        ..mk_attachment("living")
    };
    bench.state().handle(Event::Attachments(Change::Applied(living)));
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.world.state().unpublished, []);
    assert!(!bench.attachment().says_attached());

    // Its successor by name is nothing to it.
    let mut bench = Bench::new(left);
    bench.world.state().attachment = None;
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.seen(), ["get attachment"]);
}

#[tokio::test]
async fn a_status_without_a_record_is_put_right_without_a_call_where_none_can_be_made() {
    let left = Attachment {
        attached: true,
        finalizer: false,
        foreign_finalizers: true,
        recorded: Recorded::default(),
        ..mk_leaving()
    };
    let mut bench = Bench::new(left.clone());
    let node = mk_node("node", None);
    bench.state().handle(Event::Nodes(Change::Applied(Node {
        version: Version(2),
        ..node
    })));
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.world.state().unpublished, []);
    assert!(!bench.attachment().says_attached());
}

/// What the list shows, no call has to bring about.
#[tokio::test]
async fn an_error_that_is_outdated_is_cleared_without_a_call() {
    let attached = Attachment {
        attached: true,
        deleting: false,
        attach_error: Some(Box::default()),
        ..mk_leaving()
    };
    let mut bench = Bench::new(attached);
    let Some(Item::Attachment {
        attachment,
        operation,
        repair,
        ..
    }) = bench.item()
    else {
        panic!("an attach");
    };
    let item = Item::Attachment {
        attachment,
        operation,
        repair,
        pending: Some(PendingStatusWrite::Listed),
    };
    assert_eq!(bench.controller.sync(&item).await, Ok(()));
    assert_eq!(bench.seen(), ["mark attached"]);
    assert_eq!(bench.attachment().attach_error, None);
}

#[tokio::test]
async fn an_answer_is_written_while_the_driver_is_away() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("mark attached", Error::Unanswered("no answer".into()));
    bench.fails().await;
    assert!(!bench.attachment().attached);
    bench.world.state().away = true;
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert!(bench.attachment().attached);
    let calls = bench.seen();
    assert_eq!(calls.iter().filter(|seen| **seen == "publish").count(), 1);
}

#[tokio::test]
async fn an_answer_outlasts_a_failure_to_read_what_it_needs() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("mark attached", Error::Unanswered("no answer".into()));
    bench.fails().await;
    let volume = mk_secret_volume();
    let unknown = Change::LocallyDeleted {
        name: volume.name,
        uid: volume.uid,
    };
    bench.state().handle(Event::Volumes(unknown));
    bench.refuse("get volume", Error::Unanswered("no answer".into()));
    bench.fails().await;
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    let calls = bench.seen();
    assert_eq!(calls.iter().filter(|seen| **seen == "publish").count(), 1);
}

#[tokio::test]
async fn a_panic_is_told_in_the_status() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.world.state().panics = true;
    bench.fails().await;
    let told = bench.attachment().attach_error.expect("people must know");
    assert!(told.message.contains("internal error (panic)"), "{told:?}");
}
