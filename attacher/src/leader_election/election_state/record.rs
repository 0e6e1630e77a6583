//! The part of a Lease that the election reads, and when it was observed.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use crate::leader_election::Timings;
use crate::leader_election::leadership::HEALTH_TOLERANCE;

/// The part of the lease duration by which our leadership ends before another replica's may begin, as a divisor.
const MARGIN: u32 = 30;

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
    /// Time for which a renewal is valid, from when it was sent: as long as the Go sidecar needs to give up, and shorter than other
    /// replicas wait. The difference covers requests that are on their way and clocks that run at different speeds.
    pub(super) fn validity(&self) -> Duration {
        let margin = self.lease_duration / MARGIN;
        let retried = self.renew_deadline.saturating_add(self.retry_period);
        retried.min(self.lease_duration - margin)
    }

    /// Time without a renewal after which a paused leader gives up.
    pub(super) fn give_up_after(&self) -> Duration {
        self.lease_duration.saturating_add(HEALTH_TOLERANCE)
    }

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
