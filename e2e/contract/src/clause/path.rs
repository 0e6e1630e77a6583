//! Clauses about the whole path.

use super::{Deferred, Findings, Now};
use crate::observation::{Method, Name, Observation, Target};

fn is_single_node(now: Now<'_>, volume: &str) -> bool {
    now.world
        .volume_of(volume)
        .is_some_and(|volume| volume.single_node)
}

/// Two nodes that write to one filesystem destroy it.
pub(super) fn one_node(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Observation::Array(target, true) = seen else {
        return;
    };
    let published = now.world.published.iter();
    let mut elsewhere =
        published.filter(|(other, _)| other.volume == target.volume && other.node != target.node);
    if let Some((other, since)) = elsewhere.next().filter(|_| is_single_node(now, &target.volume)) {
        let text = format!("it was published to {} and {} at once", other.node, target.node);
        findings.add(format!("volume {}", target.volume), text, [*since]);
    }
}

/// kubelet mounts what is listed, and a pod that starts while the volume is being detached waits for nothing.
pub(super) fn listed_while_attached(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let Observation::VolumesAttached(node, volumes) = seen else {
        return;
    };
    let is_listed = |volume: &Name| {
        let node = now.world.nodes.get(node);
        node.is_some_and(|node| node.listed.contains(volume))
    };
    for volume in volumes.iter().filter(|volume| !is_listed(volume)) {
        let of_volume = now.world.attachments.values().filter(|state| {
            state.version.node == *node && now.world.handle(&state.version).as_ref() == Some(volume)
        });
        for state in of_volume.filter(|state| state.deleting.is_some()) {
            let text = format!("its volumesAttached lists volume {volume} again, which is being detached");
            findings.add(format!("Node {node}"), text, state.deleting);
        }
    }
}

/// A node from which the volume was force-detached cannot unmount it.
pub(super) fn one_mount(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Observation::Mounted(target, true) = seen else {
        return;
    };
    let mounted = now.world.mounted.iter();
    let mut elsewhere = mounted.filter(|(other, _)| {
        other.volume == target.volume && other.node != target.node && now.world.forced(other).is_none()
    });
    if let Some((other, since)) = elsewhere.next().filter(|_| is_single_node(now, &target.volume)) {
        let text = format!("it was mounted on {} and {} at once", other.node, target.node);
        findings.add(format!("volume {}", target.volume), text, [*since]);
    }
}

/// The device vanishes under the filesystem. A force that begins later does not excuse it.
pub(super) fn no_detach_while_mounted(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let mounted: Vec<(&Target, usize)> = match seen {
        Observation::CallBegan(call) if call.method == Method::Unpublish => {
            let mounted = now.world.mounted.iter();
            let mounted = mounted.filter(|(mount, _)| call.target.includes(mount));
            mounted.map(|(mount, &since)| (mount, since)).collect()
        }
        // In an adverse environment, others than the effect of a call that the client has cancelled may be made out of band.
        Observation::Array(target, false) if now.is_honest() || is_cut_off(now, target) => {
            let mounted = now.world.mounted.get_key_value(target);
            mounted
                .map(|(mount, &since)| (mount, since))
                .into_iter()
                .collect()
        }
        _ => return,
    };
    for (mount, since) in mounted {
        if now.world.forced(mount).is_none() {
            findings.add(mount, "it was unpublished while it is mounted there", [since]);
        }
    }
}

/// Whether the last unpublish was cancelled, so that it may take effect at any time.
fn is_cut_off(now: Now<'_>, target: &Target) -> bool {
    let known = now.world.targets.get(target);
    let failed = known.and_then(|known| known.failures.1.as_ref());
    failed.is_some_and(|answer| &*answer.code == "CANCELLED")
}

/// A node that still writes to it gets errors, or writes to the next volume.
pub(super) fn kept_while_published(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let Observation::VolumeDeleted(volume) = seen else {
        return;
    };
    let published = now.world.published.iter();
    for (target, since) in published.filter(|(target, _)| target.volume == *volume) {
        findings.add(target, "the volume was deleted while it is published", [*since]);
    }
}

/// A volume that stays attached to another node blocks the pod for ever.
pub(super) fn pods_run(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let (Observation::Settled, Some(healed)) = (seen, now.world.healed) else {
        return;
    };
    for pod in now.world.pods.values().filter(|pod| !pod.running) {
        findings.add(format!("pod {}", pod.name), "it does not run", [healed]);
    }
}

/// Pods on other nodes cannot use it.
pub(super) fn attached_for_pods(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let (Observation::Settled, Some(healed)) = (seen, now.world.healed) else {
        return;
    };
    for state in now.world.attachments.values() {
        let attachment = &state.version;
        let mut pods = now.world.pods.values();
        let is_needed = pods.any(|pod| {
            pod.node.as_ref() == Some(&attachment.node) && pod.volume.as_ref() == Some(&attachment.volume)
        });
        if now.world.used.contains(&attachment.volume) && !is_needed {
            findings.add(
                &attachment.name,
                "no pod of its node uses the volume",
                [healed, state.seen.1],
            );
        }
    }
}

/// A pod that runs without its VolumeAttachment loses the volume to a pod on another node.
pub(super) fn pods_attached(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let (Observation::Settled, Some(healed), true) = (seen, now.world.healed, now.is_honest()) else {
        return;
    };
    for pod in now.world.pods.values().filter(|pod| pod.running) {
        let mut attachments = now.world.attachments.values().map(|state| &state.version);
        let is_attached = attachments.any(|attachment| {
            let is_of_pod = pod.node.as_ref() == Some(&attachment.node)
                && pod.volume.as_ref() == Some(&attachment.volume);
            is_of_pod && attachment.attached && attachment.deleting.is_none()
        });
        if pod.volume.is_some() && !is_attached {
            findings.add(
                format!("pod {}", pod.name),
                "it runs, and its volume is not attached to its node",
                [healed],
            );
        }
    }
}

/// A panic is a bug, whatever else holds.
pub(super) fn no_panic(_: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    if let Observation::Panicked(component) = seen {
        findings.add(component, "it panicked", []);
    }
}
