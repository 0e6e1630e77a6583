//! Leader election of one of several attachers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attacher_contract::observation::Name;

use super::milliseconds;
use crate::mutex::lock;
use crate::process::Spec;

/// Lease duration of a replica. A leader that cannot renew its lease until the deadline exits, so the deadline is longer
/// than a stall of a busy machine.
pub const LEASE_DURATION: Duration = Duration::from_secs(10);
const RENEW_DEADLINE: Duration = Duration::from_secs(8);
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// One of several attachers that elect a leader. Like a pod, it has its own host name, which is its identity in the
/// lease.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Its host name.
    pub name: String,
    /// Namespace of the lease.
    pub namespace: String,
    /// Where its processes are recorded.
    pub processes: Processes,
}

/// The replicas by the ids of their processes, ended ones too. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Processes(Arc<Mutex<BTreeMap<i32, Name>>>);

// === impl Processes ===

impl Processes {
    /// Records a process of the replica.
    pub(crate) fn add(&self, pid: u32, replica: &str) {
        lock(&self.0).insert(pid.cast_signed(), replica.into());
    }

    /// The name of the replica whose process this is or was.
    pub(crate) fn name(&self, pid: i32) -> Option<Name> {
        lock(&self.0).get(&pid).cloned()
    }
}

// === impl Replica ===

impl Replica {
    /// The program with the replica's host name and leader election flags.
    pub(super) fn command(&self, binary: &Path) -> Spec {
        with_host_name(&self.name, binary).args([
            "--leader-election".to_owned(),
            format!("--leader-election-namespace={}", self.namespace),
            format!(
                "--leader-election-lease-duration={}",
                milliseconds(LEASE_DURATION)
            ),
            format!(
                "--leader-election-renew-deadline={}",
                milliseconds(RENEW_DEADLINE)
            ),
            format!("--leader-election-retry-period={}", milliseconds(RETRY_PERIOD)),
        ])
    }
}

/// An attacher in its own UTS namespace with the host name `host`, its identity in a lease. Each wrapper executes the
/// next one by exec, so the process id stays the same. Without root this needs user namespaces, which some systems disable
/// by default (Ubuntu 24.04: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`).
pub fn with_host_name(host: &str, binary: &Path) -> Spec {
    let command = Spec::new(format!("attacher-{host}"), "unshare").arg("--uts");
    let command = if rustix::process::geteuid().is_root() {
        command
    } else {
        command.args(["--user", "--map-root-user"])
    };
    command
        .args(["--", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host])
        .arg(binary)
}
