//! Whether an attacher serves the driver, by its lease, and where to find its logs.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};

use super::attachment;
use super::grpc_code::Code;
use crate::objects::{LeaseExt, ObjectExt, PodExt, text};
use crate::path::{ClusterView, Leader, VolumePath};
use crate::report::{Actor, Cause, Finding, State};
use crate::rules;
use crate::snapshot::Lookup;
use crate::time::ago;

/// The finding that no attacher serves `driver`, if that is so. `last_write` is when an attacher last wrote the
/// object; `since` is when the work became due.
pub(super) fn down(
    view: ClusterView<'_>,
    driver: &str,
    last_write: Option<Timestamp>,
    since: Option<Timestamp>,
) -> Option<Finding> {
    let leader = view.ended_lease(driver, last_write)?;
    let cause = if matches!(leader, Leader::Expired(_)) {
        Cause::AttacherLeaseExpired
    } else {
        Cause::NoLeader
    };
    let state = view.pending(since);
    let summary = match state {
        State::Stuck => format!("No attacher of driver {driver} is running."),
        State::Fine | State::Progressing => {
            format!("No attacher of driver {driver} leads at the moment; another replica may be about to.")
        }
    };
    let finding = Finding::new(cause, state, Actor::Attacher, summary)
        .of(driver)
        .since(since);
    Some(with_leader(view, driver, finding))
}

/// Adds the lease's state and how to inspect an attacher that is not [`down`]. A lease that is expired or released here
/// is obsolete: an attacher without leader election has written since.
pub(super) fn with_lease(view: ClusterView<'_>, driver: &str, finding: Finding) -> Finding {
    let leader = view.leader(driver);
    match leader {
        Leader::Released(_) | Leader::Expired(_) => {
            let finding = finding.because(format!(
                "{} Yet an attacher has written since, so one seems to run without --leader-election.",
                describe(view, driver, &leader)
            ));
            with_search(finding)
        }
        Leader::Held(_) | Leader::NoLease | Leader::Unknown => with_leader(view, driver, finding),
    }
}

/// Adds that the attacher retries, and how it can be inspected.
pub(super) fn with_retry(view: ClusterView<'_>, driver: &str, finding: Finding) -> Finding {
    let finding = finding.because(
        "The attacher retries, with exponential backoff of up to --retry-interval-max (5 minutes by default) unless the driver refused the call because of others.",
    );
    with_lease(view, driver, finding)
}

/// The attacher's error says what the next call waits for: its turn, or a driver that fails all calls.
pub(super) fn waits(
    path: &VolumePath<'_>,
    va: &VolumeAttachment,
    error: &VolumeError,
    since: Option<Timestamp>,
) -> Option<Finding> {
    let (_, wait) = error.message.as_deref()?.rsplit_once("; waits for ")?;
    let (cause, why, advice) = if wait.starts_with("its turn on ") {
        (
            Cause::WaitsForTurn,
            "The driver refuses calls for a node while others run. The attacher has learned how many it takes, and serves them in order of age.",
            "Wait. If the calls before take too long, look at the driver's log.",
        )
    } else if wait.starts_with("the driver ") {
        (
            Cause::DriverDown,
            "The driver fails the calls of all volumes. The attacher probes it with one call at a time, and lets all volumes go on when it answers again.",
            "Look at the log of the driver and at its storage.",
        )
    } else {
        return None;
    };
    let summary = format!("It waits for {wait}.");
    let finding = path.due(since, cause, Actor::Driver, summary);
    let finding = finding.of(&va.spec.attacher).because(attachment::describe(error));
    Some(finding.because(why).advise(advice))
}

/// Adds the meaning of the driver's gRPC code.
pub(super) fn with_code(code: Option<&Code>, finding: Finding) -> Finding {
    let Some(code) = code else {
        return finding;
    };
    finding
        .because(format!(
            "Code {} ({}) means: {}.",
            code.name, code.number, code.meaning
        ))
        .advise(code.advice)
}

fn with_leader(view: ClusterView<'_>, driver: &str, finding: Finding) -> Finding {
    let leader = view.leader(driver);
    let finding = finding.because(describe(view, driver, &leader));
    match leader {
        Leader::Held(lease) | Leader::Expired(lease) => with_holder(view, lease, finding),
        Leader::Released(lease) => finding.advise_to_run(
            "See why no replica of the attacher acquires the lease: are its pods running?",
            format!("kubectl -n {} get pods -o wide", lease.namespace()),
        ),
        Leader::NoLease | Leader::Unknown => with_search(finding),
    }
}

fn with_search(finding: Finding) -> Finding {
    finding.advise_to_run(
        "Find the attacher: the pod that runs csi-attacher (or external-attacher) beside this driver.",
        "kubectl get pods -A -o json | jq -r '.items[] | select(any(.spec.containers[]; \
         .name | test(\"attacher\"))) | .metadata.namespace + \"/\" + .metadata.name + \" \" + .status.phase'",
    )
}

fn with_holder(view: ClusterView<'_>, lease: &Lease, finding: Finding) -> Finding {
    let (namespace, holder) = (lease.namespace(), lease.holder());
    let logs = || format!("kubectl -n {namespace} logs {holder} --all-containers --prefix --tail=100");
    const READ_LOGS: &str = "Read the logs of the attacher and its driver.";
    match view.holder(lease) {
        Lookup::Found(pod) => {
            let waiting = pod.container_statuses().find_map(|container| {
                let waiting = container.state.as_ref()?.waiting.as_ref()?;
                Some(format!(
                    "; container {} waits: {} {}",
                    container.name,
                    text(&waiting.reason),
                    text(&waiting.message)
                ))
            });
            finding
                .because(format!(
                    "Its pod {namespace}/{holder} on node {} is {}{}.",
                    pod.node_name(),
                    pod.phase(),
                    waiting.unwrap_or_default().trim_end()
                ))
                .advise_to_run(READ_LOGS, logs())
        }
        Lookup::NotFound => finding
            .because(format!("There is no pod {namespace}/{holder} any more."))
            .advise_to_run(
                "See whether another replica runs.",
                format!("kubectl -n {namespace} get pods -o wide"),
            ),
        Lookup::Unknown => finding.advise_to_run(READ_LOGS, logs()),
    }
}

/// The state of the lease in a sentence.
fn describe(view: ClusterView<'_>, driver: &str, leader: &Leader<'_>) -> String {
    let name = rules::lease_name(driver);
    let lease_name = |lease: &Lease| format!("{}/{}", lease.namespace(), lease.name());
    let renewed = |lease: &Lease| {
        let renewed = lease.renewed_at().map(|time| ago(view.age(time)));
        renewed.unwrap_or_else(|| "at an unknown time".to_owned())
    };
    match leader {
        Leader::Unknown => format!("The attacher's lease {name} could not be read."),
        Leader::NoLease => format!(
            "There is no lease {name} in any namespace: either no attacher of this driver has run yet, or it runs \
             without --leader-election."
        ),
        Leader::Released(lease) => format!(
            "The lease {} was released {}, and no replica has acquired it.",
            lease_name(lease),
            renewed(lease)
        ),
        Leader::Expired(lease) => format!(
            "The lease {} is held by {}, which last renewed it {}; it was valid for {} s.",
            lease_name(lease),
            lease.holder(),
            renewed(lease),
            lease.duration_seconds()
        ),
        Leader::Held(lease) => format!(
            "The lease {} is held by {}, which renewed it {}.",
            lease_name(lease),
            lease.holder(),
            renewed(lease)
        ),
    }
}
