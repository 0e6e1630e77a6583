//! Leader election: of all replicas, only the one that holds the Lease writes and calls the driver.
//!
//! The Lease, its fields and their meaning are client-go's, so that replicas of the Go sidecar and of this attacher can share
//! it. Unlike client-go's, [`Leadership`] is a value that expires by itself, and is checked before each write and call.
//!
//! Invariants:
//! - clock skew is irrelevant: another holder's lease expires when it has not changed for its duration, by our own monotonic
//!   clock, since its last observed change;
//! - a renewal is valid for less than the lease duration, counted from when it was *sent*. Other replicas wait for the lease
//!   duration, counted from when they *observed* it;
//! - each write of the Lease carries the resourceVersion that was read;
//! - leadership without a valid renewal pauses. It goes on only with a write of the version that we wrote last, which proves that no
//!   other replica has held the lease meanwhile; otherwise it is lost, and the process ends.
//!
//! `ElectionState` is pure and decides; [`LeaderElector`] waits and sends requests. See docs/adr/0021-leader-election.md.

mod election_state;
mod fence;
mod leader_elector;
mod leadership;
mod server;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use election_state::{ElectionState, Request, Step};
pub use election_state::{LeadershipLost, LeaseError};
pub use fence::{Fenced, fenced};
pub use leader_elector::{Change, LeaderElector};
pub use leadership::{ElectionStatus, Leadership, NotLeading, Unrenewed};
pub use server::LeaseServer;

use crate::model::driver::sanitized;

/// The election's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The Lease.
    pub lease_meta: LeaseMeta,
    /// Our `holderIdentity`.
    pub identity: String,
    /// Labels of the Lease; others are kept.
    pub labels: BTreeMap<String, String>,
    /// Durations and periods.
    pub timings: Timings,
}

/// Namespace and name of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseMeta {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// `--leader-election-lease-duration`, `-renew-deadline` and `-retry-period`. The first is longer than
/// the second, and that one longer than 1.2 times the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Time that other replicas wait for a holder that does not renew.
    pub lease_duration: Duration,
    /// Time that the leader retries a renewal, after one retry period, before its leadership pauses.
    pub renew_deadline: Duration,
    /// The interval of renewals, and of reads by a standby.
    pub retry_period: Duration,
}

/// The pod's namespace, mounted by Kubernetes.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The host name; in a container, the name of the pod.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// The host name cannot serve as an identity.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum IdentityError {
    #[error("cannot read the host name, which is to be our identity in the lease, from {HOST_NAME_FILE}")]
    Unreadable(#[source] std::io::Error),
    #[error("the host name is empty, and it is to be our identity in the lease: give the pod one")]
    Empty,
}

// === impl LeaseMeta ===

impl LeaseMeta {
    /// The Lease of the replicas that serve `driver`. Its namespace is that of the flag, of POD_NAMESPACE, or of the service
    /// account, in this order.
    pub fn of(driver: &str, flag: Option<&str>, variable: Option<&str>) -> Self {
        Self::with_file(driver, flag, variable, Path::new(NAMESPACE_FILE))
    }

    fn with_file(driver: &str, flag: Option<&str>, variable: Option<&str>, file: &Path) -> Self {
        let of_pod = || {
            let namespace = std::fs::read_to_string(file).ok()?;
            Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty())
        };
        let given = [flag, variable]
            .into_iter()
            .flatten()
            .find(|given| !given.is_empty());
        Self {
            namespace: given
                .map(str::to_owned)
                .or_else(of_pod)
                .unwrap_or_else(|| "default".to_owned()),
            name: name(driver),
        }
    }
}

impl std::fmt::Display for LeaseMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The name of the Lease of `driver`'s attachers.
pub fn name(driver: &str) -> String {
    sanitized(&format!("external-attacher-leader-{driver}"))
}

/// The host name; in a container, the name of the pod.
pub(crate) fn host_name() -> std::io::Result<String> {
    let name = std::fs::read_to_string(HOST_NAME_FILE)?;
    Ok(name.trim().to_owned())
}

/// Our identity in the lease: the host name, which is the pod's name.
pub(crate) fn identity(host_name: &str) -> Result<String, IdentityError> {
    match host_name {
        "" => Err(IdentityError::Empty),
        name => Ok(sanitized(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_follows_the_go_sidecars_order() {
        let dir = tempfile::tempdir().unwrap();
        let (file, none, blank) = (
            dir.path().join("namespace"),
            dir.path().join("no"),
            dir.path().join("blank"),
        );
        std::fs::write(&file, "of-pod\n").unwrap();
        std::fs::write(&blank, "\n").unwrap();
        for (flag, variable, file, namespace) in [
            (Some("of-flag"), Some("of-env"), &file, "of-flag"),
            (None, Some("of-env"), &file, "of-env"),
            (Some(""), Some(""), &file, "of-pod"),
            (None, None, &file, "of-pod"),
            (None, None, &blank, "default"),
            (None, None, &none, "default"),
        ] {
            let meta = LeaseMeta::with_file("ebs.csi.aws.com", flag, variable, file);
            assert_eq!(meta.namespace, namespace, "{flag:?} {variable:?} {file:?}");
            assert_eq!(meta.name, "external-attacher-leader-ebs-csi-aws-com");
        }
    }

    #[test]
    fn the_identity_is_the_host_name() {
        let output = std::process::Command::new("uname").arg("-n").output().unwrap();
        let name = String::from_utf8(output.stdout).unwrap();
        assert_eq!(identity(&host_name().unwrap()).unwrap(), sanitized(name.trim()));
    }
}
