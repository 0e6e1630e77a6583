//! All histories of the machine up to a bound, judged by the array's truth. docs/architecture.md states the scope.
//!
//! The real [`ControllerState`] and machine run against a model of the API server, the CSINodes, the driver and its array; each
//! answer, each change of the world and each crash is a choice. A replica that loses its lease is one that crashes.

mod choices;
mod world;

use std::time::Duration;

use choices::Choices;
use world::{Bug, Scope, World};

/// Searches all histories of the scope with at most this many faults. Returns their number, and the first violation.
fn search(scope: Scope, faults: usize, bug: Option<Bug>) -> (u64, Option<String>) {
    let mut choices = Choices::new(faults);
    for count in 1.. {
        let result = World::new(scope, bug, &mut choices).run();
        if let Err(violation) = result {
            choices.restart();
            let mut again = World::new(scope, bug, &mut choices);
            again.story = Some(Vec::new());
            assert_eq!(again.run().as_ref(), Err(&violation));
            let story = again.story.take().unwrap_or_default().join("\n");
            return (
                count,
                Some(format!("{scope:?}, history {count}: {violation}\n{story}")),
            );
        }
        if !choices.advance() {
            return (count, None);
        }
    }
    unreachable!("the choices are finite")
}

/// The histories with one fault; those with more are for a compiler that optimizes.
#[test]
fn every_short_history_keeps_each_volume() {
    let mut histories = 0;
    for scope in Scope::ALL {
        let (count, violation) = search(scope, 1, None);
        assert_eq!(violation, None, "{}", violation.as_deref().unwrap_or_default());
        histories += count;
    }
    assert!(histories > 500, "{histories}");
}

/// Searches all scopes, in threads.
fn search_all(most: usize) {
    let faults = move |scope: Scope| scope.faults().min(most);
    let threads = Scope::ALL.map(|scope| std::thread::spawn(move || search(scope, faults(scope), None)));
    for (scope, thread) in Scope::ALL.into_iter().zip(threads) {
        let (count, violation) = thread.join().expect("a history must not panic");
        print_count((scope, faults(scope)), count);
        assert_eq!(violation, None, "{}", violation.as_deref().unwrap_or_default());
    }
}

#[test]
#[ignore = "takes minutes without optimization"]
fn every_history_with_two_faults_keeps_each_volume() {
    search_all(2);
}

#[test]
#[ignore = "takes minutes with optimization"]
fn every_history_with_three_faults_keeps_each_volume() {
    search_all(3);
}

fn print_count(what: impl std::fmt::Debug, count: u64) {
    eprintln!("{what:?}: {count} histories");
}

/// Rules of former versions and of the Go sidecar, which the search must find to be wrong.
#[test]
fn finds_each_wrong_rule() {
    for bug in Bug::ALL {
        let mut histories = 0;
        let found = (0..=2).find_map(|faults| {
            Scope::ALL.into_iter().find_map(|scope| {
                let (count, violation) = search(scope, faults, Some(bug));
                histories += count;
                violation
            })
        });
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found in {histories} histories"));
        print_count((bug, found.lines().next().unwrap_or_default()), histories);
    }
}

const RETRY: Duration = Duration::from_secs(25);
