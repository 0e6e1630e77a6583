//! The order of the test binaries, and how many run at a time.
//!
//! Simulations need only CPU time and do not depend on its flow; the other tests mostly wait, and fail if they get no CPU time. So
//! two binaries run at a time: one of the others, and with low priority a simulation.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use super::binary::{Binary, Finished, Shared};

/// Binaries whose tests run on simulated time, or compute; the longest first.
const SIMULATIONS: &[&str] = &[
    "e2e::whole_path",
    "attacher::it",
    "documentation",
    "embedded (unit tests)",
    "embedded::apiserver",
];

/// The longest of the others, which begin first, so that none of them is left for the end. The driver's come second: their browser
/// needs more CPU time than the simulations leave.
const LONGEST: &[&str] = &[
    "e2e::scenarios",
    "mock-driver::it",
    "core::playground",
    "e2e::harness",
];

/// Runs all binaries. The results are in the order of their ends.
pub(super) fn run(binaries: &[Binary], shared: &Shared<'_>) -> Vec<Finished> {
    let rank = |binary: &Binary| SIMULATIONS.iter().position(|name| *name == binary.name);
    let (mut simulations, mut others): (Vec<_>, Vec<_>) =
        binaries.iter().partition(|binary| rank(binary).is_some());
    simulations.sort_by_key(|binary| rank(binary));
    let place = |binary: &&Binary| LONGEST.iter().position(|name| *name == binary.name);
    others.sort_by_key(|binary| place(binary).unwrap_or(LONGEST.len()));
    let (simulations, others) = (
        Mutex::new(VecDeque::from(simulations)),
        Mutex::new(VecDeque::from(others)),
    );
    let finished = Mutex::new(Vec::new());
    let next = |queue: &Mutex<VecDeque<_>>| queue.lock().expect("no lane panics").pop_front();
    let lane = |own: &Mutex<VecDeque<_>>, then: &Mutex<VecDeque<_>>, is_low_priority: bool| {
        while let Some(binary) = next(own).or_else(|| next(then)) {
            let result = Binary::run(binary, shared, is_low_priority);
            finished.lock().expect("no lane panics").push(result);
        }
    };
    if shared.echo {
        // Output of two binaries at once would be unreadable.
        lane(&others, &simulations, false);
    } else {
        thread::scope(|scope| {
            scope.spawn(|| lane(&simulations, &others, true));
            lane(&others, &simulations, false);
        });
    }
    finished.into_inner().expect("no lane panics")
}
