//! Simulation of the controller with a fake API server, a fake driver and a paused clock: seeded histories in which
//! writes fail, responses are lost, events arrive late, the driver refuses calls, all of them lie, and the attacher is killed
//! at random times. The contract (`e2e/contract`) observes each of them.

mod exhaustive;
mod replicas;
mod world;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attacher_contract::Observation;
use csi_attacher::controller::reconcile::Reconciler;
use csi_attacher::controller::state::{ControllerState, lock};
use csi_attacher::controller::{Controller, Heartbeat, RunOptions};
use csi_attacher::model::{Capabilities, Driver};
use csi_attacher::workqueue::{Backoff, Limits};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use world::{Client, Faults, Lie, World};

/// Few enough for a quick verdict. `.ci/run` runs 1,000.
const HISTORIES: u64 = 100;
/// Simulated time in which the attacher must converge after the faults end. The longest backoff is a few seconds here.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
/// The same for detaches: in the ten minutes after a publish whose end is unknown, lists prove nothing.
const DETACHED_WITHIN: Duration = Duration::from_secs(12 * 60);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("the build of a runtime without I/O must succeed")
}

struct Timing {
    /// Attaches, and detaches, at a time.
    concurrency: usize,
    backoff: Backoff,
    resync: Duration,
    interval: Duration,
    grace: Duration,
}

const TIMING: Timing = Timing {
    concurrency: 4,
    backoff: Backoff {
        start: Duration::from_millis(100),
        max: Duration::from_secs(5),
    },
    resync: Duration::from_secs(7),
    interval: Duration::ZERO,
    grace: Duration::from_secs(60),
};

/// One attacher process, from its first list to its shutdown by `stop` or its kill, which drops the future.
async fn attacher(world: &World, seed: u64, stop: CancellationToken) {
    attacher_with(TIMING, world, Client::unopposed(), seed, stop).await;
}

/// As `attacher`. Returns what the process knew at its end.
async fn attacher_with(
    timing: Timing,
    world: &World,
    client: Client,
    seed: u64,
    stop: CancellationToken,
) -> Arc<Mutex<ControllerState>> {
    let limits = Limits {
        attach: timing.concurrency,
        detach: timing.concurrency,
        volume: 2,
        driver_calls: 0,
        adaptive: true,
    };
    let state = Arc::new(Mutex::new(ControllerState::new(
        limits,
        timing.backoff,
        seed,
        Instant::now().into_std(),
    )));
    let driver = Driver::new(world::DRIVER, Capabilities::default(), "");
    let (events_tx, events) = mpsc::channel(8);
    let (_connection_tx, connection) = watch::channel(None);
    let mut reconciler = Reconciler {
        state: state.clone(),
        csi: world.driver(&client),
        driver: driver.clone(),
        connection: connection.clone(),
        events_tx: events_tx.clone(),
        interval: timing.interval,
        max_entries: 0,
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let reconciling = async {
        client.leadership().begun().await;
        loop {
            tokio::time::sleep(Duration::from_millis(random.u64(5..400))).await;
            reconciler.round().await;
        }
    };
    let (cluster, csi) = (world.cluster(&client), world.driver(&client));
    let controller = Controller::new(cluster, csi, driver, state.clone(), World::wall_clock);
    let options = RunOptions {
        events,
        connection,
        leadership: client.leadership().clone(),
        resync: timing.resync,
        heartbeat: Heartbeat::default(),
        shutdown_grace: timing.grace,
    };
    tokio::select! {
        biased;
        () = controller.run(options, stop) => {}
        () = world.watch(events_tx, client.leadership().begun()) => unreachable!("a watch must not end"),
        () = reconciling => unreachable!("reconciliation must not end"),
    }
    state
}

/// Starts and kills attachers while users act, then stops the faults and verifies that the attacher converges.
async fn history(seed: u64) -> Result<(), String> {
    // Every fourth driver loses and regains its publish capability. In another fourth, everything lies; in another one there is
    // one kind of lies, and in the last one the driver takes one call of a node at a time.
    let one = Lie::ALL[(seed / 4) as usize % Lie::ALL.len()];
    let faults = match seed % 4 {
        0 => Faults::FICKLE,
        1 => Faults::LIES,
        2 => Faults::SOME_AND_LOCKS,
        _ => Faults::with_lie(one),
    };
    // Every second history heals only what is needed first.
    let heals_all = (seed / 8).is_multiple_of(2);
    let world = World::new(seed, faults);
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    for process in 0..random.u64(1..5) {
        let stop = CancellationToken::new();
        let lifetime = Duration::from_millis(random.u64(20..4_000));
        tokio::select! {
            biased;
            () = attacher(&world, seed + process, stop.clone()) => {}
            // Dropping the future kills the attacher, which receives no further response.
            () = world.users_for(lifetime) => {}
        }
        world.attacher_died();
        world.users_for(Duration::from_millis(random.u64(0..500))).await;
    }
    world.heal(heals_all);
    let stop = CancellationToken::new();
    let process = attacher(&world, seed, stop.clone());
    settles(&world, process, Observation::Settled, world.reattached()).await?;
    world.attacher_died();
    world.heal(true);
    world.delete_everything();
    let process = attacher(&world, seed + 1, stop);
    settles(&world, process, Observation::CleanedUp, world.settled()).await?;
    world.attacher_died();
    world
        .verify()
        .map_err(|violation| format!("{}\n{violation}", world.timeline()))
}

/// The seeds of the histories. The environment variable SIMULATION_SEEDS replaces the default ones, as in `1000..4000`.
#[expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]
fn seeds(histories: u64) -> Range<u64> {
    let Ok(named) = std::env::var("SIMULATION_SEEDS") else {
        return 0..histories;
    };
    let bounds = named
        .split_once("..")
        .and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    bounds.expect("SIMULATION_SEEDS must be like 1000..4000")
}

/// Whether `.ci/run` asks for all histories of the documented scopes.
fn searches_all() -> bool {
    std::env::var_os("ALL_HISTORIES").is_some()
}

/// Lets `attachers` run until `condition` holds.
async fn settles(
    world: &World,
    attachers: impl Future<Output = ()>,
    seen: Observation,
    condition: impl Future<Output = ()>,
) -> Result<(), String> {
    let limit = if matches!(seen, Observation::CleanedUp) {
        DETACHED_WITHIN
    } else {
        SETTLED_WITHIN
    };
    tokio::select! {
        biased;
        () = attachers => unreachable!("the test does not stop the attachers"),
        result = tokio::time::timeout(limit, condition) => result.map_err(|_| {
            format!("{}\nnot so in time: {seen}\n{}", world.timeline(), world.describe(&seen))
        }),
    }
}

/// Runs the histories of these seeds on all processors. Fails if one does.
fn run_histories<H: Future<Output = Result<(), String>>>(
    seeds: Range<u64>,
    history: impl Fn(u64) -> H + Sync,
) {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let shard = |first: usize| {
        let seeds = seeds.clone().skip(first).step_by(threads);
        let violation = |seed| {
            let violation = runtime().block_on(history(seed)).err()?;
            Some(format!("seed {seed}: {violation}"))
        };
        seeds.filter_map(violation).collect::<Vec<_>>()
    };
    let failed: Vec<_> = std::thread::scope(|scope| {
        let shards: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || shard(first)))
            .collect();
        let results = shards
            .into_iter()
            .map(|shard| shard.join().expect("a shard must not panic"));
        results.flatten().collect()
    });
    assert!(
        failed.is_empty(),
        "{} histories failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// Deadlines must not overflow the clock.
#[test]
fn works_with_gos_longest_durations() {
    let longest = Duration::from_nanos(i64::MAX as u64);
    runtime().block_on(async {
        for seed in 0..10 {
            let timing = Timing {
                concurrency: 4,
                backoff: Backoff {
                    start: longest,
                    max: longest,
                },
                resync: longest,
                interval: longest,
                grace: longest,
            };
            let world = World::new(seed, Faults::SOME);
            let stop = CancellationToken::new();
            let ends = async {
                world.users_for(Duration::from_secs(5)).await;
                stop.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                // No sync was cut off. An orphan may remain: a target that was not found waits for a proof of its detach
                // longer than any shutdown.
                state = attacher_with(timing, &world, Client::unopposed(), seed, stop.clone()) => {
                    assert!(lock(&state).is_drained(), "seed {seed}: {}", world.timeline());
                }
                () = ends => unreachable!("the attacher ends at shutdown"),
            }
        }
    });
}

#[test]
fn converges_without_leaks_despite_failures_and_kills() {
    run_histories(seeds(HISTORIES), history);
}

#[test]
fn without_faults_attach_is_two_writes_and_detach_is_one() {
    runtime().block_on(async {
        // As many as there are pairs of a volume and a node.
        const ATTACHMENTS: usize = 12;
        let world = World::new(7, Faults::NONE);
        let stop = CancellationToken::new();
        let user = async {
            world.attach_all(ATTACHMENTS);
            world.all_attached().await;
            let (writes, calls) = (world.writes(), world.calls());
            assert_eq!(
                writes.attachments,
                2 * ATTACHMENTS,
                "finalizer and record; status"
            );
            // All attachments share three volumes.
            assert_eq!(writes.volumes, 3);
            assert_eq!((calls.publish, calls.unpublish), (ATTACHMENTS, 0));
            world.detach_all();
            world.settled().await;
            let (writes, calls) = (world.writes(), world.calls());
            assert_eq!(writes.attachments, 3 * ATTACHMENTS, "one more per attachment");
            assert_eq!((calls.publish, calls.unpublish), (ATTACHMENTS, ATTACHMENTS));
            assert_eq!(world.reads_of_secrets(), 0);
        };
        tokio::select! {
            biased;
            () = attacher(&world, 7, stop.clone()) => {}
            () = user => {}
        }
        assert_eq!(world.verify(), Ok(()));
    });
}

/// No attach and no detach waits for a backoff, whose first delay alone is longer than all of them.
#[test]
fn serves_locked_nodes_in_turn() {
    const ATTACHMENTS: usize = 12;
    const LONG: Duration = Duration::from_secs(60);
    let timing = Timing {
        concurrency: ATTACHMENTS,
        backoff: Backoff {
            start: LONG,
            max: LONG,
        },
        resync: Duration::ZERO,
        ..TIMING
    };
    runtime().block_on(async {
        let world = World::new(19, Faults::LOCKS);
        let began = Instant::now();
        let user = async {
            world.attach_all(ATTACHMENTS);
            world.all_attached().await;
            world.detach_all();
            world.settled().await;
        };
        tokio::select! {
            biased;
            _ = attacher_with(timing, &world, Client::unopposed(), 19, CancellationToken::new()) => {}
            () = user => {}
        }
        let locked = world.calls().locked;
        assert!(locked > 0, "calls must collide");
        assert!(
            locked <= 2 * ATTACHMENTS,
            "{locked} refusals for {} calls",
            2 * ATTACHMENTS
        );
        assert!(began.elapsed() < LONG / 6, "{:?}", began.elapsed());
        assert_eq!(world.verify(), Ok(()));
    });
}

#[test]
fn republishes_only_volumes_that_the_array_lost() {
    runtime().block_on(async {
        const ATTACHMENTS: usize = 12;
        let world = World::new(13, Faults::NONE);
        let user = async {
            world.attach_all(ATTACHMENTS);
            world.all_attached().await;
            world.await_lists(3).await;
            assert_eq!(
                world.calls().publish,
                ATTACHMENTS,
                "the lists confirm all attachments"
            );
            assert_eq!(world.lose_publishes(5), 5);
            world.reattached().await;
            world.await_lists(3).await;
            let calls = world.calls();
            assert_eq!((calls.publish, calls.unpublish), (ATTACHMENTS + 5, 0));
            assert_eq!(
                world.writes().attachments,
                2 * ATTACHMENTS + 5,
                "one status write per loss"
            );
        };
        tokio::select! {
            biased;
            () = attacher(&world, 13, CancellationToken::new()) => {}
            () = user => {}
        }
        assert_eq!(world.verify(), Ok(()));
    });
}

#[test]
fn keeps_finalizers_while_the_driver_has_no_publish_capability() {
    runtime().block_on(async {
        const ATTACHMENTS: usize = 6;
        let world = World::new(17, Faults::NONE);
        let user = async {
            world.attach_all(ATTACHMENTS);
            world.all_attached().await;
            world.set_publish_capability(false);
            world.attach_all(2 * ATTACHMENTS);
            world.all_attached().await;
            assert_eq!(world.with_finalizer(), ATTACHMENTS, "the published ones");
            world.detach_all();
            // Nothing that was published is detached without a call.
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(world.with_finalizer(), ATTACHMENTS);
            let calls = world.calls();
            assert_eq!((calls.publish, calls.unpublish), (ATTACHMENTS, 0));
            world.set_publish_capability(true);
            world.settled().await;
            assert_eq!(world.calls().unpublish, ATTACHMENTS);
        };
        tokio::select! {
            biased;
            () = attacher(&world, 17, CancellationToken::new()) => {}
            () = user => {}
        }
        assert_eq!(world.verify(), Ok(()));
    });
}

/// Stops the attacher during its first call. Never returns.
async fn stop_at_first_call(world: &World, stop: &CancellationToken) {
    world.first_call().await;
    stop.cancel();
    std::future::pending().await
}

#[test]
fn shutdown_finishes_running_calls() {
    runtime().block_on(async {
        let world = World::new(11, Faults::NONE);
        let stop = CancellationToken::new();
        world.attach_all(4);
        tokio::select! {
            biased;
            () = attacher(&world, 11, stop.clone()) => {}
            () = stop_at_first_call(&world, &stop) => {}
        }
        // The status of each call that was running is stored, and the attacher sent no other call.
        assert!(world.calls().publish > 0);
        assert_eq!(world.attached(), world.calls().publish);
        assert_eq!(world.verify(), Ok(()));
    });
}

/// If shutdown cut off a call, the attacher must not release the lease, as the driver may still execute the call.
#[test]
fn shutdown_reports_whether_it_cut_off_a_call() {
    for (grace, finishes) in [(Duration::from_secs(60), true), (Duration::ZERO, false)] {
        runtime().block_on(async {
            let world = World::new(11, Faults::NONE);
            let stop = CancellationToken::new();
            world.attach_all(4);
            let timing = Timing { grace, ..TIMING };
            tokio::select! {
                biased;
                state = attacher_with(timing, &world, Client::unopposed(), 11, stop.clone()) => {
                    assert_eq!(lock(&state).is_drained(), finishes);
                }
                () = stop_at_first_call(&world, &stop) => {}
            }
        });
    }
}

#[test]
fn adds_pv_finalizer_again_if_attached_while_it_is_removed() {
    const TIMES: u64 = 60;
    let world = World::new(17, Faults::NONE);
    let user = async {
        for pause in 0..TIMES {
            world.attach_left_in_tree();
            world.all_attached().await;
            world.detach_all();
            world.settled().await;
            // The attacher removes the PersistentVolume's finalizer meanwhile; each pass attaches a little later.
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    };
    runtime().block_on(async {
        tokio::select! {
            biased;
            () = attacher(&world, 17, CancellationToken::new()) => {}
            () = user => {}
        }
    });
    assert_eq!(world.verify(), Ok(()));
}

#[test]
fn shutdown_starts_no_new_call() {
    runtime().block_on(async {
        let world = World::new(11, Faults::NONE);
        let stop = CancellationToken::new();
        world.attach_all(1);
        let kill = async {
            world.first_write().await;
            stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = attacher(&world, 11, stop.clone()) => {}
            () = kill => {}
        }
        // The attacher stored the record and did nothing else.
        assert_eq!((world.writes().attachments, world.calls().publish), (1, 0));
        assert_eq!(world.verify(), Ok(()));
    });
}
