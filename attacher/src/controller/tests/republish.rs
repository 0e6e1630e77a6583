//! Nodes that registered again under another id.

use super::*;

/// Attached on a node that registered again under another id, and without our finalizer.
fn mk_reregistered() -> Attachment {
    Attachment {
        attached: true,
        finalizer: false,
        deleting: false,
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_leaving().recorded
        },
        ..mk_leaving()
    }
}

/// A concurrent detach of the new target may have checked its users before the record changed.
#[tokio::test(start_paused = true)]
async fn changes_the_recorded_node_id_only_under_the_new_targets_lock() {
    let mut bench = Bench::new(mk_reregistered());
    let refused = ("publish", "old-id", "NotFound");
    bench.world.state().refused_at.push(refused);
    let item = bench.item().expect("an attach");
    let there = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    let others = bench.controller.target_mutexes.lock(&there).await;
    let run = bench.controller.sync(&item);
    let mut run = std::pin::pin!(run);
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    assert!(bench.seen().contains(&"publish"));
    assert_eq!(bench.attachment().recorded.node_id.as_deref(), Some("old-id"));
    drop(others);
    assert_eq!(run.await, Ok(()));
    assert_eq!(bench.attachment().recorded.node_id.as_deref(), Some("id"));
}

/// The volume is published nowhere then.
#[tokio::test]
async fn retries_a_failed_publish_to_the_present_node_id() {
    let mut bench = Bench::new(mk_reregistered());
    bench.world.state().refused_at.extend([
        ("publish", "old-id", "NotFound"),
        ("publish", "id", "DeadlineExceeded"),
    ]);
    bench.fails().await;
    let attachment = bench.attachment();
    assert!(attachment.finalizer && attachment.attached);
    assert_eq!(attachment.recorded.node_id.as_deref(), Some("id"));
    bench.world.state().refused_at.clear();
    bench.seen();
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.seen(), ["ready", "get secret", "publish", "mark attached"]);
    assert_eq!(bench.sync_next().await, None);
}

/// The next process knows from what is stored that the volume is published nowhere.
#[tokio::test(start_paused = true)]
async fn republish_to_the_present_node_id_survives_a_crash_at_any_request() {
    let mut requests = 0;
    loop {
        let mut bench = Bench::new(mk_reregistered());
        let refused = ("publish", "old-id", "NotFound");
        bench.world.state().refused_at.push(refused);
        bench.world.state().dies_after = Some(requests);
        let item = bench.item().expect("an attach");
        let survived = timeout(FOREVER, bench.controller.sync(&item)).await.is_ok();
        bench.world.state().dies_after = None;
        let mut bench = Bench::on(bench.world);
        while let Some(result) = bench.sync_next().await {
            assert_eq!(result, Ok(()), "{requests}");
        }
        let attachment = bench.attachment();
        assert!(attachment.attached && attachment.finalizer, "{requests}");
        assert_eq!(attachment.attach_error, None, "{requests}");
        assert_eq!(attachment.recorded.node_id.as_deref(), Some("id"), "{requests}");
        let state = bench.world.state();
        let published = state.published.last().map(|target| &*target.node_id);
        assert_eq!(published, Some("id"), "{requests}");
        let old = |target: &PublishTarget| &*target.node_id == "old-id";
        assert!(state.unpublished.iter().any(old), "{requests}");
        drop(state);
        if survived {
            break;
        }
        requests += 1;
    }
    assert!(requests > 8, "it died only {requests} times");
}

#[tokio::test]
async fn republish_unpublishes_the_recorded_node_id_first() {
    let without_finalizer = mk_reregistered();
    for (answer, moves) in [
        (None, true),
        (Some("NotFound"), true),
        (Some("InvalidArgument"), false),
    ] {
        let mut bench = Bench::new(without_finalizer.clone());
        bench
            .world
            .state()
            .refused_at
            .push(("publish", "old-id", "InvalidArgument"));
        if let Some(code) = answer {
            bench.world.state().refused_at.push(("unpublish", "old-id", code));
        }
        let result = bench.sync_next().await.expect("an attach");
        assert_eq!(result.is_ok(), moves, "{answer:?}: {result:?}");
        assert_eq!(bench.world.state().unpublished.len(), 1, "{answer:?}");
        let recorded = bench.attachment().recorded.node_id;
        let expected = if moves { "id" } else { "old-id" };
        assert_eq!(recorded.as_deref(), Some(expected), "{answer:?}");
    }
}

#[tokio::test]
async fn detach_leaves_the_present_node_id_if_another_node_has_it() {
    let leaving = Attachment {
        deleting: true,
        finalizer: true,
        recorded: Recorded {
            node_id: Some("old-id".into()),
            handle: Some("handle".into()),
            secret: None,
        },
        ..mk_attachment("va")
    };
    for needed in [false, true] {
        let mut bench = Bench::new(leaving.clone());
        bench.world.state().unknown = true;
        if needed {
            let living = Attachment {
                finalizer: true,
                attached: true,
                node: "node-2".into(),
                ..mk_attachment("living")
            };
            bench.move_id_to_another_node("id");
            bench.state().handle(Event::Attachments(Change::Applied(living)));
        }
        assert_eq!(bench.sync_next().await, Some(Ok(())));
        assert_eq!(bench.world.state().attachment, None);
        let ids: Vec<_> = bench.world.state().unpublished.drain(..).collect();
        let ids: Vec<_> = ids.iter().map(|target| &*target.node_id).collect();
        let expected: &[&str] = if needed { &["old-id"] } else { &["old-id", "id"] };
        assert_eq!(ids, expected);
    }
}

/// INVALID_ARGUMENT may be about the missing Secret, and the volume still published.
#[tokio::test]
async fn detach_without_secret_does_not_trust_invalid_argument() {
    for (missing, code, done) in [
        (false, "InvalidArgument", true),
        (true, "InvalidArgument", false),
        (true, "NotFound", true),
    ] {
        let mut bench = Bench::new(Attachment {
            recorded: Recorded {
                node_id: Some("old-id".into()),
                secret: SecretRef::parse("ns/secret"),
                ..mk_leaving().recorded
            },
            ..mk_leaving()
        });
        bench.world.state().refused_at.push(("unpublish", "old-id", code));
        if missing {
            bench.refuse("get secret", Error::NotFound("no such secret".into()));
        }
        let result = bench.sync_next().await.expect("a detach");
        assert_eq!(result.is_ok(), done, "{missing} {code}: {result:?}");
        let calls = bench.world.state().unpublished.len();
        assert_eq!(calls, if done { 2 } else { 1 }, "{missing} {code}");
        assert_eq!(bench.world.state().attachment.is_none(), done, "{missing} {code}");
    }
}

impl Bench {
    /// Another node has this id, too.
    fn move_id_to_another_node(&self, id: &str) {
        let node = mk_node("node-2", Some(id));
        self.state().handle(Event::Nodes(Change::Applied(node)));
    }
}

fn mk_leaving_of_old_id() -> Attachment {
    Attachment {
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_leaving().recorded
        },
        ..mk_leaving()
    }
}

/// vSphere's driver answers OK for unknown nodes, and knows the machine by its new id alone.
#[tokio::test]
async fn detach_unpublishes_both_node_ids_although_the_driver_accepts_the_recorded_one() {
    let mut bench = Bench::new(mk_leaving_of_old_id());
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    let unpublished = bench.world.state().unpublished.clone();
    let ids: Vec<_> = unpublished.iter().map(|target| &*target.node_id).collect();
    assert_eq!(ids, ["old-id", "id"]);
    assert_eq!(bench.world.state().attachment, None);
}

#[tokio::test]
async fn detach_keeps_the_finalizer_until_the_present_node_id_is_unpublished() {
    let mut bench = Bench::new(mk_leaving_of_old_id());
    let refused = ("unpublish", "id", "Unavailable");
    bench.world.state().refused_at.push(refused);
    bench.fails().await;
    let attachment = bench.attachment();
    assert!(attachment.finalizer);
    assert_eq!(attachment.detach_error.and_then(|error| error.code), Some(14));
    bench.world.state().refused_at.clear();
    assert_eq!(bench.sync_next().await, Some(Ok(())));
    assert_eq!(bench.world.state().attachment, None);
}

#[tokio::test]
async fn detach_leaves_the_present_node_id_to_an_attachment_that_uses_the_volume_on_that_node() {
    // By its record, or by the present id of its node, whatever its record says.
    for recorded in ["id", "older-id"] {
        let mut bench = Bench::new(mk_leaving_of_old_id());
        let living = Attachment {
            finalizer: true,
            attached: true,
            recorded: Recorded {
                node_id: Some(recorded.into()),
                ..mk_leaving().recorded
            },
            node: "node-2".into(),
            ..mk_attachment("living")
        };
        bench.move_id_to_another_node("id");
        bench.state().handle(Event::Attachments(Change::Applied(living)));
        assert_eq!(bench.sync_next().await, Some(Ok(())));
        let unpublished = bench.world.state().unpublished.clone();
        let ids: Vec<_> = unpublished.iter().map(|target| &*target.node_id).collect();
        assert_eq!(ids, ["old-id"], "{recorded}");
        assert_eq!(bench.world.state().attachment, None, "{recorded}");
    }
}

#[tokio::test]
async fn detach_error_names_both_node_ids_if_the_driver_accepts_neither() {
    for (present, shown) in [(Some("id"), "\"id\""), (None, "shows none")] {
        let mut bench = Bench::new(mk_leaving_of_old_id());
        bench.world.state().refused_at.extend([
            ("unpublish", "old-id", "InvalidArgument"),
            ("unpublish", "id", "NotFound"),
        ]);
        let node = Node {
            version: Version(2),
            ..mk_node("node", present)
        };
        bench.state().handle(Event::Nodes(Change::Applied(node)));
        bench.fails().await;
        let attachment = bench.attachment();
        assert!(attachment.finalizer);
        let message = attachment.detach_error.expect("users must see it").message;
        for part in ["\"old-id\"", shown, "remove our finalizer"] {
            assert!(message.contains(part), "{message}");
        }
        // Another node id ends its backoff.
        let node = Node {
            version: Version(3),
            ..mk_node("node", Some("new-id"))
        };
        bench.state().handle(Event::Nodes(Change::Applied(node)));
        let now = bench.now;
        let item = bench.state().start(now).expect("it must not wait");
        assert_eq!(bench.controller.sync(&item).await, Ok(()));
        assert_eq!(bench.world.state().attachment, None);
    }
}

#[tokio::test(start_paused = true)]
async fn detach_unpublishes_an_id_under_which_the_node_registered_during_its_calls() {
    let mut bench = Bench::new(mk_leaving());
    let result = bench.attach_during("unpublish", Bench::register_again).await;
    assert!(result.is_err(), "{result:?}");
    assert!(bench.attachment().finalizer);
    assert_eq!(bench.at_once().await, Ok(()));
    let unpublished = bench.world.state().unpublished.clone();
    assert_eq!(unpublished.last().map(|target| &*target.node_id), Some("new-id"));
    assert_eq!(bench.world.state().attachment, None);
}
