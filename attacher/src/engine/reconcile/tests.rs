//! What surveys start, and above all what they leave alone.

use std::time::{Duration, Instant};

use super::*;
use crate::decide::tests::{mk_attachment, mk_driver, mk_node, mk_volume};
use crate::engine::{Event, Held, Job, Outcome, Report};
use crate::index::Change;
use crate::model::{Capabilities, Recorded, Version};
use crate::queue::{Backoff, Class, Lane, Limits};

/// What the list says of the one volume there is.
#[derive(Clone, Copy)]
pub(in crate::engine) enum Listed {
    Nowhere,
    OnNode,
    NotAtAll,
}

pub(in crate::engine) struct Bench {
    pub(in crate::engine) engine: Engine,
    driver: Driver,
    pub(in crate::engine) now: Instant,
}

impl Bench {
    /// An engine that has begun to work, knows one volume and one node, and `attachments`.
    pub(in crate::engine) fn new(attachments: impl IntoIterator<Item = Attachment>) -> Self {
        let limits = Limits {
            attach: 10,
            detach: 10,
            volume: 10,
        };
        let backoff = Backoff {
            start: Duration::from_secs(1),
            max: Duration::from_secs(300),
        };
        let mut driver = mk_driver();
        driver.capabilities.list_published = true;
        let mut engine = Engine::new(limits, backoff, 1);
        engine.handle(Event::DriverBack(driver.capabilities));
        engine.handle(Event::Volumes(Change::Put(mk_volume("pv"))));
        engine.handle(Event::Nodes(Change::Put(mk_node("node", Some("id")))));
        for attachment in attachments {
            engine.handle(Event::Attachments(Change::Put(attachment)));
        }
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let now = Instant::now();
        let mut bench = Self { engine, driver, now };
        assert!(bench.start().is_none(), "nothing must be wanted at the start");
        bench
    }

    pub(in crate::engine) fn start(&mut self) -> Option<Job> {
        self.engine.start(self.now)
    }

    fn begin(&mut self) -> Survey {
        self.engine
            .begin_survey(&self.driver)
            .expect("this driver lists, and work has begun")
    }

    fn round(&self) -> Round {
        Round {
            ended: self.now,
            took: Duration::from_secs(2),
            listed: 7,
        }
    }

    fn end(&mut self, mut survey: Survey, listed: Listed) {
        match listed {
            Listed::Nowhere => survey.see("handle", Some(&[])),
            Listed::OnNode => survey.see("handle", Some(&["id".to_owned()])),
            Listed::NotAtAll => {}
        }
        let round = self.round();
        self.engine.handle(Event::Surveyed(survey, round));
    }

    pub(in crate::engine) fn survey(&mut self, listed: Listed) {
        let survey = self.begin();
        self.end(survey, listed);
    }

    pub(in crate::engine) fn starts(&mut self, expected: Wanted) -> Job {
        let job = self.start().expect("a job must start");
        assert!(
            matches!(&job, Job::Attachment { wanted, repair: true, .. } if *wanted == expected),
            "{job:?}"
        );
        job
    }

    pub(in crate::engine) fn finish(&mut self, job: &Job, outcome: Outcome) {
        let subject = job.subject();
        self.engine.finish(Report { subject, outcome }, self.now);
    }

    pub(in crate::engine) fn put(&mut self, attachment: Attachment) {
        self.engine.handle(Event::Attachments(Change::Put(attachment)));
    }

    pub(in crate::engine) fn capabilities(&mut self, change: impl FnOnce(&mut Capabilities)) {
        change(&mut self.driver.capabilities);
        self.engine.handle(Event::DriverBack(self.driver.capabilities));
    }
}

pub(in crate::engine) fn attached(name: &str) -> Attachment {
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
pub(in crate::engine) fn let_go(name: &str) -> Attachment {
    Attachment {
        deleting: true,
        finalizer: false,
        attached: false,
        foreign_finalizers: true,
        ..attached(name)
    }
}

pub(in crate::engine) fn newer(attachment: &Attachment) -> Attachment {
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
    let findings = bench.engine.take_findings();
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].fault, findings[0].times), (Fault::Lost, 1));
    let job = bench.starts(Wanted::Attach);
    bench.finish(&job, Outcome::Done);
    assert!(bench.start().is_none(), "once is enough");
    let tally = bench.engine.tally();
    assert_eq!((tally.rounds, tally.lost, tally.repaired), (1, 1, 1));
}

/// As after a driver that came back without its memory.
#[test]
fn a_new_attach_does_not_stand_in_line_behind_repairs() {
    let names: Vec<String> = (0..40).map(|number| format!("va-{number}")).collect();
    let mut bench = Bench::new(names.iter().map(|name| attached(name)));
    bench.survey(Listed::Nowhere);
    bench.put(mk_attachment("new"));
    let mut jobs: Vec<Job> = std::iter::from_fn(|| bench.start()).collect();
    assert_eq!(jobs.len(), 5 + 1, "half of the lane's places, and one more");
    let is_new = |job: &Job| matches!(job, Job::Attachment { repair: false, .. });
    assert_eq!(jobs.iter().filter(|job| is_new(job)).count(), 1);
    let mut done = 0;
    while let Some(job) = jobs.pop() {
        bench.finish(&job, Outcome::Done);
        done += 1;
        jobs.extend(std::iter::from_fn(|| bench.start()));
    }
    assert_eq!(bench.engine.tally().repaired, 40, "of {done} jobs");
}

#[test]
fn nobody_waits_for_a_repair_since_the_attachment_was_made() {
    let made = "2020-01-01T00:00:00Z".parse().ok();
    let of_age = |name| Attachment {
        wanted_since: made,
        ..attached(name)
    };
    let mut bench = Bench::new([of_age("va")]);
    bench.survey(Listed::Nowhere);
    let oldest = |bench: &Bench| bench.engine.census(bench.now, 0).lanes[&Lane::Repair].oldest;
    assert_eq!(oldest(&bench), None);
    bench.starts(Wanted::Attach);
    assert_eq!(oldest(&bench), None);
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
        assert_eq!(bench.engine.take_findings(), []);
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
    bench.starts(Wanted::Attach);
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
            bench.engine.handle(Event::Nodes(Change::Put(node)));
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
        assert_eq!(bench.engine.take_findings(), [], "{name}");
    }
}

#[test]
fn a_job_that_ran_while_the_driver_listed_makes_the_list_worthless() {
    // It starts before or after the survey begins, and ends before or after the survey does.
    for (starts_before, ends_before) in [(true, true), (true, false), (false, true), (false, false)] {
        let va = attached("va");
        let mut bench = Bench::new([va]);
        bench.survey(Listed::Nowhere);
        bench.engine.take_findings();
        let mut job = starts_before.then(|| bench.starts(Wanted::Attach));
        let survey = bench.begin();
        let job = job.take().unwrap_or_else(|| bench.starts(Wanted::Attach));
        if ends_before {
            bench.finish(&job, Outcome::Done);
        }
        bench.end(survey, Listed::Nowhere);
        assert_eq!(bench.engine.take_findings(), [], "{starts_before} {ends_before}");
    }
}

#[test]
fn a_twin_that_is_worked_on_protects_the_other() {
    let (va, twin) = (attached("va"), attached("twin"));
    let mut bench = Bench::new([va, twin.clone()]);
    let survey = bench.begin();
    bench.put(newer(&twin));
    bench.end(survey, Listed::Nowhere);
    assert_eq!(bench.engine.take_findings(), []);
}

#[test]
fn what_was_let_go_of_and_is_still_published_is_unpublished_unless_it_is_needed_there() {
    let mut bench = Bench::new([let_go("va")]);
    bench.survey(Listed::OnNode);
    assert_eq!(bench.engine.take_findings()[0].fault, Fault::Leftover);
    bench.starts(Wanted::Detach);

    let mut bench = Bench::new([let_go("va"), attached("twin")]);
    bench.survey(Listed::OnNode);
    assert_eq!(bench.engine.take_findings(), []);
    assert!(bench.start().is_none());
}

#[test]
fn a_repair_that_fails_waits_and_further_lists_do_not_hurry_it() {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::Nowhere);
    let job = bench.starts(Wanted::Attach);
    let failed = Outcome::Failed {
        class: Class::Final,
        code: None,
        answer: None,
        message: "failed".into(),
    };
    bench.finish(&job, failed);
    bench.survey(Listed::Nowhere);
    assert!(bench.start().is_none(), "it waits out its backoff");
    assert_eq!(bench.engine.tally().lost, 1, "it is the same loss");
    // The volume is there after all; another call clears the error in the status.
    bench.survey(Listed::OnNode);
    let job = bench.starts(Wanted::Attach);
    bench.finish(&job, Outcome::Done);
    assert!(bench.start().is_none());
}

#[test]
fn a_repair_that_is_overtaken_by_a_deletion_is_a_detach() {
    let va = attached("va");
    let mut bench = Bench::new([va.clone()]);
    bench.survey(Listed::Nowhere);
    bench.put(Attachment {
        deleting: true,
        ..newer(&va)
    });
    let job = bench.start().expect("the detach must start");
    assert!(matches!(
        job,
        Job::Attachment {
            wanted: Wanted::Detach,
            repair: false,
            ..
        }
    ));
}

#[test]
fn a_list_that_never_agrees_is_believed_less_and_less() {
    let mut bench = Bench::new([attached("va")]);
    let mut repaired_in = Vec::new();
    for round in 1..=20 {
        bench.survey(Listed::Nowhere);
        if let Some(job) = bench.start() {
            bench.finish(&job, Outcome::Done);
            repaired_in.push(round);
        }
    }
    assert_eq!(repaired_in, [1, 2, 4, 8, 16]);
    bench.survey(Listed::OnNode);
    bench.survey(Listed::Nowhere);
    bench.starts(Wanted::Attach);
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
            bench.engine.begin_survey(&bench.driver).is_some(),
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
        .engine
        .handle(Event::SurveyFailed(round, "no answer".into()));
    bench.end(survey, Listed::Nowhere);
    assert!(bench.start().is_none());
    let tally = bench.engine.tally();
    assert_eq!((tally.rounds, tally.failed_rounds), (0, 1));
    let last = bench.engine.last_round().expect("there was one");
    assert_eq!(last.error.as_deref(), Some("no answer"));

    bench.survey(Listed::Nowhere);
    let last = bench.engine.last_round().cloned();
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

#[test]
fn a_driver_without_calls_lets_go_of_everything_and_one_with_calls_takes_it_back() {
    let va = attached("va");
    let mut bench = Bench::new([va.clone()]);
    bench.capabilities(|c| c.publish = false);
    let job = bench.start().expect("our finalizer must come off");
    assert!(matches!(
        job.subject(),
        super::super::Subject::Attachment(Wanted::Attach, _)
    ));
    let without = Attachment {
        finalizer: false,
        ..newer(&va)
    };
    bench.put(without.clone());
    bench.finish(&job, Outcome::Done);
    assert!(bench.start().is_none());

    bench.capabilities(|c| c.publish = true);
    let job = bench.start().expect("our finalizer must be put back");
    bench.put(Attachment {
        finalizer: true,
        ..newer(&without)
    });
    bench.finish(&job, Outcome::Done);
    assert!(bench.start().is_none(), "once is enough");
}

#[test]
fn what_is_being_attached_without_a_call_when_the_driver_gets_calls_is_attached_again() {
    let mut bench = Bench::new([]);
    bench.capabilities(|c| c.publish = false);
    let va = mk_attachment("va");
    bench.put(va.clone());
    let job = bench.start().expect("it must be marked attached");
    bench.capabilities(|c| c.publish = true);
    let marked = Attachment {
        attached: true,
        ..newer(&va)
    };
    bench.put(marked);
    bench.finish(&job, Outcome::Done);
    bench.starts(Wanted::Attach);
}

#[test]
fn a_volume_is_let_go_of_at_once_by_a_driver_without_calls() {
    let mut bench = Bench::new([]);
    let volume = crate::model::Volume {
        finalizer: true,
        version: Version(2),
        ..mk_volume("pv")
    };
    bench.engine.handle(Event::Volumes(Change::Put(volume)));
    assert!(bench.start().is_none(), "it lives");
    bench.capabilities(|c| c.publish = false);
    assert!(matches!(bench.start(), Some(Job::Release { .. })));
}

/// How a volume is held on a node besides by `va`, if there is also `other`.
fn held_beside(other: Attachment) -> Held {
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    let va = attached("va");
    let bench = Bench::new([]);
    let mut engine = bench.engine;
    let twin = crate::model::Volume {
        name: "pv-twin".into(),
        uid: "uid-twin".into(),
        ..mk_volume("pv")
    };
    engine.handle(Event::Attachments(Change::Put(va.clone())));
    engine.handle(Event::Attachments(Change::Put(other)));
    engine.handle(Event::Volumes(Change::Put(twin)));
    while engine.start(bench.now).is_some() {}
    engine.held_besides(&va, &target)
}

#[test]
fn who_else_holds_a_volume_on_a_node() {
    let leaving = Attachment {
        deleting: true,
        ..attached("other")
    };
    for (name, other, expected) in [
        ("an attached one", attached("other"), Held::ByLiving),
        ("one that is being detached", leaving, Held::ByLeaving),
        ("one that was let go of", let_go("other"), Held::ByNobody),
        (
            "one of another volume",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                recorded: Recorded {
                    handle: Some("handle-2".into()),
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            Held::ByNobody,
        ),
        (
            "one of another volume object with the same handle",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                ..attached("other")
            },
            Held::ByLiving,
        ),
        (
            "one on another node",
            Attachment {
                node: "node-2".into(),
                recorded: Recorded {
                    node_id: Some("id-2".into()),
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            Held::ByNobody,
        ),
    ] {
        assert_eq!(held_beside(other), expected, "{name}");
    }
}

/// The answer to the write that moves the record may be lost, and then nobody knows where it stands.
#[test]
fn whose_record_is_being_moved_holds_nothing() {
    let (va, other) = (attached("va"), attached("other"));
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    let mut engine = Bench::new([va.clone(), other.clone()]).engine;
    assert_eq!(engine.held_besides(&va, &target), Held::ByLiving);
    engine.moves(&other);
    assert_eq!(engine.held_besides(&va, &target), Held::ByNobody);
    engine.stays(&other);
    assert_eq!(engine.held_besides(&va, &target), Held::ByLiving);
    engine.moves(&other);
    let gone = Change::Gone {
        name: other.name.clone(),
        uid: other.uid.clone(),
    };
    engine.handle(Event::Attachments(gone));
    assert!(!engine.is_moving(&other), "nothing is kept of what is gone");
}

#[test]
fn a_volume_is_held_by_its_handle_and_the_node_s_id_whatever_they_are_called() {
    for (name, other, expected) in [
        (
            "one on another node that has this id by now",
            Attachment {
                node: "node-2".into(),
                ..attached("other")
            },
            Held::ByLiving,
        ),
        (
            "one of another volume object and another node, with the same handle and id",
            Attachment {
                source: crate::model::Source::Volume("pv-2".into()),
                node: "node-2".into(),
                ..attached("other")
            },
            Held::ByLiving,
        ),
        (
            "one of the Go sidecar, of another volume object with the same handle",
            Attachment {
                source: crate::model::Source::Volume("pv-twin".into()),
                recorded: Recorded {
                    handle: None,
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            Held::ByLiving,
        ),
        (
            "one that is attached without our finalizer",
            Attachment {
                finalizer: false,
                ..attached("other")
            },
            Held::ByUnguarded,
        ),
        (
            "one that is about to be attached for the first time",
            Attachment {
                source: crate::model::Source::Volume("pv-twin".into()),
                ..mk_attachment("other")
            },
            Held::ByNobody,
        ),
        (
            "one of the Go sidecar, without a recorded handle",
            Attachment {
                recorded: Recorded {
                    handle: None,
                    ..attached("other").recorded
                },
                ..attached("other")
            },
            Held::ByLiving,
        ),
    ] {
        assert_eq!(held_beside(other), expected, "{name}");
    }
}

#[test]
fn who_holds_a_volume_without_our_finalizer_is_attached_again_to_have_it() {
    let unguarded = Attachment {
        finalizer: false,
        recorded: Recorded::default(),
        ..attached("other")
    };
    let mut bench = Bench::new([unguarded.clone()]);
    assert!(bench.start().is_none(), "it asks for nothing by itself");
    let va = Attachment {
        deleting: true,
        ..attached("va")
    };
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    bench.engine.guard_besides(&va, &target);
    let job = bench.starts(Wanted::Attach);
    bench.engine.guard_besides(&va, &target);
    let guarded = Attachment {
        finalizer: true,
        ..newer(&unguarded)
    };
    bench.put(guarded);
    bench.finish(&job, Outcome::Done);
    assert!(bench.start().is_none());
}
