//! On the way from a node: attachments that are being deleted, or that nobody needs.

use jiff::Timestamp;

use super::{attach, attacher, code, unattached};
use crate::explain::objects::Attachment;
use crate::explain::report::{Actor, Cause, Finding, State};
use crate::explain::scene::Way;

/// The taint by which an administrator vouches that a node is shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// An attachment with a deletion timestamp.
pub(super) fn deleting(way: &Way<'_>, va: &Attachment) -> Finding {
    let since = va.metadata.deletion_timestamp;
    let mut finding = if unattached::is_recorded(way, va) {
        detaching(way, va, since)
    } else if va.metadata.finalizers.is_empty() {
        Finding::new(
            Cause::Vanishing,
            way.scene.waiting(since),
            Actor::Nobody,
            "The VolumeAttachment is deleted and nothing holds it any more.",
        )
        .since(since)
    } else {
        foreign_finalizer(way, va, since)
    };
    if let Some(pod) = way.pod
        && pod.metadata.deletion_timestamp.is_none()
    {
        finding = finding.because(format!(
            "Pod {}/{} wants the volume on this node again; when the old VolumeAttachment is gone, the attach/detach \
             controller makes a new one.",
            pod.metadata.namespace, pod.metadata.name
        ));
    }
    finding
}

fn detaching(way: &Way<'_>, va: &Attachment, since: Option<Timestamp>) -> Finding {
    let driver = &va.spec.attacher;
    let error = va.status.detach_error.as_ref();
    if let Some(down) = attacher::is_down(way.scene, driver, unattached::last_sign(va, error), since) {
        let said = error.map(|error| format!("Before that, the detach failed: {}", unattached::said(error)));
        return down.because_of(said);
    }
    if let Some(refusal) = way.refusal() {
        let finding = unattached::refused(way, va, &refusal, error);
        return by_hand(way, va, finding);
    }
    let Some(error) = error else {
        return calling(way, va, since);
    };
    if error
        .message
        .as_deref()
        .is_some_and(|message| message.contains(unattached::SECRET_UNREADABLE))
    {
        return unattached::secret_unreadable(way, error, since);
    }
    let code = code::of(error);
    let actor = if code.is_some() {
        Actor::Driver
    } else {
        Actor::Attacher
    };
    let mut finding = Finding::new(Cause::DetachFails, State::Stuck, actor, "The detach fails.")
        .of(driver)
        .since(since)
        .because(unattached::said(error));
    if let Some(code) = code {
        finding = finding
            .because(format!(
                "Code {code} ({}) means: {}.",
                code.number(),
                code::meaning(code)
            ))
            .advise(code::advice(code));
    }
    by_hand(way, va, unattached::retries(way, driver, finding))
}

/// The driver is being called, or soon will be.
fn calling(way: &Way<'_>, va: &Attachment, since: Option<Timestamp>) -> Finding {
    let driver = &va.spec.attacher;
    let state = way.scene.waiting(since);
    let finding = if way.in_use() {
        let node = &va.spec.node_name;
        Finding::new(
            Cause::DetachWhileInUse,
            state,
            Actor::Driver,
            format!("The volume is being detached although kubelet on node {node} still reports it in use."),
        )
        .because("Either the VolumeAttachment was deleted by hand, or the attach/detach controller detaches by force from a node that it takes for lost.")
        .advise("Make sure that nothing on the node writes to the volume any more: until it is unmounted there, its filesystem can be damaged.")
    } else {
        Finding::new(
            Cause::Detaching,
            state,
            Actor::Driver,
            "The attacher is to detach the volume; the driver has not answered yet.",
        )
    };
    attacher::look_after(way.scene, driver, finding.of(driver).since(since))
}

/// What is left when a detach never succeeds.
fn by_hand(way: &Way<'_>, va: &Attachment, finding: Finding) -> Finding {
    let name = &va.metadata.name;
    let Some(finalizer) = way.finalizer() else {
        return finding;
    };
    finding
        .advise_to_run(
            "As the last resort, when the storage shows that the volume is not attached to this node any more, let the \
             VolumeAttachment go without the driver:",
            let_go(name, std::slice::from_ref(&finalizer)),
        )
        .danger(
            "If the volume is in truth still attached, it will be attached to another node as well, and its data can \
             be destroyed.",
        )
}

/// The command that takes these finalizers off and no others: whoever put those there still counts on them.
pub(super) fn let_go(name: &str, finalizers: &[String]) -> String {
    let quoted: Vec<_> = finalizers
        .iter()
        .map(|finalizer| format!("\"{finalizer}\""))
        .collect();
    format!(
        "kubectl patch volumeattachment {name} --type=strategic -p \
         '{{\"metadata\":{{\"$deleteFromPrimitiveList/finalizers\":[{}]}}}}'",
        quoted.join(",")
    )
}

fn foreign_finalizer(way: &Way<'_>, va: &Attachment, since: Option<Timestamp>) -> Finding {
    let finalizers = va.metadata.finalizers.join(", ");
    let name = &va.metadata.name;
    Finding::new(
        Cause::ForeignFinalizer,
        way.scene.waiting(since),
        Actor::Person,
        format!("The VolumeAttachment is deleted and held by a finalizer that is not this attacher's: {finalizers}."),
    )
    .since(since)
    .because("The attacher has nothing to do with it (any more). Whoever put the finalizer there must take it off.")
    .advise_to_run("See what it is and who wrote it.", format!("kubectl get volumeattachment {name} -o yaml --show-managed-fields"))
    .advise_to_run(
        "If its owner does not exist any more, take it off by hand.",
        let_go(name, &va.metadata.finalizers),
    )
    .danger("What the finalizer's owner had to clean up stays behind.")
}

/// Attached, and no pod on the node uses it.
pub(super) fn leftover(way: &Way<'_>, va: &Attachment) -> Finding {
    let node = &va.spec.node_name;
    if way.node_is_gone() {
        return attach::node_gone(way, va.metadata.creation_timestamp);
    }
    let unready = way.node_unready();
    if !way.in_use() {
        return Finding::new(
            Cause::DetachNotRequested,
            State::Progressing,
            Actor::AttachDetachController,
            format!("No pod uses the volume on node {node} any more; it is to be detached."),
        )
        .because("kubelet does not report the volume in use. The attach/detach controller deletes the VolumeAttachment, unless it was made by hand: it does not know those.")
        .advise("If this lasts for more than a minute, look at kube-controller-manager's log.");
    }
    let Some((since, message)) = unready else {
        return Finding::new(
            Cause::StillMounted,
            State::Progressing,
            Actor::Kubelet,
            format!("No pod uses the volume on node {node} any more, but kubelet has not unmounted it."),
        )
        .of(node)
        .because("The node's status.volumesInUse still names it; the volume is not detached before that ends.")
        .advise("If this lasts, look at the kubelet's log on the node for failing unmounts (NodeUnpublishVolume, NodeUnstageVolume).");
    };
    // Without a pod, the controller waits for the unmount at most six minutes.
    let state = way.scene.waiting(since);
    let finding = Finding::new(
        Cause::StillMounted,
        state,
        Actor::AttachDetachController,
        format!("Node {node} is not ready, so nobody unmounts the volume there."),
    )
    .since(since)
    .because(format!("kubelet reported it in use before the node fell silent: {message}"))
    .because("As no pod needs it there any more, the attach/detach controller detaches it by force six minutes after it was to be detached.");
    vouch(way, finding)
}

/// A pod holds the volume on a node that is not ready.
pub(super) fn node_lost(way: &Way<'_>, since: Option<Timestamp>, message: &str) -> Finding {
    let node = way.node.unwrap_or_default();
    let finding = Finding::new(
        Cause::NodeLost,
        way.scene.waiting(since),
        Actor::Person,
        format!("Node {node} is not ready, and its pod still holds the volume."),
    )
    .since(since)
    .because(format!("The node's Ready condition: {message}"))
    .because("As long as the pod object exists, Kubernetes does not know whether the node still writes, and leaves the volume there.");
    vouch(way, finding)
}

/// Who may say that a node is dead, and how.
fn vouch(way: &Way<'_>, finding: Finding) -> Finding {
    let node = way.node.unwrap_or_default();
    if way.node().is_some_and(|node| node.has_taint(OUT_OF_SERVICE)) {
        let mut finding = finding.because(format!(
            "The node is tainted {OUT_OF_SERVICE}: its pods are removed and its volumes detached at once."
        ));
        finding.actor = Actor::AttachDetachController;
        return finding.of("");
    }
    finding
        .advise("Bring the node back: its kubelet then unmounts and everything goes on by itself.")
        .advise_to_run(
            "Or, if the machine is shut down for sure (power off, instance terminated), vouch for that; pods are then removed and volumes detached at once.",
            format!("kubectl taint nodes {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"),
        )
        .danger("If the machine is still running, two nodes write to the same volume and its data is destroyed. Take the taint off when the node comes back.")
}
