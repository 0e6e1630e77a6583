//! Replicas that stand for election at a fake API server, on a paused clock: it freezes, loses and delays
//! requests and answers, and the replicas are suspended, killed and asked to stop. Never do two lead.

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
/// As the Go sidecar's defaults.
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

/// The clocks of three hosts.
const CLOCKS: [fn() -> Timestamp; 3] = [
    Timestamp::now,
    || Timestamp::now() + SignedDuration::from_hours(30),
    || Timestamp::now() - SignedDuration::from_hours(20_000),
];

/// Takes part once `before` leads, so that it is known who does first.
async fn stand_after(
    before: &Leadership,
    elector: LeaderElector<Server>,
    stop: CancellationToken,
) -> Result<(), LeadershipLost> {
    before.begun().await;
    elector.run(stop).await
}

async fn while_stands<T>(
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
        let trouble = status().ongoing_failure.expect("no answer has come");
        assert!(trouble.times >= 2, "{trouble:?}");
        assert!(trouble.since < trouble.last, "{trouble:?}");
        assert!(trouble.why.contains("no response"), "{trouble:?}");
        a_leads.begun().await;
        let known = (status().identity, status().holder, status().ongoing_failure);
        assert_eq!(known, ("a".to_owned(), Some("a".to_owned()), None));
    };
    while_stands(a.run(CancellationToken::new()), script).await;
}

#[tokio::test(start_paused = true)]
async fn replica_without_the_right_to_update_the_lease_could_not_take_over() {
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", QUICK, &server, CLOCKS[0]);
    let (b, b_leads) = elector("b", QUICK, &server, CLOCKS[1]);
    let could_take_over = || b_leads.status().is_some_and(|b| b.could_take_over());
    let never = CancellationToken::new();
    let mut b = pin!(stand_after(&a_leads, b, never.clone()));
    let led = async {
        a_leads.begun().await;
        sleep(5 * SECOND).await;
        assert!(could_take_over(), "{:?}", b_leads.status());
    };
    while_stands(a.run(never), while_stands(&mut b, led)).await;

    // The first is gone, and its lease expires.
    server.let_write(false);
    let refused = async {
        sleep(5 * SECOND).await;
        for _ in 0..100 {
            sleep(SECOND / 10).await;
            assert!(!could_take_over(), "{:?}", b_leads.status());
        }
        // Each look in between succeeded, which does not mend it.
        let trouble = b_leads.status().and_then(|status| status.ongoing_failure);
        let trouble = trouble.expect("the claims were refused");
        assert!(trouble.times >= 5 && trouble.why.contains("403"), "{trouble:?}");
        server.let_write(true);
        b_leads.begun().await;
        let status = b_leads.status().expect("there is an election");
        assert_eq!((status.claim_failed, status.ongoing_failure), (false, None));
    };
    while_stands(b, refused).await;
}

#[tokio::test(start_paused = true)]
async fn refused_replica_could_take_over_once_another_holds_the_lease() {
    let server = Server::new(0, Faults::NONE);
    let [(a, a_leads), (b, b_leads), (c, c_leads)] =
        ["a", "b", "c"].map(|who| elector(who, QUICK, &server, CLOCKS[0]));
    let never = CancellationToken::new();
    let mut b = pin!(stand_after(&a_leads, b, never.clone()));
    let led = async {
        a_leads.begun().await;
        sleep(5 * SECOND).await;
    };
    while_stands(a.run(never.clone()), while_stands(&mut b, led)).await;
    server.let_write(false);
    let refused = async {
        while !b_leads.status().is_some_and(|status| status.claim_failed) {
            sleep(SECOND / 10).await;
        }
    };
    while_stands(&mut b, refused).await;

    // While the second does nothing, and sees nothing but what its watch tells afterwards.
    server.let_write(true);
    let mut c = pin!(c.run(never));
    while_stands(&mut c, c_leads.begun()).await;
    let told = async {
        sleep(10 * SECOND).await;
        let status = b_leads.status().expect("there is an election");
        assert_eq!(status.holder.as_deref(), Some("c"));
        assert!(
            status.could_take_over() && status.ongoing_failure.is_none(),
            "{status:?}"
        );
    };
    while_stands(c, while_stands(b, told)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_for_centuries_is_one() {
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
    let b = stand_after(&a_leads, b, never.clone());
    while_stands(a.run(never), while_stands(b, script)).await;
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_acquired_at_once_and_another_when_it_expires() {
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[2]);
    let (b, b_leads) = elector("b", SLOW, &server, CLOCKS[1]);
    let (c, c_leads) = elector("c", SLOW, &server, CLOCKS[0]);
    let (stop, never) = (CancellationToken::new(), CancellationToken::new());
    let mut c = pin!(stand_after(&b_leads, c, never.clone()));
    {
        let script = async {
            let mut a = pin!(a.run(stop.clone()));
            while_stands(&mut a, a_leads.begun()).await;
            while_stands(&mut a, sleep(7 * SECOND)).await;
            stop.cancel();
            assert_eq!(a.await, Ok(()));
            let released = Instant::now();
            assert!(a_leads.check().is_err());
            b_leads.begun().await;
            assert!(released.elapsed() < SECOND, "{:?}", released.elapsed());
            sleep(101 * SECOND).await;
            assert!(b_leads.check().is_ok() && c_leads.check().is_err());
        };
        let b = stand_after(&a_leads, b, never);
        while_stands(&mut c, while_stands(b, script)).await;
    }
    // b is dead, and its leadership with it.
    let killed = Instant::now();
    while_stands(&mut c, c_leads.begun()).await;
    let waited = killed.elapsed();
    assert!(waited > 9 * SECOND && waited < 16 * SECOND, "{waited:?}");
    assert_eq!(server.transitions(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_a_release_is_found_by_looking() {
    let server = Server::new(0, Faults::NONE);
    server.forbid_watches();
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[0]);
    let (b, b_leads) = elector("b", SLOW, &server, CLOCKS[0]);
    let (stop, never) = (CancellationToken::new(), CancellationToken::new());
    let script = async {
        let mut a = pin!(a.run(stop.clone()));
        while_stands(&mut a, a_leads.begun()).await;
        while_stands(&mut a, sleep(30 * SECOND)).await;
        stop.cancel();
        a.await.unwrap();
        let released = Instant::now();
        b_leads.begun().await;
        assert!(released.elapsed() <= 12 * SECOND, "{:?}", released.elapsed());
    };
    while_stands(stand_after(&a_leads, b, never), script).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_api_server_freezes_stops_before_others_may_begin() {
    let server = Server::new(0, Faults::NONE);
    let (a, leads) = elector("a", SLOW, &server, CLOCKS[0]);
    let mut a = pin!(a.run(CancellationToken::new()));
    while_stands(&mut a, leads.begun()).await;
    while_stands(&mut a, sleep(22 * SECOND)).await;
    let renewed = server.changed();
    server.freeze(100 * SECOND);
    let ended = a.await;
    let Err(LeadershipLost::Unrenewed { cause, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(cause, "no response from the API server in time");
    assert!(leads.check().is_err());
    assert!(renewed.elapsed() <= 10 * SECOND, "{:?}", renewed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_replica_leads_while_responses_take_almost_half_the_renew_deadline() {
    let server = Server::new(0, Faults::NONE);
    server.slow_down(Duration::from_millis(2450));
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[1]);
    let (b, b_leads) = elector("b", SLOW, &server, CLOCKS[2]);
    let never = CancellationToken::new();
    let mut b = pin!(stand_after(&a_leads, b, never.clone()));
    let script = async {
        let begun = timeout(60 * SECOND, a_leads.begun()).await;
        assert!(begun.is_ok(), "{:?}", a_leads.status());
        let stands = async {
            for _ in 0..300 {
                sleep(SECOND).await;
                assert!(a_leads.check().is_ok() && b_leads.check().is_err());
            }
        };
        while_stands(&mut b, stands).await;
    };
    while_stands(a.run(never), script).await;
    assert_eq!(server.transitions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_asked_to_stop_does_not_wait_for_a_frozen_api_server() {
    let server = Server::new(0, Faults::NONE);
    let (a, a_leads) = elector("a", SLOW, &server, CLOCKS[0]);
    let (b, _) = elector("b", SLOW, &server, CLOCKS[0]);
    let (stop, never) = (CancellationToken::new(), CancellationToken::new());
    let mut a = pin!(a.run(never));
    let mut b = pin!(stand_after(&a_leads, b, stop.clone()));
    while_stands(&mut a, while_stands(&mut b, sleep(3 * SECOND))).await;
    assert!(a_leads.check().is_ok());
    server.freeze(1000 * SECOND);
    stop.cancel();
    let asked = Instant::now();
    b.await.unwrap();
    assert_eq!(asked.elapsed(), Duration::ZERO, "a standby holds nothing");
}

/// A process that can be stopped where it stands (SIGSTOP), and goes on there.
pub(crate) struct Suspendable<F> {
    inner: Pin<Box<F>>,
    until: Arc<Mutex<Instant>>,
    resume: Pin<Box<Sleep>>,
}

impl<F> Suspendable<F> {
    /// `process`, which is not polled before `until`.
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

/// Where each replica stands, and what it did.
#[derive(Default)]
struct Book {
    leaderships: [Option<Leadership>; 3],
    suspended: [Option<Arc<Mutex<Instant>>>; 3],
    stops: [Option<CancellationToken>; 3],
    acts: [u64; 3],
    wrong: Vec<String>,
}

/// What a leader does all the time: asks, and acts at once.
async fn work(me: usize, leadership: Leadership, book: &Mutex<Book>, mut random: fastrand::Rng) {
    loop {
        leadership.begun().await;
        if leadership.check().is_ok() {
            let mut book = book.lock().expect("nothing must panic while it is locked");
            book.acts[me] += 1;
            let others = book.leaderships.iter().enumerate();
            let others: Vec<_> = others
                .filter(|(other, leadership)| {
                    *other != me && leadership.as_ref().is_some_and(|l| l.check().is_ok())
                })
                .map(|(other, _)| other)
                .collect();
            if !others.is_empty() {
                book.wrong
                    .push(format!("{me} and {others:?} lead at {:?}", Instant::now()));
            }
        }
        sleep(Duration::from_millis(random.u64(5..200))).await;
    }
}

/// A pod: its container is started again whenever it ends.
async fn pod(me: usize, seed: u64, timings: Timings, server: &Server, book: &Mutex<Book>) {
    let mut random = fastrand::Rng::with_seed(seed * 3 + me as u64);
    loop {
        let settings = settings(&format!("replica-{me}"), timings);
        let (elector, leadership) = LeaderElector::new(server.clone(), settings, CLOCKS[me], random.u64(..));
        let until = Arc::new(Mutex::new(Instant::now()));
        let stop = CancellationToken::new();
        {
            let mut book = book.lock().expect("nothing must panic while it is locked");
            book.leaderships[me] = Some(leadership.clone());
            book.suspended[me] = Some(until.clone());
            book.stops[me] = Some(stop.clone());
        }
        let (work, stopped) = (work(me, leadership, book, random.fork()), stop.clone());
        let process = async move {
            tokio::select! {
                biased;
                ended = elector.run(stopped) => drop(ended),
                () = work => {}
            }
        };
        let process = Suspendable::new(process, until);
        let lifetime = Duration::from_millis(random.u64(1_000..120_000));
        // Not ended by then: killed.
        drop(timeout(lifetime, process).await);
        book.lock()
            .expect("nothing must panic while it is locked")
            .leaderships[me] = None;
        sleep(Duration::from_millis(random.u64(0..5_000))).await;
    }
}

async fn trouble(seed: u64, server: &Server, book: &Mutex<Book>) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x0dd);
    loop {
        sleep(Duration::from_millis(random.u64(100..15_000))).await;
        let (who, how_long) = (random.usize(0..3), Duration::from_millis(random.u64(0..40_000)));
        let book = book.lock().expect("nothing must panic while it is locked");
        match random.u8(0..4) {
            0 => server.freeze(how_long / 2),
            1 => server.label(),
            2 => {
                if let Some(until) = &book.suspended[who] {
                    *until.lock().expect("nothing must panic while it is locked") = Instant::now() + how_long;
                }
            }
            _ => {
                if let Some(stop) = &book.stops[who] {
                    stop.cancel();
                }
            }
        }
    }
}

/// Returns how often each replica acted.
async fn history(seed: u64) -> Result<[u64; 3], String> {
    let timings = if seed.is_multiple_of(2) { SLOW } else { QUICK };
    let server = Server::new(seed, Faults::SOME);
    let book = Mutex::new(Book::default());
    let mut pods: FuturesUnordered<_> = (0..3).map(|me| pod(me, seed, timings, &server, &book)).collect();
    tokio::select! {
        biased;
        _ = pods.next() => unreachable!("pods must not end"),
        () = server.run() => {}
        () = trouble(seed, &server, &book) => {}
        () = sleep_until(Instant::now() + LENGTH) => {}
    }
    let acted: u64 = book
        .lock()
        .expect("nothing must panic while it is locked")
        .acts
        .iter()
        .sum();
    server.calm_down();
    tokio::select! {
        biased;
        _ = pods.next() => unreachable!("pods must not end"),
        () = server.run() => {}
        // The longest suspension and the longest lease, once more each for a kill in between.
        () = sleep(200 * SECOND) => {}
    }
    let book = book.lock().expect("nothing must panic while it is locked");
    if let Some(wrong) = book.wrong.first() {
        return Err(format!("{} times wrong, first: {wrong}", book.wrong.len()));
    }
    if book.acts.iter().sum::<u64>() == acted {
        return Err("nobody led once all was well again".to_owned());
    }
    Ok(book.acts)
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
            .expect("a runtime without I/O must always come about");
        match runtime.block_on(history(seed)) {
            Ok(in_history) => acts = std::array::from_fn(|i| acts[i] + in_history[i]),
            Err(wrong) => failed.push(format!("seed {seed}: {wrong}")),
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {HISTORIES} histories failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
    // Else the histories would prove nothing.
    assert!(acts.iter().all(|acts| *acts > 500), "{acts:?}");
}
