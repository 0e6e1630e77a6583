//! All kinds of mutating calls under `kill -9`.
//!
//! Each workload calls for its own objects, one call after the other, and records the acknowledged calls. The driver is
//! killed repeatedly, each time just after a call of a kind began that no kill has interrupted yet, until a kill has
//! interrupted every kind. After each kill, the effects of all acknowledged calls must exist, and the retry of each
//! interrupted call must succeed. The calls and the times of the kills follow from one seed; the interleaving of different
//! workloads' calls does not.

mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time;

use self::workload::{Clients, KINDS, View, Workload};
use crate::program::Program;

/// Number of workloads, and so of calls that a kill interrupts.
const WORKLOADS: u64 = 6;
/// Maximum number of kills that interrupt all kinds of calls; usually a few dozen suffice.
const MOST_KILLS: u32 = 150;
/// Approximate number of acknowledged calls of each workload between two kills.
const CALLS: std::ops::Range<u64> = 3..12;
/// Maximum delay, in microseconds, between the start of the call and the kill: longer than a call takes. Most delays are
/// much shorter.
const LATEST: u64 = 8_000;
/// Timeout of waiting for a call of the selected kind.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Environment variable with the seed, to repeat a run.
const SEED: &str = "CSI_MOCK_SEED";

/// The next kill, shared with the workloads.
struct KillPlan {
    /// The kind of call that the kill interrupts, after `enough` acknowledged calls.
    aim: &'static str,
    enough: u64,
    acknowledged: AtomicU64,
    /// Notified when such a call begins.
    begun: Notify,
    killed: AtomicBool,
}

async fn start(directory: &Path) -> Program {
    let state = format!("--state-dir={}", directory.join("state").display());
    let flags = [&state, "--node-id=node-0", "--devices=emulated"];
    Program::start(&directory.join("csi.sock"), flags).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_call_survives_kill_9() {
    let seed = seed();
    // Shown if the test fails.
    println!("to repeat this run, set {SEED}={seed}");
    let directory = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(seed);
    let mut workloads: Vec<_> = (0..WORKLOADS)
        .map(|number| Workload::new(&format!("c{number}"), directory.path(), rng.fork()))
        .collect();
    let mut met: BTreeMap<&str, u32> = BTreeMap::new();
    let mut kills = 0;
    while let Some(aim) = KINDS.into_iter().find(|kind| !met.contains_key(kind)) {
        assert!(kills < MOST_KILLS, "interrupted calls: {met:?}");
        let program = start(directory.path()).await;
        settle(&program, &mut workloads).await;
        workloads = work_until_killed(program, workloads, aim, &mut rng).await;
        kills += 1;
        for kind in workloads.iter().filter_map(Workload::unanswered) {
            *met.entry(kind).or_default() += 1;
        }
    }
    println!("{kills} kills met {met:?}");
    let program = start(directory.path()).await;
    settle(&program, &mut workloads).await;
    leave_nothing(&program, &mut workloads, directory.path()).await;
}

/// Runs all workloads, kills the driver during a call, and returns the workloads.
async fn work_until_killed(
    mut program: Program,
    workloads: Vec<Workload>,
    aim: &'static str,
    rng: &mut Rng,
) -> Vec<Workload> {
    let plan = Arc::new(KillPlan {
        aim,
        enough: WORKLOADS * rng.u64(CALLS),
        acknowledged: AtomicU64::new(0),
        begun: Notify::new(),
        killed: AtomicBool::new(false),
    });
    let mut work = JoinSet::new();
    for mut workload in workloads {
        let clients = Clients::of(program.channel().await);
        let plan = plan.clone();
        work.spawn(async move {
            workload.work(clients, &plan).await;
            workload
        });
    }
    tokio::select! {
        biased;
        Some(ended) = work.join_next() => panic!("no workload may stop before the kill: {:?}", ended.map(drop)),
        begun = time::timeout(TIMEOUT, plan.begun.notified()) => begun.expect("all kinds of calls come in turn"),
    }
    let latest = LATEST >> rng.u32(..8);
    time::sleep(Duration::from_micros(rng.u64(..latest))).await;
    plan.killed.store(true, Ordering::SeqCst);
    program.signal(Signal::KILL);
    program.ended().await;
    let mut workloads = work.join_all().await;
    // In the original order, for reproducibility.
    workloads.sort_by(|one, other| one.name().cmp(other.name()));
    assert_eq!(
        workloads.len() as u64,
        WORKLOADS,
        "no workload may stop before the kill"
    );
    workloads
}

/// Compares the restarted driver with the workloads' records, retries the interrupted calls, and compares again.
async fn settle(program: &Program, workloads: &mut [Workload]) {
    let mut clients = Clients::of(program.channel().await);
    let view = View::of(&mut clients).await;
    for workload in &mut *workloads {
        workload.check(&mut clients, &view, true).await;
    }
    for workload in &mut *workloads {
        workload.repeat(&mut clients).await;
    }
    let view = View::of(&mut clients).await;
    for workload in &mut *workloads {
        workload.check(&mut clients, &view, false).await;
    }
    let all: BTreeSet<_> = workloads.iter().flat_map(Workload::ids).collect();
    assert_eq!(view.ids(), all, "unrequested objects");
}

/// Deletes all objects and verifies that no files are left.
async fn leave_nothing(program: &Program, workloads: &mut [Workload], directory: &Path) {
    let mut clients = Clients::of(program.channel().await);
    for workload in workloads {
        workload.leave(&mut clients).await;
    }
    assert_eq!(View::of(&mut clients).await.ids(), BTreeSet::new());
    for folder in ["state/media/volumes", "state/media/snapshots", "targets"] {
        let left: Vec<_> = std::fs::read_dir(directory.join(folder))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, [""; 0], "left in {folder}");
    }
}

fn seed() -> u64 {
    match std::env::var_os(SEED) {
        Some(seed) => seed
            .to_str()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| panic!("{SEED} must be a whole number")),
        None => RandomState::new().hash_one(0_u8) >> 32,
    }
}
