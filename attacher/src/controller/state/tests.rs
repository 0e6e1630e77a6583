//! What ends a backoff, and what is kept between syncs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::model::{Problem, PublishTarget, Source, Version};
use crate::plan::tests::{mk_attachment, mk_driver, mk_node, mk_volume};

const SECOND: Duration = Duration::from_secs(1);

/// An empty state with this concurrency in each lane.
pub(crate) fn mk_state(places: usize) -> ControllerState {
    let limits = Limits {
        attach: places,
        detach: places,
        volume: places,
    };
    let backoff = Backoff {
        start: SECOND,
        max: 300 * SECOND,
    };
    #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
    let now = Instant::now();
    ControllerState::new(limits, backoff, 1, now)
}

pub(super) struct Bench {
    pub(super) state: ControllerState,
    pub(super) now: Instant,
}

impl Bench {
    /// A state with one volume, one node and `attachments`.
    pub(super) fn new(attachments: impl IntoIterator<Item = Attachment>) -> Self {
        let mut state = mk_state(10);
        state.handle(Event::Volumes(Change::Applied(mk_volume("pv"))));
        state.handle(Event::Nodes(Change::Applied(mk_node("node", Some("id")))));
        for attachment in attachments {
            state.handle(Event::Attachments(Change::Applied(attachment)));
        }
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        Self {
            state,
            now: Instant::now(),
        }
    }

    pub(super) fn start(&mut self) -> Option<Item> {
        self.state.start(self.now)
    }

    fn starts(&mut self, name: &str) -> Item {
        match self.start() {
            Some(item) if matches!(&item, Item::Attachment { attachment, .. } if &*attachment.name == name) => {
                item
            }
            other => panic!("{name} must start, not {other:?}"),
        }
    }

    pub(super) fn finish(&mut self, item: &Item, result: Result<(), SyncError>) {
        self.state.finish(item, result, self.now);
    }

    pub(super) fn put(&mut self, attachment: Attachment) {
        self.state.handle(Event::Attachments(Change::Applied(attachment)));
    }
}

fn failed(class: Class) -> Result<(), SyncError> {
    Err(SyncError::new(class, "failed"))
}

fn newer(attachment: &Attachment, change: impl FnOnce(&mut Attachment)) -> Attachment {
    let mut newer = attachment.clone();
    newer.version = Version(attachment.version.0 + 1);
    change(&mut newer);
    newer
}

#[test]
fn the_echo_of_a_written_error_enqueues_nothing() {
    let va = mk_attachment("va");
    let mut bench = Bench::new([va.clone()]);
    let item = bench.starts("va");
    let told = newer(&va, |va| va.attach_error = Some(Box::new(Problem::default())));
    // The watch shows our write before and after its response.
    bench.put(told.clone());
    bench.finish(&item, failed(Class::Final));
    assert!(bench.start().is_none());
    bench.put(newer(&told, |va| {
        va.attach_error = Some(Box::new(Problem {
            code: Some(8),
            ..Problem::default()
        }))
    }));
    assert!(bench.start().is_none());
    bench.now += SECOND;
    bench.starts("va");
}

#[test]
fn own_writes_and_reconnects_do_not_reset_the_backoff_of_a_failing_detach() {
    let mut va = Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let mut bench = Bench::new([va.clone()]);
    let capabilities = mk_driver().capabilities;
    bench.state.handle(Event::DriverConnected(capabilities));
    let mut pauses = Vec::new();
    for attempt in 0..8 {
        let item = bench.starts("va");
        // The driver returns UNAVAILABLE, say. The watch shows the written error before and after its response.
        let told = newer(&va, |va| {
            va.detach_error = Some(Box::new(Problem {
                message: format!("attempt {attempt}"),
                ..Problem::default()
            }));
        });
        if attempt % 2 == 0 {
            bench.put(told.clone());
        }
        bench
            .state
            .handle(Event::Attachments(Change::LocallyUpdated(told.clone())));
        bench.finish(&item, failed(Class::Uncertain));
        bench.put(told.clone());
        va = told;
        // The driver reconnects, which is unrelated to the failure.
        bench.state.handle(Event::DriverConnected(capabilities));
        assert!(bench.start().is_none(), "{attempt}");
        let until = bench.state.queue.next_advance().expect("it waits");
        pauses.push(until - bench.now);
        bench.now = until;
    }
    // As in Go, except for the jitter and the cap of uncertain results.
    for (pause, whole) in pauses.iter().zip([1, 2, 4, 8, 16, 30, 30, 30]) {
        let whole = whole * SECOND;
        assert!((whole * 4 / 5..=whole).contains(pause), "{pauses:?}");
    }
}

#[test]
fn a_users_edit_ends_the_backoff() {
    let va = mk_attachment("va");
    let mut bench = Bench::new([va.clone()]);
    let item = bench.starts("va");
    bench.finish(&item, failed(Class::Final));
    assert!(bench.start().is_none());
    bench.put(newer(&va, |_| ()));
    bench.starts("va");
}

#[test]
fn a_deletion_ends_the_backoff_of_an_attach() {
    let va = Attachment {
        finalizer: true,
        ..mk_attachment("va")
    };
    let mut bench = Bench::new([va.clone()]);
    let item = bench.starts("va");
    bench.put(newer(&va, |va| va.deleting = true));
    assert!(bench.start().is_none(), "one sync per key");
    bench.finish(&item, failed(Class::Uncertain));
    assert!(matches!(
        bench.starts("va"),
        Item::Attachment {
            operation: Operation::Detach,
            ..
        }
    ));
}

#[test]
fn a_new_node_id_ends_the_backoff_of_the_nodes_attachments() {
    let mut bench = Bench::new([mk_attachment("va")]);
    let item = bench.starts("va");
    bench.finish(&item, failed(Class::Final));
    let unchanged = Node {
        version: Version(2),
        ..mk_node("node", Some("id"))
    };
    bench.state.handle(Event::Nodes(Change::Applied(unchanged)));
    assert!(bench.start().is_none());
    let registered = Node {
        version: Version(3),
        ..mk_node("node", Some("other"))
    };
    bench.state.handle(Event::Nodes(Change::Applied(registered)));
    bench.starts("va");
}

#[test]
fn a_deleted_csinode_ends_the_backoff_of_the_nodes_attachments() {
    for deleting in [false, true] {
        let va = Attachment {
            deleting,
            finalizer: true,
            ..mk_attachment("va")
        };
        let mut bench = Bench::new([va]);
        let item = bench.starts("va");
        bench.finish(&item, failed(Class::Final));
        assert!(bench.start().is_none());
        let Node { name, uid, .. } = mk_node("node", None);
        bench.state.handle(Event::Nodes(Change::Deleted { name, uid }));
        bench.starts("va");
    }
}

#[test]
fn a_detach_ends_the_backoff_of_attaches_that_need_its_volume_or_capacity() {
    let leaving = Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attachment("leaving")
    };
    let same_volume = Attachment {
        node: "elsewhere".into(),
        ..mk_attachment("same-volume")
    };
    let same_node = Attachment {
        source: Source::Volume("pv-2".into()),
        ..mk_attachment("same-node")
    };
    let unrelated = Attachment {
        source: Source::Volume("pv-3".into()),
        ..mk_attachment("unrelated")
    };
    let mut bench = Bench::new([same_volume, same_node, unrelated]);
    // No status has a code, as with older API servers.
    for (name, code) in [
        ("same-volume", None),
        ("same-node", Some(RESOURCE_EXHAUSTED)),
        ("unrelated", None),
    ] {
        let item = bench.starts(name);
        let error = SyncError {
            code,
            ..SyncError::new(Class::Final, "failed")
        };
        bench.finish(&item, Err(error));
    }
    bench.put(leaving.clone());
    let item = bench.starts("leaving");
    let departed = Change::LocallyDeleted {
        name: leaving.name.clone(),
        uid: leaving.uid,
    };
    bench.state.handle(Event::Attachments(departed));
    bench.finish(&item, Ok(()));
    bench.starts("same-volume");
    bench.starts("same-node");
    assert!(bench.start().is_none());
}

#[test]
fn a_reconnect_ends_the_backoff_of_disconnected_items() {
    let mut bench = Bench::new([mk_attachment("va")]);
    let item = bench.starts("va");
    bench.finish(&item, failed(Class::Disconnected));
    assert!(bench.start().is_none());
    bench
        .state
        .handle(Event::DriverConnected(mk_driver().capabilities));
    let item = bench.starts("va");
    // It reconnects while the failure is being reported.
    bench
        .state
        .handle(Event::DriverConnected(mk_driver().capabilities));
    bench.finish(&item, failed(Class::Disconnected));
    bench.starts("va");
}

#[test]
fn the_next_sync_gets_the_pending_status_write() {
    let mut bench = Bench::new([mk_attachment("va")]);
    let item = bench.starts("va");
    let pending = PendingStatusWrite::Published {
        target: PublishTarget {
            volume_id: "handle".into(),
            node_id: "id".into(),
        },
        context: BTreeMap::new(),
    };
    bench.state.keep_pending(&mk_attachment("va"), pending.clone());
    bench.finish(&item, failed(Class::Uncertain));
    bench.now += SECOND;
    bench.starts("va");
    assert_eq!(
        bench.state.state_of(&mk_attachment("va").uid).pending,
        Some(pending)
    );
}

#[test]
fn removes_pv_finalizer_of_a_deleted_volume_after_its_last_attachment() {
    let va = Attachment {
        attached: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let mut bench = Bench::new([va.clone()]);
    let deleted = Volume {
        version: Version(2),
        deleting: true,
        finalizer: true,
        ..mk_volume("pv")
    };
    bench.state.handle(Event::Volumes(Change::Applied(deleted)));
    assert!(bench.start().is_none(), "it is in use");
    bench.state.handle(Event::Attachments(Change::Deleted {
        name: va.name,
        uid: va.uid,
    }));
    assert!(matches!(bench.start(), Some(Item::Volume(volume)) if &*volume.name == "pv"));
}

#[test]
fn removes_pv_finalizer_of_a_volume_left_in_tree_after_its_last_attachment() {
    let va = Attachment {
        attached: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let held = Volume {
        version: Version(2),
        finalizer: true,
        ..mk_volume("pv")
    };
    let taken_back = Volume {
        version: Version(3),
        left_in_tree: true,
        ..held.clone()
    };
    let mut bench = Bench::new([va.clone()]);
    bench.state.handle(Event::Volumes(Change::Applied(held)));
    bench
        .state
        .handle(Event::Volumes(Change::Applied(taken_back.clone())));
    assert!(bench.start().is_none(), "it is in use");
    bench.state.handle(Event::Attachments(Change::Deleted {
        name: va.name,
        uid: va.uid,
    }));
    assert!(matches!(bench.start(), Some(Item::Volume(volume)) if &*volume.name == "pv"));
    let mut bench = Bench::new([]);
    bench.state.handle(Event::Volumes(Change::Applied(taken_back)));
    assert!(
        matches!(bench.start(), Some(Item::Volume(_))),
        "it was free already"
    );
}

#[test]
fn a_sync_without_effect_backs_off() {
    let mut bench = Bench::new([mk_attachment("va")]);
    let item = bench.starts("va");
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none());
    bench.now += SECOND;
    bench.starts("va");
}
