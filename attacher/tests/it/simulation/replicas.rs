//! Two replicas with leader election: only the holder of the lease writes and calls, and no publish leaks, despite faults of
//! the lease, its API server and the replicas.

use std::array;
use std::cell::Cell;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attacher_contract::Observation;
use csi_attacher::controller::state::lock;
use csi_attacher::leader_election::LeaderElector;
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::world::{Client, Faults, World};
use super::{TIMING, Timing, attacher_with, run_histories, seeds, settles};
use crate::election::server::{self, Server};
use crate::election::{QUICK, Suspendable, settings};

const HISTORIES: u64 = 100;
const REPLICAS: usize = 2;
/// Minimum duration of a container's restart. Longer than a request or call: the next process has the identity of the killed
/// one, so it leads at once, and would race with the calls that the driver still executes.
const RESTART: Duration = Duration::from_secs(1);

thread_local! {
    /// Error of the wall clock of each replica's node, in seconds.
    static CLOCK_ERRORS: [Cell<i64>; REPLICAS] = const { [const { Cell::new(0) }; REPLICAS] };
    static EPOCH: Cell<Option<Instant>> = const { Cell::new(None) };
}

const CLOCKS: [fn() -> Timestamp; REPLICAS] = [|| wall_clock(0), || wall_clock(1)];

fn wall_clock(replica: usize) -> Timestamp {
    let epoch = EPOCH.get().expect("a history sets it");
    let error = CLOCK_ERRORS.with(|errors| errors[replica].get());
    let elapsed = SignedDuration::try_from(epoch.elapsed()).expect("a history is short");
    // Far from the epoch, so that a clock can be set back.
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(100_000) + elapsed + SignedDuration::from_secs(error)
}

/// Signals to a replica: SIGSTOP until a time, and SIGTERM.
#[derive(Clone)]
struct Controls {
    suspended_until: Arc<Mutex<Instant>>,
    terminate: CancellationToken,
}

impl Controls {
    fn new() -> Self {
        Self {
            suspended_until: Arc::new(Mutex::new(Instant::now())),
            terminate: CancellationToken::new(),
        }
    }
}

struct Replicas {
    world: World,
    lease: Server,
    controls: [Mutex<Controls>; REPLICAS],
}

// === impl Replicas ===

impl Replicas {
    fn new(seed: u64, faults: Faults) -> Self {
        let lease = Server::new(seed, server::Faults::SOME);
        Self {
            world: World::with_lease(seed, faults, lease.clone()),
            lease,
            controls: array::from_fn(|_| Mutex::new(Controls::new())),
        }
    }

    fn controls(&self, replica: usize) -> Controls {
        let controls = self.controls[replica].lock();
        controls.expect("nothing must panic while it is locked").clone()
    }

    /// One process: it works while it leads, ends when it loses the lease, and releases the lease if it has finished its work
    /// at SIGTERM.
    async fn process(&self, replica: usize, seed: u64, grace: Duration) {
        let identity = format!("replica-{replica}");
        let settings = settings(&identity, QUICK);
        let (elector, leadership) = LeaderElector::new(self.lease.clone(), settings, CLOCKS[replica], seed);
        let Controls {
            suspended_until,
            terminate,
        } = self.controls(replica);
        let client = Client::replica(&identity, leadership, suspended_until);
        let stop_election = CancellationToken::new();
        let mut election = pin!(elector.run(stop_election.clone()));
        let timing = Timing { grace, ..TIMING };
        // The work is polled first: a process that was suspended may write before it learns that it lost the lease.
        tokio::select! {
            biased;
            state = attacher_with(timing, &self.world, client, seed, terminate) => {
                let is_drained = lock(&state).is_drained();
                if is_drained {
                    stop_election.cancel();
                    drop(election.await);
                }
            }
            result = &mut election => drop(result),
        }
    }

    /// A pod, whose container the kubelet restarts whenever the process exits. Unless `forever`, each process is killed in the end.
    async fn pod(&self, replica: usize, seed: u64, forever: bool) {
        let mut random = fastrand::Rng::with_seed(seed * 2 + replica as u64);
        loop {
            let controls = Controls::new();
            *self.controls[replica]
                .lock()
                .expect("nothing must panic while it is locked") = controls.clone();
            let grace = Duration::from_millis(if random.bool() { 60_000 } else { random.u64(0..60) });
            let process = self.process(replica, random.u64(..), grace);
            let process = Suspendable::new(process, controls.suspended_until);
            if forever {
                process.await;
            } else {
                // Killed if it is still running after its lifetime.
                let lifetime = Duration::from_millis(random.u64(500..12_000));
                timeout(lifetime, process).await.ok();
            }
            sleep(RESTART + Duration::from_millis(random.u64(0..5_000))).await;
        }
    }

    async fn pods(&self, seed: u64, forever: [bool; REPLICAS]) {
        if forever.contains(&true) {
            // The earlier processes were killed just before.
            sleep(RESTART).await;
        }
        futures::join!(
            self.pod(0, seed, forever[0]),
            self.pod(1, seed, forever[1]),
            self.lease.run()
        );
    }

    async fn inject_faults(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x0dd);
        loop {
            sleep(Duration::from_millis(random.u64(100..4_000))).await;
            let (replica, duration) = (
                random.usize(0..REPLICAS),
                Duration::from_millis(random.u64(0..6_000)),
            );
            match random.u8(0..6) {
                0 => self.lease.freeze(duration / 2),
                1 => self.lease.label(),
                2 => CLOCK_ERRORS.with(|errors| errors[replica].set(random.i64(-100_000..100_000))),
                3 | 4 => self.controls(replica).terminate.cancel(),
                _ => {
                    let until = self.controls(replica).suspended_until;
                    *until.lock().expect("nothing must panic while it is locked") = Instant::now() + duration;
                }
            }
        }
    }
}

async fn history(seed: u64, handovers: &Mutex<i64>) -> Result<(), String> {
    EPOCH.set(Some(Instant::now()));
    CLOCK_ERRORS.with(|errors| errors.iter().for_each(|error| error.set(0)));
    let faults = if seed.is_multiple_of(3) {
        Faults::FICKLE
    } else {
        Faults::SOME
    };
    let replicas = Replicas::new(seed, faults);
    let Replicas { world, lease, .. } = &replicas;
    tokio::select! {
        biased;
        () = replicas.pods(seed, [false; REPLICAS]) => unreachable!("pods must not end"),
        () = replicas.inject_faults(seed) => unreachable!("fault injection must not end"),
        () = world.users_for(Duration::from_secs(25)) => {}
    }
    // Every second history heals one replica first.
    let heals_all = seed.is_multiple_of(2);
    world.heal(heals_all);
    lease.stop_faults();
    let pods = replicas.pods(seed, [true, heals_all]);
    settles(world, pods, Observation::Settled, world.reattached()).await?;
    world.heal(true);
    world.delete_everything();
    let pods = replicas.pods(seed + 1, [true; REPLICAS]);
    settles(world, pods, Observation::CleanedUp, world.settled()).await?;
    *handovers.lock().expect("nothing must panic while it is locked") += i64::from(lease.transitions());
    world
        .verify()
        .map_err(|violation| format!("{}\n{violation}", world.timeline()))
}

#[test]
fn only_the_holder_of_the_lease_writes_and_calls() {
    let seeds = seeds(HISTORIES);
    let histories = (seeds.end - seeds.start) as i64;
    let handovers = Mutex::new(0);
    run_histories(seeds, |seed| history(seed, &handovers));
    // Without handovers, the histories verify nothing.
    let handovers = handovers
        .into_inner()
        .expect("nothing must panic while it is locked");
    assert!(handovers > histories / 2, "{handovers} in {histories} histories");
}
