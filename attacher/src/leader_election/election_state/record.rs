//! What a Lease says, and since when we know.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use crate::leader_election::Timings;

/// The newest state of the lease that we have seen.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The object; nothing if it has been deleted since.
    pub(super) lease: Option<Lease>,
    pub(super) record: Record,
    /// When we saw it change last.
    pub(super) at: Instant,
}

/// The part of a lease that an election is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) holder: String,
    pub(super) duration: Duration,
    pub(super) acquired: Option<Timestamp>,
    pub(super) renewed: Option<Timestamp>,
    pub(super) transitions: i32,
}

// === impl Observed ===

impl Observed {
    /// When others may take the lease, if it does not change until then.
    pub(super) fn lapses(&self) -> Instant {
        self.at + self.record.duration
    }

    /// Whether this is what we saw. A write that changes nothing that we look at is a sign of life.
    pub(super) fn is(&self, lease: &Lease) -> bool {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let known = self.lease.as_ref();
        known.is_some_and(|known| version(known) == version(lease) && known.spec == lease.spec)
    }
}

// === impl Record ===

impl Record {
    /// What it says.
    pub(super) fn of(lease: &Lease) -> Self {
        let Some(spec) = &lease.spec else {
            return Self::default();
        };
        let seconds = spec.lease_duration_seconds.unwrap_or_default();
        Self {
            holder: spec.holder_identity.clone().unwrap_or_default(),
            duration: Duration::from_secs(seconds.try_into().unwrap_or_default()),
            acquired: spec.acquire_time.as_ref().map(|time| micros(time.0)),
            renewed: spec.renew_time.as_ref().map(|time| micros(time.0)),
            transitions: spec.lease_transitions.unwrap_or_default(),
        }
    }
}

impl Timings {
    /// What the lease says. Not less than what we mean, or others would take it too early.
    pub(super) fn lease_seconds(&self) -> i32 {
        let seconds = self.lease_duration.as_secs() + u64::from(self.lease_duration.subsec_nanos() > 0);
        seconds.try_into().unwrap_or(i32::MAX)
    }
}

/// As precise as the API server keeps times.
pub(super) fn micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}
