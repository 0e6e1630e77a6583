//! Events that end a backoff, and state that is kept between syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::*;
use crate::model::{Driver, Problem, PublishTarget, Recorded, Source, Version};
use crate::plan::Published;
use crate::plan::tests::{mk_attachment, mk_driver, mk_node, mk_spec, mk_volume};
use crate::workqueue::{Failures, Stage};

const SECOND: Duration = Duration::from_secs(1);

/// An empty state with this concurrency in each lane.
pub(crate) fn mk_state(concurrency: usize) -> ControllerState {
    let limits = Limits {
        attach: concurrency,
        detach: concurrency,
        volume: concurrency,
        driver_calls: 0,
        adaptive: true,
    };
    let backoff = Backoff {
        start: SECOND,
        max: 300 * SECOND,
    };
    #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
    let now = Instant::now();
    ControllerState::new(limits, backoff, 1, now)
}

/// A state with one volume, one node, and a driver that lists.
pub(crate) fn mk_listing(concurrency: usize) -> (ControllerState, Driver) {
    let mut driver = mk_driver();
    driver.capabilities.list_published = true;
    let mut state = mk_state(concurrency);
    state.handle(Event::DriverConnected(driver.capabilities));
    state.handle(Event::Volumes(Change::Applied(mk_volume("pv"))));
    state.handle(Event::Nodes(Change::Applied(mk_node("node", Some("id")))));
    (state, driver)
}

/// A state from which the same follows in the exhaustive search ([`ControllerState::digest`]).
impl Clone for ControllerState {
    fn clone(&self) -> Self {
        let Self { queue, .. } = self;
        let limits = Limits {
            attach: queue.limit(Lane::Attach),
            detach: queue.limit(Lane::Detach),
            volume: queue.limit(Lane::PersistentVolume),
            driver_calls: 0,
            adaptive: false,
        };
        // Each step of the search is longer.
        let backoff = Backoff {
            start: Duration::from_millis(1),
            max: Duration::from_millis(1),
        };
        let mut forked = Self {
            index: self.index.clone(),
            to_backfill: self.to_backfill.clone(),
            orphans: self.orphans.clone(),
            orphan_progress: self.orphan_progress.clone(),
            attachment_states: self.attachment_states.clone(),
            evidence: self.evidence.clone(),
            capabilities: self.capabilities,
            connection: self.connection,
            started: self.started,
            ..Self::new(limits, backoff, 1, queue.now)
        };
        let entries: BTreeMap<_, _> = queue.items().collect();
        for (key, entry) in &entries {
            if let Some(Failures { uid, lane, last, .. }) = &entry.failures {
                forked.queue.enqueue(key, *lane, entry.node.as_ref());
                forked.queue.start();
                let finished = forked.queue.finish(key);
                forked
                    .queue
                    .fail(key, finished, (uid.clone(), *lane), last.clone(), 0.0);
            }
        }
        for (key, entry) in &entries {
            if let Stage::Running { dirty, .. } = entry.stage {
                forked.queue.enqueue(key, entry.lane, entry.node.as_ref());
                forked.queue.start();
                if dirty {
                    forked.queue.enqueue(key, entry.lane, None);
                }
            }
        }
        for (key, entry) in &entries {
            if matches!(entry.stage, Stage::Ready { .. }) {
                forked.queue.enqueue(key, entry.lane, entry.node.as_ref());
            }
        }
        forked
    }
}

impl ControllerState {
    /// Whether no sync is running and no orphan remains.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_drained() && self.orphans.is_empty()
    }

    /// Writes what decides about the syncs that follow in the exhaustive search, where each waiting key is due, and the driver has no
    /// lists.
    pub(crate) fn digest(&self, digest: &mut impl fmt::Write) {
        let Self {
            index,
            to_backfill: _,
            queue,
            orphans,
            waiting_orphans: _,
            orphan_progress,
            attachment_states,
            evidence,
            caches_synced: _,
            latency: _,
            random: _,
            capabilities,
            connection,
            rounds: _,
            findings: _,
            started: _,
        } = self;
        let stage = |stage| match stage {
            Stage::Ready { .. } => ("ready", false),
            Stage::Running { dirty, .. } => ("running", dirty),
            Stage::Waiting { .. } => ("waiting", false),
        };
        let class = |failures: &Option<Failures>| failures.as_ref().map(|failures| failures.last.class);
        let queued = queue.items();
        let queued: BTreeMap<_, _> = queued
            .map(|(key, entry)| (key, (entry.lane, stage(entry.stage), class(&entry.failures))))
            .collect();
        let state = (
            (
                index.attachments.digest(),
                index.volumes.digest(),
                index.nodes.digest(),
            ),
            (queued, orphans),
            (capabilities, evidence.digest()),
            orphan_progress.iter().collect::<BTreeMap<_, _>>(),
            attachment_states.iter().collect::<BTreeMap<_, _>>(),
        );
        // As `Debug` writes a field.
        let written = ["connection", ": ", &connection.to_string()].map(|part| digest.write_str(part));
        written
            .into_iter()
            .collect::<fmt::Result>()
            .expect("a digest takes everything");
        write!(digest, "{state:?}").expect("a digest takes everything");
    }
}

pub(super) struct Fixture {
    pub(super) state: ControllerState,
    pub(super) now: Instant,
}

impl Fixture {
    /// The volume is being deleted and has our finalizer.
    fn delete_volume(&mut self) {
        let deleting = Volume {
            version: Version(2),
            deleting: true,
            finalizer: true,
            ..mk_volume("pv")
        };
        self.state.handle(Event::Volumes(Change::Applied(deleting)));
    }

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
            Some(item) if matches!(&item, Item::Subject(Subject::Attachment(_, attachment)) if &*attachment.name == name) => {
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
    let mut fixture = Fixture::new([va.clone()]);
    let item = fixture.starts("va");
    let written = newer(&va, |va| va.attach_error = Some(Box::new(Problem::default())));
    // The watch shows our write before and after its response.
    fixture.put(written.clone());
    fixture.finish(&item, failed(Class::Final));
    assert!(fixture.start().is_none());
    fixture.put(newer(&written, |va| {
        va.attach_error = Some(Box::new(Problem {
            code: Some(8),
            ..Problem::default()
        }))
    }));
    assert!(fixture.start().is_none());
    fixture.now += SECOND;
    fixture.starts("va");
}

#[test]
fn own_writes_and_reconnects_do_not_reset_the_backoff_of_a_failing_detach() {
    let mut va = Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new([va.clone()]);
    let capabilities = mk_driver().capabilities;
    fixture.state.handle(Event::DriverConnected(capabilities));
    let mut pauses = Vec::new();
    for attempt in 0..8 {
        let item = fixture.starts("va");
        // The driver returns UNAVAILABLE, for example. The watch shows the written error before and after its response.
        let written = newer(&va, |va| {
            va.detach_error = Some(Box::new(Problem {
                message: format!("attempt {attempt}"),
                ..Problem::default()
            }));
        });
        if attempt % 2 == 0 {
            fixture.put(written.clone());
        }
        fixture
            .state
            .handle(Event::Attachments(Change::LocallyUpdated(written.clone())));
        fixture.finish(&item, failed(Class::Uncertain));
        fixture.put(written.clone());
        va = written;
        // The driver reconnects, which is unrelated to the failure.
        fixture.state.handle(Event::DriverConnected(capabilities));
        assert!(fixture.start().is_none(), "{attempt}");
        let until = fixture.state.queue.next_advance().expect("it waits");
        pauses.push(until - fixture.now);
        fixture.now = until;
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
    let mut fixture = Fixture::new([va.clone()]);
    let item = fixture.starts("va");
    fixture.finish(&item, failed(Class::Final));
    assert!(fixture.start().is_none());
    fixture.put(newer(&va, |_| ()));
    fixture.starts("va");
}

/// An edit during a sync ends the backoff like one after it. The watch may show the sync's own writes before their responses.
#[test]
fn an_edit_during_a_sync_ends_the_backoff() {
    let own = Recorded {
        node_id: Some("own".into()),
        ..Recorded::default()
    };
    for (case, change, is_edit) in [
        ("a label", (|_| ()) as fn(&mut Attachment), true),
        ("a finalizer of others", |va| va.foreign_finalizers = true, true),
        ("our finalizer", |va| va.finalizer = false, true),
        ("a record", |va| va.recorded.node_id = Some("other".into()), true),
        ("our record", |va| va.recorded.node_id = Some("own".into()), false),
        ("our status", |va| va.attached = true, false),
        ("our error", |va| va.attach_error = Some(Box::default()), false),
    ] {
        let va = Attachment {
            finalizer: true,
            ..mk_attachment("va")
        };
        let mut fixture = Fixture::new([va.clone()]);
        let item = fixture.starts("va");
        fixture.state.state_of(&va.uid).progress.sync.record = Some(own.clone());
        fixture.put(newer(&va, change));
        // What the watch shows later is stale.
        fixture
            .state
            .handle(Event::Attachments(Change::LocallyUpdated(Attachment {
                version: Version(9),
                ..va.clone()
            })));
        fixture.finish(&item, failed(Class::Final));
        assert_eq!(fixture.start().is_some(), is_edit, "{case}");
    }
}

#[test]
fn a_deletion_ends_the_backoff_of_an_attach() {
    let va = Attachment {
        finalizer: true,
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new([va.clone()]);
    let item = fixture.starts("va");
    fixture.put(newer(&va, |va| va.deleting = true));
    assert!(fixture.start().is_none(), "one sync per key");
    fixture.finish(&item, failed(Class::Uncertain));
    assert!(matches!(
        fixture.starts("va"),
        Item::Subject(Subject::Attachment(Operation::Detach, _))
    ));
}

#[test]
fn a_new_node_id_ends_the_backoff_of_the_nodes_attachments() {
    let mut fixture = Fixture::new([mk_attachment("va")]);
    let item = fixture.starts("va");
    fixture.finish(&item, failed(Class::Final));
    let unchanged = Node {
        version: Version(2),
        ..mk_node("node", Some("id"))
    };
    fixture.state.handle(Event::Nodes(Change::Applied(unchanged)));
    assert!(fixture.start().is_none());
    let registered = Node {
        version: Version(3),
        ..mk_node("node", Some("other"))
    };
    fixture.state.handle(Event::Nodes(Change::Applied(registered)));
    fixture.starts("va");
}

#[test]
fn a_deleted_csinode_ends_the_backoff_of_the_nodes_attachments() {
    for deleting in [false, true] {
        let va = Attachment {
            deleting,
            finalizer: true,
            ..mk_attachment("va")
        };
        let mut fixture = Fixture::new([va]);
        let item = fixture.starts("va");
        fixture.finish(&item, failed(Class::Final));
        assert!(fixture.start().is_none());
        let Node { name, uid, .. } = mk_node("node", None);
        fixture.state.handle(Event::Nodes(Change::Deleted { name, uid }));
        fixture.starts("va");
    }
}

#[test]
fn a_detach_ends_the_backoff_of_attaches_that_need_its_volume_or_capacity() {
    let deleting = Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attachment("deleting")
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
    // Other objects name the volume by its handle.
    let same_handle = Attachment {
        source: Source::Volume("pv-4".into()),
        ..same_volume.clone()
    };
    let inline = Attachment {
        source: Source::Inline(Box::new(mk_spec("handle"))),
        ..same_volume.clone()
    };
    let [same_handle, inline] =
        [("same-handle", same_handle), ("inline", inline)].map(|(name, attachment)| {
            let Attachment { name, uid, .. } = mk_attachment(name);
            Attachment {
                name,
                uid,
                ..attachment
            }
        });
    let mut fixture = Fixture::new([]);
    for name in ["pv", "pv-4"] {
        let volume = Change::Applied(mk_volume(name));
        fixture.state.handle(Event::Volumes(volume));
    }
    for attachment in [same_volume, same_handle, inline, same_node, unrelated] {
        fixture.put(attachment);
    }
    // No status has a code, as with older API servers.
    for (name, code) in [
        ("same-volume", None),
        ("same-handle", None),
        ("inline", None),
        ("same-node", Some(RESOURCE_EXHAUSTED)),
        ("unrelated", None),
    ] {
        let item = fixture.starts(name);
        let error = SyncError {
            code,
            ..SyncError::new(Class::Final, "failed")
        };
        fixture.finish(&item, Err(error));
    }
    fixture.put(deleting.clone());
    let item = fixture.starts("deleting");
    let deleted = Change::LocallyDeleted {
        name: deleting.name.clone(),
        uid: deleting.uid,
        version: None,
    };
    fixture.state.handle(Event::Attachments(deleted));
    fixture.finish(&item, Ok(()));
    let woken = std::iter::from_fn(|| fixture.start()).map(|item| match item {
        Item::Subject(Subject::Attachment(_, attachment)) => attachment.name.to_string(),
        item @ (Item::Subject(Subject::Orphan(_)) | Item::Volume(_) | Item::Backfill { .. }) => {
            panic!("an attach must start, not {item:?}")
        }
    });
    let expected = ["inline", "same-handle", "same-node", "same-volume"];
    assert_eq!(woken.collect::<BTreeSet<_>>(), expected.map(String::from).into());
}

#[test]
fn a_reconnect_ends_the_backoff_of_disconnected_items() {
    let mut fixture = Fixture::new([mk_attachment("va")]);
    let item = fixture.starts("va");
    fixture.finish(&item, failed(Class::Disconnected));
    assert!(fixture.start().is_none());
    fixture
        .state
        .handle(Event::DriverConnected(mk_driver().capabilities));
    let item = fixture.starts("va");
    // The driver reconnects while the attacher reports the failure.
    fixture
        .state
        .handle(Event::DriverConnected(mk_driver().capabilities));
    fixture.finish(&item, failed(Class::Disconnected));
    fixture.starts("va");
}

#[test]
fn the_next_sync_gets_the_unwritten_publish() {
    let mut fixture = Fixture::new([mk_attachment("va")]);
    let item = fixture.starts("va");
    let published = Published {
        target: PublishTarget {
            volume_id: "handle".into(),
            node_id: "id".into(),
        },
        context: BTreeMap::new(),
        connection: 0,
    };
    let uid = mk_attachment("va").uid;
    fixture.state.state_of(&uid).progress.published = Some(published.clone());
    fixture.finish(&item, failed(Class::Uncertain));
    fixture.now += SECOND;
    fixture.starts("va");
    assert_eq!(fixture.state.state_of(&uid).progress.published, Some(published));
}

#[test]
fn removes_pv_finalizer_of_a_deleted_volume_after_its_last_attachment() {
    let va = Attachment {
        attached: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let mut fixture = Fixture::new([va.clone()]);
    fixture.delete_volume();
    assert!(fixture.start().is_none(), "it is in use");
    fixture.state.handle(Event::Attachments(Change::Deleted {
        name: va.name,
        uid: va.uid,
    }));
    assert!(matches!(fixture.start(), Some(Item::Volume(volume)) if &*volume.name == "pv"));
}

#[test]
fn removes_pv_finalizer_of_a_volume_left_in_tree_after_its_last_attachment() {
    let va = Attachment {
        attached: true,
        finalizer: true,
        ..mk_attachment("va")
    };
    let with_finalizer = Volume {
        version: Version(2),
        finalizer: true,
        ..mk_volume("pv")
    };
    let rolled_back = Volume {
        version: Version(3),
        left_in_tree: true,
        ..with_finalizer.clone()
    };
    let mut fixture = Fixture::new([va.clone()]);
    fixture
        .state
        .handle(Event::Volumes(Change::Applied(with_finalizer)));
    fixture
        .state
        .handle(Event::Volumes(Change::Applied(rolled_back.clone())));
    assert!(fixture.start().is_none(), "it is in use");
    fixture.state.handle(Event::Attachments(Change::Deleted {
        name: va.name,
        uid: va.uid,
    }));
    assert!(matches!(fixture.start(), Some(Item::Volume(volume)) if &*volume.name == "pv"));
    let mut fixture = Fixture::new([]);
    fixture.state.handle(Event::Volumes(Change::Applied(rolled_back)));
    assert!(
        matches!(fixture.start(), Some(Item::Volume(_))),
        "no attachment uses it"
    );
}

#[test]
fn a_sync_without_effect_backs_off() {
    let mut fixture = Fixture::new([mk_attachment("va")]);
    let item = fixture.starts("va");
    fixture.finish(&item, Ok(()));
    assert!(fixture.start().is_none());
    fixture.now += SECOND;
    fixture.starts("va");
}

/// The response to a write enqueues nothing, although it may be newer than the watch.
#[test]
fn a_waiting_key_starts_in_the_lane_of_its_newest_state() {
    let va = mk_attachment("va");
    let mut fixture = Fixture::new([va.clone()]);
    let item = fixture.starts("va");
    fixture.finish(&item, failed(Class::Final));
    let attached = newer(&va, |va| {
        va.attached = true;
        va.attach_error = Some(Box::new(Problem::default()));
    });
    fixture
        .state
        .handle(Event::Attachments(Change::LocallyUpdated(attached)));
    assert!(fixture.start().is_none());
    fixture.now += SECOND;
    fixture.starts("va");
    let lanes = fixture.state.lanes(fixture.now);
    assert_eq!(
        (lanes[&Lane::Attach].running, lanes[&Lane::Repair].running),
        (0, 1)
    );
}

#[test]
fn a_failed_removal_of_a_pv_finalizer_is_retried_after_its_backoff() {
    let mut fixture = Fixture::new([]);
    fixture.delete_volume();
    let item = fixture.start().expect("our finalizer must be removed");
    fixture.finish(&item, failed(Class::Final));
    assert!(fixture.start().is_none());
    fixture.now += SECOND;
    assert!(matches!(fixture.start(), Some(Item::Volume(_))));
}
