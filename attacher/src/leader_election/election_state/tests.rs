//! The rules of the election, on a monotonic and a wall clock that the tests set.

mod standby;
mod term;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;

use super::*;
use crate::leader_election::{LeaseMeta, Timings};

const SECOND: Duration = Duration::from_secs(1);

/// The Go sidecar's timings.
pub(in crate::leader_election) fn mk_settings(identity: &str) -> Settings {
    Settings {
        lease_meta: LeaseMeta {
            namespace: "kube-system".to_owned(),
            name: "external-attacher-leader-d".to_owned(),
        },
        identity: identity.to_owned(),
        labels: BTreeMap::new(),
        timings: Timings {
            lease_duration: 15 * SECOND,
            renew_deadline: 10 * SECOND,
            retry_period: 5 * SECOND,
        },
    }
}

fn mk_lease(holder: &str, version: u32, seconds: i32) -> Lease {
    let long_ago = MicroTime("2001-02-03T04:05:06.789Z".parse().unwrap());
    Lease {
        metadata: ObjectMeta {
            name: Some("external-attacher-leader-d".to_owned()),
            namespace: Some("kube-system".to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some(long_ago.clone()),
            renew_time: Some(long_ago),
            lease_transitions: Some(7),
            ..LeaseSpec::default()
        }),
    }
}

/// A state, and the present time by both clocks.
struct Fixture {
    state: ElectionState,
    begin: Instant,
    now: Instant,
    wall: Timestamp,
}

impl Fixture {
    fn new() -> Self {
        Self::with(mk_settings("a"))
    }

    fn with(settings: Settings) -> Self {
        let begin = tokio::time::Instant::now().into_std();
        Self {
            state: ElectionState::new(settings),
            begin,
            now: begin,
            wall: "2026-01-02T03:04:05.123456789Z".parse().unwrap(),
        }
    }

    /// A leader since 0 s.
    fn leading() -> Self {
        let mut fixture = Self::new();
        fixture.read(None);
        fixture.granted(1);
        fixture
    }

    fn at(&mut self, seconds: f64) -> &mut Self {
        self.now = self.begin + Duration::from_secs_f64(seconds);
        self
    }

    fn next(&mut self) -> Step {
        self.state.next(self.now, self.wall)
    }

    fn request(&mut self) -> Request {
        match self.next() {
            Step::Send { request, .. } => request,
            step @ (Step::Wait(_) | Step::Stop(_)) => panic!("{step:?}"),
        }
    }

    /// The seconds that the next request may take.
    fn timeout(&mut self) -> f64 {
        match self.next() {
            Step::Send { deadline, .. } => (deadline - self.now).as_secs_f64(),
            step @ (Step::Wait(_) | Step::Stop(_)) => panic!("{step:?}"),
        }
    }

    /// The request, which must be an update.
    fn update(&mut self) -> Lease {
        match self.request() {
            Request::Write(lease) if lease.metadata.resource_version.is_some() => *lease,
            request @ (Request::Get | Request::Write(_)) => panic!("{request:?}"),
        }
    }

    /// The request, which must create the Lease.
    fn create(&mut self) -> Lease {
        match self.request() {
            Request::Write(lease) if lease.metadata.resource_version.is_none() => *lease,
            request @ (Request::Get | Request::Write(_)) => panic!("{request:?}"),
        }
    }

    /// The seconds since the beginning until the next step.
    fn wait(&mut self) -> f64 {
        match self.next() {
            Step::Wait(until) => (until - self.begin).as_secs_f64(),
            step @ (Step::Send { .. } | Step::Stop(_)) => panic!("{step:?}"),
        }
    }

    fn read(&mut self, lease: Option<Lease>) -> &mut Self {
        self.try_read(lease).unwrap();
        self
    }

    fn try_read(&mut self, lease: Option<Lease>) -> Result<(), LeadershipLost> {
        assert_eq!(self.request(), Request::Get);
        self.state.on_get(Ok(lease), self.now, self.now, 0.5)
    }

    /// Executes the request as the API server does.
    fn granted(&mut self, version: u32) -> Lease {
        let mut lease = match self.request() {
            Request::Write(lease) => *lease,
            Request::Get => panic!("a read instead of a write"),
        };
        lease.metadata.resource_version = Some(version.to_string());
        self.state.on_write(Ok(lease.clone()), self.now, self.now, 0.5);
        lease
    }

    fn refused(&mut self, failure: LeaseError) {
        self.state.on_write(Err(failure), self.now, self.now, 0.5);
    }

    fn leads(&self) -> bool {
        self.state.valid_until().is_some_and(|until| self.now < until)
    }
}

fn spec(lease: &Lease) -> (String, i32, i32) {
    let spec = lease.spec.clone().unwrap();
    (
        spec.holder_identity.unwrap(),
        spec.lease_duration_seconds.unwrap(),
        spec.lease_transitions.unwrap(),
    )
}

fn no_response() -> LeaseError {
    LeaseError::Unanswered("no response".to_owned())
}

#[test]
fn releases_the_lease_as_client_go_does() {
    let mut fixture = Fixture::new();
    fixture.read(Some(mk_lease("", 3, 1)));
    let held = fixture.granted(4);
    assert_eq!(
        fixture.state.released(held.clone(), fixture.wall),
        None,
        "not while we lead"
    );
    fixture.state.resign();
    assert!(!fixture.leads());
    for other in ["b", "a"] {
        let other = mk_lease(other, 5, 15);
        assert_eq!(fixture.state.released(other, fixture.wall), None);
    }
    let lease = fixture.state.released(held, fixture.wall).unwrap();
    assert_eq!(spec(&lease), (String::new(), 1, 8));
    assert_eq!(
        lease.metadata.resource_version.as_deref(),
        Some("4"),
        "an update of the version that we wrote"
    );
    let spec = lease.spec.unwrap();
    assert_eq!(spec.acquire_time, spec.renew_time);
}

#[test]
fn releases_a_lease_whose_claim_had_no_response() {
    let mut fixture = Fixture::new();
    fixture.read(None);
    let lease = fixture.create();
    fixture.refused(no_response());
    assert!(fixture.state.may_hold());
    assert!(fixture.state.released(lease, fixture.wall).is_some());
    // A second claim has the same acquireTime, so that both are recognized.
    let until = fixture.wait();
    fixture.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    let lease = fixture.at(until).read(None).create();
    fixture.refused(LeaseError::Rejected("forbidden".to_owned()));
    assert!(!fixture.state.may_hold());
    assert_eq!(
        serde_json::to_value(&lease).unwrap()["spec"]["acquireTime"],
        "2026-01-02T03:04:05.123456Z"
    );
}

#[test]
fn adds_labels_and_rounds_durations_up() {
    let mut settings = mk_settings("a");
    settings.labels = BTreeMap::from([("team".to_owned(), "storage".to_owned())]);
    settings.timings.lease_duration = Duration::from_millis(12_100);
    let mut fixture = Fixture::with(settings);
    let mut free = mk_lease("", 1, 1);
    free.metadata.labels = Some(BTreeMap::from([("owner".to_owned(), "them".to_owned())]));
    let lease = fixture.read(Some(free)).update();
    let labels = lease.metadata.labels.as_ref().unwrap();
    assert_eq!((&*labels["team"], &*labels["owner"]), ("storage", "them"));
    assert_eq!(
        spec(&lease).1,
        13,
        "other replicas must not acquire it during our term"
    );
}

/// A process without permission to update the Lease retries forever.
#[test]
fn refused_claims_take_no_memory() {
    let mut fixture = Fixture::new();
    for attempt in 0..3 {
        fixture.read(Some(mk_lease("", 3, 1))).update();
        fixture.refused(LeaseError::Rejected("forbidden".to_owned()));
        assert!(fixture.state.marks.is_empty(), "attempt {attempt}");
        let until = fixture.wait();
        fixture.at(until);
    }
}
