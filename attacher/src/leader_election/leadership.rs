//! Leadership as a value that expires by itself.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Settings;
use crate::report::{OngoingFailure, ago};

/// Whether this replica leads. Cheap to clone and to check.
///
/// It is a deadline and not a flag: for a process that was suspended it has expired before any task runs again.
#[derive(Clone, Debug)]
pub struct Leadership(Option<watch::Receiver<ElectionStatus>>);

/// The election as this replica sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ElectionStatus {
    /// When our leadership expires unless it is renewed. `None`: we do not lead.
    #[serde(skip)]
    pub valid_until: Option<Instant>,
    /// When we last renewed the lease; `None` after its release.
    #[serde(serialize_with = "ago")]
    pub renewed: Option<Instant>,
    /// The last observed holder. Empty: the lease is free. `None`: it has not been read yet.
    pub holder: Option<String>,
    /// Our identity.
    pub identity: String,
    /// The failure of the last request, if any. The failure of a claim is kept while the lease can be claimed, even if
    /// reads succeed.
    #[serde(rename = "failure")]
    pub ongoing_failure: Option<OngoingFailure>,
    /// Whether the last claim failed, and the lease could still be claimed when it was last read.
    #[serde(skip)]
    pub claim_failed: bool,
    /// Number of renewals that had to read the lease first.
    #[serde(skip)]
    pub slow_renewals: u64,
    /// Name of the lease, for messages.
    pub lease: String,
    #[serde(skip)]
    pub(super) lease_duration: Duration,
}

/// This replica does not lead, so it must not write or call the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not lead now, so it sends nothing")]
pub struct NotLeading;

/// The lease expired long ago, and the process still runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed election to renew leadership on lease {0}")]
pub struct Unrenewed(String);

/// Time after the lease's expiry at which a running leader becomes unhealthy (the Go sidecar's value), and a paused one gives up.
pub(super) const HEALTH_TOLERANCE: Duration = Duration::from_secs(20);

// === impl Leadership ===

impl Leadership {
    /// Leadership of a single replica (no `--leader-election`), which always leads.
    pub fn unopposed() -> Self {
        Self(None)
    }

    /// Leadership that is never renewed.
    #[cfg(test)]
    pub(crate) fn until(at: Instant) -> Self {
        let settings = super::election_state::tests::mk_settings("a");
        let status = ElectionStatus {
            valid_until: Some(at),
            ..ElectionStatus::new(&settings)
        };
        watch::channel(status).1.into()
    }

    /// Fails unless we lead at this moment. Checked right before each write and each driver call.
    ///
    /// # Errors
    ///
    /// [`NotLeading`]: do not continue, and do not report it in the cluster, as that would be a write.
    pub fn check(&self) -> Result<(), NotLeading> {
        match &self.0 {
            None => Ok(()),
            Some(status) if status.borrow().leads_at(Instant::now()) => Ok(()),
            Some(_) => Err(NotLeading),
        }
    }

    /// Waits until we lead. With an election, others may have led before, and the caches may be older than their writes.
    pub async fn begun(&self) {
        let Some(status) = &self.0 else { return };
        let mut status = status.clone();
        let leads = status.wait_for(|status| status.leads_at(Instant::now()));
        if leads.await.is_err() {
            // The election ended without a term of ours.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until leadership expires or is lost; never completes without an election.
    pub async fn ended(&self) {
        let Some(status) = &self.0 else {
            return std::future::pending().await;
        };
        let mut status = status.clone();
        loop {
            let until = status.borrow_and_update().valid_until;
            let Some(until) = until.filter(|until| Instant::now() < *until) else {
                return;
            };
            let renewed = async {
                if status.changed().await.is_err() {
                    // The election ended, so there are no more renewals.
                    std::future::pending::<()>().await;
                }
            };
            // The next iteration checks the new status.
            tokio::time::timeout_at(until, renewed).await.ok();
        }
    }

    /// The result of `/healthz/leader-election`.
    ///
    /// # Errors
    ///
    /// When our lease expired long ago without renewal. A standby is always healthy.
    pub fn health(&self) -> Result<(), Unrenewed> {
        let Some(status) = &self.0 else { return Ok(()) };
        let status = status.borrow();
        let tolerated = status.lease_duration + HEALTH_TOLERANCE;
        match status.renewed {
            Some(renewed) if renewed.elapsed() > tolerated => Err(Unrenewed(status.lease.clone())),
            Some(_) | None => Ok(()),
        }
    }

    /// The status; `None` without an election.
    pub fn status(&self) -> Option<ElectionStatus> {
        Some(self.0.as_ref()?.borrow().clone())
    }
}

impl From<watch::Receiver<ElectionStatus>> for Leadership {
    fn from(status: watch::Receiver<ElectionStatus>) -> Self {
        Self(Some(status))
    }
}

// === impl ElectionStatus ===

impl ElectionStatus {
    /// Before the first read of the lease.
    pub fn new(settings: &Settings) -> Self {
        Self {
            valid_until: None,
            renewed: None,
            holder: None,
            claim_failed: false,
            identity: settings.identity.clone(),
            ongoing_failure: None,
            slow_renewals: 0,
            lease: settings.lease_meta.to_string(),
            lease_duration: settings.timings.lease_duration,
        }
    }

    /// Whether this standby could take over: the lease was read, and no claim of a free lease has failed since.
    pub fn could_take_over(&self) -> bool {
        self.holder.as_deref().is_some_and(|holder| !holder.is_empty()) && !self.claim_failed
    }

    pub(crate) fn leads_at(&self, now: Instant) -> bool {
        self.valid_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::super::election_state::tests::mk_settings;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn leadership_expires_by_itself() {
        let (status_tx, status) = watch::channel(ElectionStatus::new(&mk_settings("a")));
        let leadership = Leadership::from(status);
        assert_eq!(leadership.check(), Err(NotLeading));
        status_tx.send_modify(|status| status.valid_until = Some(Instant::now() + 2 * SECOND));
        leadership.begun().await;
        assert_eq!(leadership.check(), Ok(()));
        tokio::time::advance(2 * SECOND).await;
        assert_eq!(leadership.check(), Err(NotLeading));
    }

    #[tokio::test(start_paused = true)]
    async fn each_renewal_extends_leadership() {
        let begin = Instant::now();
        let status = ElectionStatus {
            valid_until: Some(begin + 2 * SECOND),
            ..ElectionStatus::new(&mk_settings("a"))
        };
        let (status_tx, status) = watch::channel(status);
        let leadership = Leadership::from(status);
        let renewals = async {
            for renewal in 1..=5u32 {
                tokio::time::sleep_until(begin + renewal * SECOND).await;
                let until = Instant::now() + 2 * SECOND;
                status_tx.send_modify(|status| status.valid_until = Some(until));
            }
            drop(status_tx);
        };
        futures::join!(renewals, leadership.ended());
        assert_eq!(begin.elapsed(), 7 * SECOND);
        leadership.ended().await;
        assert_eq!(begin.elapsed(), 7 * SECOND, "leadership has expired");
    }

    #[tokio::test(start_paused = true)]
    async fn unhealthy_only_long_after_expiry() {
        assert_eq!(Leadership::unopposed().health(), Ok(()));
        let (status_tx, status) = watch::channel(ElectionStatus::new(&mk_settings("a")));
        let leadership = Leadership::from(status);
        tokio::time::advance(1000 * SECOND).await;
        assert_eq!(leadership.health(), Ok(()), "a standby");
        status_tx.send_modify(|status| status.renewed = Some(Instant::now()));
        tokio::time::advance(35 * SECOND).await;
        assert_eq!(leadership.health(), Ok(()), "15 s and 20 s later");
        tokio::time::advance(Duration::from_millis(1)).await;
        let unhealthy = leadership.health().unwrap_err().to_string();
        assert_eq!(
            unhealthy,
            "failed election to renew leadership on lease kube-system/external-attacher-leader-d"
        );
        status_tx.send_modify(|status| status.renewed = None);
        assert_eq!(leadership.health(), Ok(()), "released");
    }

    #[test]
    fn standby_could_take_over_unless_its_claims_fail() {
        for (holder, claim_failed, could) in [
            (None, false, false),
            (Some(""), false, false),
            (Some("b"), false, true),
            (Some("b"), true, false),
        ] {
            let status = ElectionStatus {
                holder: holder.map(str::to_owned),
                claim_failed,
                ..ElectionStatus::new(&mk_settings("a"))
            };
            assert_eq!(status.could_take_over(), could, "{holder:?} {claim_failed}");
        }
    }

    #[tokio::test]
    async fn leads_always_without_an_election() {
        let leadership = Leadership::unopposed();
        leadership.begun().await;
        assert_eq!(leadership.check(), Ok(()));
        assert_eq!(leadership.status(), None);
    }
}
