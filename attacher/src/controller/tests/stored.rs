//! What is stored and read before a call.

use super::*;

#[tokio::test]
async fn what_was_never_called_for_can_be_deleted_at_once() {
    let failures = [
        ("get secret", forbidden()),
        ("get secret", Error::NotFound("no such secret".into())),
        ("get secret", Error::Unusable("not valid UTF-8".into())),
    ];
    for (request, error) in failures {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.refuse(request, error.clone());
        bench.fails().await;
        let attachment = bench.attachment();
        assert!(!attachment.finalizer, "{error}");
        let told = attachment.attach_error.expect("people must know");
        assert!(told.message.contains(&error.to_string()), "{told:?}");
        bench.delete();
        assert_eq!(bench.world.state().attachment, None);
        assert_eq!(bench.sync_next().await, None);
        let seen = bench.seen();
        assert!(
            !seen.contains(&"publish") && !seen.contains(&"unpublish"),
            "{seen:?}"
        );
    }
}

#[tokio::test]
async fn a_retry_without_its_secret_writes_nothing_until_it_is_there() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("get secret", forbidden());
    bench.fails().await;
    bench.seen();
    bench.refuse("get secret", forbidden());
    bench.fails().await;
    assert_eq!(bench.seen(), ["ready", "get secret"]);
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(
        bench.seen(),
        [
            "ready",
            "get secret",
            "claim",
            "record",
            "publish",
            "mark attached"
        ]
    );
}

#[tokio::test]
async fn what_may_have_been_called_for_keeps_the_finalizer() {
    let mut bench = Bench::new(Attachment {
        finalizer: true,
        ..mk_attachment("va")
    });
    bench.refuse("get secret", forbidden());
    bench.fails().await;
    assert!(bench.attachment().finalizer);
    assert!(!bench.seen().contains(&"release"));
}

#[tokio::test(start_paused = true)]
async fn our_finalizers_are_stored_side_by_side_and_before_the_call() {
    for [late, other] in [["claim", "record"], ["record", "claim"]] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.world.state().silent.push(late);
        let item = bench.item().expect("an attach");
        let run = bench.controller.sync(&item);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let mut seen = bench.seen();
        seen.sort_unstable();
        assert_eq!(seen, ["claim", "get secret", "ready", "record"], "{late} is late");
        let stored = match other {
            "record" => bench.attachment().finalizer,
            _ => bench.state().volume("pv").is_some_and(|volume| volume.finalizer),
        };
        assert!(stored, "{other} does not wait for {late}");
        bench.world.answer.notify_one();
        assert_eq!(run.await, Ok(()));
        assert_eq!(bench.seen(), ["publish", "mark attached"]);
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_our_finalizers_is_stored_though_the_other_is_refused() {
    for [late, refused] in [["claim", "record"], ["record", "claim"]] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.refuse(refused, forbidden());
        bench.world.state().silent.push(late);
        let item = bench.item().expect("an attach");
        let run = bench.controller.sync(&item);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        bench.world.answer.notify_one();
        assert!(run.await.is_err());
        let volume = bench.state().volume("pv").is_some_and(|volume| volume.finalizer);
        assert_eq!(
            (bench.attachment().finalizer, volume),
            (late == "record", late == "claim")
        );
        assert!(!bench.seen().contains(&"publish"));
    }
}

/// It has the node id on record, and nothing else.
#[tokio::test]
async fn the_handle_of_a_volume_that_is_gone_is_recorded_on_what_the_go_sidecar_attached() {
    let made_by_go = Attachment {
        deleting: false,
        attached: true,
        recorded: Recorded {
            handle: None,
            ..mk_leaving().recorded
        },
        ..mk_leaving()
    };
    let gone = || {
        let Volume { name, uid, .. } = mk_secret_volume();
        Event::Volumes(Change::Deleted { name, uid })
    };
    let mut bench = Bench::new(made_by_go.clone());
    assert!(bench.item().is_none(), "while the volume is there, it tells");
    bench.state().handle(gone());
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    let recorded = bench.attachment().recorded;
    assert_eq!(recorded.handle.as_deref(), Some("handle"));
    assert_eq!(recorded.node_id.as_deref(), Some("id"));
    assert_eq!(recorded.secret, SecretRef::parse("ns/secret"));
    assert!(bench.item().is_none(), "once");

    // Nor has a detach to wait for that.
    let mut bench = Bench::new(made_by_go);
    bench.world.state().volume = None;
    bench.state().handle(gone());
    bench.refuse("record", forbidden());
    bench.fails().await;
    bench.delete();
    while bench.world.state().attachment.is_some() {
        bench.sync_next().await.expect("a detach").ok();
    }
    let unpublished = bench.world.state().unpublished.clone();
    assert_eq!(
        unpublished.iter().map(|t| &*t.volume_id).collect::<Vec<_>>(),
        ["handle"]
    );
    assert!(bench.item().is_none());
}

#[tokio::test]
async fn a_record_that_is_in_doubt_is_written_again_before_the_call() {
    let recorded = Attachment {
        finalizer: true,
        recorded: mk_leaving().recorded,
        ..mk_attachment("va")
    };
    let mut bench = Bench::new(recorded.clone());
    bench.world.state().volume = None;
    bench.state().node_id_update_begins(&recorded);
    let first = bench.sync_next().await;
    let seen = bench.seen();
    let record = seen.iter().position(|seen| *seen == "record").expect("a record");
    let publish = seen.iter().position(|seen| *seen == "publish").expect("a call");
    assert!(record < publish, "{first:?}: {seen:?}");
    assert!(!bench.state().is_node_id_update_pending(&recorded));
}

/// The answer to the write that moved the record to another node's id was lost, and the watch is late, when the
/// node has its old id again.
#[tokio::test]
async fn a_record_that_was_moved_unnoticed_is_moved_back_before_the_call() {
    let known = Attachment {
        finalizer: true,
        attached: true,
        recorded: mk_leaving().recorded,
        ..mk_attachment("va")
    };
    let mut bench = Bench::new(known.clone());
    bench.state().node_id_update_begins(&known);
    bench.state().attach_again(&known);
    if let Some(stored) = &mut bench.world.state().attachment {
        stored.recorded.node_id = Some("other-id".into());
    }
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert!(bench.seen().contains(&"publish"));
    let stored = bench.attachment();
    assert_eq!(stored.recorded.node_id.as_deref(), Some("id"));
    assert!(!bench.state().is_node_id_update_pending(&stored));
}

/// Somebody else's webhook, say.
#[tokio::test]
async fn nothing_is_published_by_a_record_that_is_not_stored() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.world.state().changes_records = true;
    bench.fails().await;
    assert!(!bench.seen().contains(&"publish"));
    let told = bench.attachment().attach_error.expect("people must know");
    assert!(told.message.contains("did not store"), "{told:?}");
    bench.world.state().changes_records = false;
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.attachment().recorded.node_id.as_deref(), Some("id"));
}

/// With a namespace goes the RoleBinding that let us read its Secrets.
#[tokio::test]
async fn a_secret_that_may_not_be_read_any_more_does_not_hold_up_a_detach() {
    for error in [forbidden(), Error::NotFound("no such secret".into())] {
        let leaving = Attachment {
            recorded: Recorded {
                secret: SecretRef::parse("ns/secret"),
                ..mk_leaving().recorded
            },
            ..mk_leaving()
        };
        let mut bench = Bench::new(leaving.clone());
        bench.refuse("get secret", error.clone());
        assert_eq!(bench.sync_next().await, Some(Ok(())), "{error}");
        assert_eq!(bench.world.state().unpublished.len(), 1);
        let mut bench = Bench::new(leaving);
        bench.refuse("get secret", error.clone());
        bench
            .world
            .state()
            .refused_at
            .push(("unpublish", "id", "Internal"));
        bench.fails().await;
        let told = bench.attachment().detach_error.expect("people must know");
        assert!(told.message.contains("without secret \"ns/secret\""), "{told:?}");
    }
}

/// A detach of the same volume and node waits for its finalizer.
#[tokio::test]
async fn stores_the_finalizer_of_an_attached_volume_that_cannot_be_published_again() {
    for (handle, stores) in [(Some("handle"), true), (None, false)] {
        let unguarded = Attachment {
            attached: true,
            finalizer: false,
            deleting: false,
            recorded: Recorded {
                handle: handle.map(Arc::from),
                ..mk_leaving().recorded
            },
            ..mk_leaving()
        };
        let mut bench = Bench::new(unguarded);
        let Volume { name, uid, .. } = mk_secret_volume();
        bench.world.state().volume = None;
        bench
            .state()
            .handle(Event::Volumes(Change::Deleted { name, uid }));
        bench.fails().await;
        assert_eq!(bench.attachment().finalizer, stores, "{handle:?}");
        assert!(!bench.seen().contains(&"publish"));
    }
}
