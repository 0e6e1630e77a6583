//! Attached: what is left until the pod has its volume.

use jiff::Timestamp;

use super::attach::{node_gone, pod_says, scheduled};
use super::detach;
use super::unattached::MANAGER;
use crate::explain::objects::{Attachment, Pod};
use crate::explain::report::{Actor, Cause, Finding, State};
use crate::explain::scene::Way;

/// Reasons of events by which kubelet tells that a mount failed.
const MOUNT_FAILED: [&str; 3] = ["FailedMount", "FailedMapVolume", "FailedAttachVolume"];
/// What a container waits for while its volumes are being mounted.
const BEFORE_MOUNT: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// An attachment that is attached, and whose volume a pod on the node uses as far as can be seen.
pub(super) fn attached(way: &Way<'_>, va: &Attachment) -> Finding {
    let since = attached_since(va);
    let node = &va.spec.node_name;
    if way.node_is_gone() {
        return node_gone(way, since);
    }
    let unready = way.node_unready();
    let leaving = way.pod.and_then(|pod| pod.metadata.deletion_timestamp);
    if leaving.is_some() {
        return match unready {
            Some((since, message)) => detach::node_lost(way, since, &message),
            None => Finding::new(
                Cause::StillMounted,
                way.scene.waiting(leaving),
                Actor::Kubelet,
                "The pod is being deleted; when its containers have ended, the volume is unmounted and detached.",
            )
            .of(node)
            .since(leaving)
            .advise("If this lasts longer than the pod's grace period, look at the kubelet's log on the node."),
        };
    }
    if let Some((since, message)) = unready {
        return Finding::new(
            Cause::NodeNotReady,
            way.scene.waiting(since),
            Actor::Kubelet,
            format!("The volume is attached, but node {node} is not ready."),
        )
        .of(node)
        .since(since)
        .because(format!("The node's Ready condition: {message}"))
        .advise_to_run(
            "See what became of the node.",
            format!("kubectl describe node {node}"),
        );
    }
    if way.node_told() == Some(false) {
        return Finding::new(
            Cause::NodeNotTold,
            way.scene.waiting(since),
            Actor::AttachDetachController,
            format!("The volume is attached, but the status of node {node} does not say so yet, and kubelet waits for that."),
        )
        .since(since)
        .because(format!("node.status.volumesAttached lacks {}.", way.unique_name().unwrap_or_default()))
        .because("The attach/detach controller writes it after it has seen status.attached. It does so only for volumes that it asked for: not for a VolumeAttachment made by hand.")
        .advise("If this lasts, look at kube-controller-manager's log.");
    }
    match way.pod {
        Some(pod) => of_pod(way, pod, since),
        None => Finding::new(Cause::Fine, State::Fine, Actor::Nobody, "The volume is attached.").since(since),
    }
}

/// A volume that is used without being attached.
pub(super) fn without_attachment(way: &Way<'_>) -> Finding {
    let driver = way.driver().unwrap_or_default();
    let why = format!(
        "CSIDriver {driver} says attachRequired: false, so there is no VolumeAttachment, and none is needed."
    );
    let finding = match way.pod {
        Some(pod) => of_pod(way, pod, scheduled(way)),
        None => Finding::new(
            Cause::Fine,
            State::Fine,
            Actor::Nobody,
            "The volume needs no attaching.",
        ),
    };
    finding.because(why)
}

/// Attached, or needing no attachment: kubelet's part.
fn of_pod(way: &Way<'_>, pod: &Pod, since: Option<Timestamp>) -> Finding {
    if let Some(other) = past_mounting(pod) {
        let finding = Finding::new(
            Cause::Fine,
            State::Fine,
            Actor::Nobody,
            "The volume is mounted in its pod.",
        );
        return finding.since(started(pod)).because_of(other);
    }
    let node = way.node.unwrap_or_default();
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    let node_plugin = format!("kubectl get pods -A -o wide --field-selector spec.nodeName={node}");
    match pod_says(way, &MOUNT_FAILED) {
        Some(said) => Finding::new(
            Cause::MountFails,
            State::Stuck,
            Actor::Kubelet,
            "The volume is attached; kubelet has not succeeded in mounting it.",
        )
        .of(node)
        .since(since)
        .because(said)
        .advise_to_run(
            "kubelet tries again by itself. Mounting is done by the driver's node plugin on the node: find its pod, and read its log.",
            node_plugin,
        )
        .advise_to_run("See all that is told of the pod.", format!("kubectl -n {namespace} describe pod {name}")),
        None => Finding::new(
            Cause::Mounting,
            way.scene.waiting(since),
            Actor::Kubelet,
            "The volume is attached; kubelet is to mount it and start the pod.",
        )
        .of(node)
        .since(since)
        .advise_to_run("If this lasts, see what is told of the pod.", format!("kubectl -n {namespace} describe pod {name}")),
    }
}

/// Whether kubelet has mounted all volumes of the pod, which it does before any container: then the
/// answer holds what the pod waits for beside.
pub(super) fn past_mounting(pod: &Pod) -> Option<Option<String>> {
    if pod.status.phase == "Running" {
        return Some(None);
    }
    let status = &pod.status;
    let states = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    for container in states {
        let state = &container.state;
        if state.running.is_some() || state.terminated.is_some() {
            return Some(None);
        }
        if let Some(waiting) = &state.waiting
            && !BEFORE_MOUNT.contains(&waiting.reason.as_str())
        {
            let reason = format!("{} {}", waiting.reason, waiting.message);
            let text = format!(
                "That the pod does not run has another reason: container {} waits: {}",
                container.name,
                reason.trim_end()
            );
            return Some(Some(text));
        }
    }
    None
}

/// When the first container ran.
pub(super) fn started(pod: &Pod) -> Option<Timestamp> {
    let status = &pod.status;
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    let started = containers.filter_map(|container| container.state.running.as_ref()?.started_at);
    started.min()
}

/// When the status was last written by the attacher, which writes it no more after `attached`.
pub(super) fn attached_since(va: &Attachment) -> Option<Timestamp> {
    let written = va.metadata.written_by(MANAGER, "status");
    written.or(va.metadata.creation_timestamp)
}
