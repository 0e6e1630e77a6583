//! Nodes that registered again under another id.

use super::*;

#[tokio::test]
async fn detach_leaves_the_present_node_id_if_another_node_has_it() {
    let deleting = Attachment {
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
        let mut fixture = Fixture::new(deleting.clone());
        if needed {
            let active = Attachment {
                finalizer: true,
                attached: true,
                node: "node-2".into(),
                ..mk_attachment("active")
            };
            fixture.move_id_to_another_node("id");
            fixture
                .state()
                .handle(Event::Attachments(Change::Applied(active)));
        }
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        assert_eq!(fixture.world.state().attachment, None);
        let ids: Vec<_> = fixture.world.state().unpublished.drain(..).collect();
        let ids: Vec<_> = ids.iter().map(|target| &*target.node_id).collect();
        let expected: &[&str] = if needed { &["old-id"] } else { &["old-id", "id"] };
        assert_eq!(ids, expected);
    }
}

/// INVALID_ARGUMENT may be about the missing Secret, and the volume still published.
#[tokio::test]
async fn detach_without_secret_does_not_trust_invalid_argument() {
    for (missing, node_id, code, done, calls) in [
        (false, "old-id", "InvalidArgument", false, 2),
        (true, "old-id", "InvalidArgument", false, 1),
        (false, "old-id", "NotFound", false, 2),
        (true, "old-id", "NotFound", false, 1),
        (false, "id", "InvalidArgument", true, 2),
        // OK for the recorded id is no proof, as the driver may not know that id.
        (true, "id", "InvalidArgument", false, 2),
        (true, "id", "NotFound", false, 2),
        (false, "id", "NotFound", false, 2),
    ] {
        let case = format!("{missing} {node_id} {code}");
        let mut fixture = Fixture::new(Attachment {
            recorded: Recorded {
                node_id: Some("old-id".into()),
                secret: SecretRef::parse("ns/secret"),
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        });
        fixture
            .world
            .state()
            .refused_at
            .push(("unpublish", node_id, code));
        if missing {
            fixture.refuse("get secret", Error::NotFound("no such secret".into()));
        }
        let result = fixture.sync_next().await.expect("a detach");
        assert_eq!(result.is_ok(), done, "{case}: {result:?}");
        assert_eq!(fixture.world.state().unpublished.len(), calls, "{case}");
        assert_eq!(fixture.world.state().attachment.is_none(), done, "{case}");
        if !done {
            let error = fixture.attachment().detach_error.expect("users must see it");
            let names_secret = error.message.contains("without secret \"ns/secret\"");
            assert_eq!(names_secret, missing, "{error:?}");
        }
    }
}

impl Fixture {
    /// Registers another node under the same id.
    fn move_id_to_another_node(&self, id: &str) {
        let node = mk_node("node-2", Some(id));
        self.state().handle(Event::Nodes(Change::Applied(node)));
    }
}

fn mk_deleting_of_old_id() -> Attachment {
    Attachment {
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_deleting().recorded
        },
        ..mk_deleting()
    }
}

/// vSphere's driver returns OK for unknown nodes, and knows the machine only by its new id.
#[tokio::test]
async fn detach_unpublishes_both_node_ids_although_the_driver_accepts_the_recorded_one() {
    let mut fixture = Fixture::new(mk_deleting_of_old_id());
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    let unpublished = fixture.world.state().unpublished.clone();
    let ids: Vec<_> = unpublished.iter().map(|target| &*target.node_id).collect();
    assert_eq!(ids, ["old-id", "id"]);
    assert_eq!(fixture.world.state().attachment, None);
}

#[tokio::test]
async fn detach_keeps_the_finalizer_until_the_present_node_id_is_unpublished() {
    let mut fixture = Fixture::new(mk_deleting_of_old_id());
    let refused = ("unpublish", "id", "Unavailable");
    fixture.world.state().refused_at.push(refused);
    fixture.fails().await;
    let attachment = fixture.attachment();
    assert!(attachment.finalizer);
    assert_eq!(attachment.detach_error.and_then(|error| error.code), Some(14));
    fixture.world.state().refused_at.clear();
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().attachment, None);
}

/// The volume is unpublished from the recorded node id, and the node has no other.
#[tokio::test]
async fn detach_ends_when_the_csinode_with_the_failing_present_node_id_is_deleted() {
    let mut fixture = Fixture::new(mk_deleting_of_old_id());
    let refused = ("unpublish", "id", "Internal");
    fixture.world.state().refused_at.push(refused);
    fixture.fails().await;
    assert!(fixture.attachment().finalizer);
    fixture.delete_csinode();
    assert_eq!(fixture.at_once().await, Ok(()));
    assert_eq!(fixture.world.state().attachment, None);
}

#[tokio::test]
async fn detach_leaves_the_present_node_id_to_an_attachment_that_uses_the_volume_on_that_node() {
    // By its record, or by the present id of its node although its record names another.
    for recorded in ["id", "older-id"] {
        let mut fixture = Fixture::new(mk_deleting_of_old_id());
        let active = Attachment {
            finalizer: true,
            attached: true,
            recorded: Recorded {
                node_id: Some(recorded.into()),
                ..mk_deleting().recorded
            },
            node: "node-2".into(),
            ..mk_attachment("active")
        };
        fixture.move_id_to_another_node("id");
        fixture
            .state()
            .handle(Event::Attachments(Change::Applied(active)));
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        let unpublished = fixture.world.state().unpublished.clone();
        let ids: Vec<_> = unpublished.iter().map(|target| &*target.node_id).collect();
        assert_eq!(ids, ["old-id"], "{recorded}");
        assert_eq!(fixture.world.state().attachment, None, "{recorded}");
    }
}

#[tokio::test]
async fn detach_error_names_both_node_ids_if_the_driver_accepts_neither() {
    for (present, shown) in [(Some("id"), "\"id\""), (None, "does not list the driver")] {
        let mut fixture = Fixture::new(mk_deleting_of_old_id());
        fixture.world.state().refused_at.extend([
            ("unpublish", "old-id", "InvalidArgument"),
            ("unpublish", "id", "NotFound"),
        ]);
        let node = Node {
            version: Version(2),
            ..mk_node("node", present)
        };
        fixture.state().handle(Event::Nodes(Change::Applied(node)));
        fixture.fails().await;
        let attachment = fixture.attachment();
        assert!(attachment.finalizer);
        let message = attachment.detach_error.expect("users must see it").message;
        for part in ["\"old-id\"", shown, "remove our finalizer"] {
            assert!(message.contains(part), "{message}");
        }
        // Another node id ends its backoff.
        fixture.world.state().refused_at.clear();
        let node = Node {
            version: Version(3),
            ..mk_node("node", Some("new-id"))
        };
        fixture.state().handle(Event::Nodes(Change::Applied(node)));
        let now = fixture.now;
        let item = fixture.state().start(now).expect("it must not wait");
        assert_eq!(fixture.controller.sync(&item).await, Ok(()));
        assert_eq!(fixture.world.state().attachment, None);
    }
}

#[tokio::test(start_paused = true)]
async fn detach_unpublishes_an_id_under_which_the_node_registered_during_its_calls() {
    let mut fixture = Fixture::new(mk_deleting());
    let result = fixture.attach_during("unpublish", Fixture::register_again).await;
    assert_eq!(result, Ok(()));
    let unpublished = fixture.world.state().unpublished.clone();
    assert_eq!(unpublished.last().map(|target| &*target.node_id), Some("new-id"));
    assert_eq!(fixture.world.state().attachment, None);
}

/// The finalizer could not be removed, and the node registers again before the write is repeated.
#[tokio::test]
async fn detach_unpublishes_an_id_under_which_the_node_registered_before_the_write_is_repeated() {
    let mut fixture = Fixture::new(mk_deleting());
    fixture.refuse("remove finalizer", Error::Unanswered("no response".into()));
    fixture.fails().await;
    fixture.register_again();
    for _ in 0..3 {
        if fixture.world.state().attachment.is_some() {
            fixture.sync_next().await.expect("a detach").ok();
        }
    }
    let unpublished = fixture.world.state().unpublished.clone();
    assert_eq!(unpublished.last().map(|target| &*target.node_id), Some("new-id"));
    assert_eq!(fixture.world.state().attachment, None);
}

/// The PersistentVolume was replaced by one with another handle. INVALID_ARGUMENT cannot be about the node id, which is valid.
#[tokio::test]
async fn undo_of_another_volume_does_not_trust_invalid_argument() {
    let recorded = Recorded {
        handle: Some("former-handle".into()),
        ..mk_deleting().recorded
    };
    let attachment = Attachment {
        finalizer: true,
        recorded: recorded.clone(),
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new(attachment);
    let refused = ("unpublish", "id", "InvalidArgument");
    fixture.world.state().refused_at.push(refused);
    fixture.fails().await;
    assert_eq!(fixture.attachment().recorded, recorded);
    assert!(!fixture.seen().contains(&"publish"));
}

/// The machine may be the same, so the former volume may be attached under the present id, which the record will not contain
/// any more. The codes are the driver's results for the recorded id and the present one.
#[tokio::test]
async fn undo_of_another_volume_unpublishes_both_node_ids() {
    for (recorded_code, present_code, published) in [
        (None, None, true),
        (None, Some("NotFound"), false),
        (None, Some("InvalidArgument"), true),
        (None, Some("Internal"), false),
        (Some("InvalidArgument"), None, false),
        (Some("InvalidArgument"), Some("NotFound"), false),
        (Some("Internal"), None, false),
    ] {
        let case = format!("{recorded_code:?} {present_code:?}");
        let recorded = Recorded {
            handle: Some("former-handle".into()),
            node_id: Some("old-id".into()),
            secret: None,
        };
        let attachment = Attachment {
            finalizer: true,
            recorded: recorded.clone(),
            ..mk_attachment("va")
        };
        let mut fixture = Fixture::new(attachment);
        let results = [("old-id", recorded_code), ("id", present_code)];
        let refused = results.map(|(id, code)| code.map(|code| ("unpublish", id, code)));
        fixture
            .world
            .state()
            .refused_at
            .extend(refused.into_iter().flatten());
        let result = fixture.sync_next().await.expect("an attach");
        assert_eq!(result.is_ok(), published, "{case}: {result:?}");
        let former = |node_id: &str| PublishTarget {
            volume_id: "former-handle".into(),
            node_id: node_id.into(),
        };
        let mut expected = vec![former("old-id"), former("id")];
        expected.truncate(if recorded_code == Some("Internal") { 1 } else { 2 });
        assert_eq!(fixture.world.state().unpublished, expected, "{case}");
        assert_eq!(fixture.attachment().recorded == recorded, !published, "{case}");
        assert_eq!(fixture.attachment().attached, published, "{case}");
    }
}

/// The node registers again before its orphan is unpublished.
#[tokio::test]
async fn an_orphan_is_unpublished_under_the_present_node_id_too() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("mark attached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    fixture.remove_by_hand();
    let refused = ("unpublish", "new-id", "Internal");
    fixture.world.state().refused_at.push(refused);
    fixture.register_again();
    assert!(fixture.unpublish_orphan().await.is_err());
    let ids = |fixture: &Fixture| -> Vec<_> {
        let unpublished = fixture.world.state().unpublished.clone();
        unpublished.into_iter().map(|target| target.node_id).collect()
    };
    assert_eq!(ids(&fixture), ["id", "new-id"].map(Arc::<str>::from));
    // The node has no other id.
    fixture.delete_csinode();
    assert_eq!(fixture.at_once().await, Ok(()));
    assert!(fixture.state().is_idle());
}

/// The response to the status write was lost, and the watch is late. A pod may use the volume.
#[tokio::test]
async fn undo_skips_a_volume_whose_stored_status_is_attached() {
    let known = Attachment {
        finalizer: true,
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_deleting().recorded
        },
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new(known);
    if let Some(stored) = &mut fixture.world.state().attachment {
        stored.attached = true;
        stored.version = Version(7);
    }
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.seen(), ["ready", "get attachment"]);
}

/// Both ids may be of one machine, where another sync publishes the volume.
#[tokio::test(start_paused = true)]
async fn detach_begins_under_the_locks_of_both_node_ids() {
    let at = |node_id: &str| PublishTarget {
        volume_id: "handle".into(),
        node_id: node_id.into(),
    };
    for locked in ["old-id", "id"] {
        let mut fixture = Fixture::new(mk_deleting_of_old_id());
        let item = fixture.item().expect("a detach");
        let others = fixture.controller.target_mutexes.lock(&at(locked)).await;
        let mut run = std::pin::pin!(fixture.controller.sync(&item));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        assert_eq!(fixture.world.state().unpublished, [], "{locked}");
        drop(others);
        assert_eq!(run.await, Ok(()));
        assert_eq!(fixture.world.state().unpublished, [at("old-id"), at("id")]);
    }
}
