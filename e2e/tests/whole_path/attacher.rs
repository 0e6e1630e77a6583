//! A replica of the attacher, with a supervisor that restarts it as kubelet restarts a container.

use std::cell::RefCell;
use std::time::Duration;

use attacher_contract::Observation;
use csi_attacher::args::Args;
use csi_attacher::kube_api::Access;
use csi_attacher::manager::{self, Environment, Pod};
use embedded_cluster::apiserver::Clock;
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::driver::DriverSocket;
use crate::observer::Observer;

/// Realistic flags, except for a shorter retry interval, which shortens the histories.
const FLAGS: [&str; 5] = [
    "csi-attacher",
    "--leader-election",
    "--leader-election-namespace=default",
    "--retry-interval-max=1m",
    "--reconcile-sync=20s",
];
/// Restart delay of a container.
const RESTART: Duration = Duration::from_secs(2);

thread_local! {
    /// The wall clock of this thread's history.
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// One replica.
pub(crate) struct Replica {
    name: &'static str,
    access: Access,
    driver: DriverSocket,
    observer: Observer,
    stop: CancellationToken,
    running: JoinSet<()>,
}

// === impl Replica ===

impl Replica {
    /// A replica that is not started yet.
    pub(crate) fn new(name: &'static str, access: Access, driver: DriverSocket, observer: Observer) -> Self {
        Self {
            name,
            access,
            driver: driver.of(name),
            observer,
            stop: CancellationToken::new(),
            running: JoinSet::new(),
        }
    }

    pub(crate) fn start(&mut self) {
        self.crash();
        self.observer.fault(self.name, "starts");
        self.stop = CancellationToken::new();
        let (name, access, driver) = (self.name, self.access.clone(), self.driver.clone());
        let (observer, stop) = (self.observer.clone(), self.stop.clone());
        self.running.spawn(async move {
            while !stop.is_cancelled() {
                let environment = Environment {
                    access: access.clone(),
                    driver: driver.clone(),
                    pod: Pod {
                        host_name: name.to_owned(),
                        namespace: None,
                        clock: now,
                    },
                };
                let args = Args::read(FLAGS.map(Into::into)).expect("the flags must be valid");
                match manager::serve(args, environment, stop.clone()).await {
                    Ok(()) => observer.note(name, None, "ended"),
                    Err(error @ manager::Error::StoppedLeading(_)) => observer.note(name, None, error),
                    Err(error) => observer.fail(format_args!("{name} failed: {error}")),
                }
                observer.observe(Observation::ProcessEnded(name.into()));
                sleep(RESTART).await;
            }
        });
    }

    /// Ends the process like a crash.
    pub(crate) fn crash(&mut self) {
        if !self.running.is_empty() && !self.stop.is_cancelled() {
            self.observer.fault(self.name, "crashes");
        }
        self.running = JoinSet::new();
        self.observer.observe(Observation::ProcessEnded(self.name.into()));
    }

    /// Ends the process like SIGTERM.
    pub(crate) fn stop(&self) {
        self.observer.fault(self.name, "gets SIGTERM");
        self.stop.cancel();
    }
}

// === functions ===

/// Sets the wall clock of the attachers on this thread.
pub(crate) fn set_clock(clock: Clock) {
    CLOCK.set(Some(clock));
}

fn now() -> Timestamp {
    CLOCK.with_borrow(|clock| clock.as_ref().map_or(Timestamp::UNIX_EPOCH, Clock::now))
}
