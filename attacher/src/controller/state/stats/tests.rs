//! Stats after given events and results.

use std::time::Duration;

use super::super::Event;
use super::*;
use crate::controller::SyncError;
use crate::controller::state::Item;
use crate::informer::Change;
use crate::plan::tests::{mk_attachment, mk_node, mk_volume};
use crate::workqueue::Class;

const SECOND: Duration = Duration::from_secs(1);

/// Some instant; the tests only ever add to it.
#[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
fn epoch() -> Instant {
    Instant::now()
}

/// A state with a concurrency of two, a volume, a node and attachments of these names.
fn mk_state(attachments: &[&str], begin: Instant) -> ControllerState {
    let mut state = super::super::tests::mk_state(2);
    state.queue.now = begin;
    state.handle(Event::Volumes(Change::Applied(mk_volume("pv"))));
    state.handle(Event::Nodes(Change::Applied(mk_node("node", Some("id")))));
    for (name, second) in attachments.iter().zip(10..) {
        let mut attachment = mk_attachment(name);
        attachment.requested_at = Timestamp::from_second(second).ok();
        attachment.uid = (*name).into();
        state.handle(Event::Attachments(Change::Applied(attachment)));
    }
    state
}

fn start(state: &mut ControllerState, now: Instant) -> Vec<Item> {
    std::iter::from_fn(|| state.start(now)).collect()
}

fn fail(state: &mut ControllerState, item: &Item, class: Class, message: &str, now: Instant) {
    state.finish(item, Err(SyncError::new(class, message)), now);
}

fn running(stage: &Stage) -> bool {
    matches!(stage, Stage::Running { .. })
}

fn ready(stage: &Stage) -> bool {
    matches!(stage, Stage::Ready { .. })
}

fn waiting(stage: &Stage) -> bool {
    matches!(stage, Stage::Waiting { .. })
}

fn names(items: &[(&Key, &Entry)]) -> Vec<String> {
    let name = |(key, _): &(&Key, &Entry)| match key {
        Key::Attachment(name) | Key::Volume(name) => name.to_string(),
        Key::Target(target) => target.volume_id.to_string(),
    };
    items.iter().map(name).collect()
}

#[test]
fn stats_distinguish_running_ready_and_waiting_items() {
    let begin = epoch();
    let mut state = mk_state(&["a", "b", "c", "d"], begin);
    let items = start(&mut state, begin + SECOND);
    assert_eq!(items.len(), 2, "the lane has a concurrency of two");
    fail(&mut state, &items[0], Class::Final, "no room", begin + 3 * SECOND);
    let now = begin + 4 * SECOND;
    let lanes = state.lanes(now);
    let lane = &lanes[&Lane::Attach];
    assert_eq!((lane.limit, lane.running, lane.ready, lane.waiting), (2, 1, 2, 1));
    assert_eq!(lane.depth(), 4);
    assert_eq!(lanes[&Lane::Detach].depth(), 0);
    assert_eq!(names(&state.longest(running, now, 10)), ["b"]);
    let queued = state.longest(ready, now, 10);
    assert_eq!(names(&queued), ["c", "d"]);
    assert_eq!(queued[0].1.failures, None);
    let failed = state.longest(waiting, now, 10);
    assert_eq!(names(&failed), ["a"]);
    let failures = failed[0].1.failures.as_ref().expect("it failed");
    assert_eq!(
        (&*failures.last.message, failures.last.class),
        ("no room", Class::Final)
    );
    assert_eq!((failures.times, failures.since), (1, begin + 3 * SECOND));
}

#[test]
fn stats_show_the_first_time_and_last_error_of_repeated_failures() {
    let begin = epoch();
    let mut state = mk_state(&["a"], begin);
    let items = start(&mut state, begin);
    fail(&mut state, &items[0], Class::Final, "first", begin);
    let items = start(&mut state, begin + SECOND);
    fail(
        &mut state,
        &items[0],
        Class::Disconnected,
        "second",
        begin + 2 * SECOND,
    );
    let now = begin + 9 * SECOND;
    let failed = state.longest(waiting, now, 10);
    let failures = failed[0].1.failures.as_ref().expect("it failed");
    assert_eq!(
        (&*failures.last.message, failures.last.class),
        ("second", Class::Disconnected)
    );
    assert_eq!((failures.times, failures.since), (2, begin));
    assert_eq!(state.lanes(now)[&Lane::Attach].longest, 9 * SECOND);
    assert_eq!(state.queue.metrics(Lane::Attach).retries.get(), 2);
}

#[test]
fn stats_list_the_oldest_items_up_to_the_limit() {
    let begin = epoch();
    let mut state = mk_state(&["d", "c"], begin);
    state.queue.now = begin + SECOND;
    for name in ["a", "b"] {
        let mut late = mk_attachment(name);
        late.uid = name.into();
        state.handle(Event::Attachments(Change::Applied(late)));
    }
    let now = begin + SECOND;
    assert_eq!(state.lanes(now)[&Lane::Attach].ready, 4);
    assert_eq!(names(&state.longest(ready, now, 3)), ["c", "d", "a"]);
}

#[test]
fn stats_take_the_oldest_timestamp_from_the_objects() {
    let begin = epoch();
    let state = mk_state(&["a", "b"], begin);
    let lanes = state.lanes(begin + SECOND);
    let lane = &lanes[&Lane::Attach];
    assert_eq!(lane.oldest, Timestamp::from_second(10).ok());
    let at = |second| Timestamp::from_second(second).expect("a time of the seventies");
    assert_eq!(lane.age(at(70)), 60 * SECOND);
    // A clock behind the API server's must not make the age negative.
    assert_eq!(lane.age(at(5)), SECOND);
}

fn observed(histogram: &prometheus::Histogram) -> (u64, f64) {
    (histogram.get_sample_count(), histogram.get_sample_sum())
}

#[test]
fn measures_queue_and_work_durations() {
    let begin = epoch();
    let mut state = mk_state(&["a"], begin);
    let items = start(&mut state, begin + 2 * SECOND);
    let busy = state.lanes(begin + 5 * SECOND);
    let lane = &busy[&Lane::Attach];
    assert_eq!((lane.unfinished, lane.longest_running), (3 * SECOND, 3 * SECOND));
    fail(&mut state, &items[0], Class::Final, "m", begin + 6 * SECOND);
    let metrics = state.queue.metrics(Lane::Attach);
    assert_eq!(metrics.adds.get(), 1);
    assert_eq!(observed(&metrics.waited), (1, 2.0));
    assert_eq!(observed(&metrics.worked), (1, 4.0));
}

#[test]
fn synced_when_all_three_lists_are_complete() {
    let mut state = mk_state(&[], epoch());
    assert!(!state.caches_synced.all());
    state.handle(Event::Attachments(Change::Replaced));
    state.handle(Event::Volumes(Change::Replaced));
    assert!(!state.caches_synced.all());
    state.handle(Event::Nodes(Change::Replaced));
    assert!(state.caches_synced.all());
}
