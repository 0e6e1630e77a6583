//! The claim and the volume, before any attach.

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::multi_attach::Holder;
use super::{attacher, node};
use crate::objects::{ClaimExt, EventExt, ObjectExt, PodExt, VolumeExt, text};
use crate::path::VolumePath;
use crate::report::{Actor, Cause, Finding, State};
use crate::snapshot::{Lookup, NamespacedName};

/// Annotation in which the scheduler sets the node for which the provisioner creates the volume.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
const ATTACHER_PREFIX: &str = "external-attacher/";
/// The finalizer of the provisioner, which deletes the volume at the storage first.
const PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The problem of the claim or the volume, if any.
pub(super) fn problem(path: &VolumePath<'_>, holder: Option<&Holder<'_>>) -> Option<Finding> {
    let claim = match &path.claim {
        None => return unclaimed(path, path.volume()?, holder),
        Some(name) => match path.view.claim(name) {
            Lookup::NotFound if path.pod.is_some() => return Some(missing(name)),
            // A volume keeps the name of a claim that was deleted.
            Lookup::NotFound | Lookup::Unknown => return unclaimed(path, path.volume()?, holder),
            Lookup::Found(claim) => claim,
        },
    };
    if claim.phase() == "Lost" {
        return Some(lost(claim, Cause::ClaimLost));
    }
    let Some(volume) = claim.volume_name() else {
        return Some(pending(path, claim));
    };
    match path.view.volume(volume) {
        Lookup::NotFound => Some(lost(claim, Cause::VolumeMissing)),
        Lookup::Unknown => None,
        Lookup::Found(volume) => bound(path, claim, volume, holder),
    }
}

fn missing(claim: &NamespacedName) -> Finding {
    let NamespacedName { namespace, name } = claim;
    Finding::stuck(
        Cause::ClaimMissing,
        Actor::Administrator,
        format!("There is no PersistentVolumeClaim {name} in namespace {namespace}, which the pod names."),
    )
    .advise_to_run(
        "Create it, or correct the pod.",
        format!("kubectl -n {namespace} get pvc"),
    )
}

fn lost(claim: &PersistentVolumeClaim, cause: Cause) -> Finding {
    let volume = claim.volume_name().unwrap_or_default();
    Finding::stuck(
        cause,
        Actor::Administrator,
        format!("PersistentVolume {volume}, to which the claim {} is bound, does not exist.", full_name(claim)),
    )
    .because("The PersistentVolume was deleted while it was bound; Kubernetes does not create it again.")
    .advise("Restore the PersistentVolume under this name with the same volume handle and claimRef, or delete the claim and begin with a new volume.")
}

/// The claim has no volume yet.
fn pending(path: &VolumePath<'_>, claim: &PersistentVolumeClaim) -> Finding {
    let since = claim.created_at();
    let name = full_name(claim);
    let event = newest(&path.view.events("PersistentVolumeClaim", &name));
    let finding = |cause, state, actor| {
        let summary = format!("The claim {name} has no volume yet.");
        Finding::new(cause, state, actor, summary)
            .since(since)
            .because_of(event.clone())
    };
    let describe = format!("kubectl -n {} describe pvc {}", name.namespace, name.name);
    let class_name = claim.storage_class();
    let class = path.view.snapshot.classes.get(class_name);
    let class = class.unwrap_or(&Lookup::Unknown);
    if class_name.is_empty() || class.is_not_found() {
        let why = if class_name.is_empty() {
            "The claim has no StorageClass, so it waits for a matching PersistentVolume.".to_owned()
        } else {
            format!(
                "There is no StorageClass {class_name}, so no volume is provisioned; the claim waits for a matching \
                 PersistentVolume."
            )
        };
        return finding(
            Cause::ClaimPending,
            path.view.pending(since),
            Actor::Administrator,
        )
        .because(why)
        .advise_to_run(
            "See what the claim asks for, and which classes there are.",
            describe,
        )
        .advise_to_run("", "kubectl get storageclass,pv");
    }
    let selected_node = claim.annotation(SELECTED_NODE);
    if class.found().is_some_and(waits_for_consumer) && selected_node.is_none() {
        return without_consumer(path, class_name, finding);
    }
    let provisioner = class.found().map_or("", |class| &class.provisioner);
    finding(Cause::ClaimPending, path.view.pending(since), Actor::Provisioner)
        .of(format!("of {provisioner}"))
        .because_of(selected_node.map(|node| format!("The scheduler has selected node {node}.")))
        .advise_to_run(
            "See the events of the claim, and whether the provisioner runs.",
            describe,
        )
}

/// The volume is provisioned where the scheduler puts the first pod.
fn without_consumer(
    path: &VolumePath<'_>,
    class: &str,
    finding: impl Fn(Cause, State, Actor) -> Finding,
) -> Finding {
    let Some(pod) = path.pod else {
        return finding(Cause::ClaimWaitsForConsumer, State::Fine, Actor::Nothing).because(format!(
            "StorageClass {class} waits for the first pod (WaitForFirstConsumer), and there is none."
        ));
    };
    let mut finding = node::unscheduled(path, pod).unwrap_or_else(|| {
        finding(
            Cause::ClaimWaitsForConsumer,
            State::Stuck,
            Actor::Administrator,
        )
        // A pod with spec.nodeName bypasses the scheduler.
        .because(format!(
            "The pod sets nodeName {} itself; with WaitForFirstConsumer the scheduler must select the node.",
            pod.node_name()
        ))
        .advise("Use a nodeSelector or node affinity instead of nodeName.")
    });
    finding.cause = Cause::ClaimWaitsForConsumer;
    finding.because(format!(
        "StorageClass {class} provisions the volume where the scheduler puts the first pod (WaitForFirstConsumer)."
    ))
}

/// The claim names a volume, and the volume may name another claim.
fn bound(
    path: &VolumePath<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    holder: Option<&Holder<'_>>,
) -> Option<Finding> {
    let name = full_name(claim);
    let pv = volume.name();
    let uid = volume.claim_uid();
    let is_same_claim = |other: &NamespacedName| *other == name && (uid.is_empty() || uid == claim.uid());
    if let Some(other) = volume.claim().filter(|other| !is_same_claim(other)) {
        return Some(bound_elsewhere(pv, &name, &other));
    }
    if let Some(finding) = terminating(path, volume, holder) {
        return Some(finding);
    }
    if claim.phase() == "Pending" {
        let since = claim.created_at();
        return Some(
            path.due(
                since,
                Cause::ClaimPending,
                Actor::VolumeController,
                format!("Claim {name} and PersistentVolume {pv} name one another, but are not bound yet."),
            )
            .advise_to_run(
                "If this lasts, compare size, access modes and class of both.",
                format!("kubectl -n {} describe pvc {}", name.namespace, name.name),
            ),
        );
    }
    if path.pod.is_some() {
        return None;
    }
    let since = Some(claim.deleted_at()?);
    let finalizers = claim.finalizers();
    Some(
        path.due(
            since,
            Cause::VolumeTerminating,
            Actor::VolumeController,
            format!("The claim {name} is being deleted."),
        )
        .because(
            if finalizers.iter().any(|finalizer| finalizer == CLAIM_PROTECTION) {
                "It stays as long as a pod uses it (finalizer kubernetes.io/pvc-protection).".to_owned()
            } else {
                format!("Its finalizers: {}.", finalizers.join(", "))
            },
        ),
    )
}

fn bound_elsewhere(pv: &str, claim: &NamespacedName, other: &NamespacedName) -> Finding {
    Finding::stuck(
        Cause::VolumeBoundElsewhere,
        Actor::Administrator,
        format!("The claim asks for PersistentVolume {pv}, which is bound to another claim: {other}."),
    )
    .because(if claim == other {
        "It is bound to an earlier claim of the same name (another UID).".to_owned()
    } else {
        format!("Its claimRef names {other}.")
    })
    .advise("Let the claim name another volume. If the other claim is deleted and its data is to be used here, clear the volume's claimRef:")
    .advise_to_run("", format!("kubectl patch pv {pv} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]'"))
    .danger("The pod gets the data on the volume, which may be another user's.")
}

/// A volume without a claim, or whose claim was deleted.
fn unclaimed(
    path: &VolumePath<'_>,
    volume: &PersistentVolume,
    holder: Option<&Holder<'_>>,
) -> Option<Finding> {
    if let Some(finding) = terminating(path, volume, holder) {
        return Some(finding);
    }
    let pv = volume.name();
    match volume.phase() {
        "Released" => Some(
            Finding::fine(
                Cause::VolumeReleased,
                format!("PersistentVolume {pv} is released: its claim is deleted, and its data is kept."),
            )
            .since(volume.phase_since())
            .because(format!("Its reclaim policy is {}.", volume.reclaim_policy()))
            .advise("It does not bind to a new claim as long as its claimRef names the old one."),
        ),
        "Failed" => Some(
            Finding::stuck(
                Cause::VolumeFailed,
                Actor::Provisioner,
                format!("PersistentVolume {pv} could not be reclaimed."),
            )
            .of(format!("of {}", path.driver().unwrap_or_default()))
            .since(volume.phase_since())
            .because(volume.status.as_ref().map_or("", |status| text(&status.message)))
            .advise_to_run(
                "See the events of the volume.",
                format!("kubectl describe pv {pv}"),
            ),
        ),
        _ => None,
    }
}

/// A PersistentVolume with a deletion timestamp.
fn terminating(
    path: &VolumePath<'_>,
    volume: &PersistentVolume,
    holder: Option<&Holder<'_>>,
) -> Option<Finding> {
    let since = Some(volume.deleted_at()?);
    let pv = volume.name();
    let state = path.view.pending(since);
    let finalizers = volume.finalizers();
    let has = |test: fn(&str) -> bool| finalizers.iter().any(|finalizer| test(finalizer));
    let finding = |cause, state, actor| {
        let summary = format!("PersistentVolume {pv} is being deleted and will not be attached again.");
        Finding::new(cause, state, actor, summary)
            .since(since)
            .because(format!("Its finalizers: {}.", finalizers.join(", ")))
    };
    if has(|finalizer| finalizer.starts_with(ATTACHER_PREFIX)) {
        return Some(match holder {
            Some(holder) => held_by_attachments(
                path,
                holder,
                finding(Cause::VolumeHeldByAttachment, state, holder.finding.actor),
            ),
            None => held_by_attacher(
                path,
                volume,
                finding(Cause::VolumeTerminating, state, Actor::Attacher),
            ),
        });
    }
    if has(|finalizer| finalizer == VOLUME_PROTECTION) && volume.phase() == "Bound" {
        let claim = volume.claim().unwrap_or_default();
        return Some(
            finding(Cause::VolumeTerminating, State::Stuck, Actor::Administrator)
                .because(format!(
                    "It stays as long as it is bound to claim {claim} (kubernetes.io/pv-protection)."
                ))
                .advise_to_run(
                    "End the pods that use it, then delete the claim.",
                    format!("kubectl -n {} delete pvc {}", claim.namespace, claim.name),
                ),
        );
    }
    if has(|finalizer| finalizer == PROVISIONER) {
        return Some(
            finding(Cause::VolumeTerminating, state, Actor::Provisioner)
                .of(format!("of {}", path.driver().unwrap_or_default()))
                .because("The provisioner deletes the volume at the storage and then removes its finalizer.")
                .advise_to_run(
                    "If this lasts, see the events of the volume.",
                    format!("kubectl describe pv {pv}"),
                ),
        );
    }
    Some(
        finding(Cause::VolumeTerminating, state, Actor::VolumeController).advise_to_run(
            "If this lasts, see which finalizer is left.",
            format!("kubectl get pv {pv} -o yaml --show-managed-fields"),
        ),
    )
}

/// The volume is attached somewhere, so the attacher keeps its finalizer.
fn held_by_attachments(path: &VolumePath<'_>, holder: &Holder<'_>, mut finding: Finding) -> Finding {
    let attachments = path.attachments_elsewhere();
    let names: Vec<_> = attachments
        .map(|va| format!("{} (node {})", va.name(), va.spec.node_name))
        .collect();
    finding = finding
        .because(format!(
            "It stays until it is detached everywhere: {}.",
            names.join(", ")
        ))
        .because(holder.finding.summary.clone());
    finding.who.clone_from(&holder.finding.who);
    finding.advice.clone_from(&holder.finding.advice);
    if finding.actor == Actor::Nothing {
        finding.actor = Actor::Administrator;
        finding = finding
            .of("")
            .advise("End the pods that use the volume; it is then detached.");
    }
    finding
}

/// The volume is attached nowhere, so the attacher is about to remove its finalizer.
fn held_by_attacher(path: &VolumePath<'_>, volume: &PersistentVolume, finding: Finding) -> Finding {
    let driver = path.driver().unwrap_or_default();
    if let Some(down) = attacher::down(path.view, &driver, None, volume.deleted_at()) {
        return down;
    }
    let finding = finding
        .of(&driver)
        .because("It is not attached, so the attacher removes its finalizer next.");
    attacher::with_lease(path.view, &driver, finding)
}

fn waits_for_consumer(class: &StorageClass) -> bool {
    text(&class.volume_binding_mode) == "WaitForFirstConsumer"
}

fn newest(events: &[&Event]) -> Option<String> {
    let event = events.first()?;
    Some(format!(
        "The claim's event {}: {}",
        event.reason(),
        event.message()
    ))
}

fn full_name(claim: &PersistentVolumeClaim) -> NamespacedName {
    NamespacedName::new(claim.namespace(), claim.name())
}
