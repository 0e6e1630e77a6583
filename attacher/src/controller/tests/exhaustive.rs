//! All histories of the machine up to a bound, judged by the array's truth. docs/architecture.md states the scope.
//!
//! The real [`ControllerState`] and machine run against a model of the API server, the CSINodes, the driver and its array; each
//! answer, each change of the world and each crash is a choice. A replica that loses its lease is one that crashes.
//!
//! Histories that come to the same state continue in the same way, so the search continues one of them, and counts what follows for
//! each: a history is one sequence of choices.

mod choices;
mod digest;
mod world;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use choices::Choices;
use world::{Bug, Scope, World};

/// The histories of a scope, the states in which they differ, and the first violation.
struct Searched {
    histories: u64,
    states: usize,
    violation: Option<String>,
}

/// A state that the present history went through.
struct Passed {
    state: u64,
    /// The choices before it.
    choices: usize,
    /// The histories from here that ended.
    histories: u64,
    /// Where others continue, unless there are none.
    world: Option<World>,
}

/// More steps than any history needs.
const STEPS: usize = 1_000;

/// Searches all histories of the scope with at most this many faults, up to the first violation.
fn search(scope: Scope, faults: usize, bug: Option<Bug>) -> Searched {
    let mut world = World::new(scope, bug, Choices::new(faults));
    // The number of histories that follow each state.
    let mut known = HashMap::new();
    let mut path = vec![Passed::new(world.state(), &world)];
    loop {
        let ended = match world.advance() {
            Err(violation) => Err(violation),
            Ok(false) => Ok(1),
            Ok(true) => {
                let state = world.state();
                match known.get(&state) {
                    Some(histories) => Ok(*histories),
                    None if path.len() == STEPS || path.iter().any(|before| before.state == state) => {
                        Err("nothing settles it without another fault".to_owned())
                    }
                    None => {
                        path.push(Passed::new(state, &world));
                        continue;
                    }
                }
            }
        };
        let mut choices = std::mem::take(&mut world.choices);
        let histories = match ended {
            Ok(histories) => histories,
            Err(violation) => {
                let histories = path.iter().map(|passed| passed.histories).sum::<u64>() + 1;
                let story = story(scope, bug, choices, path.len());
                return Searched {
                    histories,
                    states: known.len(),
                    violation: Some(format!("{scope:?}, history {histories}: {violation}\n{story}")),
                };
            }
        };
        let mut add = histories;
        loop {
            let Some(last) = path.last_mut() else {
                return Searched {
                    histories: add,
                    states: known.len(),
                    violation: None,
                };
            };
            last.histories += add;
            if choices.advance(last.choices) {
                break;
            }
            add = last.histories;
            known.insert(last.state, add);
            path.pop();
        }
        let passed = path.last().and_then(|passed| passed.world.clone());
        world = passed.expect("a state with several options must be kept");
        world.choices = choices;
    }
}

/// What happened in a history of this many steps.
fn story(scope: Scope, bug: Option<Bug>, mut choices: Choices, steps: usize) -> String {
    choices.go_back(0);
    let mut world = World::new(scope, bug, choices);
    world.story = Some(Vec::new());
    for _ in 0..steps {
        // The last one shows the violation again.
        drop(world.advance());
    }
    world.story.unwrap_or_default().join("\n")
}

/// Whether `.ci/run` asks for all histories of the documented scopes. Without it, one fault fewer gives a quick verdict.
fn searches_all() -> bool {
    std::env::var_os("ALL_HISTORIES").is_some()
}

/// Searches all scopes, on all processors. Returns the number of histories.
fn search_all(fewer: usize) -> u64 {
    // The longest ones are not the last.
    let scopes = Mutex::new(Scope::ALL.into_iter().rev());
    let search_next = || {
        let mut histories = 0;
        while let Some(scope) = scopes.lock().expect("no search panics here").next() {
            let faults = scope.faults() - fewer;
            let searched = search(scope, faults, None);
            eprintln!(
                "{scope:?}, {faults} faults: {} histories, {} states",
                searched.histories, searched.states
            );
            assert_eq!(
                searched.violation,
                None,
                "{}",
                searched.violation.as_deref().unwrap_or_default()
            );
            histories += searched.histories;
        }
        histories
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(search_next)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a history must not panic"))
            .sum()
    })
}

#[test]
fn every_short_history_keeps_each_volume() {
    let (fewer, least) = if searches_all() {
        (0, 1_000_000)
    } else {
        (1, 20_000)
    };
    let histories = search_all(fewer);
    assert!(histories >= least, "{histories}");
}

/// Each history runs to its end.
#[test]
fn known_states_stand_for_the_histories_that_follow() {
    for scope in Scope::ALL {
        let mut choices = Choices::new(1);
        let mut histories = 0;
        loop {
            let mut world = World::new(scope, None, choices);
            while world.advance().expect("no history of one fault must fail") {}
            histories += 1;
            choices = world.choices;
            if !choices.advance(0) {
                break;
            }
        }
        assert_eq!(search(scope, 1, None).histories, histories, "{scope:?}");
    }
}

/// Rules of former versions and of the Go sidecar, which the search must find to be wrong.
#[test]
fn finds_each_wrong_rule() {
    const FORGOTTEN: &str = "the volume is forgotten at";
    for bug in Bug::ALL {
        let expected = match bug {
            Bug::NotFoundIsProof
            | Bug::NoCallsIsProof
            | Bug::DecisionOutlivesConnection
            | Bug::UnguardedIsLeft
            | Bug::WritesWithoutUid
            | Bug::PresentNodeIdAlone => FORGOTTEN,
            Bug::StrayNotFoundIsGone => "nothing settles it without another fault",
            Bug::WatchIsTrusted => "a publish is sent for va, which is gone",
        };
        let mut histories = 0;
        let found = (0..=2).find_map(|faults| {
            Scope::ALL.into_iter().find_map(|scope| {
                let searched = search(scope, faults, Some(bug));
                histories += searched.histories;
                searched.violation
            })
        });
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found in {histories} histories"));
        let first = found.lines().next().unwrap_or_default();
        eprintln!("{bug:?}: {histories} histories: {first}");
        assert!(
            first.contains(expected),
            "{bug:?} instead of {expected:?}: {found}"
        );
    }
}

const RETRY: Duration = Duration::from_secs(25);

// === impl Passed ===

impl Passed {
    fn new(state: u64, world: &World) -> Self {
        Self {
            state,
            choices: world.choices.asked(),
            histories: 0,
            world: (world.choices.left() > 0).then(|| world.clone()),
        }
    }
}
