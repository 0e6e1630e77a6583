//! What the census shows, after events and reports made by hand.

use std::time::Duration;

use super::*;
use crate::decide::tests::{mk_attachment, mk_node, mk_volume};
use crate::engine::{Job, Outcome, Report};

const SECOND: Duration = Duration::from_secs(1);

/// Some instant; the tests only ever add to it.
#[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
fn epoch() -> Instant {
    Instant::now()
}

/// An engine with two places a lane that knows a volume, a node and attachments of these names.
fn mk_engine(attachments: &[&str]) -> Engine {
    let mut engine = super::super::tests::mk_engine(2);
    engine.handle(Event::Volumes(Change::Put(mk_volume("pv"))));
    engine.handle(Event::Nodes(Change::Put(mk_node("node", Some("id")))));
    for (name, second) in attachments.iter().zip(10..) {
        let mut attachment = mk_attachment(name);
        attachment.wanted_since = Timestamp::from_second(second).ok();
        attachment.uid = (*name).into();
        engine.handle(Event::Attachments(Change::Put(attachment)));
    }
    engine
}

fn start(engine: &mut Engine, now: Instant) -> Vec<Job> {
    std::iter::from_fn(|| engine.start(now)).collect()
}

fn fail(engine: &mut Engine, job: &Job, class: Class, message: &str, now: Instant) {
    let outcome = Outcome::Failed {
        class,
        code: None,
        answer: None,
        message: message.into(),
    };
    let subject = job.subject();
    engine.finish(Report { subject, outcome }, now);
}

fn names(pending: &[Pending]) -> Vec<&str> {
    let name = |pending: &Pending| match &pending.key {
        Key::Attachment(name) | Key::Volume(name) => name.clone(),
    };
    pending
        .iter()
        .map(|pending| {
            let name = name(pending);
            ["a", "b", "c", "d"]
                .into_iter()
                .find(|known| *known == &*name)
                .expect("a name that the test made")
        })
        .collect()
}

#[test]
fn what_runs_what_is_in_line_and_what_waits_are_told_apart() {
    let begin = epoch();
    let mut engine = mk_engine(&["a", "b", "c", "d"]);
    engine.tell(begin);
    let jobs = start(&mut engine, begin + SECOND);
    assert_eq!(jobs.len(), 2, "the lane has two places");
    fail(&mut engine, &jobs[0], Class::Final, "no room", begin + 3 * SECOND);
    let census = engine.census(begin + 4 * SECOND, 10);

    let lane = &census.lanes[&Lane::Attach];
    assert_eq!((lane.limit, lane.running, lane.ready, lane.waiting), (2, 1, 2, 1));
    assert_eq!(lane.depth(), 4);
    assert_eq!(census.lanes[&Lane::Detach].depth(), 0);
    assert_eq!(names(&census.running), ["b"]);
    assert_eq!(names(&census.ready), ["c", "d"]);
    assert_eq!(names(&census.waiting), ["a"]);

    assert_eq!(census.running[0].elapsed, 3 * SECOND);
    assert_eq!(census.ready[0].elapsed, 4 * SECOND);
    assert_eq!(census.ready[0].failure, None);
    let waiting = &census.waiting[0];
    assert_eq!(
        (waiting.node.as_deref(), waiting.volume.as_deref()),
        (Some("node"), Some("pv"))
    );
    let (next, class) = waiting.next.expect("it will be tried again");
    assert_eq!(class, Class::Final);
    assert!(
        next <= SECOND,
        "it failed a second ago and waits at most one more: {next:?}"
    );
    assert_eq!(
        waiting.failure,
        Some(LastFailure {
            message: "no room".into(),
            times: 1,
            since: SECOND,
        })
    );
}

#[test]
fn a_row_of_failures_is_as_old_as_its_first_and_shows_its_last() {
    let begin = epoch();
    let mut engine = mk_engine(&["a"]);
    let jobs = start(&mut engine, begin);
    fail(&mut engine, &jobs[0], Class::Final, "first", begin);
    let jobs = start(&mut engine, begin + SECOND);
    fail(
        &mut engine,
        &jobs[0],
        Class::Disconnected,
        "second",
        begin + 2 * SECOND,
    );
    let census = engine.census(begin + 9 * SECOND, 10);
    let waiting = &census.waiting[0];
    assert_eq!(waiting.next.map(|(_, class)| class), Some(Class::Disconnected));
    assert_eq!(
        waiting.failure,
        Some(LastFailure {
            message: "second".into(),
            times: 2,
            since: 9 * SECOND,
        })
    );
    assert_eq!(census.lanes[&Lane::Attach].longest, 9 * SECOND);
    assert_eq!(census.attachments.retries, 2);
}

#[test]
fn no_more_is_named_than_was_asked_for_and_the_oldest_come_first() {
    let begin = epoch();
    let mut engine = mk_engine(&["d", "c"]);
    engine.tell(begin);
    for name in ["a", "b"] {
        let mut late = mk_attachment(name);
        late.uid = name.into();
        engine.handle(Event::Attachments(Change::Put(late)));
        engine.tell(begin + SECOND);
    }
    let census = engine.census(begin + SECOND, 3);
    assert_eq!(census.lanes[&Lane::Attach].ready, 4);
    assert_eq!(names(&census.ready), ["c", "d", "a"]);
    assert!(engine.census(begin, 0).ready.is_empty());
}

#[test]
fn the_oldest_wish_is_that_of_the_objects_not_that_of_this_process() {
    let begin = epoch();
    let mut engine = mk_engine(&["a", "b"]);
    engine.tell(begin);
    let census = engine.census(begin + SECOND, 0);
    let lane = &census.lanes[&Lane::Attach];
    assert_eq!(lane.oldest, Timestamp::from_second(10).ok());
    let at = |second| Timestamp::from_second(second).expect("a time of the seventies");
    assert_eq!(lane.age(at(70)), 60 * SECOND);
    // A clock behind the API server's must not make the age negative.
    assert_eq!(lane.age(at(5)), SECOND);
}

#[test]
fn times_in_line_and_at_work_are_measured() {
    let begin = epoch();
    let mut engine = mk_engine(&["a"]);
    engine.tell(begin);
    let jobs = start(&mut engine, begin + 2 * SECOND);
    let busy = engine.census(begin + 5 * SECOND, 0);
    let lane = &busy.lanes[&Lane::Attach];
    assert_eq!((lane.unfinished, lane.longest_running), (3 * SECOND, 3 * SECOND));
    fail(&mut engine, &jobs[0], Class::Final, "m", begin + 6 * SECOND);
    let tally = engine.census(begin + 6 * SECOND, 0).attachments;
    assert_eq!(tally.adds, 1);
    assert_eq!((tally.waited.count(), tally.waited.sum()), (1, 2.0));
    assert_eq!((tally.worked.count(), tally.worked.sum()), (1, 4.0));
}

#[test]
fn lists_are_complete_when_all_three_are() {
    let mut engine = mk_engine(&[]);
    assert!(!engine.listed().all());
    engine.handle(Event::Attachments(Change::Listed));
    engine.handle(Event::Volumes(Change::Listed));
    assert!(!engine.listed().all());
    engine.handle(Event::Nodes(Change::Listed));
    assert!(engine.listed().all());
    let known = engine.census(epoch(), 0).known;
    assert_eq!((known.attachments, known.volumes, known.nodes), (0, 1, 1));
}

#[test]
fn what_was_reached_is_counted_by_what_it_was() {
    let mut engine = mk_engine(&[]);
    engine.reached(Wanted::Attach, SECOND);
    engine.reached(Wanted::Detach, 2 * SECOND);
    engine.reached(Wanted::Detach, 4 * SECOND);
    let tally = engine.census(epoch(), 0).reached;
    assert_eq!((tally.attached.count(), tally.attached.sum()), (1, 1.0));
    assert_eq!((tally.detached.count(), tally.detached.sum()), (2, 6.0));
}
