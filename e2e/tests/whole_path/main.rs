//! Simulation of the whole attach/detach path: the embedded API server, controllers and kubelets, two replicas of the
//! attacher with leader election, and the mock driver with one array, in one thread on simulated time.
//!
//! The seed determines the scheduling of pods, the faults and their times. A run that violates an invariant prints the
//! volume's timeline, and the same seed reproduces it. See e2e/README.md.

mod attacher;
mod attacher_api;
mod convergence;
mod driver;
mod fault_injection;
mod history;
mod injected_bug;
mod observer;
mod timeline;
mod users;
mod world;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use attacher_contract::Clause;
use embedded_cluster::injected_bug::InjectedBug;

use history::FaultKind::{Api, CrashControllers, Driver, EndWatches, FailingDetach, MovePod};
use history::{ALL, FaultKind, Plan};
use injected_bug::Bug;

/// Seeds of the histories, few enough for a quick verdict. `.ci/run` runs 40.
const SEEDS: Range<u64> = 0..5;
/// How many seeds may be tried for an injected bug, from the one that found it last.
const SEEDS_FOR_BUG: u64 = 40;
/// Environment variable with the seeds, such as `7` or `0..1000`.
const SEEDS_VARIABLE: &str = "WHOLE_PATH_SEEDS";

const FAULTS: Plan = Plan {
    faults: ALL,
    bug: None,
};

/// Runs the history of a seed, and returns its timeline or the violated invariant.
fn play(seed: u64, plan: Plan) -> Result<String, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("the build of a runtime without I/O must succeed")
        .block_on(history::play(seed, plan))
}

/// Runs seeds in parallel until one fails; returns the lowest failing seed.
fn first_failure(seeds: Range<u64>, plan: Plan) -> Option<(u64, String)> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (next, lowest) = (AtomicU64::new(seeds.start), AtomicU64::new(seeds.end));
    let player = || {
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= lowest.load(Ordering::Relaxed) {
                return failures;
            }
            if let Err(failure) = play(seed, plan) {
                lowest.fetch_min(seed, Ordering::Relaxed);
                failures.push((seed, failure));
            }
        }
    };
    std::thread::scope(|scope| {
        let players: Vec<_> = (0..threads).map(|_| scope.spawn(player)).collect();
        let failures = players
            .into_iter()
            .flat_map(|player| player.join().expect("a player must not panic"));
        failures.min()
    })
}

/// The seeds in the environment variable, or `default`.
#[expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]
fn seeds(default: Range<u64>) -> Range<u64> {
    let Ok(named) = std::env::var(SEEDS_VARIABLE) else {
        return default;
    };
    let range = match named.split_once("..") {
        Some((first, end)) => first.parse().ok().zip(end.parse().ok()),
        None => named.parse().ok().map(|seed| (seed, seed + 1)),
    };
    let (first, end) = range.unwrap_or_else(|| panic!("{SEEDS_VARIABLE} must be like 7 or 0..1000"));
    first..end
}

#[test]
fn without_faults_every_pod_runs_and_nothing_is_left() {
    let plan = Plan {
        faults: &[],
        bug: None,
    };
    if let Some((seed, failure)) = first_failure(0..2, plan) {
        panic!("seed {seed}: {failure}");
    }
}

#[test]
fn invariants_hold_despite_faults() {
    let seeds = seeds(SEEDS);
    if let Some((seed, failure)) = first_failure(seeds.clone(), FAULTS) {
        panic!("{SEEDS_VARIABLE}={seed} breaks {failure}");
    }
    if seeds.end - seeds.start == 1 {
        println!("{}", play(seeds.start, FAULTS).unwrap_or_default());
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]
fn a_seed_repeats_its_history() {
    let end = if std::env::var_os("ALL_HISTORIES").is_some() {
        8
    } else {
        3
    };
    for seed in 0..end {
        let (first, second) = (play(seed, FAULTS), play(seed, FAULTS));
        let (first, second) = (first.unwrap_or_else(|e| e), second.unwrap_or_else(|e| e));
        assert_equal(seed, &first, &second);
    }
}

/// Fails with the first line in which two runs of a seed differ.
fn assert_equal(seed: u64, first: &str, second: &str) {
    for (number, (line, again)) in first.lines().zip(second.lines()).enumerate() {
        assert_eq!(line, again, "seed {seed}, line {number}");
    }
    assert!(first == second, "seed {seed} ends differently");
}

/// Runs the history of a seed with an injected bug, which first breaks this clause, and fails identically again, byte for byte.
/// Without the bug nothing is violated. `faults` are those that lead to the bug, because few histories with all kinds do.
#[expect(clippy::print_stdout, reason = "the violation is the test's result")]
fn is_found(bug: Bug, faults: &'static [FaultKind], seed: u64, clause: Clause) {
    let (bug, without_bug) = (Some(bug), Plan { faults, bug: None });
    let plan = Plan { faults, bug };
    let found = first_failure(seed..seed + SEEDS_FOR_BUG, plan);
    let (seed, failure) = found.expect("the bug must be found");
    let broken = failure.lines().next().unwrap_or_default();
    println!("{bug:?} is found by seed {seed}: {broken}");
    let expected = format!("{}: ", clause.rule().name);
    assert!(
        broken.starts_with(&expected),
        "seed {seed} breaks {broken}, not {expected}"
    );
    let again = play(seed, plan).expect_err("the history must fail again");
    assert_equal(seed, &failure, &again);
    let passed = play(seed, without_bug);
    assert!(passed.is_ok(), "history {seed} fails without the bug, too");
}

macro_rules! injected_bugs {
    ($($test:ident: $bug:expr, with $faults:expr, by $seed:literal, breaks $clause:ident;)+) => {$(
        #[test]
        fn $test() {
            is_found($bug, $faults, $seed, Clause::$clause);
        }
    )+};
}

injected_bugs! {
    finds_kubernetes_101791: Bug::Kubernetes(InjectedBug::FailedReconstruction), with ALL, by 2, breaks MountedIsPublished;
    finds_kubernetes_115297: Bug::Kubernetes(InjectedBug::MigratedVolumeNotRecognized), with ALL, by 7, breaks MountedIsPublished;
    finds_kubernetes_81078: Bug::Kubernetes(InjectedBug::DeletedPodStaysDesired),
        with &[MovePod, CrashControllers, EndWatches, Api], by 4, breaks PodsRun;
    finds_kubernetes_106710: Bug::Kubernetes(InjectedBug::ForcedDetachFromHealthyNode),
        with &[MovePod, Driver], by 2, breaks MountedIsPublished;
    finds_kubernetes_120571: Bug::Kubernetes(InjectedBug::AttachedAfterFailedDetach),
        with &[MovePod, MovePod, FailingDetach], by 0, breaks ListedWhileAttached;
    finds_kubernetes_121937: Bug::StagedVolumesCount, with ALL, by 106, breaks MountedIsPublished;
}
