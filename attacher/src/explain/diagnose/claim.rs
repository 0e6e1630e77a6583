//! Before any attaching: whether there is a volume at all.

use super::attacher;
use crate::explain::objects::{Claim, Event, Volume};
use crate::explain::report::{Actor, Cause, Finding, State};
use crate::explain::scene::Way;
use crate::explain::snapshot::{Look, Place};

/// Where the scheduler tells the provisioner for which node the volume is to be made.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
const ATTACHER_PREFIX: &str = "external-attacher/";
/// Finalizers of the provisioner, which deletes the volume at the storage first.
const PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// What is wrong with the claim or the volume, if anything is.
pub(super) fn trouble(way: &Way<'_>) -> Option<Finding> {
    let claim = match &way.claim {
        None => return volume_alone(way, way.volume()?),
        Some(place) => match way.scene.claim(place) {
            Look::Absent if way.pod.is_some() => return Some(missing(place)),
            // A volume keeps the name of a claim that is gone.
            Look::Absent | Look::Unknown => return volume_alone(way, way.volume()?),
            Look::Found(claim) => claim,
        },
    };
    if claim.status.phase == "Lost" {
        return Some(lost(claim, Cause::ClaimLost));
    }
    if claim.spec.volume_name.is_empty() {
        return Some(pending(way, claim));
    }
    match way.scene.volume(&claim.spec.volume_name) {
        Look::Absent => Some(lost(claim, Cause::VolumeMissing)),
        Look::Unknown => None,
        Look::Found(volume) => bound(way, claim, volume),
    }
}

fn missing(place: &Place) -> Finding {
    let (namespace, name) = place;
    Finding::new(
        Cause::ClaimMissing,
        State::Stuck,
        Actor::Person,
        format!("There is no PersistentVolumeClaim {name} in namespace {namespace}, which the pod names."),
    )
    .advise_to_run(
        "Make it, or correct the pod.",
        format!("kubectl -n {namespace} get pvc"),
    )
}

fn lost(claim: &Claim, cause: Cause) -> Finding {
    let (namespace, name) = (&claim.metadata.namespace, &claim.metadata.name);
    let volume = &claim.spec.volume_name;
    Finding::new(
        cause,
        State::Stuck,
        Actor::Person,
        format!("PersistentVolume {volume}, to which the claim {namespace}/{name} is bound, does not exist."),
    )
    .because("A PersistentVolume was removed while it was bound; Kubernetes does not make it again.")
    .advise("Restore the PersistentVolume under this name with the same volume handle and claimRef, or delete the claim and begin with a new volume.")
}

/// No volume yet.
fn pending(way: &Way<'_>, claim: &Claim) -> Finding {
    let (namespace, name) = (&claim.metadata.namespace, &claim.metadata.name);
    let since = claim.metadata.creation_timestamp;
    let says = newest(&way.scene.events("PersistentVolumeClaim", namespace, name));
    let class = claim.spec.storage_class_name.as_deref().unwrap_or_default();
    let look = way.scene.snapshot.classes.get(class).unwrap_or(&Look::Unknown);
    let describe = format!("kubectl -n {namespace} describe pvc {name}");
    let waits = |cause, state, actor| {
        let summary = format!("The claim {namespace}/{name} has no volume yet.");
        Finding::new(cause, state, actor, summary)
            .since(since)
            .because_of(says.clone())
    };
    if class.is_empty() || look.is_absent() {
        let why = if class.is_empty() {
            "The claim has no StorageClass, so it waits for a PersistentVolume that fits.".to_owned()
        } else {
            format!(
                "There is no StorageClass {class}, so no volume is made; it waits for a PersistentVolume that fits."
            )
        };
        return waits(Cause::ClaimPending, way.scene.waiting(since), Actor::Person)
            .because(why)
            .advise_to_run(
                "See what the claim asks for, and which classes there are.",
                describe,
            )
            .advise_to_run("", "kubectl get storageclass,pv");
    }
    let class_object = look.found();
    let provisioner = class_object
        .map(|class| class.provisioner.clone())
        .unwrap_or_default();
    let late = class_object.is_some_and(|class| class.volume_binding_mode == "WaitForFirstConsumer");
    let chosen = claim.metadata.annotations.get(SELECTED_NODE);
    match (late, chosen, way.pod) {
        (true, None, None) => {
            waits(Cause::ClaimWaitsForConsumer, State::Fine, Actor::Nobody).because(format!(
                "StorageClass {class} waits for the first pod (WaitForFirstConsumer), and there is none."
            ))
        }
        (true, None, Some(pod)) => {
            let finding = super::node::unscheduled(way, pod);
            let mut finding = finding.unwrap_or_else(|| {
                // A pod that was put on a node by name has passed the scheduler by.
                waits(Cause::ClaimWaitsForConsumer, State::Stuck, Actor::Person).because(format!(
                    "The pod names node {} itself; with WaitForFirstConsumer the scheduler must choose it.",
                    pod.spec.node_name
                ))
                .advise("Use a nodeSelector or node affinity instead of nodeName.")
            });
            finding.cause = Cause::ClaimWaitsForConsumer;
            finding.because(format!("StorageClass {class} has a volume made where the scheduler puts the first pod (WaitForFirstConsumer)."))
        }
        (true, Some(_), _) | (false, _, _) => {
            let finding = waits(Cause::ClaimPending, way.scene.waiting(since), Actor::Provisioner)
                .of(format!("of {provisioner}"));
            let finding = match chosen {
                Some(node) => finding.because(format!("The scheduler has chosen node {node}.")),
                None => finding,
            };
            finding.advise_to_run("See what the provisioner says, and whether it runs.", describe)
        }
    }
}

/// The claim names a volume, and the volume may not agree.
fn bound(way: &Way<'_>, claim: &Claim, volume: &Volume) -> Option<Finding> {
    let (namespace, name) = (&claim.metadata.namespace, &claim.metadata.name);
    let pv = &volume.more.metadata.name;
    let holder = volume.more.spec.claim_ref.as_ref();
    let elsewhere = holder.filter(|holder| {
        (&holder.namespace, &holder.name) != (namespace, name)
            || (!holder.uid.is_empty() && holder.uid != claim.metadata.uid)
    });
    if let Some(holder) = elsewhere {
        return Some(
            Finding::new(
                Cause::VolumeBoundElsewhere,
                State::Stuck,
                Actor::Person,
                format!("The claim asks for PersistentVolume {pv}, which is bound to another claim: {}/{}.", holder.namespace, holder.name),
            )
            .because(if (&holder.namespace, &holder.name) == (namespace, name) {
                "It is bound to an earlier claim of the same name (another UID).".to_owned()
            } else {
                format!("Its claimRef names {}/{}.", holder.namespace, holder.name)
            })
            .advise("Let the claim name another volume. If the other claim is gone and its data is to be used here, clear the volume's claimRef:")
            .advise_to_run("", format!("kubectl patch pv {pv} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]'"))
            .danger("Whoever's data is on the volume, the pod will have it."),
        );
    }
    if let Some(finding) = leaving(way, volume) {
        return Some(finding);
    }
    if claim.status.phase == "Pending" {
        let since = claim.metadata.creation_timestamp;
        return Some(
            Finding::new(
                Cause::ClaimPending,
                way.scene.waiting(since),
                Actor::VolumeController,
                format!("Claim {namespace}/{name} and PersistentVolume {pv} name one another, but are not bound yet."),
            )
            .since(since)
            .advise_to_run("If this lasts, compare size, access modes and class of both.", format!("kubectl -n {namespace} describe pvc {name}")),
        );
    }
    match &*claim.metadata.finalizers {
        _ if way.pod.is_some() || claim.metadata.deletion_timestamp.is_none() => None,
        finalizers => Some(
            Finding::new(
                Cause::VolumeTerminating,
                way.scene.waiting(claim.metadata.deletion_timestamp),
                Actor::VolumeController,
                format!("The claim {namespace}/{name} is being deleted."),
            )
            .since(claim.metadata.deletion_timestamp)
            .because(
                if finalizers.iter().any(|finalizer| finalizer == CLAIM_PROTECTION) {
                    "It stays as long as a pod uses it (finalizer kubernetes.io/pvc-protection).".to_owned()
                } else {
                    format!("Its finalizers: {}.", finalizers.join(", "))
                },
            ),
        ),
    }
}

/// A volume that no claim holds, or whose claim is gone.
fn volume_alone(way: &Way<'_>, volume: &Volume) -> Option<Finding> {
    if let Some(finding) = leaving(way, volume) {
        return Some(finding);
    }
    let pv = &volume.more.metadata.name;
    let status = &volume.more.status;
    match status.phase.as_str() {
        "Released" => Some(
            Finding::new(
                Cause::VolumeReleased,
                State::Fine,
                Actor::Nobody,
                format!("PersistentVolume {pv} is released: its claim is gone, and its data is kept."),
            )
            .since(status.last_phase_transition_time)
            .because(format!(
                "Its reclaim policy is {}.",
                volume.more.spec.persistent_volume_reclaim_policy
            ))
            .advise("It binds to no new claim as long as its claimRef names the old one."),
        ),
        "Failed" => Some(
            Finding::new(
                Cause::VolumeFailed,
                State::Stuck,
                Actor::Provisioner,
                format!("PersistentVolume {pv} could not be reclaimed."),
            )
            .of(format!("of {}", way.driver().unwrap_or_default()))
            .since(status.last_phase_transition_time)
            .because(status.message.clone())
            .advise_to_run("See what was tried.", format!("kubectl describe pv {pv}")),
        ),
        _ => None,
    }
}

/// A PersistentVolume that is being deleted.
fn leaving(way: &Way<'_>, volume: &Volume) -> Option<Finding> {
    let meta = &volume.more.metadata;
    let since = Some(meta.deletion_timestamp?);
    let pv = &meta.name;
    let state = way.scene.waiting(since);
    let summary = format!("PersistentVolume {pv} is being deleted and will not be attached again.");
    let has = |test: fn(&str) -> bool| meta.finalizers.iter().any(|finalizer| test(finalizer));
    let held = format!("Its finalizers: {}.", meta.finalizers.join(", "));
    if has(|finalizer| finalizer.starts_with(ATTACHER_PREFIX)) {
        return Some(held_by_attacher(way, state, summary).since(since).because(held));
    }
    if has(|finalizer| finalizer == VOLUME_PROTECTION) && volume.more.status.phase == "Bound" {
        let claim = volume.more.spec.claim_ref.clone().unwrap_or_default();
        return Some(
            Finding::new(Cause::VolumeTerminating, State::Stuck, Actor::Person, summary)
                .since(since)
                .because(held)
                .because(format!(
                    "It stays as long as it is bound to claim {}/{} (kubernetes.io/pv-protection).",
                    claim.namespace, claim.name
                ))
                .advise_to_run(
                    "End the pods that use it, and then delete the claim.",
                    format!("kubectl -n {} delete pvc {}", claim.namespace, claim.name),
                ),
        );
    }
    if has(|finalizer| finalizer == PROVISIONER) {
        return Some(
            Finding::new(Cause::VolumeTerminating, state, Actor::Provisioner, summary)
                .of(format!("of {}", way.driver().unwrap_or_default()))
                .since(since)
                .because(held)
                .because("The provisioner deletes the volume at the storage and then lets the object go.")
                .advise_to_run(
                    "If this lasts, see what it says.",
                    format!("kubectl describe pv {pv}"),
                ),
        );
    }
    Some(
        Finding::new(Cause::VolumeTerminating, state, Actor::VolumeController, summary)
            .since(since)
            .because(held)
            .advise_to_run(
                "If this lasts, see whose finalizer is left.",
                format!("kubectl get pv {pv} -o yaml --show-managed-fields"),
            ),
    )
}

/// The attacher keeps a volume as long as it is attached somewhere.
fn held_by_attacher(way: &Way<'_>, state: State, summary: String) -> Finding {
    let attachments: Vec<_> = way.elsewhere().chain(way.attachment).collect();
    let Some(first) = attachments.first() else {
        let driver = way.driver().unwrap_or_default();
        if let Some(down) = attacher::is_down(
            way.scene,
            &driver,
            None,
            way.volume()
                .and_then(|volume| volume.more.metadata.deletion_timestamp),
        ) {
            return down;
        }
        let finding = Finding::new(Cause::VolumeTerminating, state, Actor::Attacher, summary)
            .of(&driver)
            .because("It is attached nowhere, so the attacher is to take its finalizer off.");
        return attacher::look_after(way.scene, &driver, finding);
    };
    let holder = super::finding(&Way::of_attachment(way.scene, first));
    let names: Vec<_> = attachments
        .iter()
        .map(|va| format!("{} (node {})", va.metadata.name, va.spec.node_name))
        .collect();
    let mut finding = Finding::new(Cause::VolumeHeldByAttachment, state, holder.actor, summary)
        .because(format!(
            "It stays until it is detached everywhere: {}.",
            names.join(", ")
        ))
        .because(holder.summary);
    finding.who = holder.who;
    finding.advice = holder.advice;
    if finding.actor == Actor::Nobody {
        finding.actor = Actor::Person;
        Finding::of(finding, "").advise("End the pods that use the volume; it is then detached by itself.")
    } else {
        finding
    }
}

fn newest(events: &[&Event]) -> Option<String> {
    let event = events.first()?;
    Some(format!("The claim's event {}: {}", event.reason, event.message))
}
