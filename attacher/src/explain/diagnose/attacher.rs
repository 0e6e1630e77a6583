//! Whether anybody serves the driver, as its lease tells, and how to look after the attacher.

use jiff::Timestamp;

use crate::explain::objects::Lease;
use crate::explain::print::ago;
use crate::explain::report::{Actor, Cause, Finding, State};
use crate::explain::scene::{Leader, Scene};
use crate::explain::snapshot::Look;
use crate::leader_election;

/// The finding that nobody serves `driver`, if that is so. `last_sign` is when the attacher last showed
/// on the object in question; `since` is from when on it was needed.
pub(super) fn is_down(
    scene: Scene<'_>,
    driver: &str,
    last_sign: Option<Timestamp>,
    since: Option<Timestamp>,
) -> Option<Finding> {
    let leader = scene.nobody_leads(driver, last_sign)?;
    let cause = if matches!(leader, Leader::Stale(_)) {
        Cause::AttacherLeaseStale
    } else {
        Cause::NobodyLeads
    };
    let state = scene.waiting(since);
    let summary = match state {
        State::Stuck => format!("No attacher of driver {driver} is at work."),
        State::Fine | State::Progressing => {
            format!(
                "No attacher of driver {driver} is at work at this moment; another may be about to take over."
            )
        }
    };
    let finding = Finding::new(cause, state, Actor::Attacher, summary)
        .of(driver)
        .since(since);
    Some(look_after_leader(scene, driver, finding))
}

/// Adds what the lease tells and how to look after an attacher that is not [down](is_down). If nobody holds the
/// lease then, something was written since by an attacher without leader election.
pub(super) fn look_after(scene: Scene<'_>, driver: &str, finding: Finding) -> Finding {
    let leader = scene.leader(driver);
    match leader {
        Leader::Released(_) | Leader::Stale(_) => {
            let finding = finding.because(format!(
                "{} Yet an attacher has written since, so one seems to run without --leader-election.",
                in_words(scene, driver, &leader)
            ));
            find_attacher(finding)
        }
        Leader::Held(_) | Leader::NoLease | Leader::Unknown => look_after_leader(scene, driver, finding),
    }
}

fn look_after_leader(scene: Scene<'_>, driver: &str, finding: Finding) -> Finding {
    let leader = scene.leader(driver);
    let finding = finding.because(in_words(scene, driver, &leader));
    match leader {
        Leader::Held(lease) | Leader::Stale(lease) => look_after_holder(scene, lease, finding),
        Leader::Released(lease) => {
            let namespace = &lease.metadata.namespace;
            finding.advise_to_run(
                "See why no replica of the attacher takes the lease: are its pods running?",
                format!("kubectl -n {namespace} get pods -o wide"),
            )
        }
        Leader::NoLease | Leader::Unknown => find_attacher(finding),
    }
}

fn find_attacher(finding: Finding) -> Finding {
    finding.advise_to_run(
        "Find the attacher: the pod that runs csi-attacher (or external-attacher) beside this driver.",
        "kubectl get pods -A -o json | jq -r '.items[] | select(any(.spec.containers[]; \
         .name | test(\"attacher\"))) | .metadata.namespace + \"/\" + .metadata.name + \" \" + .status.phase'",
    )
}

/// What the lease tells, in a sentence.
pub(super) fn in_words(scene: Scene<'_>, driver: &str, leader: &Leader<'_>) -> String {
    let name = leader_election::name(driver);
    match leader {
        Leader::Unknown => format!("The attacher's lease {name} could not be looked at."),
        Leader::NoLease => format!(
            "There is no lease {name} in any namespace: either no attacher of this driver ever ran here, or it runs \
             without --leader-election."
        ),
        Leader::Released(lease) => format!(
            "The lease {} was given back {} and nobody has taken it.",
            place(lease),
            ago_or_unknown(scene, lease)
        ),
        Leader::Stale(lease) => format!(
            "The lease {} is held by {}, who renewed it last {}; it was valid for {} s.",
            place(lease),
            holder(lease),
            ago_or_unknown(scene, lease),
            lease.spec.lease_duration_seconds.unwrap_or_default()
        ),
        Leader::Held(lease) => format!(
            "The lease {} is held by {}, who renewed it {}.",
            place(lease),
            holder(lease),
            ago_or_unknown(scene, lease)
        ),
    }
}

fn look_after_holder(scene: Scene<'_>, lease: &Lease, finding: Finding) -> Finding {
    let (namespace, holder) = (&lease.metadata.namespace, holder(lease));
    match scene.holder(lease) {
        Look::Found(pod) => {
            let waiting = pod.status.container_statuses.iter().find_map(|container| {
                let waiting = container.state.waiting.as_ref()?;
                Some(format!(
                    "; container {} waits: {} {}",
                    container.name, waiting.reason, waiting.message
                ))
            });
            let node = &pod.spec.node_name;
            let phase = &pod.status.phase;
            let waiting = waiting.unwrap_or_default();
            finding
                .because(format!(
                    "Its pod {namespace}/{holder} on node {node} is {phase}{}.",
                    waiting.trim_end()
                ))
                .advise_to_run(
                    "Read what the attacher and its driver say.",
                    format!("kubectl -n {namespace} logs {holder} --all-containers --prefix --tail=100"),
                )
        }
        Look::Absent => finding
            .because(format!("There is no pod {namespace}/{holder} (any more)."))
            .advise_to_run(
                "See whether another replica runs.",
                format!("kubectl -n {namespace} get pods -o wide"),
            ),
        Look::Unknown => finding.advise_to_run(
            "Read what the attacher and its driver say.",
            format!("kubectl -n {namespace} logs {holder} --all-containers --prefix --tail=100"),
        ),
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.holder_identity.as_deref().unwrap_or_default()
}

fn place(lease: &Lease) -> String {
    format!("{}/{}", lease.metadata.namespace, lease.metadata.name)
}

fn ago_or_unknown(scene: Scene<'_>, lease: &Lease) -> String {
    let renewed = lease.spec.renew_time;
    renewed.map_or_else(|| "at an unknown time".to_owned(), |time| ago(scene.age(time)))
}
