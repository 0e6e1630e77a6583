//! Writes and reads before a call.

use super::*;
use crate::model::Source;

#[tokio::test]
async fn stores_no_finalizer_before_the_secret_is_read() {
    let failures = [
        ("get secret", forbidden()),
        ("get secret", Error::NotFound("no such secret".into())),
        ("get secret", Error::Unusable("not valid UTF-8".into())),
    ];
    for (request, error) in failures {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.refuse(request, error.clone());
        fixture.fails().await;
        let attachment = fixture.attachment();
        assert!(!attachment.finalizer, "{error}");
        let shown = attachment.attach_error.expect("users must see it");
        assert!(shown.message.contains(&error.to_string()), "{shown:?}");
        fixture.delete();
        assert_eq!(fixture.world.state().attachment, None);
        assert_eq!(fixture.sync_next().await, None);
        let seen = fixture.seen();
        assert!(
            !seen.contains(&"publish") && !seen.contains(&"unpublish"),
            "{seen:?}"
        );
    }
}

#[tokio::test]
async fn retry_writes_nothing_until_the_secret_is_readable() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.refuse("get secret", forbidden());
    fixture.fails().await;
    fixture.seen();
    fixture.refuse("get secret", forbidden());
    fixture.fails().await;
    assert_eq!(fixture.seen(), ["ready", "get secret"]);
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(
        fixture.seen(),
        [
            "ready",
            "get secret",
            "add PV finalizer",
            "record",
            "publish",
            "mark attached"
        ]
    );
}

#[tokio::test]
async fn unreadable_secret_keeps_an_existing_finalizer() {
    let mut fixture = Fixture::new(Attachment {
        finalizer: true,
        ..mk_attachment("va")
    });
    fixture.refuse("get secret", forbidden());
    fixture.fails().await;
    assert!(fixture.attachment().finalizer);
    assert!(!fixture.seen().contains(&"remove finalizer"));
}

#[tokio::test(start_paused = true)]
async fn stores_both_finalizers_concurrently_before_the_call() {
    for [late, other] in [["add PV finalizer", "record"], ["record", "add PV finalizer"]] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.world.state().silent.push(late);
        let item = fixture.item().expect("an attach");
        let run = fixture.controller.sync(&item);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let mut seen = fixture.seen();
        seen.sort_unstable();
        assert_eq!(
            seen,
            ["add PV finalizer", "get secret", "ready", "record"],
            "{late} is late"
        );
        let stored = match other {
            "record" => fixture.attachment().finalizer,
            _ => fixture
                .state()
                .index
                .volumes
                .get("pv")
                .is_some_and(|volume| volume.finalizer),
        };
        assert!(stored, "{other} does not wait for {late}");
        fixture.world.respond.notify_one();
        assert_eq!(run.await, Ok(()));
        assert_eq!(fixture.seen(), ["publish", "mark attached"]);
    }
}

#[tokio::test(start_paused = true)]
async fn stores_each_finalizer_although_the_other_is_refused() {
    for [late, refused] in [["add PV finalizer", "record"], ["record", "add PV finalizer"]] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.refuse(refused, forbidden());
        fixture.world.state().silent.push(late);
        let item = fixture.item().expect("an attach");
        let run = fixture.controller.sync(&item);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        fixture.world.respond.notify_one();
        assert!(run.await.is_err());
        let volume = fixture
            .state()
            .index
            .volumes
            .get("pv")
            .is_some_and(|volume| volume.finalizer);
        assert_eq!(
            (fixture.attachment().finalizer, volume),
            (late == "record", late == "add PV finalizer")
        );
        assert!(!fixture.seen().contains(&"publish"));
    }
}

#[tokio::test]
async fn rewrites_an_uncertain_record_before_the_call() {
    let recorded = Attachment {
        finalizer: true,
        recorded: mk_deleting().recorded,
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new(recorded.clone());
    fixture.world.state().volume = None;
    fixture
        .state()
        .state_of(&recorded.uid)
        .progress
        .is_record_uncertain = true;
    let first = fixture.sync_next().await;
    let seen = fixture.seen();
    let record = seen.iter().position(|seen| *seen == "record").expect("a record");
    let publish = seen.iter().position(|seen| *seen == "publish").expect("a call");
    assert!(record < publish, "{first:?}: {seen:?}");
    assert!(
        !fixture
            .state()
            .state_of(&recorded.uid)
            .progress
            .is_record_uncertain
    );
}

/// The response to the write that changed the recorded node id was lost, and the watch is late, when the node has its former
/// id again.
#[tokio::test]
async fn restores_a_record_that_an_unseen_write_changed() {
    let known = Attachment {
        finalizer: true,
        attached: true,
        recorded: mk_deleting().recorded,
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new(known.clone());
    fixture.state().state_of(&known.uid).progress.is_record_uncertain = true;
    fixture.state().attach_again(&known);
    if let Some(stored) = &mut fixture.world.state().attachment {
        stored.recorded.node_id = Some("other-id".into());
    }
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(fixture.seen().contains(&"publish"));
    let stored = fixture.attachment();
    assert_eq!(stored.recorded.node_id.as_deref(), Some("id"));
    assert!(!fixture.state().state_of(&stored.uid).progress.is_record_uncertain);
}

/// A mutating admission webhook may change it, for example.
#[tokio::test]
async fn does_not_publish_if_the_record_is_not_stored() {
    let changes: [fn(&mut Recorded); 3] = [
        |recorded| recorded.node_id = Some("another".into()),
        |recorded| recorded.handle = None,
        |recorded| recorded.secret = None,
    ];
    for change in changes {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.world.state().changes_records = Some(change);
        fixture.fails().await;
        assert!(!fixture.seen().contains(&"publish"));
        let error = fixture.attachment().attach_error.expect("users must see it");
        assert!(error.message.contains("did not store"), "{error:?}");
        fixture.world.state().changes_records = None;
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        assert_eq!(fixture.attachment().recorded.node_id.as_deref(), Some("id"));
    }
}

/// The deletion of a namespace deletes the RoleBinding that grants access to its Secrets.
#[tokio::test]
async fn missing_forbidden_or_invalid_secret_does_not_block_a_detach() {
    for error in [
        forbidden(),
        Error::NotFound("no such secret".into()),
        Error::Unusable("the value of key \"k\" is not valid UTF-8".into()),
    ] {
        let deleting = Attachment {
            recorded: Recorded {
                secret: SecretRef::parse("ns/secret"),
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        };
        let mut fixture = Fixture::new(deleting.clone());
        fixture.refuse("get secret", error.clone());
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{error}");
        assert_eq!(fixture.world.state().unpublished.len(), 1);
        let mut fixture = Fixture::new(deleting);
        fixture.refuse("get secret", error.clone());
        fixture
            .world
            .state()
            .refused_at
            .push(("unpublish", "id", "Internal"));
        fixture.fails().await;
        let shown = fixture.attachment().detach_error.expect("users must see it");
        assert!(
            shown.message.contains("without secret \"ns/secret\""),
            "{shown:?}"
        );
    }
}

/// A detach of the same volume and node waits for its finalizer.
#[tokio::test]
async fn stores_the_finalizer_of_an_attached_volume_that_cannot_be_published_again() {
    type Change = fn(&Fixture);
    let delete_volume: Change = |fixture| {
        let Volume { name, uid, .. } = mk_secret_volume();
        fixture.world.state().volume = None;
        let deleted = Event::Volumes(crate::informer::Change::Deleted { name, uid });
        fixture.state().handle(deleted);
    };
    let give_to_another_driver: Change = |fixture| {
        let mut volume = mk_secret_volume();
        volume.version = Version(2);
        volume.spec.csi.as_mut().expect("it is a CSI volume").driver = "other".to_owned();
        let changed = Event::Volumes(crate::informer::Change::Applied(volume));
        fixture.state().handle(changed);
    };
    for (handle, change, stores) in [
        (Some("handle"), delete_volume, true),
        (Some("handle"), Fixture::delete_csinode, true),
        // The Go sidecar's, whose handle only the PersistentVolume has.
        (None, delete_volume, false),
        (None, Fixture::delete_csinode, true),
        (None, Fixture::unregister_driver, true),
        (None, Fixture::delete_volume, true),
        (None, give_to_another_driver, false),
    ] {
        let without_finalizer = Attachment {
            attached: true,
            finalizer: false,
            deleting: false,
            recorded: Recorded {
                handle: handle.map(Arc::from),
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        };
        let mut fixture = Fixture::new(without_finalizer);
        change(&fixture);
        fixture.fails().await;
        let Attachment {
            finalizer, recorded, ..
        } = fixture.attachment();
        assert_eq!(finalizer, stores, "{handle:?}");
        assert_eq!(
            recorded.handle.is_some(),
            stores || handle.is_some(),
            "{handle:?}"
        );
        assert!(!fixture.seen().contains(&"publish"));
        if stores && handle.is_none() {
            assert_eq!(recorded.secret, SecretRef::parse("ns/secret"));
            // Its detach is complete.
            fixture.delete();
            assert_eq!(fixture.sync_next().await, Some(Ok(())));
            assert_eq!(fixture.world.state().unpublished.len(), 1);
        }
    }
}

/// The PersistentVolume watch may be late.
#[tokio::test]
async fn attaches_a_volume_that_the_store_does_not_have() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    let Volume { name, uid, .. } = mk_secret_volume();
    let version = None;
    let unknown = Change::LocallyDeleted { name, uid, version };
    fixture.state().handle(Event::Volumes(unknown));
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(fixture.attachment().attached);
    let seen = fixture.seen();
    assert!(
        seen.contains(&"get volume") && seen.contains(&"publish"),
        "{seen:?}"
    );
}

/// The Go sidecar records no handle, and an attach by hand may record nothing.
#[tokio::test]
async fn keeps_the_finalizer_if_a_target_that_may_be_published_is_unknown() {
    for (finalizer, node_id, attached, may_be_published) in [
        (true, Some("id"), true, true),
        (true, None, true, true),
        (false, Some("id"), true, true),
        (false, None, true, true),
        (false, None, false, false),
    ] {
        let mut fixture = Fixture::new(Attachment {
            finalizer,
            foreign_finalizers: true,
            attached,
            detach_error: Some(Box::default()),
            recorded: Recorded {
                node_id: node_id.map(Arc::from),
                ..Recorded::default()
            },
            source: Source::Volume("gone".into()),
            ..mk_deleting()
        });
        fixture.world.state().volume = None;
        let result = fixture.sync_next().await.expect("a detach");
        assert_eq!(result.is_err(), may_be_published, "{finalizer} {node_id:?}");
        let attachment = fixture.attachment();
        assert_eq!(attachment.attached, may_be_published, "{finalizer} {node_id:?}");
        assert_eq!(attachment.finalizer, finalizer);
        assert_eq!(fixture.world.state().unpublished, []);
    }
}

#[tokio::test]
async fn observes_latency_by_operation() {
    let mut fixture = Fixture::new(Attachment {
        requested_at: Some(Timestamp::UNIX_EPOCH),
        ..mk_attachment("va")
    });
    let observed = |fixture: &Fixture| {
        let state = fixture.state();
        let count = prometheus::Histogram::get_sample_count;
        (count(&state.latency.attached), count(&state.latency.detached))
    };
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(observed(&fixture), (1, 0));
    fixture.delete();
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(observed(&fixture), (1, 1));
}

/// Another client adds a finalizer that the store does not have, and the status write that this requires fails. The sync that
/// repeats it is a repair, which has no latency.
#[tokio::test]
async fn observes_detach_latency_although_the_following_status_write_fails() {
    let mut fixture = Fixture::new(Attachment {
        attached: true,
        requested_at: Some(Timestamp::UNIX_EPOCH),
        ..mk_deleting()
    });
    if let Some(attachment) = &mut fixture.world.state().attachment {
        attachment.foreign_finalizers = true;
    }
    fixture.refuse("mark detached", Error::Unanswered("no response".into()));
    fixture.fails().await;
    let observed = |fixture: &Fixture| fixture.state().latency.detached.get_sample_count();
    assert_eq!(observed(&fixture), 1);
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(!fixture.attachment().has_attached_status());
    assert_eq!(observed(&fixture), 1);
}

#[tokio::test(start_paused = true)]
async fn does_not_mark_a_deleting_attachment_attached_without_a_call() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.world.state().without_publish = true;
    fixture.world.state().silent.push("ready");
    let item = fixture.item().expect("an attach");
    let mut run = std::pin::pin!(fixture.controller.sync(&item));
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    let deleting = fixture
        .world
        .change(|attachment| {
            attachment.deleting = true;
            attachment.foreign_finalizers = true;
        })
        .expect("it is there");
    fixture
        .state()
        .handle(Event::Attachments(Change::Applied(deleting)));
    fixture.world.respond.notify_one();
    assert_eq!(run.await, Ok(()));
    assert_eq!(fixture.seen(), ["ready"]);
    assert!(!fixture.attachment().attached);
}

/// API servers before Kubernetes 1.34 do not know the code.
#[tokio::test]
async fn errors_carry_a_code_unless_disabled() {
    for (error_codes, code) in [(true, Some(8)), (false, None)] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.controller.error_codes = error_codes;
        let refused = ("publish", "id", "ResourceExhausted");
        fixture.world.state().refused_at.push(refused);
        fixture.fails().await;
        let error = fixture.attachment().attach_error.expect("the attach failed");
        assert_eq!(error.code, code);
    }
}

/// The PersistentVolume was created again with another Secret, which does not exist.
#[tokio::test]
async fn detach_sends_the_recorded_secret_if_that_of_the_volume_cannot_be_read() {
    for (recorded, lacking, sent) in [
        ("ns/recorded", &["ns/secret"][..], Some("ns/recorded")),
        ("ns/recorded", &[], Some("ns/secret")),
        ("ns/recorded", &["ns/secret", "ns/recorded"], None),
        ("ns/secret", &["ns/secret"], None),
    ] {
        let mut fixture = Fixture::new(Attachment {
            recorded: Recorded {
                secret: SecretRef::parse(recorded),
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        });
        fixture.world.state().no_secrets = lacking.to_vec();
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{recorded} {lacking:?}");
        let expected = sent.map(|name| (name.to_owned(), String::new()));
        assert_eq!(fixture.world.state().sent_secrets, expected.into_iter().collect());
    }
}

/// They may be the credentials of an earlier time.
#[tokio::test(start_paused = true)]
async fn not_found_with_the_recorded_secret_instead_of_the_volumes_proves_nothing() {
    let mut fixture = Fixture::new(Attachment {
        recorded: Recorded {
            secret: SecretRef::parse("ns/recorded"),
            node_id: Some("old-id".into()),
            ..mk_deleting().recorded
        },
        ..mk_deleting()
    });
    fixture.world.state().no_secrets = vec!["ns/secret"];
    let not_found = ("unpublish", "old-id", "NotFound");
    fixture.world.state().refused_at.push(not_found);
    for _ in 0..4 {
        fixture.fails().await;
        assert!(fixture.attachment().finalizer);
        tokio::time::advance(Duration::from_secs(60)).await;
    }
}

/// The detach of another VolumeAttachment reads it, so that the watch shows nothing newer.
#[tokio::test(start_paused = true)]
async fn a_suspended_repair_starts_when_a_live_read_shows_an_edit() {
    for is_edited in [false, true] {
        let mut fixture = Fixture::new(Attachment {
            deleting: false,
            attached: true,
            recorded: Recorded {
                secret: SecretRef::parse("ns/secret"),
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        });
        fixture.delete_volume();
        let attached = fixture.attachment();
        fixture.state().attach_again(&attached);
        fixture.fails().await;
        assert!(fixture.item().is_none(), "it is refused");
        if is_edited {
            let edited = fixture
                .world
                .change(|attachment| attachment.foreign_finalizers = true);
            edited.expect("it exists");
        }
        let other = Attachment {
            name: "other".into(),
            uid: "other".into(),
            ..mk_deleting()
        };
        fixture.state().handle(Event::Attachments(Change::Applied(other)));
        // The fake API server has one object.
        let busy = Error::Rejected {
            status: 429,
            message: "busy".into(),
            retry_after: Some(Duration::from_secs(1)),
        };
        fixture.refuse("remove finalizer", busy);
        fixture.fails().await;
        assert!(fixture.seen().contains(&"get attachment"));
        let now = fixture.now;
        let started: Vec<_> = std::iter::from_fn(|| fixture.state().start(now))
            .map(|item| name_of(&item))
            .collect();
        assert_eq!(started, if is_edited { &["va"][..] } else { &[] });
    }
}
