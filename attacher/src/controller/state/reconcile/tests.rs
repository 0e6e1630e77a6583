//! Items that a reconcile round enqueues, and attachments that it ignores.

use std::time::{Duration, Instant};

use super::*;
use crate::controller::SyncError;
use crate::controller::state::tests::mk_listing;
use crate::controller::state::{Event, Finding, Item};
use crate::informer::Change;
use crate::model::{Attachment, Capabilities, Recorded, Version};
use crate::plan::tests::{mk_attachment, mk_driver, mk_node};
use crate::plan::{PublishEnd, Subject};

/// The list's entry of the only volume.
#[derive(Clone, Copy)]
pub(in crate::controller::state) enum Listed {
    Nowhere,
    OnNode,
    NotAtAll,
}

pub(in crate::controller::state) struct Fixture {
    pub(in crate::controller::state) state: ControllerState,
    driver: Driver,
    pub(in crate::controller::state) now: Instant,
}

impl Fixture {
    /// A state that has started to work, with one volume, one node and `attachments`.
    pub(in crate::controller::state) fn new(attachments: impl IntoIterator<Item = Attachment>) -> Self {
        let (mut state, driver) = mk_listing(10);
        for attachment in attachments {
            state.handle(Event::Attachments(Change::Applied(attachment)));
        }
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let now = Instant::now();
        let mut fixture = Self { state, driver, now };
        assert!(fixture.start().is_none(), "no item must be queued at the start");
        fixture
    }

    pub(in crate::controller::state) fn start(&mut self) -> Option<Item> {
        self.state.start(self.now)
    }

    fn begin(&mut self) -> ListVolumesResult {
        self.state
            .begin_reconcile(&self.driver)
            .expect("the driver lists, and work has started")
    }

    fn round(&self) -> Round {
        Round {
            ended: self.now,
            took: Duration::from_secs(2),
            listed: 7,
        }
    }

    fn end(&mut self, mut result: ListVolumesResult, listed: Listed) {
        match listed {
            Listed::Nowhere => result.add_entry("handle", Some(&[])),
            Listed::OnNode => result.add_entry("handle", Some(&["id".to_owned()])),
            Listed::NotAtAll => {}
        }
        let round = self.round();
        self.state.handle(Event::VolumesListed(result, round));
    }

    pub(in crate::controller::state) fn reconcile(&mut self, listed: Listed) {
        let result = self.begin();
        self.end(result, listed);
    }

    pub(in crate::controller::state) fn starts(&mut self, expected: Operation) -> Item {
        let item = self.start().expect("an item must start");
        assert!(
            matches!(&item, Item::Subject(Subject::Attachment(operation, attachment)) if *operation == expected && operation.is_repair(attachment)),
            "{item:?}"
        );
        item
    }

    pub(in crate::controller::state) fn finish(&mut self, item: &Item, result: Result<(), SyncError>) {
        self.state.finish(item, result, self.now);
    }

    pub(in crate::controller::state) fn put(&mut self, attachment: Attachment) {
        self.state.handle(Event::Attachments(Change::Applied(attachment)));
    }

    pub(in crate::controller::state) fn capabilities(&mut self, change: impl FnOnce(&mut Capabilities)) {
        change(&mut self.driver.capabilities);
        self.state
            .handle(Event::DriverConnected(self.driver.capabilities));
    }
}

pub(in crate::controller::state) fn attached(name: &str) -> Attachment {
    Attachment {
        attached: true,
        finalizer: true,
        recorded: Recorded {
            node_id: Some("id".into()),
            handle: Some("handle".into()),
            secret: None,
        },
        ..mk_attachment(name)
    }
}

/// Deleting and detached, kept by another client's finalizer.
pub(in crate::controller::state) fn without_finalizer(name: &str) -> Attachment {
    Attachment {
        deleting: true,
        finalizer: false,
        attached: false,
        foreign_finalizers: true,
        ..attached(name)
    }
}

pub(in crate::controller::state) fn newer(attachment: &Attachment) -> Attachment {
    let version = Version(attachment.version.0 + 1);
    Attachment {
        version,
        ..attachment.clone()
    }
}

#[test]
fn republishes_and_reports_a_lost_attachment() {
    let mut fixture = Fixture::new([attached("va")]);
    fixture.reconcile(Listed::Nowhere);
    let findings = fixture.state.take_findings();
    let [Finding::Drift { repair, times, .. }] = &findings[..] else {
        panic!("{findings:?}");
    };
    assert_eq!((*repair, *times), (Operation::Attach, 1));
    let item = fixture.starts(Operation::Attach);
    fixture.finish(&item, Ok(()));
    assert!(fixture.start().is_none(), "once is enough");
    let metrics = fixture.state.rounds.metrics;
    assert_eq!((metrics.rounds, metrics.lost, metrics.repaired), (1, 1, 1));
}

#[test]
fn ignores_attachments_that_agree_with_the_list() {
    for (attachment, listed) in [
        (attached("va"), Listed::OnNode),
        (attached("va"), Listed::NotAtAll),
        (without_finalizer("va"), Listed::Nowhere),
        (without_finalizer("va"), Listed::NotAtAll),
    ] {
        let mut fixture = Fixture::new([attachment]);
        fixture.reconcile(listed);
        assert!(fixture.start().is_none());
        assert_eq!(fixture.state.take_findings(), []);
    }
}

#[test]
fn republishes_a_volume_that_two_lists_in_a_row_lack() {
    let mut fixture = Fixture::new([attached("va")]);
    fixture.reconcile(Listed::NotAtAll);
    fixture.reconcile(Listed::OnNode);
    fixture.reconcile(Listed::NotAtAll);
    assert!(fixture.start().is_none(), "not two in a row");
    fixture.reconcile(Listed::NotAtAll);
    fixture.starts(Operation::Attach);
}

/// Drivers list from caches, and a loss is reported in an Event.
#[test]
fn a_new_attachment_is_lost_only_after_two_lists() {
    for (second, lost) in [(Listed::Nowhere, true), (Listed::OnNode, false)] {
        let mut fixture = Fixture::new([]);
        fixture.reconcile(Listed::NotAtAll);
        let va = mk_attachment("va");
        fixture.put(va.clone());
        let item = fixture.start().expect("an attach");
        let done = Attachment {
            version: Version(va.version.0 + 1),
            ..attached("va")
        };
        fixture
            .state
            .handle(Event::Attachments(Change::LocallyUpdated(done)));
        fixture.finish(&item, Ok(()));
        fixture.reconcile(Listed::Nowhere);
        assert_eq!(fixture.state.take_findings(), []);
        fixture.reconcile(second);
        assert_eq!(!fixture.state.take_findings().is_empty(), lost);
        if !lost {
            // The attach precedes this list.
            fixture.reconcile(Listed::Nowhere);
            assert_eq!(fixture.state.take_findings().len(), 1);
        }
    }
}

#[test]
fn ignores_attachments_that_changed_during_the_round() {
    type Act = fn(&mut Fixture, &Attachment);
    let acts: [(&str, Act); 5] = [
        ("changed", |fixture, va| fixture.put(newer(va))),
        ("deleted", |fixture, va| {
            fixture.put(Attachment {
                deleting: true,
                ..newer(va)
            });
        }),
        ("replaced", |fixture, va| {
            fixture.put(Attachment {
                uid: "another".into(),
                ..newer(va)
            });
        }),
        ("node registered again", |fixture, _| {
            let node = crate::model::Node {
                version: Version(9),
                ..mk_node("node", Some("id-2"))
            };
            fixture.state.handle(Event::Nodes(Change::Applied(node)));
        }),
        ("capabilities changed", |fixture, _| {
            fixture.capabilities(|c| c.publish_readonly = true)
        }),
    ];
    for (name, act) in acts {
        let va = attached("va");
        let mut fixture = Fixture::new([va.clone()]);
        let result = fixture.begin();
        act(&mut fixture, &va);
        fixture.end(result, Listed::Nowhere);
        assert_eq!(fixture.state.take_findings(), [], "{name}");
    }
}

#[test]
fn ignores_attachments_that_were_synced_during_the_round() {
    // The sync starts before or after the round begins, and ends before or after the round does.
    for (starts_before, ends_before) in [(true, true), (true, false), (false, true), (false, false)] {
        let va = attached("va");
        let mut fixture = Fixture::new([va]);
        fixture.reconcile(Listed::Nowhere);
        fixture.state.take_findings();
        let mut item = starts_before.then(|| fixture.starts(Operation::Attach));
        let result = fixture.begin();
        let item = item.take().unwrap_or_else(|| fixture.starts(Operation::Attach));
        if ends_before {
            fixture.finish(&item, Ok(()));
        }
        fixture.end(result, Listed::Nowhere);
        assert_eq!(fixture.state.take_findings(), [], "{starts_before} {ends_before}");
    }
}

#[test]
fn ignores_attachments_whose_target_another_changed_during_the_round() {
    let (va, other) = (attached("va"), attached("other"));
    let mut fixture = Fixture::new([va, other.clone()]);
    let result = fixture.begin();
    fixture.put(newer(&other));
    fixture.end(result, Listed::Nowhere);
    assert_eq!(fixture.state.take_findings(), []);
}

#[test]
fn unpublishes_a_dangling_attachment_unless_the_target_is_in_use() {
    let mut fixture = Fixture::new([without_finalizer("va")]);
    fixture.reconcile(Listed::OnNode);
    let is_detach = |finding: &Finding| {
        matches!(
            finding,
            Finding::Drift {
                repair: Operation::Detach,
                ..
            }
        )
    };
    assert!(fixture.state.take_findings().iter().any(is_detach));
    fixture.starts(Operation::Detach);

    let mut fixture = Fixture::new([without_finalizer("va"), attached("other")]);
    fixture.reconcile(Listed::OnNode);
    assert_eq!(fixture.state.take_findings(), []);
    assert!(fixture.start().is_none());
}

#[test]
fn does_not_reconcile_without_the_capabilities() {
    for (publish, list, reconciles) in [
        (true, true, true),
        (true, false, false),
        (false, true, false),
        (false, false, false),
    ] {
        let mut fixture = Fixture::new([]);
        fixture.capabilities(|c| (c.publish, c.list_published) = (publish, list));
        assert_eq!(
            fixture.state.begin_reconcile(&fixture.driver).is_some(),
            reconciles,
            "{publish} {list}"
        );
    }
}

/// The memory of a process follows from its objects, not from its age.
#[test]
fn keeps_the_publishes_and_deletions_of_a_running_round_alone() {
    let target = |number: u32| PublishTarget {
        volume_id: format!("handle-{number}").as_str().into(),
        node_id: "id".into(),
    };
    for lists in [false, true] {
        let mut fixture = Fixture::new([]);
        fixture.capabilities(|capabilities| capabilities.list_published = lists);
        let round = lists.then(|| fixture.begin());
        for number in 0..1_000 {
            let va = mk_attachment(&format!("va-{number}"));
            fixture.put(va.clone());
            fixture.state.publish_begins(&va.uid, &target(number));
            fixture.state.publish_ended(&va.uid, PublishEnd::Succeeded);
            let (name, uid) = (va.name, va.uid);
            let gone = Event::Attachments(Change::Deleted { name, uid });
            fixture.state.handle(gone);
        }
        let expected = if lists { 2_000 } else { 0 };
        assert_eq!(fixture.state.evidence.of_round(), expected, "{lists}");
        if let Some(round) = round {
            fixture.end(round, Listed::Nowhere);
            assert_eq!(fixture.state.evidence.of_round(), 0);
        }
    }
    let mut fixture = Fixture::new([]);
    for ends in ["failed", "capabilities"] {
        fixture.begin();
        let uid = mk_attachment("va").uid;
        fixture.state.publish_begins(&uid, &target(0));
        match ends {
            "failed" => {
                let round = fixture.round();
                let failed = Event::ListVolumesFailed(round, "no answer".into());
                fixture.state.handle(failed);
            }
            _ => fixture.capabilities(|capabilities| capabilities.publish_readonly = true),
        }
        fixture.state.publish_ended(&uid, PublishEnd::Succeeded);
        assert_eq!(fixture.state.evidence.of_round(), 0, "{ends}");
    }
}

/// A channel may delay its result, and two rounds would share what changed during each.
#[test]
fn a_round_waits_for_the_result_of_the_last() {
    let mut fixture = Fixture::new([attached("va")]);
    let mut driver = mk_driver();
    driver.capabilities.list_published = true;
    let first = fixture.begin();
    assert!(fixture.state.begin_reconcile(&driver).is_none());
    fixture.end(first, Listed::Nowhere);
    assert!(fixture.state.begin_reconcile(&driver).is_some());
}

#[test]
fn counts_a_failed_round_and_enqueues_nothing() {
    let mut fixture = Fixture::new([attached("va")]);
    let result = fixture.begin();
    let round = fixture.round();
    fixture
        .state
        .handle(Event::ListVolumesFailed(round, "no answer".into()));
    fixture.end(result, Listed::Nowhere);
    assert!(fixture.start().is_none());
    let metrics = fixture.state.rounds.metrics;
    assert_eq!((metrics.rounds, metrics.failed_rounds), (0, 1));
    let last = fixture.state.rounds.last.as_ref().expect("there was one");
    assert_eq!(last.error.as_deref(), Some("no answer"));

    fixture.reconcile(Listed::Nowhere);
    let last = fixture.state.rounds.last.clone();
    assert_eq!(
        last,
        Some(LastRound {
            round: fixture.round(),
            lost: 1,
            dangling: 0,
            error: None
        })
    );
}
