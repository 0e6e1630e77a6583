//! What surveys start, and above all what they leave alone.

use std::time::{Duration, Instant};

use super::*;
use crate::controller::SyncError;
use crate::controller::state::tests::mk_state;
use crate::controller::state::{Event, Item};
use crate::informer::Change;
use crate::model::{Capabilities, Recorded, Version};
use crate::plan::tests::{mk_attachment, mk_driver, mk_node, mk_volume};

/// What the list says of the one volume there is.
#[derive(Clone, Copy)]
pub(in crate::controller::state) enum Listed {
    Nowhere,
    OnNode,
    NotAtAll,
}

pub(in crate::controller::state) struct Bench {
    pub(in crate::controller::state) state: ControllerState,
    driver: Driver,
    pub(in crate::controller::state) now: Instant,
}

impl Bench {
    /// An state that has begun to work, knows one volume and one node, and `attachments`.
    pub(in crate::controller::state) fn new(attachments: impl IntoIterator<Item = Attachment>) -> Self {
        let mut driver = mk_driver();
        driver.capabilities.list_published = true;
        let mut state = mk_state(10);
        state.handle(Event::DriverBack(driver.capabilities));
        state.handle(Event::Volumes(Change::Applied(mk_volume("pv"))));
        state.handle(Event::Nodes(Change::Applied(mk_node("node", Some("id")))));
        for attachment in attachments {
            state.handle(Event::Attachments(Change::Applied(attachment)));
        }
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let now = Instant::now();
        let mut bench = Self { state, driver, now };
        assert!(bench.start().is_none(), "nothing must be wanted at the start");
        bench
    }

    pub(in crate::controller::state) fn start(&mut self) -> Option<Item> {
        self.state.start(self.now)
    }

    fn begin(&mut self) -> ListVolumesResult {
        self.state
            .begin_reconcile(&self.driver)
            .expect("this driver lists, and work has begun")
    }

    fn round(&self) -> Round {
        Round {
            ended: self.now,
            took: Duration::from_secs(2),
            listed: 7,
        }
    }

    fn end(&mut self, mut survey: ListVolumesResult, listed: Listed) {
        match listed {
            Listed::Nowhere => survey.see("handle", Some(&[])),
            Listed::OnNode => survey.see("handle", Some(&["id".to_owned()])),
            Listed::NotAtAll => {}
        }
        let round = self.round();
        self.state.handle(Event::VolumesListed(survey, round));
    }

    pub(in crate::controller::state) fn survey(&mut self, listed: Listed) {
        let survey = self.begin();
        self.end(survey, listed);
    }

    pub(in crate::controller::state) fn starts(&mut self, expected: Operation) -> Item {
        let item = self.start().expect("a item must start");
        assert!(
            matches!(&item, Item::Attachment { operation, repair: true, .. } if *operation == expected),
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
        self.state.handle(Event::DriverBack(self.driver.capabilities));
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

/// Being deleted, unpublished and let go of; others still hold it.
pub(in crate::controller::state) fn let_go(name: &str) -> Attachment {
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
fn a_lost_attachment_is_published_again_and_told() {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::Nowhere);
    let findings = bench.state.take_findings();
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].fault, findings[0].times), (Fault::Lost, 1));
    let item = bench.starts(Operation::Attach);
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none(), "once is enough");
    let tally = bench.state.tally();
    assert_eq!((tally.rounds, tally.lost, tally.repaired), (1, 1, 1));
}

#[test]
fn what_is_where_it_should_be_is_left_alone() {
    for (attachment, listed) in [
        (attached("va"), Listed::OnNode),
        (attached("va"), Listed::NotAtAll),
        (let_go("va"), Listed::Nowhere),
        (let_go("va"), Listed::NotAtAll),
    ] {
        let mut bench = Bench::new([attachment]);
        bench.survey(listed);
        assert!(bench.start().is_none());
        assert_eq!(bench.state.take_findings(), []);
    }
}

#[test]
fn a_volume_that_two_lists_leave_out_is_lost() {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::NotAtAll);
    bench.survey(Listed::OnNode);
    bench.survey(Listed::NotAtAll);
    assert!(bench.start().is_none(), "not two in a row");
    bench.survey(Listed::NotAtAll);
    bench.starts(Operation::Attach);
}

/// Drivers list from caches, and people are told of what is lost.
#[test]
fn what_was_just_attached_is_not_lost_by_one_list() {
    for (second, lost) in [(Listed::Nowhere, true), (Listed::OnNode, false)] {
        let mut bench = Bench::new([]);
        bench.survey(Listed::NotAtAll);
        let va = mk_attachment("va");
        bench.put(va.clone());
        let item = bench.start().expect("an attach");
        let done = Attachment {
            version: Version(va.version.0 + 1),
            ..attached("va")
        };
        bench
            .state
            .handle(Event::Attachments(Change::LocallyUpdated(done)));
        bench.finish(&item, Ok(()));
        bench.survey(Listed::Nowhere);
        assert_eq!(bench.state.take_findings(), []);
        bench.survey(second);
        assert_eq!(!bench.state.take_findings().is_empty(), lost);
        if !lost {
            // By now it is older than any list.
            bench.survey(Listed::Nowhere);
            assert_eq!(bench.state.take_findings().len(), 1);
        }
    }
}

#[test]
fn what_changed_or_was_worked_on_meanwhile_is_left_alone() {
    type Act = fn(&mut Bench, &Attachment);
    let acts: [(&str, Act); 5] = [
        ("changed", |bench, va| bench.put(newer(va))),
        ("deleted", |bench, va| {
            bench.put(Attachment {
                deleting: true,
                ..newer(va)
            });
        }),
        ("replaced", |bench, va| {
            bench.put(Attachment {
                uid: "another".into(),
                ..newer(va)
            });
        }),
        ("node registered anew", |bench, _| {
            let node = crate::model::Node {
                version: Version(9),
                ..mk_node("node", Some("id-2"))
            };
            bench.state.handle(Event::Nodes(Change::Applied(node)));
        }),
        ("capabilities changed", |bench, _| {
            bench.capabilities(|c| c.publish_readonly = true)
        }),
    ];
    for (name, act) in acts {
        let va = attached("va");
        let mut bench = Bench::new([va.clone()]);
        let survey = bench.begin();
        act(&mut bench, &va);
        bench.end(survey, Listed::Nowhere);
        assert_eq!(bench.state.take_findings(), [], "{name}");
    }
}

#[test]
fn a_job_that_ran_while_the_driver_listed_makes_the_list_worthless() {
    // It starts before or after the survey begins, and ends before or after the survey does.
    for (starts_before, ends_before) in [(true, true), (true, false), (false, true), (false, false)] {
        let va = attached("va");
        let mut bench = Bench::new([va]);
        bench.survey(Listed::Nowhere);
        bench.state.take_findings();
        let mut item = starts_before.then(|| bench.starts(Operation::Attach));
        let survey = bench.begin();
        let item = item.take().unwrap_or_else(|| bench.starts(Operation::Attach));
        if ends_before {
            bench.finish(&item, Ok(()));
        }
        bench.end(survey, Listed::Nowhere);
        assert_eq!(bench.state.take_findings(), [], "{starts_before} {ends_before}");
    }
}

#[test]
fn a_twin_that_is_worked_on_protects_the_other() {
    let (va, twin) = (attached("va"), attached("twin"));
    let mut bench = Bench::new([va, twin.clone()]);
    let survey = bench.begin();
    bench.put(newer(&twin));
    bench.end(survey, Listed::Nowhere);
    assert_eq!(bench.state.take_findings(), []);
}

#[test]
fn what_was_let_go_of_and_is_still_published_is_unpublished_unless_it_is_needed_there() {
    let mut bench = Bench::new([let_go("va")]);
    bench.survey(Listed::OnNode);
    assert_eq!(bench.state.take_findings()[0].fault, Fault::Leftover);
    bench.starts(Operation::Detach);

    let mut bench = Bench::new([let_go("va"), attached("twin")]);
    bench.survey(Listed::OnNode);
    assert_eq!(bench.state.take_findings(), []);
    assert!(bench.start().is_none());
}

#[test]
fn nothing_is_surveyed_without_the_capabilities() {
    for (publish, list, surveyed) in [
        (true, true, true),
        (true, false, false),
        (false, true, false),
        (false, false, false),
    ] {
        let mut bench = Bench::new([]);
        bench.capabilities(|c| (c.publish, c.list_published) = (publish, list));
        assert_eq!(
            bench.state.begin_reconcile(&bench.driver).is_some(),
            surveyed,
            "{publish} {list}"
        );
    }
}

#[test]
fn a_survey_that_fails_is_counted_and_starts_nothing() {
    let mut bench = Bench::new([attached("va")]);
    let survey = bench.begin();
    let round = bench.round();
    bench
        .state
        .handle(Event::ListVolumesFailed(round, "no answer".into()));
    bench.end(survey, Listed::Nowhere);
    assert!(bench.start().is_none());
    let tally = bench.state.tally();
    assert_eq!((tally.rounds, tally.failed_rounds), (0, 1));
    let last = bench.state.last_round().expect("there was one");
    assert_eq!(last.error.as_deref(), Some("no answer"));

    bench.survey(Listed::Nowhere);
    let last = bench.state.last_round().cloned();
    assert_eq!(
        last,
        Some(LastRound {
            round: bench.round(),
            lost: 1,
            leftover: 0,
            error: None
        })
    );
}
