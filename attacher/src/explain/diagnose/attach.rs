//! On the way to a node: from a scheduled pod to its VolumeAttachment.

use jiff::Timestamp;

use super::detach;
use crate::explain::objects::{Attachment, Pod};
use crate::explain::report::{Actor, Cause, Finding, State};
use crate::explain::scene::Way;

/// By this a kubelet leaves attaching to the attach/detach controller.
const CONTROLLER_MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// A scheduled pod's volume for which there is no attachment to the pod's node.
pub(super) fn no_attachment(way: &Way<'_>) -> Finding {
    let since = scheduled(way);
    let waiting = way.scene.waiting(since);
    let driver = way.driver();
    if way.volume().is_some() && driver.is_none() {
        return Finding::new(
            Cause::NotCsi,
            State::Fine,
            Actor::Kubelet,
            "The volume is no CSI volume, so no CSI attacher has to do with it.",
        )
        .of(way.node.unwrap_or_default());
    }
    if let Some(driver) = &driver
        && way.scene.needs_no_attachment(driver)
    {
        return super::mount::without_attachment(way);
    }
    if !way.scene.snapshot.attachments_complete {
        return Finding::new(
            Cause::Unreadable,
            State::Progressing,
            Actor::AttachDetachController,
            "Whether there is a VolumeAttachment could not be seen.",
        );
    }
    if way.node_is_gone() {
        return node_gone(way, since);
    }
    if !way.is_multi_node()
        && let Some(other) = way.elsewhere().next()
    {
        return multi_attach(way, other, since);
    }
    if let Some(node) = way.node()
        && node
            .metadata
            .annotations
            .get(CONTROLLER_MANAGED)
            .is_none_or(|value| value != "true")
    {
        let name = &node.metadata.name;
        return Finding::new(
            Cause::NodeNotManaged,
            waiting,
            Actor::Kubelet,
            format!("Node {name} has not left attaching to the attach/detach controller, which therefore does nothing for it."),
        )
        .of(name)
        .since(since)
        .because(format!("The node lacks the annotation {CONTROLLER_MANAGED}=true, which kubelet sets unless enableControllerAttachDetach is false."))
        .advise("Set enableControllerAttachDetach: true in the kubelet's configuration and restart it; CSI volumes cannot be attached otherwise.");
    }
    Finding::new(
        Cause::NoAttachmentYet,
        waiting,
        Actor::AttachDetachController,
        "There is no VolumeAttachment for this volume and node yet.",
    )
    .since(since)
    .because_of(pod_says(way, &["FailedAttachVolume"]))
    .advise_to_run(
        "If this lasts, see whether the attach/detach controller works: it is part of kube-controller-manager.",
        "kubectl -n kube-system get pods -l component=kube-controller-manager -o wide",
    )
}

/// An attachment that nobody needs, of a driver that attaches nothing.
pub(super) fn not_required(way: &Way<'_>, va: &Attachment) -> Finding {
    let driver = &va.spec.attacher;
    let name = &va.metadata.name;
    let since = va.metadata.deletion_timestamp.or(va.metadata.creation_timestamp);
    let finalizers = va.metadata.finalizers.join(", ");
    let mut finding = Finding::new(
        Cause::AttachmentNotRequired,
        way.scene.waiting(since),
        Actor::Person,
        format!("CSIDriver {driver} says attachRequired: false, so this VolumeAttachment has no use and perhaps no attacher."),
    )
    .since(since)
    .because("It was made before the driver was set to attachRequired: false, or by hand.");
    if va.metadata.deletion_timestamp.is_none() {
        finding = finding.advise_to_run(
            "When no pod on the node uses the volume, delete it.",
            format!("kubectl delete volumeattachment {name}"),
        );
    }
    if !finalizers.is_empty() {
        finding = finding
            .because(format!("It is held by the finalizers {finalizers}."))
            .advise_to_run(
                "If no attacher of this driver runs any more, take the finalizer off by hand.",
                detach::let_go(name, &va.metadata.finalizers),
            )
            .danger("If the driver did attach the volume, it stays attached at the storage.");
    }
    finding
}

/// Another node has the volume, and only one may.
pub(super) fn multi_attach(way: &Way<'_>, other: &Attachment, since: Option<Timestamp>) -> Finding {
    let there = Way::of_attachment(way.scene, other);
    let node = &other.spec.node_name;
    let modes = way
        .volume()
        .map(|volume| volume.wire.spec.access_modes.join(", "));
    let users: Vec<&Pod> = there.pods_on_node().into_iter().map(|(pod, _)| pod).collect();
    let alive = users.iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
    let finding = match alive {
        // Nothing will move by itself.
        Some(pod) => {
            let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
            let mut finding = Finding::new(Cause::MultiAttach, State::Stuck, Actor::Person, String::new())
                .because(format!("Pod {namespace}/{name} uses it on node {node}."))
                .advise("Run both pods on one node, use a volume with access mode ReadWriteMany, or end the other pod:")
                .advise_to_run("End the other pod, if this one is to take its place.", format!("kubectl -n {namespace} delete pod {name}"));
            if let Some((since, message)) = there.node_unready() {
                let gone = detach::node_lost(&there, since, &message);
                finding = finding.because_of(gone.why);
                finding.advice.extend(gone.advice);
            }
            finding
        }
        None => {
            let holder = super::finding(&there);
            let mut finding = Finding::new(
                Cause::MultiAttach,
                way.scene.waiting(since).max(holder.state),
                holder.actor,
                String::new(),
            );
            finding.who = holder.who;
            finding.why = holder.why;
            finding.why.insert(0, holder.summary);
            finding.advice = holder.advice;
            finding
        }
    };
    let mut finding = finding.since(since);
    finding.summary =
        format!("The volume is still attached to node {node}, and only one node at a time may have it.");
    finding.why.insert(
        0,
        format!(
            "Its access modes are {}; VolumeAttachment {} holds it on node {node}.",
            modes.unwrap_or_default(),
            other.metadata.name
        ),
    );
    finding.because_of(pod_says(way, &["FailedAttachVolume"]))
}

/// The node that something is to be attached to does not exist.
pub(super) fn node_gone(way: &Way<'_>, since: Option<Timestamp>) -> Finding {
    let node = way.node.unwrap_or_default();
    Finding::new(
        Cause::NodeGone,
        State::Stuck,
        Actor::AttachDetachController,
        format!("There is no node {node} any more."),
    )
    .since(since)
    .because("Pods of a node that is gone are removed after a minute or so; then the attach/detach controller deletes the attachment.")
    .advise_to_run("If a pod stays behind, remove it.", pods_on(node))
}

/// What the pod's newest warnings of these reasons say.
pub(super) fn pod_says(way: &Way<'_>, reasons: &[&str]) -> Option<String> {
    let pod = way.pod?;
    let events = way
        .scene
        .events("Pod", &pod.metadata.namespace, &pod.metadata.name);
    let mut told = events
        .iter()
        .filter(|event| reasons.contains(&event.reason.as_str()));
    // Events name the volume as the pod does, or the PersistentVolume.
    let names = [way.pod_volume, way.volume.as_deref()];
    let about = |text: &str| {
        names
            .iter()
            .flatten()
            .any(|name| text.contains(&format!("\"{name}\"")) || text.contains(&format!("[{name}]")))
    };
    let event = told
        .clone()
        .find(|event| about(&event.message))
        .or_else(|| told.next())?;
    Some(format!("The pod's event {}: {}", event.reason, event.message))
}

/// When the pod was given its node.
pub(super) fn scheduled(way: &Way<'_>) -> Option<Timestamp> {
    let pod = way.pod?;
    let condition = pod
        .condition("PodScheduled")
        .filter(|condition| condition.status == "True");
    let scheduled = condition.and_then(|condition| condition.last_transition_time);
    scheduled.or(pod.metadata.creation_timestamp)
}

fn pods_on(node: &str) -> String {
    format!("kubectl get pods -A --field-selector spec.nodeName={node}")
}
