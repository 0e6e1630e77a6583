//! Changes while a sync waits: for the driver, a Secret, a write, a lock, or the call itself.

use super::*;
use crate::workqueue::Lane;

/// The waits that come before the call.
const WAITS: [&str; 4] = ["ready", "get secret", "add PV finalizer", "record"];

fn at(node_id: &str) -> PublishTarget {
    PublishTarget {
        volume_id: "handle".into(),
        node_id: node_id.into(),
    }
}

impl Fixture {
    /// The node registers again under another id.
    pub(super) fn register_again(&self) {
        let node = Node {
            version: Version(2),
            ..mk_node("node", Some("new-id"))
        };
        self.state().handle(Event::Nodes(Change::Applied(node)));
    }

    /// The node is deleted, and its CSINode with it.
    pub(super) fn delete_csinode(&self) {
        let Node { name, uid, .. } = mk_node("node", None);
        self.state().handle(Event::Nodes(Change::Deleted { name, uid }));
    }

    /// A user deletes the PersistentVolume.
    pub(super) fn delete_volume(&self) {
        let volume = Volume {
            version: Version(3),
            finalizer: true,
            deleting: true,
            ..mk_secret_volume()
        };
        self.state().handle(Event::Volumes(Change::Applied(volume)));
    }

    /// Runs an attach or a detach in which `change` happens during the wait for `silent`.
    pub(super) async fn attach_during(
        &mut self,
        silent: &'static str,
        change: impl FnOnce(&Self),
    ) -> Result<(), SyncError> {
        self.world.state().silent.push(silent);
        let item = self.item().expect("an attach or a detach");
        let result = {
            let mut run = std::pin::pin!(self.controller.sync(&item));
            assert!(timeout(FOREVER, run.as_mut()).await.is_err(), "{silent}");
            change(self);
            self.world.respond.notify_one();
            self.world.state().silent.clear();
            run.await
        };
        self.finish(&item, result.clone());
        result
    }

    /// Syncs the next item without advancing the clock.
    pub(super) async fn at_once(&mut self) -> Result<(), SyncError> {
        let now = self.now;
        let item = self.state().start(now).expect("it must not wait");
        let result = self.controller.sync(&item).await;
        self.finish(&item, result.clone());
        result
    }
}

#[tokio::test(start_paused = true)]
async fn publishes_to_the_node_id_at_the_time_of_the_call() {
    for wait in WAITS {
        let mut fixture = Fixture::new(mk_attachment("va"));
        let result = fixture.attach_during(wait, Fixture::register_again).await;
        assert_eq!(result, Ok(()), "{wait}");
        assert_eq!(fixture.world.state().published, [at("new-id")], "{wait}");
        let attachment = fixture.attachment();
        assert!(attachment.attached, "{wait}");
        assert_eq!(attachment.recorded.node_id.as_deref(), Some("new-id"), "{wait}");
    }
}

#[tokio::test(start_paused = true)]
async fn decides_again_after_waiting_for_the_targets_lock() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    let item = fixture.item().expect("an attach");
    let others = fixture.controller.target_mutexes.lock(&at("id")).await;
    let mut run = std::pin::pin!(fixture.controller.sync(&item));
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    assert!(fixture.seen().contains(&"record"));
    fixture.register_again();
    drop(others);
    assert_eq!(run.await, Ok(()));
    assert_eq!(fixture.world.state().published, [at("new-id")]);
}

/// No pod uses the volume before the status has attached=true.
#[tokio::test(start_paused = true)]
async fn undoes_a_publish_if_the_node_id_changed_during_the_call() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    let result = fixture.attach_during("publish", Fixture::register_again).await;
    assert_eq!(result, Ok(()));
    let seen = fixture.seen();
    let marks = seen.iter().filter(|seen| **seen == "mark attached").count();
    assert_eq!(marks, 1, "{seen:?}");
    let published = fixture.world.state().published.clone();
    assert_eq!(published, [at("id"), at("new-id")]);
    assert_eq!(fixture.world.state().unpublished, [at("id")]);
    let attachment = fixture.attachment();
    assert!(attachment.attached);
    assert_eq!(attachment.recorded.node_id.as_deref(), Some("new-id"));
}

#[tokio::test(start_paused = true)]
async fn does_not_publish_a_volume_that_is_deleted_before_the_call() {
    for wait in WAITS {
        let mut fixture = Fixture::new(mk_attachment("va"));
        let result = fixture.attach_during(wait, Fixture::delete_volume).await;
        assert!(result.is_err(), "{wait}");
        assert!(fixture.world.state().published.is_empty(), "{wait}");
        let error = fixture.attachment().attach_error.expect("users must see it");
        assert!(error.message.contains("marked for deletion"), "{wait}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn does_not_publish_to_a_node_that_is_deleted_before_the_call() {
    for wait in WAITS {
        let mut fixture = Fixture::new(mk_attachment("va"));
        let result = fixture.attach_during(wait, Fixture::delete_csinode).await;
        assert!(result.is_err(), "{wait}");
        assert!(fixture.world.state().published.is_empty(), "{wait}");
        let error = fixture.attachment().attach_error.expect("users must see it");
        let text = r#"csinode.storage.k8s.io "node" not found"#;
        assert_eq!(error.message, text, "{wait}");
    }
}

#[tokio::test(start_paused = true)]
async fn does_not_publish_an_attachment_that_is_deleted_before_the_call() {
    for wait in WAITS {
        let mut fixture = Fixture::new(Attachment {
            foreign_finalizers: true,
            ..mk_attachment("va")
        });
        let result = fixture.attach_during(wait, Fixture::delete).await;
        assert_eq!(result, Ok(()), "{wait}");
        assert!(fixture.world.state().published.is_empty(), "{wait}");
        // Its finalizer may be stored already.
        while fixture.attachment().finalizer {
            assert_eq!(fixture.at_once().await, Ok(()), "{wait}");
        }
    }
}

/// The record lacks the node id.
#[tokio::test(start_paused = true)]
async fn detach_uses_the_node_id_at_the_time_of_the_call() {
    let mut fixture = Fixture::new(Attachment {
        recorded: Recorded::default(),
        ..mk_deleting()
    });
    let result = fixture.attach_during("ready", Fixture::register_again).await;
    assert_eq!(result, Ok(()));
    assert_eq!(fixture.world.state().unpublished, [at("new-id")]);
}

/// A learned interval, which passes while the sync waits.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_interval_is_decided_by_the_newest_objects() {
    const ABORTED: i32 = 10;
    const EARLY: Duration = Duration::from_millis(40);
    for (change, publishes) in [
        ((|_| {}) as fn(&Fixture), true),
        (
            |fixture| {
                let deleting = Attachment {
                    version: Version(9),
                    deleting: true,
                    ..fixture.attachment()
                };
                let event = Event::Attachments(Change::Applied(deleting));
                fixture.state().handle(event);
            },
            false,
        ),
        (|fixture| fixture.controller.draining.cancel(), false),
    ] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        let item = fixture.item().expect("an attach");
        // Of two other calls for the node one is refused: another one is tried 50 ms later.
        {
            let mut state = fixture.controller.state();
            let keys = ["x", "y"].map(|name| Key::Attachment(name.into()));
            for key in &keys {
                state.queue.enqueue(key, Lane::Attach, Some(&"node".into()));
                assert!(state.queue.start().is_some());
                assert_eq!(state.queue.call_begins(key), None);
            }
            state.queue.call_ended(&keys[1], Outcome::Failed(ABORTED));
        }
        let mut sync = std::pin::pin!(fixture.controller.sync(&item));
        assert!(timeout(EARLY, sync.as_mut()).await.is_err(), "it waits");
        assert!(!fixture.seen().contains(&"publish"));
        change(&fixture);
        let result = timeout(FOREVER, sync).await.expect("the interval passes");
        assert!(result.is_ok() || !publishes);
        assert_eq!(fixture.seen().contains(&"publish"), publishes);
    }
}
