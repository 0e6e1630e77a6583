//! Leader election of several replicas with a fake API server on a paused clock. The server freezes, and loses and delays
//! requests and responses; the test suspends, kills and stops replicas. Two replicas must never lead at the same time.

pub(crate) mod server;

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use csi_attacher::leader_election::{
    LeaderElector, Leadership, LeadershipLost, LeaseMeta, Settings, Timings,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use server::{Faults, Server};

const SECOND: Duration = Duration::from_secs(1);
const HISTORIES: u64 = 30;
/// Simulated time of one history.
const LENGTH: Duration = Duration::from_secs(300);
/// The Go sidecar's defaults.
const SLOW: Timings = Timings {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(5),
};
pub(crate) const QUICK: Timings = Timings {
    lease_duration: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry_period: Duration::from_millis(500),
};

pub(crate) fn settings(identity: &str, timings: Timings) -> Settings {
    Settings {
        lease_meta: LeaseMeta {
            namespace: "default".to_owned(),
            name: "lease".to_owned(),
        },
        identity: identity.to_owned(),
        labels: BTreeMap::new(),
        timings,
    }
}

fn elector(
    identity: &str,
    timings: Timings,
    server: &Server,
    clock: fn() -> Timestamp,
) -> (LeaderElector<Server>, Leadership) {
    LeaderElector::new(server.clone(), settings(identity, timings), clock, 1)
}

/// The wall clocks of three hosts.
const CLOCKS: [fn() -> Timestamp; 3] = [
    Timestamp::now,
    || Timestamp::now() + SignedDuration::from_hours(30),
    || Timestamp::now() - SignedDuration::from_hours(20_000),
];

/// Runs the elector after `before` has acquired the lease, so that the first leader is known.
async fn run_after(
    before: &Leadership,
    elector: LeaderElector<Server>,
    stop: CancellationToken,
) -> Result<(), LeadershipLost> {
    before.begun().await;
    elector.run(stop).await
}

async fn while_runs<T>(
    elector: impl Future<Output = Result<(), LeadershipLost>>,
    script: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        ended = elector => panic!("{ended:?}"),
        done = script => done,
    }
}

#[tokio::test(start_paused = true)]
async fn replica_that_has_not_read_the_lease_does_not_report_it_as_free() {
    let server = Server::new(0, Faults::NONE);
    server.freeze(30 * SECOND);
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[0]);
    let status = || a_leads.status().expect("there is an election");
    let script = async {
        sleep(29 * SECOND).await;
        assert_eq!((status().could_take_over(), status().holder), (false, None));
        let failure = status()
            .ongoing_failure
            .expect("the API server has not responded");
        assert!(failure.times >= 2, "{failure:?}");
        assert!(failure.since < failure.last, "{failure:?}");
        assert!(failure.why.contains("no response"), "{failure:?}");
        a_leads.begun().await;
        let known = (status().identity, status().holder, status().ongoing_failure);
        assert_eq!(known, ("a".to_owned(), Some("a".to_owned()), None));
    };
    while_runs(a.run(CancellationToken::new()), script).await;
}

#[tokio::test(start_paused = true)]
async fn replica_without_the_right_to_update_the_lease_could_not_take_over() {
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", QUICK, &server, CLOCKS[0]);
    let (b, b_leads) = elector("b", QUICK, &server, CLOCKS[1]);
    let could_take_over = || b_leads.status().is_some_and(|b| b.could_take_over());
    let never = CancellationToken::new();
    let mut b = pin!(run_after(&a_leads, b, never.clone()));
    let led = async {
        a_leads.begun().await;
        sleep(5 * SECOND).await;
        assert!(could_take_over(), "{:?}", b_leads.status());
    };
    while_runs(a.run(never), while_runs(&mut b, led)).await;

    // Replica a is gone, and its lease expires.
    server.set_writable(false);
    let refused = async {
        sleep(5 * SECOND).await;
        for _ in 0..100 {
            sleep(SECOND / 10).await;
            assert!(!could_take_over(), "{:?}", b_leads.status());
        }
        // The successful reads in between do not end the failure.
        let failure = b_leads.status().and_then(|status| status.ongoing_failure);
        let failure = failure.expect("the API server refused the writes");
        assert!(failure.times >= 5 && failure.why.contains("403"), "{failure:?}");
        server.set_writable(true);
        b_leads.begun().await;
        let status = b_leads.status().expect("there is an election");
        assert_eq!((status.claim_failed, status.ongoing_failure), (false, None));
    };
    while_runs(b, refused).await;
}

#[tokio::test(start_paused = true)]
async fn refused_replica_could_take_over_once_another_holds_the_lease() {
    let server = Server::new(0, Faults::NONE);
    let [(a, a_leads), (b, b_leads), (c, c_leads)] =
        ["a", "b", "c"].map(|identity| elector(identity, QUICK, &server, CLOCKS[0]));
    let never = CancellationToken::new();
    let mut b = pin!(run_after(&a_leads, b, never.clone()));
    let led = async {
        a_leads.begun().await;
        sleep(5 * SECOND).await;
    };
    while_runs(a.run(never.clone()), while_runs(&mut b, led)).await;
    server.set_writable(false);
    let refused = async {
        while !b_leads.status().is_some_and(|status| status.claim_failed) {
            sleep(SECOND / 10).await;
        }
    };
    while_runs(&mut b, refused).await;

    // Replica b is not polled meanwhile; afterwards it learns of the new holder from its watch alone.
    server.set_writable(true);
    let mut c = pin!(c.run(never));
    while_runs(&mut c, c_leads.begun()).await;
    let observed = async {
        sleep(10 * SECOND).await;
        let status = b_leads.status().expect("there is an election");
        assert_eq!(status.holder.as_deref(), Some("c"));
        assert!(
            status.could_take_over() && status.ongoing_failure.is_none(),
            "{status:?}"
        );
    };
    while_runs(c, while_runs(b, observed)).await;
}

#[tokio::test(start_paused = true)]
async fn accepts_the_longest_go_duration_as_lease_duration() {
    let longest = Duration::from_nanos(i64::MAX as u64);
    let timings = Timings {
        lease_duration: longest,
        renew_deadline: longest - SECOND,
        retry_period: longest / 2,
    };
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", timings, &server, CLOCKS[0]);
    let (b, b_leads) = elector("b", timings, &server, CLOCKS[1]);
    let never = CancellationToken::new();
    let script = async {
        a_leads.begun().await;
        sleep(1000 * SECOND).await;
        assert!(a_leads.check().is_ok() && b_leads.check().is_err());
        assert_eq!(a_leads.health(), Ok(()));
        assert!(timeout(1000 * SECOND, a_leads.ended()).await.is_err());
    };
    let b = run_after(&a_leads, b, never.clone());
    while_runs(a.run(never), while_runs(b, script)).await;
}

#[tokio::test(start_paused = true)]
async fn standby_acquires_a_released_lease_at_once_and_an_unreleased_one_after_expiry() {
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[2]);
    let (b, b_leads) = elector("b", SLOW, &server, CLOCKS[1]);
    let (c, c_leads) = elector("c", SLOW, &server, CLOCKS[0]);
    let (stop, never) = (CancellationToken::new(), CancellationToken::new());
    let mut c = pin!(run_after(&b_leads, c, never.clone()));
    {
        let script = async {
            let mut a = pin!(a.run(stop.clone()));
            while_runs(&mut a, a_leads.begun()).await;
            while_runs(&mut a, sleep(7 * SECOND)).await;
            stop.cancel();
            assert_eq!(a.await, Ok(()));
            let released = Instant::now();
            assert!(a_leads.check().is_err());
            b_leads.begun().await;
            assert!(released.elapsed() < SECOND, "{:?}", released.elapsed());
            sleep(101 * SECOND).await;
            assert!(b_leads.check().is_ok() && c_leads.check().is_err());
        };
        let b = run_after(&a_leads, b, never);
        while_runs(&mut c, while_runs(b, script)).await;
    }
    // The replica b was killed at the end of the block.
    let killed = Instant::now();
    while_runs(&mut c, c_leads.begun()).await;
    let waited = killed.elapsed();
    assert!(waited > 9 * SECOND && waited < 16 * SECOND, "{waited:?}");
    assert_eq!(server.transitions(), 2);
}

#[tokio::test(start_paused = true)]
async fn standby_acquires_a_released_lease_by_polling_if_watches_are_forbidden() {
    let server = Server::new(0, Faults::NONE);
    server.forbid_watches();
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[0]);
    let (b, b_leads) = elector("b", SLOW, &server, CLOCKS[0]);
    let (stop, never) = (CancellationToken::new(), CancellationToken::new());
    let script = async {
        let mut a = pin!(a.run(stop.clone()));
        while_runs(&mut a, a_leads.begun()).await;
        while_runs(&mut a, sleep(30 * SECOND)).await;
        stop.cancel();
        a.await.unwrap();
        let released = Instant::now();
        b_leads.begun().await;
        assert!(released.elapsed() <= 12 * SECOND, "{:?}", released.elapsed());
    };
    while_runs(run_after(&a_leads, b, never), script).await;
}

#[tokio::test(start_paused = true)]
async fn leader_pauses_while_the_api_server_freezes() {
    let server = Server::new(0, Faults::NONE);
    let (a, leads) = elector("a", SLOW, &server, CLOCKS[0]);
    let mut a = pin!(a.run(CancellationToken::new()));
    while_runs(&mut a, leads.begun()).await;
    while_runs(&mut a, sleep(22 * SECOND)).await;
    let renewed = server.changed();
    server.freeze(20 * SECOND);
    while_runs(&mut a, leads.ended()).await;
    assert!(renewed.elapsed() <= 15 * SECOND, "{:?}", renewed.elapsed());
    assert!(leads.check().is_err());
    let back = server.changed() + 20 * SECOND;
    while_runs(&mut a, leads.begun()).await;
    assert!(Instant::now() < back + 10 * SECOND, "{:?}", back.elapsed());
    assert_eq!(server.transitions(), 0);

    // It gives up when its health check fails.
    server.freeze(100 * SECOND);
    let renewed = server.changed();
    let ended = a.await;
    let Err(LeadershipLost::Unrenewed { cause, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(cause, "no response from the API server at localhost in time");
    assert!(leads.check().is_err());
    assert!(renewed.elapsed() <= 46 * SECOND, "{:?}", renewed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_replica_leads_while_responses_take_almost_half_of_a_renewals_validity() {
    let server = Server::new(0, Faults::NONE);
    server.slow_down(Duration::from_millis(3600));
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[1]);
    let (b, b_leads) = elector("b", SLOW, &server, CLOCKS[2]);
    let never = CancellationToken::new();
    let mut b = pin!(run_after(&a_leads, b, never.clone()));
    let script = async {
        let begun = timeout(60 * SECOND, a_leads.begun()).await;
        assert!(begun.is_ok(), "{:?}", a_leads.status());
        let a_keeps_leading = async {
            for _ in 0..300 {
                sleep(SECOND).await;
                assert!(a_leads.check().is_ok() && b_leads.check().is_err());
            }
        };
        while_runs(&mut b, a_keeps_leading).await;
    };
    while_runs(a.run(never), script).await;
    assert_eq!(server.transitions(), 0);
}

/// Slower, it pauses for a part of the time, but neither ends nor loses the lease.
#[tokio::test(start_paused = true)]
async fn leader_pauses_and_goes_on_while_responses_take_longer() {
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[1]);
    let (b, b_leads) = elector("b", SLOW, &server, CLOCKS[2]);
    let never = CancellationToken::new();
    let mut b = pin!(run_after(&a_leads, b, never.clone()));
    let script = async {
        a_leads.begun().await;
        server.slow_down(4 * SECOND);
        let mut led = 0;
        while_runs(&mut b, async {
            for _ in 0..600 {
                sleep(SECOND / 10).await;
                assert!(b_leads.check().is_err());
                led += u32::from(a_leads.check().is_ok());
            }
        })
        .await;
        assert!(led > 400, "leads for {led} of 600 moments");
        server.slow_down(Duration::ZERO);
        while_runs(&mut b, sleep(20 * SECOND)).await;
        assert!(a_leads.check().is_ok());
    };
    while_runs(a.run(never), script).await;
    assert_eq!(server.transitions(), 0);
}

#[tokio::test(start_paused = true)]
async fn standby_stops_without_waiting_for_a_frozen_api_server() {
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[0]);
    let (b, _) = elector("b", SLOW, &server, CLOCKS[0]);
    let (stop, never) = (CancellationToken::new(), CancellationToken::new());
    let mut a = pin!(a.run(never));
    let mut b = pin!(run_after(&a_leads, b, stop.clone()));
    while_runs(&mut a, while_runs(&mut b, sleep(3 * SECOND))).await;
    assert!(a_leads.check().is_ok());
    server.freeze(1000 * SECOND);
    stop.cancel();
    let stopped = Instant::now();
    b.await.unwrap();
    assert_eq!(
        stopped.elapsed(),
        Duration::ZERO,
        "a standby has no lease to release"
    );
}

/// A process that can be suspended (SIGSTOP) and resumed.
pub(crate) struct Suspendable<F> {
    inner: Pin<Box<F>>,
    until: Arc<Mutex<Instant>>,
    resume: Pin<Box<Sleep>>,
}

impl<F> Suspendable<F> {
    /// Wraps `process`, which is not polled before `until`.
    pub(crate) fn new(process: F, until: Arc<Mutex<Instant>>) -> Self {
        Self {
            inner: Box::pin(process),
            until,
            resume: Box::pin(sleep(Duration::ZERO)),
        }
    }
}

impl<F: Future> Future for Suspendable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let until = *self.until.lock().expect("nothing must panic while it is locked");
        if Instant::now() < until {
            self.resume.as_mut().reset(until);
            if self.resume.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll(cx)
    }
}

/// The state of each replica, and the violations.
#[derive(Default)]
struct Replicas {
    leaderships: [Option<Leadership>; 3],
    suspended: [Option<Arc<Mutex<Instant>>>; 3],
    stops: [Option<CancellationToken>; 3],
    acts: [u64; 3],
    violations: Vec<String>,
}

/// The work of a leader: checks its leadership and acts immediately.
async fn work(replica: usize, leadership: Leadership, replicas: &Mutex<Replicas>, mut random: fastrand::Rng) {
    loop {
        leadership.begun().await;
        if leadership.check().is_ok() {
            let mut replicas = replicas.lock().expect("nothing must panic while it is locked");
            replicas.acts[replica] += 1;
            let others = replicas.leaderships.iter().enumerate();
            let others: Vec<_> = others
                .filter(|(other, leadership)| {
                    *other != replica && leadership.as_ref().is_some_and(|l| l.check().is_ok())
                })
                .map(|(other, _)| other)
                .collect();
            if !others.is_empty() {
                replicas
                    .violations
                    .push(format!("{replica} and {others:?} lead at {:?}", Instant::now()));
            }
        }
        sleep(Duration::from_millis(random.u64(5..200))).await;
    }
}

/// A pod: the kubelet restarts its container whenever the process exits.
async fn pod(replica: usize, seed: u64, timings: Timings, server: &Server, replicas: &Mutex<Replicas>) {
    let mut random = fastrand::Rng::with_seed(seed * 3 + replica as u64);
    loop {
        let settings = settings(&format!("replica-{replica}"), timings);
        let (elector, leadership) =
            LeaderElector::new(server.clone(), settings, CLOCKS[replica], random.u64(..));
        let until = Arc::new(Mutex::new(Instant::now()));
        let stop = CancellationToken::new();
        {
            let mut replicas = replicas.lock().expect("nothing must panic while it is locked");
            replicas.leaderships[replica] = Some(leadership.clone());
            replicas.suspended[replica] = Some(until.clone());
            replicas.stops[replica] = Some(stop.clone());
        }
        let (work, stopped) = (work(replica, leadership, replicas, random.fork()), stop.clone());
        let process = async move {
            tokio::select! {
                biased;
                ended = elector.run(stopped) => drop(ended),
                () = work => {}
            }
        };
        let process = Suspendable::new(process, until);
        let lifetime = Duration::from_millis(random.u64(1_000..120_000));
        // Killed if it is still running after its lifetime.
        drop(timeout(lifetime, process).await);
        replicas
            .lock()
            .expect("nothing must panic while it is locked")
            .leaderships[replica] = None;
        sleep(Duration::from_millis(random.u64(0..5_000))).await;
    }
}

async fn inject_faults(seed: u64, server: &Server, replicas: &Mutex<Replicas>) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x0dd);
    loop {
        sleep(Duration::from_millis(random.u64(100..15_000))).await;
        let (replica, duration) = (random.usize(0..3), Duration::from_millis(random.u64(0..40_000)));
        let replicas = replicas.lock().expect("nothing must panic while it is locked");
        match random.u8(0..4) {
            0 => server.freeze(duration / 2),
            1 => server.label(),
            2 => {
                if let Some(until) = &replicas.suspended[replica] {
                    *until.lock().expect("nothing must panic while it is locked") = Instant::now() + duration;
                }
            }
            _ => {
                if let Some(stop) = &replicas.stops[replica] {
                    stop.cancel();
                }
            }
        }
    }
}

/// Returns the number of acts of each replica.
async fn history(seed: u64) -> Result<[u64; 3], String> {
    let timings = if seed.is_multiple_of(2) { SLOW } else { QUICK };
    let server = Server::new(seed, Faults::SOME);
    let replicas = Mutex::new(Replicas::default());
    let mut pods: FuturesUnordered<_> = (0..3)
        .map(|replica| pod(replica, seed, timings, &server, &replicas))
        .collect();
    tokio::select! {
        biased;
        _ = pods.next() => unreachable!("pods must not end"),
        () = server.run() => {}
        () = inject_faults(seed, &server, &replicas) => {}
        () = sleep_until(Instant::now() + LENGTH) => {}
    }
    let acted: u64 = replicas
        .lock()
        .expect("nothing must panic while it is locked")
        .acts
        .iter()
        .sum();
    server.stop_faults();
    tokio::select! {
        biased;
        _ = pods.next() => unreachable!("pods must not end"),
        () = server.run() => {}
        // Twice the longest suspension and the longest lease, as a kill may occur in between.
        () = sleep(200 * SECOND) => {}
    }
    let replicas = replicas.lock().expect("nothing must panic while it is locked");
    if let Some(first) = replicas.violations.first() {
        return Err(format!(
            "{} violations, first: {first}",
            replicas.violations.len()
        ));
    }
    if replicas.acts.iter().sum::<u64>() == acted {
        return Err("no replica led after the faults ended".to_owned());
    }
    Ok(replicas.acts)
}

#[test]
fn two_replicas_never_lead_at_once() {
    let mut failed = Vec::new();
    let mut acts = [0; 3];
    for seed in 0..HISTORIES {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("the build of a runtime without I/O must succeed");
        match runtime.block_on(history(seed)) {
            Ok(in_history) => acts = std::array::from_fn(|i| acts[i] + in_history[i]),
            Err(violation) => failed.push(format!("seed {seed}: {violation}")),
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {HISTORIES} histories failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
    // Without enough acts, the histories verify nothing.
    assert!(acts.iter().all(|acts| *acts > 500), "{acts:?}");
}
