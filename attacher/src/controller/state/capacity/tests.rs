//! Attaches and detaches of a node without capacity, and of one that takes one call at a time.

use std::time::Duration;

use super::*;
use crate::controller::state::Event;
use crate::controller::state::tests::Fixture;
use crate::informer::Change;
use crate::model::{Source, Version};
use crate::plan::tests::mk_attachment;
use crate::workqueue::{Class, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn mk_attaching(name: &str) -> Attachment {
    Attachment {
        source: Source::Volume(format!("pv-{name}").as_str().into()),
        ..mk_attachment(name)
    }
}

fn mk_detaching(name: &str) -> Attachment {
    Attachment {
        deleting: true,
        finalizer: true,
        ..mk_attaching(name)
    }
}

fn refused(code: i32) -> SyncError {
    SyncError {
        code: Some(code),
        ..SyncError::new(Class::Uncertain, "refused")
    }
}

/// Starts all items that are due.
fn start_all(fixture: &mut Fixture) -> Vec<Item> {
    std::iter::from_fn(|| fixture.start()).collect()
}

fn name(item: &Item) -> &str {
    match item {
        Item::Subject(Subject::Attachment(_, attachment)) => &attachment.name,
        Item::Subject(Subject::Orphan(_)) | Item::Volume(_) | Item::Backfill { .. } => {
            panic!("an attach or a detach")
        }
    }
}

fn names(items: &[Item]) -> Vec<&str> {
    let mut names: Vec<_> = items.iter().map(name).collect();
    names.sort_unstable();
    names
}

/// Calls the driver for `item`, and finishes it. Returns whether its failure is reported.
fn call(fixture: &mut Fixture, item: &Item, result: Result<(), SyncError>) -> bool {
    let key = Key::Attachment(name(item).into());
    fixture.state.queue.now = fixture.now;
    let outcome = match &result {
        Ok(()) => Outcome::Success,
        Err(error) => Outcome::Failed(error.code.expect("the driver refused it")),
    };
    fixture.state.call_ended(&key, outcome);
    let mut result = result;
    let is_reported = result
        .as_mut()
        .is_err_and(|error| !fixture.state.defers_report(item, error));
    if result.is_ok()
        && let Item::Subject(Subject::Attachment(_, attachment)) = item
    {
        let change = match attachment.deleting {
            true => Change::LocallyDeleted {
                name: attachment.name.clone(),
                uid: attachment.uid.clone(),
                version: None,
            },
            false => Change::LocallyUpdated(Attachment {
                version: Version(attachment.version.0 + 1),
                attached: true,
                finalizer: true,
                ..Attachment::clone(attachment)
            }),
        };
        fixture.state.handle(Event::Attachments(change));
    }
    fixture.finish(item, result);
    is_reported
}

/// Starts the calls of all items that are due.
fn begin_all(fixture: &mut Fixture) -> Vec<Item> {
    let items = start_all(fixture);
    for item in &items {
        let key = Key::Attachment(name(item).into());
        fixture.state.queue.now = fixture.now;
        assert_eq!(fixture.state.queue.call_begins(&key), None);
    }
    items
}

#[test]
fn an_attach_without_capacity_waits_for_a_detach_of_its_node() {
    let mut fixture = Fixture::new(["a-0", "a-1"].map(mk_attaching));
    let attaches = begin_all(&mut fixture);
    fixture.put(mk_detaching("d-0"));
    let detach = begin_all(&mut fixture).pop().expect("the detach starts");
    for item in &attaches {
        let is_reported = call(&mut fixture, item, Err(refused(RESOURCE_EXHAUSTED)));
        assert!(!is_reported, "a detach is running");
        fixture.now += SECOND;
    }
    fixture.now += 5 * SECOND;
    assert!(fixture.start().is_none(), "the detach is running");
    call(&mut fixture, &detach, Ok(()));
    let next = begin_all(&mut fixture);
    assert_eq!(
        names(&next),
        ["a-0"],
        "a detach frees capacity for one attach, the oldest"
    );
    // The second refusal comes without any detach. A call that has just ended may be its reason, but not for so long.
    fixture.now += 10 * SECOND;
    assert!(call(&mut fixture, &next[0], Err(refused(RESOURCE_EXHAUSTED))));
}

#[test]
fn an_attach_without_capacity_waits_for_a_detach_that_the_driver_still_executes() {
    const DEADLINE_EXCEEDED: i32 = 4;
    let mut fixture = Fixture::new([mk_detaching("d-0")]);
    let detach = begin_all(&mut fixture).pop().expect("the detach starts");
    fixture.now += 15 * SECOND;
    assert!(call(&mut fixture, &detach, Err(refused(DEADLINE_EXCEEDED))));
    fixture.put(mk_attaching("a-0"));
    let attach = begin_all(&mut fixture).pop().expect("the attach starts");
    let is_reported = call(&mut fixture, &attach, Err(refused(RESOURCE_EXHAUSTED)));
    assert!(!is_reported, "the detach may end");
}

/// Its detach may never end.
#[test]
fn an_attach_that_waits_too_long_for_a_detach_is_reported() {
    const DEADLINE_EXCEEDED: i32 = 4;
    let mut fixture = Fixture::new([mk_detaching("d-0")]);
    let detach = begin_all(&mut fixture).pop().expect("the detach starts");
    fixture.now += 15 * SECOND;
    call(&mut fixture, &detach, Err(refused(DEADLINE_EXCEEDED)));
    fixture.put(mk_attaching("a-0"));
    let began = fixture.now;
    loop {
        for item in begin_all(&mut fixture) {
            if name(&item) == "d-0" {
                call(&mut fixture, &item, Err(refused(DEADLINE_EXCEEDED)));
            } else if call(&mut fixture, &item, Err(refused(RESOURCE_EXHAUSTED))) {
                let waited = fixture.now - began;
                assert!(waited >= UNREPORTED && waited < 2 * UNREPORTED, "{waited:?}");
                return;
            }
        }
        fixture.now += SECOND;
        assert!(fixture.now < began + 2 * UNREPORTED, "it is never reported");
    }
}

#[test]
fn missing_capacity_beside_a_detach_lowers_no_limit() {
    let mut fixture = Fixture::new(["a-0", "a-1"].map(mk_attaching));
    let attaches = begin_all(&mut fixture);
    fixture.put(mk_detaching("d-0"));
    assert_eq!(names(&begin_all(&mut fixture)), ["d-0"]);
    for item in &attaches {
        call(&mut fixture, item, Err(refused(RESOURCE_EXHAUSTED)));
    }
    let limits: Vec<_> = fixture.state.queue.flow().node_limits().collect();
    assert_eq!(limits, [], "the slots are missing, not the turn");
}

#[test]
fn a_lasting_refusal_reports_what_the_call_waits_for() {
    let mut fixture = Fixture::new(["a-0", "a-1"].map(mk_attaching));
    let items = begin_all(&mut fixture);
    call(&mut fixture, &items[1], Err(refused(10)));
    fixture.now += 16 * SECOND;
    let again = begin_all(&mut fixture);
    fixture.state.queue.now = fixture.now;
    let key = Key::Attachment(name(&again[0]).into());
    fixture.state.call_ended(&key, Outcome::Failed(10));
    let mut error = refused(10);
    assert!(!fixture.state.defers_report(&again[0], &mut error));
    assert_eq!(
        error.message,
        "refused; waits for its turn on node node (limit 1 learned), refused for 16 s"
    );
}

#[test]
fn without_a_detach_the_missing_capacity_is_reported_and_backs_off() {
    let mut fixture = Fixture::new([mk_attaching("a-0")]);
    let items = begin_all(&mut fixture);
    assert!(call(&mut fixture, &items[0], Err(refused(RESOURCE_EXHAUSTED))));
    fixture.now += SECOND;
    assert_eq!(names(&start_all(&mut fixture)), ["a-0"]);
}

#[test]
fn a_call_refused_beside_another_waits_for_its_turn() {
    const ABORTED: i32 = 10;
    let mut fixture = Fixture::new(["a-0", "a-1"].map(mk_attaching));
    let items = begin_all(&mut fixture);
    let [first, second] = [&items[0], &items[1]];
    let is_reported = call(&mut fixture, second, Err(refused(ABORTED)));
    assert!(!is_reported, "the other call is the reason");
    assert!(fixture.start().is_none(), "the other call is in flight");
    fixture.now += SECOND;
    // Its lock may end before it does.
    assert_eq!(names(&begin_all(&mut fixture)), [name(second)]);
    let is_reported = call(&mut fixture, second, Err(refused(ABORTED)));
    assert!(!is_reported, "the other call is the reason");
    fixture.now += SECOND / 2;
    assert!(fixture.start().is_none(), "the other call is in flight");
    call(&mut fixture, first, Ok(()));
    // At once, and not after a backoff.
    assert_eq!(names(&begin_all(&mut fixture)), [name(second)]);
    let is_reported = call(&mut fixture, second, Err(refused(ABORTED)));
    assert!(!is_reported, "the other call has just ended");
    fixture.now += 10 * SECOND;
    assert_eq!(names(&begin_all(&mut fixture)), [name(second)]);
    let is_reported = call(&mut fixture, second, Err(refused(ABORTED)));
    assert!(is_reported, "now it fails alone");
    assert!(fixture.start().is_none(), "it is in backoff");
    fixture.now += SECOND;
    assert_eq!(names(&start_all(&mut fixture)), [name(second)]);
}

#[test]
fn a_refusal_that_the_drivers_rate_explains_does_not_wait_for_a_detach() {
    let on = |node: &str, attachment| Attachment {
        node: node.into(),
        ..attachment
    };
    let attaches = [
        mk_attaching("a-0"),
        on("b", mk_attaching("b-0")),
        on("c", mk_attaching("c-0")),
    ];
    let mut fixture = Fixture::new(attaches);
    // Two nodes without other calls are refused beside a call for a third: the driver limits calls.
    for item in begin_all(&mut fixture).iter().filter(|item| name(item) != "a-0") {
        call(&mut fixture, item, Err(refused(RESOURCE_EXHAUSTED)));
    }
    assert_eq!(fixture.state.queue.flow().driver_limit(), Some(1));
    fixture.put(mk_detaching("d-0"));
    fixture.put(mk_attaching("a-1"));
    let mut begun = Vec::new();
    let mut begin_until = |fixture: &mut Fixture, wanted: &str| {
        for _ in 0..20 {
            fixture.now += SECOND / 5;
            begun.extend(begin_all(fixture));
            if let Some(at) = begun.iter().position(|item| name(item) == wanted) {
                return begun.swap_remove(at);
            }
        }
        panic!("{wanted} must begin within 4 s");
    };
    let _detach = begin_until(&mut fixture, "d-0");
    let attach = begin_until(&mut fixture, "a-1");
    let is_reported = call(&mut fixture, &attach, Err(refused(RESOURCE_EXHAUSTED)));
    assert!(!is_reported, "its turn comes");
    let _again = begin_until(&mut fixture, "a-1");
}
