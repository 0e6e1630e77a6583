//! The way of a volume step by step, with the times that Kubernetes has kept.

use jiff::Timestamp;

use super::{attach, mount, unattached};
use crate::explain::report::Step;
use crate::explain::scene::Way;

/// What a way is about, in words.
pub(super) fn title(way: &Way<'_>) -> String {
    let mut title = match (way.pod_volume, &way.volume) {
        (Some(name), _) => format!("volume {name:?}"),
        (None, Some(_)) => "volume".to_owned(),
        (None, None) if way.is_inline() => "inline volume".to_owned(),
        (None, None) => "claim".to_owned(),
    };
    if let Some(pod) = way.pod {
        title.push_str(&format!(
            " of pod {}/{}",
            pod.metadata.namespace, pod.metadata.name
        ));
    }
    let mut parts = Vec::new();
    if let Some((namespace, name)) = &way.claim {
        parts.push(format!("claim {namespace}/{name}"));
    }
    if let Some(volume) = &way.volume {
        parts.push(format!("PersistentVolume {volume}"));
    }
    if let Some(driver) = way.driver() {
        parts.push(format!("driver {driver}"));
    }
    if !parts.is_empty() {
        title.push_str(&format!(" ({})", parts.join(", ")));
    }
    if let Some(node) = way.node {
        let leaves = way
            .attachment
            .is_some_and(|va| va.metadata.deletion_timestamp.is_some());
        title.push_str(if leaves { ", from node " } else { ", to node " });
        title.push_str(node);
    }
    title
}

/// The steps in their order. What is done stays done; the first that is not is where the way stands.
pub(super) fn steps(way: &Way<'_>) -> Vec<Step> {
    let leaves = way
        .attachment
        .is_some_and(|va| va.metadata.deletion_timestamp.is_some());
    if leaves { backward(way) } else { forward(way) }
}

fn forward(way: &Way<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    if way.claim.is_some() {
        let volume = way.volume();
        let bound = volume.is_some_and(|volume| volume.more.status.phase == "Bound");
        let since = volume.and_then(|volume| volume.more.status.last_phase_transition_time);
        let text = match &way.volume {
            Some(name) => format!("claim bound to PersistentVolume {name}"),
            None => "claim bound to a PersistentVolume".to_owned(),
        };
        steps.push(step(bound, text, since));
    }
    if let Some(pod) = way.pod {
        let node = &pod.spec.node_name;
        let text = if node.is_empty() {
            "pod given a node".to_owned()
        } else {
            format!("pod given node {node}")
        };
        steps.push(step(!node.is_empty(), text, attach::scheduled(way)));
    }
    if way.pod.is_none() && way.attachment.is_none() {
        return steps;
    }
    let needless = way
        .driver()
        .is_some_and(|driver| way.scene.needs_no_attachment(&driver));
    let not_csi = way.volume().is_some() && way.driver().is_none();
    if !needless && !not_csi {
        attaching(way, &mut steps);
    }
    if let Some(pod) = way.pod {
        let mounted = mount::past_mounting(pod).is_some();
        steps.push(step(
            mounted,
            "mounted by kubelet, pod started".to_owned(),
            mount::started(pod),
        ));
    }
    steps
}

fn attaching(way: &Way<'_>, steps: &mut Vec<Step>) {
    let va = way.attachment;
    let text = va.map_or_else(
        || "VolumeAttachment made".to_owned(),
        |va| format!("VolumeAttachment {} made", va.metadata.name),
    );
    steps.push(step(
        va.is_some(),
        text,
        va.and_then(|va| va.metadata.creation_timestamp),
    ));
    let recorded = va.filter(|va| unattached::is_recorded(way, va));
    let attached = va.filter(|va| va.status.attached);
    steps.push(step(
        // A trivial attacher attaches without a finalizer.
        recorded.or(attached).is_some(),
        "taken up by the attacher (finalizer, node id)".to_owned(),
        recorded.and_then(|va| va.metadata.written_by(unattached::MANAGER, "")),
    ));
    steps.push(step(
        attached.is_some(),
        "attached by the driver (status.attached)".to_owned(),
        attached.and_then(mount::attached_since),
    ));
    // Of a node that could not be read, nobody knows better than the attachment.
    let told = attached.is_some() && !way.node_is_gone() && way.node_told() != Some(false);
    steps.push(step(
        told,
        "told to kubelet (node.status.volumesAttached)".to_owned(),
        None,
    ));
}

fn backward(way: &Way<'_>) -> Vec<Step> {
    let Some(va) = way.attachment else {
        return Vec::new();
    };
    let name = &va.metadata.name;
    vec![
        step(
            !way.in_use(),
            "unmounted by kubelet (node.status.volumesInUse)".to_owned(),
            None,
        ),
        step(
            true,
            format!("VolumeAttachment {name} deleted"),
            va.metadata.deletion_timestamp,
        ),
        step(
            !unattached::is_recorded(way, va),
            "detached by the driver, attacher's finalizer off".to_owned(),
            None,
        ),
        step(
            va.metadata.finalizers.is_empty(),
            "all finalizers off, object gone".to_owned(),
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
