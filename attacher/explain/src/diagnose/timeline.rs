//! The steps of a path, with their times as far as Kubernetes records them.

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::attachment::{attached_at, has_finalizer, recorded_at};
use super::pod::{self, Mount};
use crate::objects::{AttachmentExt, ObjectExt, PodExt, VolumeExt};
use crate::path::VolumePath;
use crate::report::Step;

/// The objects of the path in one line.
pub(super) fn title(path: &VolumePath<'_>) -> String {
    let mut title = match (path.pod_volume, &path.volume_name) {
        (Some(name), _) => format!("volume {name:?}"),
        (None, Some(_)) => "volume".to_owned(),
        (None, None) if path.is_inline() => "inline volume".to_owned(),
        (None, None) => "claim".to_owned(),
    };
    if let Some(pod) = path.pod {
        title.push_str(&format!(" of pod {}/{}", pod.namespace(), pod.name()));
    }
    let mut parts = Vec::new();
    parts.extend(path.claim.as_ref().map(|claim| format!("claim {claim}")));
    parts.extend(
        path.volume_name
            .as_ref()
            .map(|name| format!("PersistentVolume {name}")),
    );
    parts.extend(path.driver().map(|driver| format!("driver {driver}")));
    if !parts.is_empty() {
        title.push_str(&format!(" ({})", parts.join(", ")));
    }
    if let Some(node) = path.node_name {
        title.push_str(if deleting(path).is_some() {
            ", from node "
        } else {
            ", to node "
        });
        title.push_str(node);
    }
    title
}

/// The steps in their order; the first that is not done is the current one.
pub(super) fn steps(path: &VolumePath<'_>) -> Vec<Step> {
    match deleting(path) {
        Some(va) => detach(path, va),
        None => attach(path),
    }
}

fn deleting<'s>(path: &VolumePath<'s>) -> Option<&'s VolumeAttachment> {
    path.attachment.filter(|va| va.deleted_at().is_some())
}

fn attach(path: &VolumePath<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    if path.claim.is_some() {
        let volume = path.volume();
        let is_bound = volume.is_some_and(|volume| volume.phase() == "Bound");
        let name = path.volume_name.as_ref();
        let text = name.map_or_else(
            || "claim bound to a PersistentVolume".to_owned(),
            |name| format!("claim bound to PersistentVolume {name}"),
        );
        steps.push(step(is_bound, text, volume.and_then(VolumeExt::phase_since)));
    }
    if let Some(pod) = path.pod {
        let node = pod.node_name();
        let text = if node.is_empty() {
            "pod scheduled".to_owned()
        } else {
            format!("pod scheduled to node {node}")
        };
        steps.push(step(!node.is_empty(), text, pod::scheduled_at(pod)));
    }
    if path.pod.is_none() && path.attachment.is_none() {
        return steps;
    }
    let needs_none = path
        .driver()
        .is_some_and(|driver| path.view.needs_no_attachment(&driver));
    let is_not_csi = path.volume().is_some() && path.driver().is_none();
    if !needs_none && !is_not_csi {
        steps.extend(publish(path));
    }
    if let Some(pod) = path.pod {
        steps.push(step(
            matches!(pod::mount(pod), Mount::Done { .. }),
            "mounted by kubelet, pod started".to_owned(),
            pod::started_at(pod),
        ));
    }
    steps
}

fn publish(path: &VolumePath<'_>) -> [Step; 4] {
    let va = path.attachment;
    let recorded = va.filter(|va| has_finalizer(path, va));
    let attached = va.filter(|va| va.is_attached());
    // Without the Node object, the attachment's status is the best source.
    let is_listed =
        attached.is_some() && !path.node_is_gone() && path.is_in_volumes_attached() != Some(false);
    [
        step(
            va.is_some(),
            va.map_or_else(
                || "VolumeAttachment created".to_owned(),
                |va| format!("VolumeAttachment {} created", va.name()),
            ),
            va.and_then(ObjectExt::created_at),
        ),
        step(
            // A driver without ControllerPublishVolume is attached without a finalizer.
            recorded.or(attached).is_some(),
            "recorded by the attacher (finalizer, node id)".to_owned(),
            recorded.and_then(recorded_at),
        ),
        step(
            attached.is_some(),
            "attached by the driver (status.attached)".to_owned(),
            attached.and_then(attached_at),
        ),
        step(
            is_listed,
            "listed for kubelet (node.status.volumesAttached)".to_owned(),
            None,
        ),
    ]
}

fn detach(path: &VolumePath<'_>, va: &VolumeAttachment) -> Vec<Step> {
    vec![
        step(
            !path.is_in_use(),
            "unmounted by kubelet (node.status.volumesInUse)".to_owned(),
            None,
        ),
        step(
            true,
            format!("VolumeAttachment {} deleted", va.name()),
            va.deleted_at(),
        ),
        step(
            !has_finalizer(path, va),
            "detached by the driver, attacher's finalizer removed".to_owned(),
            None,
        ),
        step(
            va.finalizers().is_empty(),
            "all finalizers removed, object gone".to_owned(),
            None,
        ),
    ]
}

fn step(done: bool, text: String, since: Option<Timestamp>) -> Step {
    Step {
        done,
        text,
        since: since.filter(|_| done),
    }
}
