//! The election's decisions: computes the next request from the observed Leases and the time. Pure.

mod record;
mod step;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::core::ObjectMeta;

use super::Settings;
use record::{Observed, Record, micros};
pub use step::{LeadershipLost, LeaseError};
pub(super) use step::{Request, Step};

/// See the module.
#[derive(Debug)]
pub(super) struct ElectionState {
    settings: Settings,
    observed: Option<Observed>,
    /// Whether the Lease was read. It may not exist.
    was_read: bool,
    term: Option<Term>,
    next_request: NextRequest,
    /// Whether we wrote the known version, and no conflict has shown another since.
    current: bool,
    /// The `acquireTime` of claims that may have succeeded without a response.
    pending_renew: Option<Timestamp>,
    /// The `renewTime` of our last successful write, and of all later ones without a response.
    marks: BTreeSet<Timestamp>,
    slow_renewals: u64,
    /// Whether the last request took longer than the timeout of a first attempt.
    slow: bool,
}

/// The time as leader.
#[derive(Clone, Copy, Debug)]
struct Term {
    /// `acquireTime`, which distinguishes our term from that of another process with our identity.
    acquired: Timestamp,
    /// When the last successful renewal was sent.
    renewed: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRequest {
    Get,
    /// Update the version that was just read, or create the Lease if it does not exist.
    Write,
    /// Update the version that was read or written last, without another read.
    Renew,
    WaitUntil(Instant),
}

/// The jitter of a standby's reads, as a factor of the retry period; client-go's.
const JITTER: f64 = 1.2;
/// The timeout of a first attempt as a part of a renewal's validity, so that a retry over another connection still fits in.
const ATTEMPTS: u32 = 2;
/// The delay of a retried renewal as a part of the retry period; at most twice that.
const HASTE: u32 = 4;

// === impl ElectionState ===

impl ElectionState {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            observed: None,
            was_read: false,
            term: None,
            next_request: NextRequest::Get,
            current: false,
            pending_renew: None,
            marks: BTreeSet::new(),
            slow_renewals: 0,
            slow: false,
        }
    }

    /// The next step. `wall` becomes the Lease's timestamp.
    pub(super) fn next(&mut self, now: Instant, wall: Timestamp) -> Step {
        let within = self.settings.timings.give_up_after();
        let end = self.renewed().map(|renewed| renewed + within);
        if end.is_some_and(|end| now >= end) {
            return Step::Stop(self.lost(LeadershipLost::Unrenewed {
                lease: self.settings.lease_meta.to_string(),
                within,
                cause: "no request failed; the process may have been suspended".to_owned(),
            }));
        }
        if let NextRequest::WaitUntil(until) = self.next_request {
            if now < until {
                return Step::Wait(until);
            }
            self.next_request = if self.term.is_some() && self.current {
                NextRequest::Renew
            } else {
                NextRequest::Get
            };
        }
        let request = match self.next_request {
            NextRequest::Get | NextRequest::WaitUntil(_) => Request::Get,
            NextRequest::Write | NextRequest::Renew => self.write_request(wall),
        };
        // A slow API server executes a write whose response we no longer await, so a retry gets the time that there is.
        let timeout = if self.slow {
            self.settings.timings.renew_deadline
        } else {
            self.first_timeout()
        };
        let deadline = now + timeout;
        Step::Send {
            request,
            deadline: end.map_or(deadline, |end| end.min(deadline)),
        }
    }

    /// Handles the response to a [`Request::Get`] that was sent at `sent`. `random` is from 0 to 1, here and below.
    pub(super) fn on_get(
        &mut self,
        answer: Result<Option<Lease>, LeaseError>,
        sent: Instant,
        now: Instant,
        random: f64,
    ) -> Result<(), LeadershipLost> {
        self.slow = now >= sent + self.first_timeout();
        let Ok(lease) = answer else {
            self.wait(now, random);
            return Ok(());
        };
        self.observe(lease, now);
        if let Some(term) = self.term {
            self.still_ours(term, now)?;
            self.slow_renewals += 1;
            self.next_request = NextRequest::Write;
        } else if self.is_claimable(now) {
            self.next_request = NextRequest::Write;
        } else {
            // A successful claim of ours would be visible.
            self.pending_renew = None;
            self.marks.clear();
            self.wait(now, random);
        }
        Ok(())
    }

    /// Handles the response to a [`Request::Write`] that was sent at `sent`.
    pub(super) fn on_write(
        &mut self,
        answer: Result<Lease, LeaseError>,
        sent: Instant,
        now: Instant,
        random: f64,
    ) {
        self.slow = now >= sent + self.first_timeout();
        match answer {
            Ok(lease) => {
                // Earlier writes failed: their resourceVersion is outdated.
                self.marks = Record::of(&lease).renewed.into_iter().collect();
                self.observe(Some(lease), now);
                self.current = true;
                self.next_request = NextRequest::WaitUntil(sent + self.settings.timings.retry_period);
                if let Some(term) = &mut self.term {
                    term.renewed = sent;
                } else if now >= sent + self.settings.timings.validity() {
                    // It took so long that the lease may have expired for other replicas.
                    self.next_request = NextRequest::Get;
                } else if let Some(acquired) = self.pending_renew.take() {
                    self.term = Some(Term {
                        acquired,
                        renewed: sent,
                    });
                }
            }
            Err(failure) => {
                self.current = false;
                if let LeaseError::Rejected(_) = failure {
                    self.pending_renew = None;
                    if self.term.is_none() {
                        self.marks.clear();
                    }
                }
                if self.next_request == NextRequest::Renew {
                    self.next_request = NextRequest::Get;
                } else {
                    self.wait(now, random);
                }
            }
        }
    }

    /// Handles a watch event of a standby; `None` is a deletion.
    pub(super) fn on_watch_event(&mut self, lease: Option<Lease>, now: Instant, random: f64) {
        if self.term.is_some() {
            return;
        }
        self.observe(lease, now);
        if self.is_claimable(now) {
            self.next_request = NextRequest::Write;
        } else {
            self.wait(now, random);
        }
    }

    /// Stops leading, so that the lease can be released.
    pub(super) fn resign(&mut self) {
        if let Some(term) = self.term.take() {
            self.pending_renew = Some(term.acquired);
        }
    }

    /// `lease` as released after [`ElectionState::resign`]; `None` if it is not ours.
    pub(super) fn released(&self, mut lease: Lease, wall: Timestamp) -> Option<Lease> {
        let acquired = self.pending_renew?;
        let record = Record::of(&lease);
        if record.holder != self.settings.identity || !self.is_of_term(&record, acquired) {
            return None;
        }
        let now = MicroTime(micros(wall));
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        // The shortest duration, in case a peer takes an empty holder for another replica.
        spec.lease_duration_seconds = Some(1);
        spec.acquire_time = Some(now.clone());
        spec.renew_time = Some(now);
        Some(lease)
    }

    /// Whether the lease is ours, or may be.
    pub(super) fn may_hold(&self) -> bool {
        self.term.is_some() || self.pending_renew.is_some()
    }

    /// When leadership expires, or when it expired if it is paused; `None` if no term of ours runs.
    pub(super) fn valid_until(&self) -> Option<Instant> {
        let term = self.term.as_ref()?;
        Some(term.renewed + self.settings.timings.validity())
    }

    /// When the last successful renewal of our term was sent.
    pub(super) fn renewed(&self) -> Option<Instant> {
        self.term.as_ref().map(|term| term.renewed)
    }

    pub(super) fn is_claiming(&self) -> bool {
        self.term.is_none() && matches!(self.next_request, NextRequest::Write)
    }

    /// The last observed holder. Empty: the lease is free. `None`: it has not been read yet.
    pub(super) fn holder(&self) -> Option<&str> {
        match &self.observed {
            Some(observed) => Some(&observed.record.holder),
            None => self.was_read.then_some(""),
        }
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.observed.as_ref()?.lease.as_ref()
    }

    pub(super) fn slow_renewals(&self) -> u64 {
        self.slow_renewals
    }

    fn first_timeout(&self) -> Duration {
        self.settings.timings.validity() / ATTEMPTS
    }

    fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        self.was_read = true;
        match (lease, &mut self.observed) {
            (None, None) => {}
            // The former holder may still work, so its record stays.
            (None, Some(observed)) => observed.lease = None,
            (Some(lease), Some(observed)) if observed.is(&lease) => {}
            (Some(lease), observed) => {
                *observed = Some(Observed {
                    record: Record::of(&lease),
                    lease: Some(lease),
                    at: now,
                });
            }
        }
    }

    fn still_ours(&mut self, term: Term, now: Instant) -> Result<(), LeadershipLost> {
        let lease = self.settings.lease_meta.to_string();
        let Some(Observed {
            lease: Some(_),
            record,
            ..
        }) = &self.observed
        else {
            if self.valid_until().is_none_or(|until| now < until) {
                // The Lease was deleted; the first replica that creates it becomes the holder.
                return Ok(());
            }
            // Another replica may have created it and worked since we paused.
            let holder = String::new();
            return Err(self.lost(LeadershipLost::Taken { lease, holder }));
        };
        let lost = if record.holder != self.settings.identity {
            LeadershipLost::Taken {
                lease,
                holder: record.holder.clone(),
            }
        } else if !self.is_of_term(record, term.acquired) {
            LeadershipLost::SameIdentity {
                lease,
                identity: self.settings.identity.clone(),
            }
        } else {
            return Ok(());
        };
        Err(self.lost(lost))
    }

    /// Whether a record with our identity is of the term that began at `acquired`. Another process with our identity may keep
    /// our `acquireTime`: client-go takes any record with its identity for its own.
    fn is_of_term(&self, record: &Record, acquired: Timestamp) -> bool {
        let is_marked = record
            .renewed
            .is_some_and(|renewed| self.marks.contains(&renewed));
        record.acquired == Some(acquired) && is_marked
    }

    fn lost(&mut self, lost: LeadershipLost) -> LeadershipLost {
        self.term = None;
        self.pending_renew = None;
        lost
    }

    /// Whether we may acquire the lease: it is free, expired, or held by an earlier process with our identity.
    fn is_claimable(&self, now: Instant) -> bool {
        let Some(observed) = &self.observed else {
            return true;
        };
        let holder = &observed.record.holder;
        holder.is_empty() || *holder == self.settings.identity || now >= observed.expiry()
    }

    fn wait(&mut self, now: Instant, random: f64) {
        let period = self.settings.timings.retry_period;
        let until = if self.term.is_some() {
            let pause = period / HASTE;
            now + pause + pause.mul_f64(random)
        } else {
            let look = now + period + period.mul_f64(JITTER * random);
            let expiry = self.observed.as_ref().map(Observed::expiry);
            expiry
                .filter(|expiry| *expiry > now)
                .map_or(look, |expiry| look.min(expiry))
        };
        self.next_request = NextRequest::WaitUntil(until);
    }

    /// The Lease with our identity.
    fn write_request(&mut self, wall: Timestamp) -> Request {
        let now = micros(wall);
        let known = self.observed.as_ref();
        let record = known.map(|observed| observed.record.clone()).unwrap_or_default();
        let existing = known.and_then(|observed| observed.lease.clone());
        let changes_hands = existing.is_some() && record.holder != self.settings.identity;
        let mut lease = existing.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.settings.lease_meta.name.clone()),
                namespace: Some(self.settings.lease_meta.namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        });
        if !self.settings.labels.is_empty() {
            let labels = lease.metadata.labels.get_or_insert_default();
            labels.extend(self.settings.labels.clone());
        }
        let acquired = match &self.term {
            Some(term) => term.acquired,
            // All claims without a response carry one acquireTime, by which they are recognized.
            None => *self.pending_renew.get_or_insert(now),
        };
        self.marks.insert(now);
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.settings.identity.clone());
        spec.lease_duration_seconds = Some(self.settings.timings.lease_seconds());
        spec.acquire_time = Some(MicroTime(acquired));
        spec.renew_time = Some(MicroTime(now));
        spec.lease_transitions = Some(record.transitions.saturating_add(changes_hands.into()));
        Request::Write(Box::new(lease))
    }
}

#[cfg(test)]
pub(super) mod tests;
