//! The queue's guarantees at given times.

mod driver;

use super::failure::TRIES_ON_RETURN;
use std::time::Duration;

use super::*;
use crate::model::Uid;

const SECOND: Duration = Duration::from_secs(1);
const BACKOFF: Backoff = Backoff {
    start: SECOND,
    max: Duration::from_secs(300),
};

fn queue(attach: usize, detach: usize) -> Queue {
    Queue::new(
        Limits {
            attach,
            detach,
            volume: 1,
            driver_calls: 0,
            adaptive: true,
        },
        BACKOFF,
        epoch(),
    )
}

fn key(name: &str) -> Key {
    Key::Attachment(name.into())
}

/// Some instant; the tests only ever add to it.
#[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
fn epoch() -> Instant {
    Instant::now()
}

type Failed = ((Uid, Lane), SyncError);

fn failed(lane: Lane, class: Class) -> Failed {
    let error = SyncError {
        class,
        code: None,
        message: "failed".into(),
        retry_after: None,
        reported: true,
    };
    (("u".into(), lane), error)
}

fn drain(queue: &mut Queue) -> Vec<(Key, Lane)> {
    std::iter::from_fn(|| queue.start()).collect()
}

/// Lets `name` run and fail once; returns the end of its backoff.
fn run_and_fail(queue: &mut Queue, name: &str, (operation, error): Failed, now: Instant) -> Instant {
    assert_eq!(queue.start(), Some((key(name), operation.1)));
    queue.now = now;
    let finished = queue.finish(&key(name));
    queue.fail(&key(name), finished, operation, error, 0.0);
    queue.next_advance().unwrap()
}

#[test]
fn runs_a_key_once_at_a_time_and_again_if_marked_dirty() {
    let mut queue = queue(10, 10);
    queue.enqueue(&key("a"), Lane::Attach, None);
    queue.enqueue(&key("a"), Lane::Attach, None);
    assert_eq!(drain(&mut queue), [(key("a"), Lane::Attach)]);
    queue.enqueue(&key("a"), Lane::Detach, None);
    assert_eq!(drain(&mut queue), []);
    assert!(queue.finish(&key("a")).dirty);
    queue.enqueue(&key("a"), Lane::Detach, None);
    assert_eq!(drain(&mut queue), [(key("a"), Lane::Detach)]);
    assert!(!queue.finish(&key("a")).dirty);
    assert_eq!(queue.running(), 0);
}

#[test]
fn a_full_lane_does_not_delay_another() {
    let mut queue = queue(2, 1);
    for name in ["d1", "d2", "d3"] {
        queue.enqueue(&key(name), Lane::Detach, None);
    }
    for name in ["a1", "a2", "a3"] {
        queue.enqueue(&key(name), Lane::Attach, None);
    }
    let started = drain(&mut queue);
    assert_eq!(
        started.iter().filter(|(_, lane)| *lane == Lane::Detach).count(),
        1
    );
    assert_eq!(
        started.iter().filter(|(_, lane)| *lane == Lane::Attach).count(),
        2
    );
    assert!(!queue.finish(&key("a1")).dirty);
    assert_eq!(queue.start(), Some((key("a3"), Lane::Attach)));
    assert_eq!(queue.start(), None);
}

#[test]
fn a_lane_is_first_in_first_out() {
    let mut queue = queue(10, 10);
    for name in ["b", "a", "c"] {
        queue.enqueue(&key(name), Lane::Attach, None);
    }
    assert_eq!(
        drain(&mut queue)
            .into_iter()
            .map(|(key, _)| key)
            .collect::<Vec<_>>(),
        ["b", "a", "c"].map(key)
    );
}

#[test]
fn a_key_moves_to_its_newest_lane() {
    let mut queue = queue(10, 10);
    queue.enqueue(&key("a"), Lane::Attach, None);
    queue.enqueue(&key("a"), Lane::Detach, None);
    assert_eq!(drain(&mut queue), [(key("a"), Lane::Detach)]);
}

#[test]
fn failures_double_the_delay_up_to_the_maximum() {
    let mut queue = queue(1, 1);
    let mut now = epoch();
    queue.enqueue(&key("a"), Lane::Attach, None);
    for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
        let until = run_and_fail(&mut queue, "a", failed(Lane::Attach, Class::Final), now);
        assert_eq!(until - now, seconds * SECOND);
        queue.advance(until - Duration::from_millis(1));
        assert_eq!(queue.start(), None);
        queue.advance(until);
        now = until;
    }
}

#[test]
fn uncertain_results_have_a_shorter_maximal_backoff() {
    let delays: Vec<_> = (1..=7)
        .map(|times| BACKOFF.delay(Class::Uncertain, times, 0.0).as_secs())
        .collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
    let narrow = Backoff {
        start: 4 * SECOND,
        max: 8 * SECOND,
    };
    assert_eq!(narrow.delay(Class::Uncertain, 5, 0.0), 4 * SECOND);
    assert_eq!(BACKOFF.delay(Class::Final, u32::MAX, 0.0), BACKOFF.max);
}

#[test]
fn jitter_is_at_most_a_fifth() {
    assert_eq!(BACKOFF.delay(Class::Final, 1, 1.0), Duration::from_millis(800));
    assert_eq!(BACKOFF.delay(Class::Final, 1, 0.5), Duration::from_millis(900));
}

#[test]
fn enqueueing_ends_the_backoff_but_keeps_the_failure_count() {
    let mut queue = queue(1, 1);
    let now = epoch();
    queue.enqueue(&key("a"), Lane::Attach, None);
    run_and_fail(&mut queue, "a", failed(Lane::Attach, Class::Final), now);
    queue.enqueue(&key("a"), Lane::Attach, None);
    let until = run_and_fail(&mut queue, "a", failed(Lane::Attach, Class::Final), now);
    assert_eq!(until - now, 2 * SECOND);
}

#[test]
fn attach_failures_do_not_delay_a_detach_nor_a_successor_of_the_same_name() {
    let mut queue = queue(1, 1);
    let now = epoch();
    queue.enqueue(&key("a"), Lane::Attach, None);
    for _ in 0..5 {
        run_and_fail(&mut queue, "a", failed(Lane::Attach, Class::Final), now);
        queue.enqueue(&key("a"), Lane::Attach, None);
    }
    queue.enqueue(&key("a"), Lane::Detach, None);
    assert_eq!(
        run_and_fail(&mut queue, "a", failed(Lane::Detach, Class::Final), now) - now,
        SECOND
    );
    queue.enqueue(&key("a"), Lane::Detach, None);
    let (_, error) = failed(Lane::Detach, Class::Final);
    let successor = (("u2".into(), Lane::Detach), error);
    assert_eq!(run_and_fail(&mut queue, "a", successor, now) - now, SECOND);
}

#[test]
fn a_failed_dirty_key_runs_again_at_once() {
    let mut queue = queue(1, 1);
    queue.enqueue(&key("a"), Lane::Attach, None);
    assert!(queue.start().is_some());
    queue.enqueue(&key("a"), Lane::Attach, None);
    let finished = queue.finish(&key("a"));
    let (operation, error) = failed(Lane::Attach, Class::Final);
    queue.fail(&key("a"), finished, operation, error, 0.0);
    assert_eq!(queue.start(), Some((key("a"), Lane::Attach)));
    assert_eq!(queue.next_advance(), None);
}

#[test]
fn a_reconnect_ends_only_the_backoff_of_disconnected_keys() {
    let mut queue = queue(10, 10);
    let now = epoch();
    for (name, class) in [
        ("a", Class::Disconnected),
        ("b", Class::Final),
        ("c", Class::Disconnected),
    ] {
        queue.enqueue(&key(name), Lane::Attach, None);
        run_and_fail(&mut queue, name, failed(Lane::Attach, class), now);
    }
    queue.enqueue_disconnected();
    let mut started: Vec<_> = drain(&mut queue).into_iter().map(|(key, _)| key).collect();
    started.sort();
    assert_eq!(started, ["a", "c"].map(key));
}

#[test]
fn forget_removes_all_state_of_a_key() {
    let mut queue = queue(1, 1);
    let now = epoch();
    queue.enqueue(&key("ready"), Lane::Attach, None);
    queue.enqueue(&key("waiting"), Lane::Detach, None);
    assert_eq!(queue.start(), Some((key("ready"), Lane::Attach)));
    run_and_fail(&mut queue, "waiting", failed(Lane::Detach, Class::Final), now);
    assert!(!queue.finish(&key("ready")).dirty);
    queue.enqueue(&key("ready"), Lane::Attach, None);
    queue.forget(&key("ready"));
    queue.forget(&key("waiting"));
    assert_eq!(queue.start(), None);
    assert_eq!(queue.next_advance(), None);
    assert!(queue.entries.is_empty());
}

#[test]
fn lanes_are_served_round_robin() {
    let mut queue = queue(10, 10);
    for name in ["1", "2", "3"] {
        queue.enqueue(&key(&format!("a{name}")), Lane::Attach, None);
        queue.enqueue(&key(&format!("d{name}")), Lane::Detach, None);
    }
    let lanes: Vec<_> = drain(&mut queue).into_iter().map(|(_, lane)| lane).collect();
    assert_eq!(
        lanes,
        [
            Lane::Attach,
            Lane::Detach,
            Lane::Attach,
            Lane::Detach,
            Lane::Attach,
            Lane::Detach
        ]
    );
}

#[test]
fn a_call_that_repeatedly_crashes_the_driver_keeps_its_backoff() {
    let mut queue = queue(10, 10);
    let now = epoch();
    queue.enqueue(&key("a"), Lane::Attach, None);
    for _ in 0..TRIES_ON_RETURN {
        run_and_fail(&mut queue, "a", failed(Lane::Attach, Class::Interrupted), now);
        queue.enqueue_disconnected();
    }
    assert_eq!(queue.start(), None);
}

#[test]
fn a_running_call_that_crashed_the_driver_before_keeps_its_backoff() {
    for (crashes, is_dirty) in [(TRIES_ON_RETURN - 1, true), (TRIES_ON_RETURN, false)] {
        let mut queue = queue(10, 10);
        let mut now = epoch();
        queue.enqueue(&key("a"), Lane::Attach, None);
        for _ in 0..crashes {
            now = run_and_fail(&mut queue, "a", failed(Lane::Attach, Class::Interrupted), now);
            queue.advance(now);
        }
        assert_eq!(queue.start(), Some((key("a"), Lane::Attach)));
        queue.enqueue_disconnected();
        assert_eq!(queue.finish(&key("a")).dirty, is_dirty, "{crashes}");
    }
}

#[test]
fn max_driver_calls_bounds_all_lanes_together() {
    let limits = Limits {
        attach: 10,
        detach: 10,
        volume: 1,
        driver_calls: 3,
        adaptive: true,
    };
    let mut queue = Queue::new(limits, BACKOFF, epoch());
    for name in ["1", "2", "3"] {
        queue.enqueue(&key(&format!("a{name}")), Lane::Attach, None);
        queue.enqueue(&key(&format!("d{name}")), Lane::Detach, None);
    }
    queue.enqueue(&key("v"), Lane::PersistentVolume, None);
    let started = drain(&mut queue);
    assert_eq!(started.len(), 4, "{started:?}");
    assert!(
        started.contains(&(key("v"), Lane::PersistentVolume)),
        "it calls no driver"
    );
    assert!(!queue.finish(&started[0].0).dirty);
    assert_eq!(drain(&mut queue).len(), 1);
}

#[test]
fn a_key_moved_to_the_front_is_first_of_its_node() {
    let mut queue = queue(10, 1);
    let node = "node".into();
    for name in ["a", "b", "c"] {
        queue.enqueue(&key(name), Lane::Detach, Some(&node));
    }
    queue.move_to_front(&key("c"));
    assert_eq!(queue.start(), Some((key("c"), Lane::Detach)));
    assert!(!queue.finish(&key("c")).dirty);
    assert_eq!(queue.start(), Some((key("a"), Lane::Detach)));
}

const ABORTED: i32 = 10;
const UNAVAILABLE: i32 = 14;

/// Ends the call and the sync of `name`, which was refused with `code`.
fn refuse(queue: &mut Queue, name: &str, code: i32, retry_after: Option<Duration>) {
    queue.call_ended(&key(name), Outcome::Failed(code));
    let finished = queue.finish(&key(name));
    let (operation, error) = failed(Lane::Attach, Class::Uncertain);
    let error = SyncError {
        code: Some(code),
        retry_after,
        ..error
    };
    queue.fail(&key(name), finished, operation, error, 0.0);
}

#[test]
fn a_success_of_the_node_ends_the_backoff_of_a_key_that_was_refused_in_many_turns() {
    let mut queue = queue(10, 10);
    let node = "node".into();
    for name in ["a", "b"] {
        queue.enqueue(&key(name), Lane::Attach, Some(&node));
        assert_eq!(queue.start(), Some((key(name), Lane::Attach)));
        assert_eq!(queue.call_begins(&key(name)), None);
    }
    while queue.waiting.is_empty() {
        refuse(&mut queue, "a", ABORTED, None);
        while queue.waiting.is_empty() && queue.start().is_none() {
            let next = queue.next_advance().expect("its turn comes");
            queue.advance(next);
        }
        if queue.waiting.is_empty() {
            assert_eq!(queue.call_begins(&key("a")), None);
        }
    }
    assert_eq!(queue.start(), None, "it is in backoff");
    queue.call_ended(&key("b"), Outcome::Success);
    assert_eq!(queue.start(), Some((key("a"), Lane::Attach)));
}

#[test]
fn a_success_of_an_idle_node_ends_the_backoff_of_a_key_that_failed_long_ago() {
    let mut queue = queue(10, 10);
    let node = "node".into();
    queue.enqueue(&key("a"), Lane::Attach, Some(&node));
    assert!(queue.start().is_some());
    assert_eq!(queue.call_begins(&key("a")), None);
    refuse(&mut queue, "a", UNAVAILABLE, Some(300 * SECOND));
    // Unused nodes are forgotten each minute.
    for _ in 0..3 {
        queue.advance(queue.now + 65 * SECOND);
    }
    queue.enqueue(&key("b"), Lane::Attach, Some(&node));
    assert_eq!(queue.start(), Some((key("b"), Lane::Attach)));
    assert_eq!(queue.call_begins(&key("b")), None);
    queue.call_ended(&key("b"), Outcome::Success);
    assert_eq!(queue.start(), Some((key("a"), Lane::Attach)));
}

/// A call of 30 s ends, and the next one is refused once, for whatever reason.
#[test]
fn a_refusal_after_a_long_call_does_not_idle_the_node_for_the_calls_length() {
    let mut queue = queue(10, 10);
    let node: Arc<str> = "node".into();
    let mut now = epoch();
    // Returns how long the call waited.
    let mut call = |name: &str, took: Duration, outcome: Outcome| {
        now += SECOND / 10;
        queue.advance(now);
        queue.enqueue(&key(name), Lane::Detach, Some(&node));
        let enqueued = now;
        while queue.start().is_none() {
            now = queue.next_advance().expect("it may begin some time");
            queue.advance(now);
        }
        while let Some(at) = queue.call_begins(&key(name)) {
            now = at;
            queue.now = at;
        }
        let waited = now - enqueued;
        now += took;
        queue.now = now;
        queue.call_ended(&key(name), outcome);
        let Finished { .. } = queue.finish(&key(name));
        waited
    };
    let aborted = Outcome::Failed(10);
    assert_eq!(call("long", 30 * SECOND, Outcome::Success), Duration::ZERO);
    assert_eq!(call("refused", SECOND / 2, aborted), Duration::ZERO);
    for name in ["next", "later", "last"] {
        let waited = call(name, SECOND / 100, Outcome::Success);
        assert!(waited <= SECOND, "{name}: {waited:?}");
    }
}

/// As above, but it is still in flight: the node is free as soon as it ends.
#[test]
fn a_sync_that_waits_for_its_call_does_so_until_the_long_one_before_ends() {
    let mut queue = queue(10, 10);
    let node: Arc<str> = "node".into();
    let began = epoch();
    let start = |queue: &mut Queue, name: &str, at: Duration| {
        queue.enqueue(&key(name), Lane::Detach, Some(&node));
        queue.advance(began + at);
        assert_eq!(queue.start(), Some((key(name), Lane::Detach)));
    };
    start(&mut queue, "long", Duration::ZERO);
    assert_eq!(queue.call_begins(&key("long")), None);
    start(&mut queue, "slow", 29 * SECOND);
    for at in [30 * SECOND, 31 * SECOND] {
        start(&mut queue, "refused", at);
        assert_eq!(queue.call_begins(&key("refused")), None);
        queue.call_ended(&key("refused"), Outcome::Failed(10));
        let Finished { .. } = queue.finish(&key("refused"));
    }
    let again = queue
        .call_begins(&key("slow"))
        .expect("the long one is in flight");
    queue.now = began + 32 * SECOND;
    queue.call_ended(&key("long"), Outcome::Success);
    assert!(again <= began + 32 * SECOND, "{:?}", again - began);
    assert_eq!(queue.call_begins(&key("slow")), None);
}
