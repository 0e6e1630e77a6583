//! Every kind of call that changes something, under `kill -9`.
//!
//! Customers work on things of their own, one call after the other, and keep books of the acknowledged calls. The
//! driver is killed in the middle of it, again and again, each time just after a call of a kind began that no kill
//! has met yet, until a call of every kind was under way when that happened. Each time all that was acknowledged must be there, and every call that was not must succeed when it
//! is repeated. What is called and when the driver dies comes from one seed; how the calls of different
//! customers meet is up to the machine.

mod customer;

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

use self::customer::{Clients, Customer, KINDS, View};
use crate::program::Program;

/// Customers at a time: as many calls are under way when the driver dies.
const CUSTOMERS: u64 = 6;
/// Kills until all kinds must have been met; a few dozen do.
const MOST_KILLS: u32 = 150;
/// How many calls of each customer are acknowledged between two kills, about.
const CALLS: std::ops::Range<u64> = 3..12;
/// How late after a call of the wanted kind began the kill comes, at most, in microseconds: longer than a call takes.
/// Most kills come much sooner.
const LATEST: u64 = 8_000;
/// How long a call of that kind may be waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// The variable that repeats a run.
const SEED: &str = "CSI_MOCK_SEED";

/// What happens to the driver, as the customers know it.
struct CallOutcomes {
    /// The kind of call that it is to be killed in, once so many calls were acknowledged.
    aim: &'static str,
    enough: u64,
    acknowledged: AtomicU64,
    /// Such a call begins.
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
    let mut customers: Vec<_> = (0..CUSTOMERS)
        .map(|number| Customer::new(&format!("c{number}"), directory.path(), rng.fork()))
        .collect();
    let mut met: BTreeMap<&str, u32> = BTreeMap::new();
    let mut kills = 0;
    while let Some(aim) = KINDS.into_iter().find(|kind| !met.contains_key(kind)) {
        assert!(kills < MOST_KILLS, "calls that a kill met: {met:?}");
        let program = start(directory.path()).await;
        settle(&program, &mut customers).await;
        customers = work_until_killed(program, customers, aim, &mut rng).await;
        kills += 1;
        for kind in customers.iter().filter_map(Customer::unanswered) {
            *met.entry(kind).or_default() += 1;
        }
    }
    println!("{kills} kills met {met:?}");
    let program = start(directory.path()).await;
    settle(&program, &mut customers).await;
    leave_nothing(&program, &mut customers, directory.path()).await;
}

/// Has all customers work, kills the driver in the middle of it, and hands the customers back.
async fn work_until_killed(
    mut program: Program,
    customers: Vec<Customer>,
    aim: &'static str,
    rng: &mut Rng,
) -> Vec<Customer> {
    let fate = Arc::new(CallOutcomes {
        aim,
        enough: CUSTOMERS * rng.u64(CALLS),
        acknowledged: AtomicU64::new(0),
        begun: Notify::new(),
        killed: AtomicBool::new(false),
    });
    let mut work = JoinSet::new();
    for mut customer in customers {
        let clients = Clients::of(program.channel().await);
        let fate = fate.clone();
        work.spawn(async move {
            customer.work(clients, &fate).await;
            customer
        });
    }
    tokio::select! {
        biased;
        Some(ended) = work.join_next() => panic!("no customer may stop before the kill: {:?}", ended.map(drop)),
        begun = time::timeout(PATIENCE, fate.begun.notified()) => begun.expect("all kinds of calls come in turn"),
    }
    let latest = LATEST >> rng.u32(..8);
    time::sleep(Duration::from_micros(rng.u64(..latest))).await;
    fate.killed.store(true, Ordering::SeqCst);
    program.signal(Signal::KILL);
    program.ended().await;
    let mut customers = work.join_all().await;
    // However they came back, each goes on as the same.
    customers.sort_by(|one, other| one.name().cmp(other.name()));
    assert_eq!(
        customers.len() as u64,
        CUSTOMERS,
        "no customer may stop before the kill"
    );
    customers
}

/// Compares the driver that came back with the books, repeats the unanswered calls, and compares again.
async fn settle(program: &Program, customers: &mut [Customer]) {
    let mut clients = Clients::of(program.channel().await);
    let view = View::of(&mut clients).await;
    for customer in &mut *customers {
        customer.check(&mut clients, &view, true).await;
    }
    for customer in &mut *customers {
        customer.repeat(&mut clients).await;
    }
    let view = View::of(&mut clients).await;
    for customer in &mut *customers {
        customer.check(&mut clients, &view, false).await;
    }
    let all: BTreeSet<_> = customers.iter().flat_map(Customer::ids).collect();
    assert_eq!(view.ids(), all, "unrequested objects");
}

/// Takes everything back, and looks at the disk.
async fn leave_nothing(program: &Program, customers: &mut [Customer], directory: &Path) {
    let mut clients = Clients::of(program.channel().await);
    for customer in customers {
        customer.leave(&mut clients).await;
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
