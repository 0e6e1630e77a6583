//! The volume is attached, or needs no attachment: kubelet's part.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::pod::Mount;
use super::{attachment, node, pod};
use crate::objects::ObjectExt;
use crate::path::VolumePath;
use crate::report::{Actor, Cause, Finding};

/// Reasons of events by which kubelet reports that a mount failed.
const MOUNT_FAILED: [&str; 3] = ["FailedMount", "FailedMapVolume", "FailedAttachVolume"];

/// The volume is attached, and as far as is known a pod on the node uses it.
pub(super) fn attached(path: &VolumePath<'_>, va: &VolumeAttachment) -> Finding {
    let since = attachment::attached_at(va);
    let node = &va.spec.node_name;
    if path.node_is_gone() {
        return node::gone(path, since);
    }
    let not_ready = path.node_not_ready();
    let deleted_at = path.pod.and_then(ObjectExt::deleted_at);
    if deleted_at.is_some() {
        return match not_ready {
            Some((since, message)) => node::lost(path, since, message),
            None => path.due(
                deleted_at,
                Cause::StillMounted,
                Actor::Kubelet,
                "The pod is being deleted; when its containers have ended, the volume is unmounted and detached.",
            )
            .of(node)
            .advise("If this lasts longer than the pod's grace period, look at the kubelet's log on the node."),
        };
    }
    if let Some((since, message)) = not_ready {
        return path
            .due(
                since,
                Cause::NodeNotReady,
                Actor::Kubelet,
                format!("The volume is attached, but node {node} is not ready."),
            )
            .of(node)
            .because(format!("The node's Ready condition: {message}"))
            .advise_to_run("Look at the node.", format!("kubectl describe node {node}"));
    }
    if path.is_in_volumes_attached() == Some(false) {
        return path.due(
            since,
            Cause::NotInVolumesAttached,
            Actor::AttachDetachController,
            format!("The volume is attached, but the status of node {node} does not list it yet, and kubelet waits for that."),
        )
        .because(format!("node.status.volumesAttached lacks {}.", path.unique_name().unwrap_or_default()))
        .because("The attach/detach controller writes it when it sees status.attached, and only for volumes that it attaches itself: not for a VolumeAttachment created by hand.")
        .advise("If this lasts, look at kube-controller-manager's log.");
    }
    match path.pod {
        Some(pod) => mounting(path, pod, since),
        None => Finding::fine(Cause::Fine, "The volume is attached.").since(since),
    }
}

/// A volume of a driver with `attachRequired: false`.
pub(super) fn without_attachment(path: &VolumePath<'_>) -> Finding {
    let driver = path.driver().unwrap_or_default();
    let finding = match path.pod {
        Some(pod) => mounting(path, pod, pod::scheduled_at(pod)),
        None => Finding::fine(Cause::Fine, "The volume needs no attachment."),
    };
    finding.because(format!(
        "CSIDriver {driver} has attachRequired: false, so there is no VolumeAttachment, and none is needed."
    ))
}

fn mounting(path: &VolumePath<'_>, pod: &Pod, since: Option<Timestamp>) -> Finding {
    if let Mount::Done { waiting } = pod::mount(pod) {
        let finding = Finding::fine(Cause::Fine, "The volume is mounted in its pod.");
        return finding.since(pod::started_at(pod)).because_of(waiting);
    }
    let node = path.node_name.unwrap_or_default();
    let describe = format!("kubectl -n {} describe pod {}", pod.namespace(), pod.name());
    match pod::warning(path, &MOUNT_FAILED) {
        Some(warning) => Finding::stuck(
            Cause::MountFails,
            Actor::Kubelet,
            "The volume is attached; kubelet fails to mount it.",
        )
        .of(node)
        .since(since)
        .because(warning)
        .advise_to_run(
            "kubelet retries. The driver's node plugin on the node does the mounting: find its pod, and read its log.",
            format!("kubectl get pods -A -o wide --field-selector spec.nodeName={node}"),
        )
        .advise_to_run("See all events of the pod.", describe),
        None => path.due(
            since,
            Cause::Mounting,
            Actor::Kubelet,
            "The volume is attached; kubelet is about to mount it and start the pod.",
        )
        .of(node)
        .advise_to_run("If this lasts, see the events of the pod.", describe),
    }
}
