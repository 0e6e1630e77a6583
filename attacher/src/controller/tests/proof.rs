//! Our finalizer is removed only with a proof that the volume is unpublished (docs/adr/0004).

use super::*;
use crate::controller::state::Round;
use crate::model::Source;
use crate::plan::reconcile::ListVolumesResult;
use crate::plan::{Orphan, PublishEnd};
use crate::workqueue::Lane;

/// Published to "old-id" and being deleted; the node registers "id".
fn mk_moved() -> Attachment {
    Attachment {
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_deleting().recorded
        },
        ..mk_deleting()
    }
}

impl Fixture {
    /// The driver's pod on the node restarts, and kubelet removes its entry.
    pub(super) fn unregister_driver(&self) {
        let node = Node {
            version: Version(2),
            ..mk_node("node", None)
        };
        self.state().handle(Event::Nodes(Change::Applied(node)));
    }

    fn answers(&self, node_id: &'static str, code: &'static str) {
        self.world.state().refused_at.push(("unpublish", node_id, code));
    }

    /// The driver reconnects with or without publish calls.
    fn reconnect(&self, publish: bool) {
        {
            let mut state = self.world.state();
            state.without_publish = !publish;
            state.session = state.session.map(|before| before + Duration::from_nanos(1));
        }
        self.world.reconnected.notify_waiters();
        let capabilities = Capabilities {
            publish,
            ..mk_driver().capabilities
        };
        self.state().handle(Event::DriverConnected(capabilities));
    }

    /// The finalizer is kept, and users see this.
    fn keeps_finalizer(&self, case: &str, names: &[&str]) {
        let attachment = self.world.state().attachment.clone();
        let attachment = attachment.unwrap_or_else(|| panic!("{case}: the finalizer was removed"));
        assert!(attachment.finalizer, "{case}");
        let message = attachment.detach_error.expect("users must see it").message;
        for name in names {
            assert!(message.contains(name), "{case}: {name} is missing in {message}");
        }
    }
}

/// A1: what a driver answers while its node cache is cold, while its controller restarts or without a tenant's credentials.
#[tokio::test]
async fn one_not_found_is_no_proof_of_detach() {
    type Change = fn(&Fixture);
    let cases: &[(&str, Attachment, Change)] = &[
        ("the node registers the recorded id", mk_deleting(), |_| ()),
        (
            "the CSINode lacks the driver",
            mk_deleting(),
            Fixture::unregister_driver,
        ),
        ("the CSINode is gone", mk_deleting(), Fixture::delete_csinode),
        ("both ids are unknown", mk_moved(), |fixture| {
            fixture.answers("old-id", "NotFound");
        }),
    ];
    for (case, attachment, change) in cases {
        let mut fixture = Fixture::new(attachment.clone());
        fixture.answers("id", "NotFound");
        change(&fixture);
        for _ in 0..4 {
            fixture.fails().await;
            fixture.keeps_finalizer(case, &["\"handle\"", "\"id\"", "NotFound"]);
        }
        // The driver's cache is warm.
        fixture.world.state().refused_at.clear();
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{case}");
        assert_eq!(fixture.world.state().attachment, None, "{case}");
    }
}

/// A1 (iii): the driver may not find the volume because it lacks the tenant's credentials.
#[tokio::test(start_paused = true)]
async fn not_found_without_the_secret_is_no_proof_of_detach() {
    let not_found = Error::NotFound("no such secret".into());
    for (secret, error) in [
        ("ns/secret", Some(forbidden())),
        ("ns/secret", Some(not_found)),
        ("ns/secret", Some(Error::Unusable("not valid UTF-8".into()))),
        // It is in another form, so it cannot be read.
        ("secret", None),
        // No Secret has such a name, so a request for it would be one for something else.
        ("ns/secret?x", None),
        ("ns/..", None),
    ] {
        let mut fixture = Fixture::new(Attachment {
            recorded: Recorded {
                secret: Some(SecretRef::recorded(secret)),
                handle: Some("replaced".into()),
                ..mk_moved().recorded
            },
            ..mk_moved()
        });
        fixture.answers("old-id", "NotFound");
        for _ in 0..4 {
            let refusals = error.iter().map(|error| ("get secret", error.clone()));
            fixture.world.state().refusals.extend(refusals);
            fixture.fails().await;
            fixture.keeps_finalizer("no secret", &[&format!("without secret {secret:?}")]);
            tokio::time::advance(MINUTE).await;
        }
    }
}

/// The PersistentVolume was re-created without the Secret with which the volume was published.
#[tokio::test(start_paused = true)]
async fn not_found_with_a_secret_that_only_the_record_names_is_no_proof_of_detach() {
    for is_readable in [true, false] {
        let mut fixture = Fixture::new(Attachment {
            recorded: Recorded {
                secret: SecretRef::parse("ns/recorded"),
                ..mk_moved().recorded
            },
            ..mk_moved()
        });
        let volume = Volume {
            version: Version(2),
            ..mk_volume("pv")
        };
        fixture.state().handle(Event::Volumes(Change::Applied(volume)));
        if !is_readable {
            fixture.world.state().no_secrets.push("ns/recorded");
        }
        fixture.answers("old-id", "NotFound");
        for _ in 0..4 {
            fixture.fails().await;
            fixture.keeps_finalizer("not found", &["\"ns/recorded\""]);
            let sent = fixture.world.state().sent_secrets.clone();
            assert_eq!(sent.contains_key("ns/recorded"), is_readable);
            tokio::time::advance(MINUTE).await;
        }
        fixture.world.state().refused_at.clear();
        assert_eq!(fixture.sync_next().await, Some(Ok(())));
        assert_eq!(fixture.world.state().attachment, None);
    }
}

/// A1 (iv): another machine may have the node's name now, and the volume stays on the first.
#[tokio::test]
async fn one_not_found_for_the_recorded_id_is_no_proof_although_the_present_id_is_unpublished() {
    let mut fixture = Fixture::new(mk_moved());
    fixture.answers("old-id", "NotFound");
    fixture.fails().await;
    fixture.keeps_finalizer("first", &["\"old-id\"", "\"id\""]);
}

/// A2: it is most likely restarting wrongly, in node mode, with an empty list or after a bad upgrade.
#[tokio::test]
async fn a_driver_that_lost_its_publish_calls_removes_no_finalizer() {
    let attached = Attachment {
        deleting: false,
        attached: true,
        ..mk_deleting()
    };
    let mut fixture = Fixture::new(attached.clone());
    let volume = Volume {
        version: Version(5),
        finalizer: true,
        ..mk_secret_volume()
    };
    fixture.state().handle(Event::Volumes(Change::Applied(volume)));
    fixture.reconnect(false);
    assert_eq!(fixture.sync_next().await, None);
    assert_eq!(fixture.attachment(), attached);
    assert!(!fixture.seen().contains(&"remove PV finalizer"));
    // Neither is a recorded VolumeAttachment attached without a call, nor a deleting one detached.
    for wanted in [
        Attachment {
            attached: false,
            ..attached
        },
        mk_deleting(),
    ] {
        let mut fixture = Fixture::new(wanted.clone());
        fixture.reconnect(false);
        fixture.fails().await;
        let now = fixture.world.state().attachment.clone().expect("it must be kept");
        assert!(now.finalizer && !now.attached, "{now:?}");
        let error = now.detach_error.or(now.attach_error).expect("users must see it");
        assert!(error.message.contains("PUBLISH_UNPUBLISH_VOLUME"), "{error:?}");
        assert_eq!(now.recorded, wanted.recorded);
    }
}

/// A3: the removal of the finalizer is throttled, and the driver returns with its publish calls.
#[tokio::test]
async fn nothing_decided_without_calls_outlives_the_connection() {
    let mut fixture = Fixture::new(mk_deleting());
    fixture.reconnect(false);
    fixture.refuse("remove finalizer", Error::Unanswered("no response".into()));
    fixture.fails().await;
    fixture.reconnect(true);
    for _ in 0..3 {
        fixture.sync_next().await.map(Result::ok);
    }
    assert_eq!(fixture.world.state().attachment, None);
    let unpublished = fixture.world.state().unpublished.clone();
    assert_eq!(unpublished.len(), 1, "detached without a call");
}

/// The write waits, for the limiter or a response, until the driver is back with its publish calls.
#[tokio::test]
async fn nothing_decided_without_calls_is_written_in_the_next_session() {
    let attaching = mk_attachment("va");
    for (before, write) in [(mk_deleting(), "remove finalizer"), (attaching, "mark attached")] {
        let mut fixture = Fixture::new(before);
        if write == "remove finalizer" {
            fixture = fixture.assume_unpublished_after(MINUTE);
            let opened = tokio::time::Instant::now() - 2 * MINUTE;
            fixture.world.state().session = Some(opened);
        }
        fixture.reconnect(false);
        fixture.world.state().silent.push(write);
        let item = fixture.item().expect("it needs a sync");
        let sync = fixture.controller.sync(&item);
        let reconnect = async {
            while fixture.world.state().seen.last() != Some(&write) {
                tokio::task::yield_now().await;
            }
            fixture.reconnect(true);
        };
        let both = async { futures::join!(sync, reconnect).0 };
        let result = timeout(MINUTE, both)
            .await
            .expect("it must not wait for the response");
        assert!(result.is_err(), "{write}");
        fixture.world.respond.notify_one();
        fixture.world.state().silent.clear();
        fixture.finish(&item, result);
        let seen = fixture.seen();
        assert!(
            !seen.contains(&"unpublish") && !seen.contains(&"publish"),
            "{seen:?}"
        );
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{write}");
        let seen = fixture.seen();
        let call = if write == "mark attached" {
            "publish"
        } else {
            "unpublish"
        };
        assert!(seen.contains(&call), "{seen:?}");
    }
}

/// The API server executes the status write of an earlier attach while the volume is unpublished from the recorded id.
#[tokio::test]
async fn a_late_status_write_shows_no_volume_that_an_attach_has_unpublished() {
    for crashes in [false, true] {
        let mut fixture = Fixture::new(Attachment {
            deleting: false,
            ..mk_moved()
        });
        let known = fixture.attachment();
        fixture.world.state().silent.push("unpublish");
        let item = fixture.item().expect("an attach");
        {
            let mut sync = std::pin::pin!(fixture.controller.sync(&item));
            let late_write = async {
                while fixture.world.state().seen.last() != Some(&"unpublish") {
                    tokio::task::yield_now().await;
                }
                fixture.world.state().silent.clear();
                fixture.world.mark_attached(&known, &BTreeMap::new()).await
            };
            let late_write = tokio::select! {
                biased;
                result = sync.as_mut() => panic!("it waits for the response: {result:?}"),
                late_write = late_write => late_write,
            };
            assert_eq!(late_write, Err(conflict()));
            assert!(
                fixture.attachment().attach_error.is_some(),
                "for the next process"
            );
            if !crashes {
                fixture.world.respond.notify_one();
                assert_eq!(sync.await, Ok(()));
            }
        }
        if crashes {
            fixture = Fixture::on(fixture.world.clone());
            assert_eq!(fixture.sync_next().await, Some(Ok(())));
        }
        let published: Vec<_> = fixture
            .world
            .state()
            .published
            .iter()
            .map(|target| target.node_id.to_string())
            .collect();
        assert_eq!(published, ["id"], "{crashes}");
        let attachment = fixture.attachment();
        assert_eq!(attachment.recorded.node_id.as_deref(), Some("id"));
        assert!(attachment.attached && attachment.attach_error.is_none());
    }
}

/// It would leave the version as it is, and the late write would be executed.
#[tokio::test(start_paused = true)]
async fn an_undo_is_saved_by_a_write_that_changes_the_status() {
    let mut fixture = Fixture::new(Attachment {
        deleting: false,
        ..mk_moved()
    });
    for times in ["1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z"] {
        fixture.world.state().silent.push("unpublish");
        let item = fixture.item().expect("an attach");
        let sync = fixture.controller.sync(&item);
        assert!(timeout(FOREVER, sync).await.is_err());
        fixture.world.state().silent.clear();
        let error = fixture.attachment().attach_error.expect("it is saved");
        assert_eq!(error.time, times);
        fixture = Fixture::on(fixture.world.clone());
    }
}

/// Nothing failed, so the Event of a recovery would be wrong. Each Event is about the VolumeAttachment and the PersistentVolume.
#[tokio::test(start_paused = true)]
async fn an_attach_that_moves_to_a_new_node_id_recovers_only_from_failures() {
    for (fails, events) in [(false, 0), (true, 4)] {
        let mut fixture = Fixture::new(Attachment {
            deleting: false,
            ..mk_moved()
        });
        if fails {
            let refused = ("publish", "id", "Internal");
            fixture.world.state().refused_at.push(refused);
            fixture.fails().await;
            fixture.world.state().refused_at.clear();
        }
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{fails}");
        assert!(fixture.attachment().attached);
        assert_eq!(fixture.controller.recorder.dropped(), events, "{fails}");
    }
}

/// Another client removed our finalizer. The record shows where the volume may be published.
#[tokio::test]
async fn a_record_without_finalizer_is_unpublished_before_a_publish_elsewhere() {
    let mut fixture = Fixture::new(Attachment {
        deleting: false,
        finalizer: false,
        ..mk_moved()
    });
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    let unpublished: Vec<_> = fixture
        .world
        .state()
        .unpublished
        .iter()
        .map(|target| target.node_id.to_string())
        .collect();
    assert_eq!(unpublished, ["old-id"]);
    assert_eq!(fixture.attachment().recorded.node_id.as_deref(), Some("id"));
}

/// The operator's flag does not end such a wait.
#[tokio::test]
async fn invalid_argument_is_not_answered_with_the_advice_of_the_flag() {
    for (code, expected) in [("InvalidArgument", false), ("NotFound", true)] {
        let mut fixture = Fixture::new(mk_deleting());
        fixture.answers("id", code);
        fixture.fails().await;
        let error = fixture
            .attachment()
            .detach_error
            .expect("users must see it")
            .message;
        assert_eq!(error.contains("--assume-unpublished-after"), expected, "{error}");
        assert!(error.contains("kubectl patch"), "{error}");
    }
}

/// A5: they may come from a proxy, and do not say that the API server will never store the result.
#[tokio::test]
async fn repeats_a_status_write_without_a_second_publish_unless_the_answer_is_final() {
    for (status, publishes) in [
        (408, 1),
        (425, 1),
        (429, 1),
        (431, 1),
        (502, 1),
        (413, 2),
        (422, 2),
    ] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        let refused = Error::Rejected {
            status,
            message: "m".into(),
            retry_after: None,
        };
        fixture.refuse("mark attached", refused);
        fixture.fails().await;
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{status}");
        let published = fixture.world.state().published.len();
        assert_eq!(published, publishes, "{status}");
    }
}

/// A8: a pod runs there. INVALID_ARGUMENT can have any reason.
#[tokio::test]
async fn a_failing_republish_leaves_the_volume_where_its_pod_uses_it() {
    for code in ["InvalidArgument", "NotFound"] {
        for finalizer in [true, false] {
            let attached = Attachment {
                deleting: false,
                attached: true,
                finalizer,
                attach_error: Some(Box::default()),
                ..mk_moved()
            };
            let mut fixture = Fixture::new(attached);
            fixture.world.state().refused_at.push(("publish", "old-id", code));
            for _ in 0..2 {
                fixture.fails().await;
                let attachment = fixture.attachment();
                assert_eq!(attachment.recorded.node_id.as_deref(), Some("old-id"));
                assert!(attachment.finalizer && attachment.attached);
                let error = attachment.attach_error.expect("users must see it").message;
                for part in ["\"old-id\"", "\"id\"", code] {
                    assert!(error.contains(part), "{error}");
                }
            }
            assert_eq!(fixture.world.state().unpublished, []);
            assert_eq!(fixture.world.state().published, []);
        }
    }
}

/// A9: the Go sidecar records only the node id. When its PersistentVolume is gone, it is too late.
#[tokio::test]
async fn records_the_handle_on_attachments_of_the_go_sidecar_while_their_volume_exists() {
    for deleting in [false, true] {
        let mut fixture = Fixture::new(Attachment {
            deleting,
            attached: true,
            recorded: Recorded {
                handle: None,
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        });
        if deleting {
            fixture.answers("id", "Internal");
        }
        for _ in 0..3 {
            fixture.state().backfill();
            fixture.sync_next().await.map(Result::ok);
        }
        let recorded = fixture.attachment().recorded;
        assert_eq!(recorded.handle.as_deref(), Some("handle"), "{deleting}");
        assert_eq!(recorded.node_id.as_deref(), Some("id"));
        assert_eq!(recorded.secret, SecretRef::parse("ns/secret"));
        let seen = fixture.seen();
        let records = seen.iter().filter(|seen| **seen == "record").count();
        assert_eq!(records, 1, "{seen:?}");
    }
}

/// It may be another volume.
#[tokio::test]
async fn records_no_handle_of_a_younger_volume() {
    for (seconds, is_recorded) in [(-1, true), (60, true), (61, false)] {
        let created = Timestamp::UNIX_EPOCH;
        let fixture = Fixture::new(Attachment {
            created: Some(created),
            recorded: Recorded {
                handle: None,
                ..mk_deleting().recorded
            },
            deleting: false,
            ..mk_detached()
        });
        let volume = Volume {
            created: Some(created + jiff::SignedDuration::from_secs(seconds)),
            version: Version(2),
            ..mk_secret_volume()
        };
        fixture.state().handle(Event::Volumes(Change::Applied(volume)));
        fixture.state().backfill();
        let now = fixture.now;
        assert_eq!(fixture.state().start(now).is_some(), is_recorded, "{seconds}");
    }
}

/// The Go sidecar recorded no handle, and the PersistentVolume was re-created, maybe for another volume.
#[tokio::test]
async fn an_attachment_of_the_go_sidecar_does_not_use_a_younger_volume() {
    for (deleting, attached) in [(true, true), (true, false), (false, false)] {
        let mut fixture = Fixture::new(Attachment {
            created: Some(Timestamp::UNIX_EPOCH),
            recorded: Recorded {
                handle: None,
                ..mk_deleting().recorded
            },
            deleting,
            attached,
            ..mk_deleting()
        });
        let volume = Volume {
            created: Some(Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(61)),
            version: Version(2),
            ..mk_secret_volume()
        };
        fixture.state().handle(Event::Volumes(Change::Applied(volume)));
        fixture.state().backfill();
        fixture.fails().await;
        let attachment = fixture.attachment();
        assert!(attachment.finalizer && attachment.recorded.handle.is_none());
        let error = attachment.detach_error.or(attachment.attach_error);
        let message = error.expect("users must see it").message;
        assert!(message.contains("external-attacher/volume-handle"), "{message}");
        assert!(fixture.world.state().published.is_empty() && fixture.world.state().unpublished.is_empty());
        if deleting {
            // As the message says.
            let edited = fixture
                .world
                .change(|attachment| attachment.recorded.handle = Some("earlier".into()));
            let edited = Change::Applied(edited.expect("it exists"));
            fixture.state().handle(Event::Attachments(edited));
            assert_eq!(fixture.sync_next().await, Some(Ok(())));
            let unpublished = fixture.world.state().unpublished.clone();
            assert_eq!(&*unpublished[0].volume_id, "earlier");
            assert_eq!(fixture.world.state().attachment, None);
        }
    }
}

/// The API server that created the PersistentVolume had a faster clock, or the PersistentVolume was re-created for the same volume.
#[tokio::test]
async fn an_attachment_of_the_go_sidecar_is_detached_although_its_volume_looks_younger() {
    // By `sha256sum`.
    let named = "csi-cbbfa141d1e287b8fa777e2fd2c4522e1d5f843e78e39ac4241da0210e7b2912";
    for (name, seconds) in [(named, 1), (named, 3600), ("va", 60)] {
        let mut fixture = Fixture::new(Attachment {
            name: name.into(),
            created: Some(Timestamp::UNIX_EPOCH),
            attached: true,
            recorded: Recorded {
                handle: None,
                ..mk_deleting().recorded
            },
            ..mk_deleting()
        });
        let volume = Volume {
            created: Some(Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(seconds)),
            version: Version(2),
            ..mk_secret_volume()
        };
        fixture.state().handle(Event::Volumes(Change::Applied(volume)));
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{name} {seconds}");
        let unpublished = fixture.world.state().unpublished.clone();
        assert_eq!(&*unpublished[0].volume_id, "handle");
        assert_eq!(fixture.world.state().attachment, None);
    }
}

/// The watch event of the version that the conflict's read returned is stale.
#[tokio::test(start_paused = true)]
async fn an_attachment_that_lost_its_finalizer_before_its_backfill_is_attached_again() {
    let mut fixture = Fixture::new(Attachment {
        recorded: Recorded {
            handle: None,
            ..mk_deleting().recorded
        },
        deleting: false,
        ..mk_detached()
    });
    fixture.state().backfill();
    fixture.world.state().silent.push("record");
    let backfill = fixture.item().expect("a backfill");
    let edited = {
        let mut run = std::pin::pin!(fixture.controller.sync(&backfill));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let edited = fixture.world.change(|attachment| attachment.finalizer = false);
        fixture.world.state().silent.clear();
        fixture.world.respond.notify_one();
        assert_eq!(run.await, Ok(()));
        edited
    };
    let edited = Change::Applied(edited.expect("it exists"));
    fixture.state().handle(Event::Attachments(edited));
    fixture.finish(&backfill, Ok(()));
    assert_eq!(fixture.at_once().await, Ok(()));
    assert!(fixture.attachment().finalizer);
}

/// A17: its deletion would send no unpublish.
#[tokio::test]
async fn publishes_an_attached_volume_without_finalizer_and_record_once_more() {
    let mut fixture = Fixture::new(Attachment {
        attached: true,
        ..mk_attachment("va")
    });
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    let attachment = fixture.attachment();
    assert!(attachment.finalizer);
    assert_eq!(attachment.recorded.node_id.as_deref(), Some("id"));
    assert_eq!(fixture.world.state().published.len(), 1);
    assert_eq!(fixture.sync_next().await, None, "once is enough");
}

impl Fixture {
    fn assume_unpublished_after(mut self, after: Duration) -> Self {
        self.controller.assume_unpublished_after = after;
        self
    }

    /// Begins a reconcile round.
    fn begin_round(&self) -> ListVolumesResult {
        let mut driver = mk_driver();
        driver.capabilities.list_published = true;
        let result = self.state().begin_reconcile(&driver);
        result.expect("the driver lists, and work has started")
    }

    /// The driver's complete list shows the volume nowhere.
    fn end_round(&self, result: ListVolumesResult) {
        self.end_round_with(result, &[]);
    }

    /// The driver's complete list shows the volume at these node ids.
    fn end_round_with(&self, mut result: ListVolumesResult, node_ids: &[&str]) {
        let node_ids: Vec<_> = node_ids.iter().map(|id| (*id).to_owned()).collect();
        result.add_entry("handle", Some(&node_ids));
        let round = Round {
            ended: tokio::time::Instant::now().into_std(),
            took: Duration::ZERO,
            listed: 1,
        };
        self.state().handle(Event::VolumesListed(result, round));
    }

    /// Whether a sync that the last list caused ends the detach.
    async fn is_released(&mut self) -> bool {
        let now = self.now;
        loop {
            let Some(item) = self.state().start(now) else {
                break;
            };
            let result = match &*name_of(&item) {
                "va" => self.controller.sync(&item).await,
                _ => Err(SyncError::outdated()),
            };
            self.finish(&item, result);
        }
        self.world.state().attachment.is_none()
    }

    fn connect_listing(&self) {
        let capabilities = Capabilities {
            list_published: true,
            ..mk_driver().capabilities
        };
        self.state().handle(Event::DriverConnected(capabilities));
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Its publish had ended before this process began.
fn mk_detached() -> Attachment {
    Attachment {
        attached: true,
        ..mk_deleting()
    }
}

/// A20: two complete lists of different rounds, both begun after the last publish had ended, in one session.
#[tokio::test]
async fn lists_prove_a_detach_unless_a_publish_or_a_reconnect_comes_between() {
    let target = PublishTarget {
        volume_id: "handle".into(),
        node_id: "id".into(),
    };
    for (between, proves) in [
        ("nothing", true),
        ("a publish", false),
        ("a running publish", false),
        ("a reconnect", false),
        ("a change of the CSINode", false),
    ] {
        let (mut fixture, uid) = (Fixture::new(mk_detached()), mk_deleting().uid);
        fixture.connect_listing();
        fixture.answers("id", "NotFound");
        fixture.fails().await;
        let first = fixture.begin_round();
        fixture.end_round(first);
        assert!(!fixture.is_released().await, "one list is no proof");
        let second = fixture.begin_round();
        match between {
            "a publish" => {
                fixture.state().publish_begins(&uid, &target);
                fixture.state().publish_ended(&uid, PublishEnd::Succeeded);
            }
            "a running publish" => {
                fixture.state().publish_begins(&uid, &target);
            }
            "a reconnect" => fixture.connect_listing(),
            "a change of the CSINode" => {
                let node = mk_node("node", None);
                fixture.state().handle(Event::Nodes(Change::Applied(Node {
                    version: Version(9),
                    ..node
                })));
            }
            _ => {}
        }
        fixture.end_round(second);
        if matches!(between, "a running publish" | "a change of the CSINode") {
            let third = fixture.begin_round();
            fixture.end_round(third);
        }
        if proves {
            assert_eq!(fixture.at_once().await, Ok(()), "{between}");
            assert_eq!(fixture.world.state().attachment, None, "{between}");
        } else {
            fixture.fails().await;
            fixture.keeps_finalizer(between, &[]);
        }
    }
}

/// The driver may still execute the publish of this process or an earlier one, and answers from a cold cache. Lists do not show a
/// volume that is being attached.
#[tokio::test(start_paused = true)]
async fn lists_prove_no_detach_while_a_publish_may_run() {
    let unattached = mk_attachment("va");
    for (case, attachment, publish, proves) in [
        ("a deadline", &unattached, &["DeadlineExceeded"][..], false),
        ("another call runs", &unattached, &["Aborted"], false),
        ("a final code", &unattached, &["Internal"], true),
        (
            "a final code of a later call",
            &unattached,
            &["DeadlineExceeded", "Internal"],
            false,
        ),
        ("a call of an earlier process", &mk_deleting(), &[], false),
        ("an earlier process's attach", &mk_detached(), &[], true),
    ] {
        let mut fixture = Fixture::new(attachment.clone());
        fixture.connect_listing();
        for code in publish {
            fixture.world.state().refused_at = vec![("publish", "id", code)];
            fixture.fails().await;
        }
        if !publish.is_empty() {
            fixture.delete();
        }
        fixture.answers("id", "NotFound");
        fixture.fails().await;
        let begun = tokio::time::Instant::now();
        let mut proven = None;
        for seconds in [0, 60, 595, 605, 665] {
            tokio::time::sleep_until(begun + Duration::from_secs(seconds)).await;
            let round = fixture.begin_round();
            fixture.end_round(round);
            if fixture.is_released().await {
                proven = Some(seconds);
                break;
            }
        }
        assert_eq!(proven, Some(if proves { 60 } else { 665 }), "{case}");
        assert_eq!(fixture.world.state().attachment, None, "{case}");
    }
}

/// Another volume, attached to another node.
fn mk_idle() -> Attachment {
    Attachment {
        source: Source::Volume("pv-2".into()),
        node: "other".into(),
        finalizer: true,
        attached: true,
        recorded: Recorded {
            node_id: Some("other-id".into()),
            handle: Some("handle-2".into()),
            secret: None,
        },
        ..mk_attachment("idle")
    }
}

/// After a restart the driver's node cache is empty: it lists every volume without nodes, and answers NOT_FOUND.
#[tokio::test(start_paused = true)]
async fn lists_that_show_no_attached_volume_prove_nothing() {
    let mut fixture = Fixture::new(mk_detached());
    fixture.connect_listing();
    let idle = Change::Applied(mk_idle());
    fixture.state().handle(Event::Attachments(idle));
    fixture.answers("id", "NotFound");
    fixture.fails().await;
    for (shown, proves) in [(&[][..], false), (&["other-id".to_owned()], true)] {
        for _ in 0..2 {
            let mut round = fixture.begin_round();
            round.add_entry("handle-2", Some(shown));
            fixture.end_round(round);
        }
        assert_eq!(fixture.is_released().await, proves, "{shown:?}");
    }
}

/// It is being published again, so that a list may be older.
#[tokio::test(start_paused = true)]
async fn an_attached_volume_that_changed_during_a_list_does_not_refute_it() {
    let mut fixture = Fixture::new(mk_detached());
    fixture.connect_listing();
    let mut idle = mk_idle();
    fixture.answers("id", "NotFound");
    fixture.fails().await;
    for version in [2, 4] {
        idle.version = Version(version);
        fixture
            .state()
            .handle(Event::Attachments(Change::Applied(idle.clone())));
        let mut round = fixture.begin_round();
        idle.version = Version(version + 1);
        fixture
            .state()
            .handle(Event::Attachments(Change::Applied(idle.clone())));
        round.add_entry("handle-2", Some(&[]));
        fixture.end_round(round);
    }
    assert!(fixture.is_released().await);
}

/// The volume may be there under the new form of the node's id, whatever CSINode registers that.
#[tokio::test(start_paused = true)]
async fn lists_with_an_unknown_node_id_prove_nothing() {
    let elsewhere = |id: &str| Attachment {
        finalizer: true,
        attached: true,
        node: "other".into(),
        recorded: Recorded {
            node_id: Some(id.into()),
            ..mk_deleting().recorded
        },
        ..mk_attachment("vb")
    };
    for (listed, registered, recorded, finalizer, proves) in [
        (&["zone/id"][..], None, None, true, false),
        (&["zone/id"], None, Some("other-id"), true, false),
        (&["zone/id", "other-id"], None, Some("other-id"), true, false),
        (
            &["zone/id", "other-id"],
            Some(("other-id", 99)),
            None,
            true,
            false,
        ),
        (&["other-id"], Some(("other-id", 99)), None, true, true),
        // A machine that was renamed in place registers a CSINode of its new name, and that of the old one stays.
        (&["other-id"], Some(("other-id", 100)), None, true, false),
        (
            &["other-id"],
            Some(("other-id", 101)),
            Some("other-id"),
            true,
            true,
        ),
        (&["other-id"], None, Some("other-id"), true, true),
        // Nothing ensures that it is unpublished there.
        (&["other-id"], None, Some("other-id"), false, false),
        (&[], None, None, true, true),
    ] {
        let mut fixture = Fixture::new(Attachment {
            created: Timestamp::from_second(100).ok(),
            ..mk_detached()
        });
        fixture.connect_listing();
        fixture.unregister_driver();
        if let Some((id, created)) = registered {
            let node = Node {
                created: Timestamp::from_second(created).ok(),
                ..mk_node("other", Some(id))
            };
            fixture.state().handle(Event::Nodes(Change::Applied(node)));
        }
        if let Some(id) = recorded {
            let other = Attachment {
                finalizer,
                attached: finalizer,
                deleting: !finalizer,
                ..elsewhere(id)
            };
            fixture.state().handle(Event::Attachments(Change::Applied(other)));
        }
        fixture.answers("id", "NotFound");
        fixture.fails().await;
        for _ in 0..2 {
            let round = fixture.begin_round();
            fixture.end_round_with(round, listed);
        }
        let case = format!("{listed:?} {registered:?} {recorded:?} {finalizer}");
        assert_eq!(fixture.is_released().await, proves, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_with_an_id_of_the_own_csinode_proves_nothing() {
    for (listed, proves) in [("id", false), ("other-id", true)] {
        let mut fixture = Fixture::new(Attachment {
            attached: true,
            created: Timestamp::from_second(100).ok(),
            ..mk_moved()
        });
        fixture.connect_listing();
        let [own, other] = [("node", "id"), ("other", "other-id")].map(|(name, id)| Node {
            version: Version(2),
            created: Timestamp::from_second(99).ok(),
            ..mk_node(name, Some(id))
        });
        fixture.state().handle(Event::Nodes(Change::Applied(own)));
        fixture.state().handle(Event::Nodes(Change::Applied(other)));
        fixture.answers("old-id", "NotFound");
        fixture.fails().await;
        for _ in 0..2 {
            let round = fixture.begin_round();
            fixture.end_round_with(round, &[listed]);
        }
        assert_eq!(fixture.is_released().await, proves, "{listed}");
    }
}

/// The driver lists the machine under its new id, and its entry in the CSINode vanishes: the recorded id alone is asked.
#[tokio::test(start_paused = true)]
async fn lists_that_show_the_volume_at_the_nodes_present_id_prove_nothing_when_that_is_gone() {
    let mut fixture = Fixture::new(Attachment {
        attached: true,
        ..mk_moved()
    });
    fixture.connect_listing();
    fixture.answers("old-id", "NotFound");
    fixture.answers("id", "FailedPrecondition");
    fixture.fails().await;
    for _ in 0..2 {
        let round = fixture.begin_round();
        fixture.end_round_with(round, &["id"]);
    }
    fixture.unregister_driver();
    assert!(!fixture.is_released().await, "the volume is published");
}

/// A driver may list only nodes that it knows.
#[tokio::test(start_paused = true)]
async fn lists_end_with_a_change_of_the_csinode() {
    let mut fixture = Fixture::new(mk_detached());
    fixture.connect_listing();
    fixture.answers("id", "NotFound");
    fixture.fails().await;
    for changes in [true, false] {
        let round = fixture.begin_round();
        fixture.end_round(round);
        if changes {
            fixture.unregister_driver();
        }
        assert!(!fixture.is_released().await, "one list is no proof");
    }
    let round = fixture.begin_round();
    fixture.end_round(round);
    assert!(fixture.is_released().await);
}

/// The orphan is enqueued under its own target.
#[tokio::test(start_paused = true)]
async fn a_list_that_proves_the_present_id_of_an_orphan_enqueues_it() {
    let at = |node_id: &str| PublishTarget {
        volume_id: "handle".into(),
        node_id: node_id.into(),
    };
    let mut fixture = Fixture::new(mk_moved());
    fixture.connect_listing();
    let attachment = Arc::new(fixture.attachment());
    fixture.world.state().attachment = None;
    let (name, uid) = (attachment.name.clone(), attachment.uid.clone());
    fixture
        .state()
        .handle(Event::Attachments(Change::Deleted { name, uid }));
    fixture.state().add_orphan(Orphan {
        target: at("old-id"),
        secret: None,
        migrated: false,
        attachment,
    });
    for id in ["old-id", "id"] {
        fixture.answers(id, "NotFound");
    }
    assert!(fixture.unpublish_orphan().await.is_err());
    let now = fixture.now;
    for round in 1..=3 {
        let listed = fixture.begin_round();
        fixture.end_round(listed);
        if round == 1 {
            // By another VolumeAttachment: the lists begin again for this target alone.
            let uid = Uid::from("other");
            fixture.state().publish_begins(&uid, &at("id"));
            fixture.state().publish_ended(&uid, PublishEnd::Succeeded);
        }
        let item = fixture.state().start(now);
        assert_eq!(item.is_some(), round > 1, "{round}: {item:?}");
        if let Some(item) = item {
            let result = fixture.controller.sync(&item).await;
            assert_eq!(result.is_ok(), round == 3, "{round}: {result:?}");
            fixture.finish(&item, result);
        }
    }
}

/// No CSINode of this node registers the recorded id any more, and the volume is off the machine that has the name now.
#[tokio::test(start_paused = true)]
async fn three_answers_over_a_minute_end_a_detach_of_a_node_that_has_another_id() {
    for unknown in ["old-id", "id"] {
        let mut fixture = Fixture::new(mk_moved());
        fixture.answers(unknown, "NotFound");
        for _ in 0..2 {
            fixture.fails().await;
            fixture.keeps_finalizer(unknown, &["\"old-id\"", "NotFound"]);
            tokio::time::advance(MINUTE / 2).await;
        }
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{unknown}");
        assert_eq!(fixture.world.state().attachment, None, "{unknown}");
    }
}

/// With another id in the error, its command would be run after a look at the wrong machine.
#[tokio::test]
async fn a_detach_error_names_the_ids_that_nothing_proves() {
    for (unknown, named) in [
        (
            &["old-id"][..],
            "from node id \"old-id\" (the node registers \"id\" now)",
        ),
        (
            &["id"],
            "from node id \"id\" (which the node registers now; it is unpublished from the recorded \"old-id\")",
        ),
        (
            &["old-id", "id"],
            "from node ids \"old-id\" and \"id\" (which the node registers now)",
        ),
    ] {
        let mut fixture = Fixture::new(mk_moved());
        for id in unknown {
            fixture.answers(id, "NotFound");
        }
        fixture.fails().await;
        fixture.keeps_finalizer(&format!("{unknown:?}"), &[named]);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_end_with_a_change_of_the_csinode() {
    let mut fixture = Fixture::new(mk_moved());
    fixture.answers("old-id", "NotFound");
    for _ in 0..2 {
        fixture.fails().await;
        tokio::time::advance(MINUTE).await;
    }
    fixture.register_again();
    fixture.fails().await;
    fixture.keeps_finalizer("the node registered again", &["\"new-id\""]);
}

/// The driver restarts during the call, with a cold cache.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_reconnect_overtook_does_not_count() {
    let mut fixture = Fixture::new(mk_moved());
    fixture.answers("old-id", "NotFound");
    for _ in 0..2 {
        fixture.fails().await;
        tokio::time::advance(MINUTE).await;
    }
    let result = fixture
        .attach_during("unpublish", |fixture| fixture.world.state().session = None)
        .await;
    assert!(result.is_err(), "{result:?}");
    assert!(fixture.attachment().finalizer);
}

#[tokio::test(start_paused = true)]
async fn the_operators_word_counts_after_a_live_read_of_the_csinode() {
    let mut fixture = Fixture::new(mk_deleting()).assume_unpublished_after(10 * MINUTE);
    fixture.answers("id", "NotFound");
    fixture.delete_csinode();
    for _ in 0..2 {
        fixture.fails().await;
        fixture.keeps_finalizer("too early", &["--assume-unpublished-after", "kubectl patch"]);
        tokio::time::advance(5 * MINUTE).await;
    }
    assert!(!fixture.seen().contains(&"get CSINode"));
    // The watch is late.
    fixture.world.state().node_exists = true;
    fixture.fails().await;
    assert!(fixture.seen().contains(&"get CSINode"));
    assert!(fixture.attachment().finalizer);
    fixture.refuse("get CSINode", forbidden());
    fixture.fails().await;
    assert!(fixture.attachment().finalizer);
    fixture.world.state().node_exists = false;
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().attachment, None);
}

#[tokio::test(start_paused = true)]
async fn the_operators_word_releases_a_driver_that_lost_its_publish_calls() {
    let mut fixture = Fixture::new(mk_deleting()).assume_unpublished_after(10 * MINUTE);
    fixture.reconnect(false);
    fixture.fails().await;
    fixture.keeps_finalizer(
        "too early",
        &["PUBLISH_UNPUBLISH_VOLUME", "--assume-unpublished-after"],
    );
    tokio::time::advance(6 * MINUTE).await;
    // Another session.
    fixture.world.state().session = None;
    fixture.reconnect(false);
    fixture.fails().await;
    tokio::time::advance(6 * MINUTE).await;
    fixture.fails().await;
    assert!(fixture.attachment().finalizer);
    tokio::time::advance(4 * MINUTE).await;
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().attachment, None);
    assert_eq!(fixture.world.state().unpublished, []);
}

#[tokio::test(start_paused = true)]
async fn the_operators_word_is_not_kept_for_another_session() {
    let mut fixture = Fixture::new(mk_deleting()).assume_unpublished_after(MINUTE);
    fixture.reconnect(false);
    fixture.fails().await;
    tokio::time::advance(MINUTE).await;
    fixture.refuse("remove finalizer", Error::Unanswered("no response".into()));
    fixture.fails().await;
    fixture.world.state().session = None;
    fixture.reconnect(true);
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert_eq!(fixture.world.state().unpublished.len(), 1);
}

/// A pod uses the volume, maybe on the same machine and for years.
#[tokio::test(start_paused = true)]
async fn two_lists_end_an_orphan_that_waits_for_an_attachment_under_another_node_id() {
    let mut fixture = Fixture::new(Attachment {
        deleting: false,
        ..mk_moved()
    });
    fixture.connect_listing();
    fixture.answers("old-id", "NotFound");
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    assert!(fixture.unpublish_orphan().await.is_err());
    fixture.world.state().unpublished.clear();
    let now = fixture.now;
    // An earlier process may have sent a publish.
    tokio::time::advance(11 * MINUTE).await;
    for round in 1..=2 {
        let listed = fixture.begin_round();
        fixture.end_round_with(listed, &["id"]);
        let item = fixture.state().start(now);
        assert_eq!(item.is_some(), round == 2, "{round}: {item:?}");
        if let Some(item) = item {
            let result = fixture.controller.sync(&item).await;
            fixture.finish(&item, result);
        }
    }
    assert!(fixture.state().orphans.is_empty());
    assert_eq!(fixture.world.state().unpublished, [], "a pod uses the volume");
}

/// Its wait is none that an administrator should end.
#[tokio::test(start_paused = true)]
async fn an_orphan_that_waits_for_an_attachment_has_no_age_and_starts_when_that_changes() {
    let mut fixture = Fixture::new(Attachment {
        deleting: false,
        ..mk_moved()
    });
    fixture.answers("old-id", "NotFound");
    assert_eq!(fixture.sync_next().await, Some(Ok(())));
    let age = |fixture: &Fixture| {
        let now = fixture.now + FOREVER;
        fixture.state().lanes(now)[&Lane::Detach].longest
    };
    assert!(fixture.unpublish_orphan().await.is_err());
    assert_eq!(age(&fixture), Duration::ZERO);
    let other = Change::Applied(mk_idle());
    fixture.state().handle(Event::Attachments(other));
    let now = fixture.now;
    assert!(fixture.state().start(now).is_none());
    let changed = fixture
        .world
        .change(|attachment| attachment.foreign_finalizers = true);
    let changed = Change::Applied(changed.expect("it exists"));
    fixture.state().handle(Event::Attachments(changed));
    assert!(fixture.at_once().await.is_err());
    assert_eq!(age(&fixture), Duration::ZERO);
    fixture.remove_by_hand();
    assert!(fixture.at_once().await.is_err(), "NOT_FOUND");
    assert_eq!(fixture.world.state().unpublished.len(), 3);
    assert!(age(&fixture) > Duration::ZERO);
}

/// The driver may know it later, when it names the machine that the pod runs on.
#[tokio::test]
async fn an_unknown_target_of_an_earlier_attach_becomes_an_orphan() {
    for code in ["NotFound", "InvalidArgument"] {
        let mut fixture = Fixture::new(Attachment {
            deleting: false,
            ..mk_moved()
        });
        fixture.answers("old-id", code);
        assert_eq!(fixture.sync_next().await, Some(Ok(())), "{code}");
        let attachment = fixture.attachment();
        assert!(attachment.attached, "{code}");
        assert_eq!(attachment.recorded.node_id.as_deref(), Some("id"), "{code}");
        fixture.world.state().refused_at.clear();
        fixture.world.state().unpublished.clear();
        // A pod uses the volume, maybe on the same machine.
        assert!(fixture.unpublish_orphan().await.is_err(), "{code}");
        assert_eq!(fixture.world.state().unpublished, [], "{code}");
        fixture.delete();
        while fixture.world.state().attachment.is_some() {
            fixture.sync_next().await.expect("a detach").ok();
        }
        while !fixture.state().is_idle() {
            fixture.unpublish_orphan().await.expect("the orphan is released");
        }
        let mut ids: Vec<_> = fixture
            .world
            .state()
            .unpublished
            .drain(..)
            .map(|t| t.node_id)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids, ["id", "old-id"].map(Arc::<str>::from), "{code}");
    }
}
