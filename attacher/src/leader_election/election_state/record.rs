//! The part of a Lease that the election reads, and when it was observed.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use crate::leader_election::Timings;

#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// `None` if it has been deleted since.
    pub(super) lease: Option<Lease>,
    pub(super) record: Record,
    /// When its last change was observed.
    pub(super) at: Instant,
}

/// The part of a Lease that the election reads.
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
    /// When the lease expires unless it changes.
    pub(super) fn expiry(&self) -> Instant {
        self.at + self.record.duration
    }

    /// Whether `lease` is the observed version. Any write counts as a renewal.
    pub(super) fn is(&self, lease: &Lease) -> bool {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let known = self.lease.as_ref();
        known.is_some_and(|known| version(known) == version(lease) && known.spec == lease.spec)
    }
}

// === impl Record ===

impl Record {
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
    /// `leaseDurationSeconds`, rounded up, or other replicas would acquire the lease too early.
    pub(super) fn lease_seconds(&self) -> i32 {
        let seconds = self.lease_duration.as_secs() + u64::from(self.lease_duration.subsec_nanos() > 0);
        seconds.try_into().unwrap_or(i32::MAX)
    }
}

/// Truncates a time to the API server's precision.
pub(super) fn micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}
