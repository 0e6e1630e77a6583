//! Detaches: VolumeAttachments that are being deleted, or that no pod needs.

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::attachment::{describe, has_finalizer, last_write, mentions, remove_finalizers};
use super::{attacher, grpc_code, node, refusal};
use crate::objects::{AttachmentExt, ObjectExt};
use crate::path::VolumePath;
use crate::report::{Actor, Cause, Finding, State};

/// The VolumeAttachment has a deletion timestamp.
pub(super) fn deleting(path: &VolumePath<'_>, va: &VolumeAttachment) -> Finding {
    let since = va.deleted_at();
    let finding = if has_finalizer(path, va) || lost_finalizer(va) {
        detaching(path, va, since)
    } else if va.finalizers().is_empty() {
        path.due(
            since,
            Cause::Terminating,
            Actor::Nothing,
            "The VolumeAttachment is deleted and has no finalizer any more.",
        )
    } else {
        foreign_finalizer(path, va, since)
    };
    match path.pod {
        Some(pod) if pod.deleted_at().is_none() => finding.because(format!(
            "Pod {}/{} needs the volume on this node again; when the old VolumeAttachment is gone, the attach/detach \
             controller creates a new one.",
            pod.namespace(),
            pod.name()
        )),
        Some(_) | None => finding,
    }
}

/// Whether others' finalizers alone keep a VolumeAttachment whose volume may be attached: the attacher's finalizer was removed, and
/// the attacher unpublishes the volume again.
fn lost_finalizer(va: &VolumeAttachment) -> bool {
    !va.finalizers().is_empty() && (va.is_attached() || va.detach_error().is_some())
}

fn detaching(path: &VolumePath<'_>, va: &VolumeAttachment, since: Option<Timestamp>) -> Finding {
    let driver = &va.spec.attacher;
    let error = va.detach_error();
    if let Some(down) = attacher::down(path.view, driver, last_write(va, error), since) {
        let failed = error.map(|error| format!("Before that, the detach failed: {}", describe(error)));
        return down.because_of(failed);
    }
    if let Some(refusal) = path.refusal() {
        let finding = refusal::refused(path, va, &refusal, error);
        return with_last_resort(path, va, finding);
    }
    let Some(error) = error else {
        let finding = waiting_for_driver(path, va, since);
        return match has_finalizer(path, va) {
            true => finding,
            false => with_last_resort(path, va, finding),
        };
    };
    if let Some(finding) = refusal::secret_unusable(path, error, since) {
        return finding;
    }
    if let Some(finding) = attacher::waits(path, va, error, since) {
        return finding;
    }
    let code = grpc_code::of(error);
    let actor = if code.is_some() {
        Actor::Driver
    } else {
        Actor::Attacher
    };
    let finding = Finding::stuck(Cause::DetachFails, actor, "The detach fails.")
        .of(driver)
        .since(since)
        .because(describe(error));
    let finding = attacher::with_code(code, finding);
    let finding = if mentions(error, ASSUME) {
        finding.advise_to_run(
            "If the node, the volume or the driver's publish calls are gone for good, let the attacher assume after a while \
             that such volumes are unpublished: add this flag to its command line.",
            format!("{ASSUME}=10m"),
        )
    } else {
        finding
    };
    with_last_resort(path, va, attacher::with_retry(path.view, driver, finding))
}

/// The flag that a detachError without a proof of detach names.
const ASSUME: &str = "--assume-unpublished-after";

/// The driver was called, or is about to be.
fn waiting_for_driver(path: &VolumePath<'_>, va: &VolumeAttachment, since: Option<Timestamp>) -> Finding {
    let driver = &va.spec.attacher;
    let state = path.view.pending(since);
    let finding = if path.is_in_use() {
        let node = &va.spec.node_name;
        Finding::new(
            Cause::DetachWhileInUse,
            state,
            Actor::Driver,
            format!("The volume is being detached although kubelet on node {node} still reports it in use."),
        )
        .because("Either the VolumeAttachment was deleted by hand, or the attach/detach controller force-detaches the volume from a node that it considers lost.")
        .advise("Make sure that nothing on the node writes to the volume any more: until it is unmounted there, its filesystem can be damaged.")
    } else {
        Finding::new(
            Cause::Detaching,
            state,
            Actor::Driver,
            "The attacher detaches the volume; the driver has not answered yet.",
        )
    };
    attacher::with_lease(path.view, driver, finding.of(driver).since(since))
}

/// The remedy when a detach never succeeds.
fn with_last_resort(path: &VolumePath<'_>, va: &VolumeAttachment, finding: Finding) -> Finding {
    let Some(finalizer) = path.finalizer() else {
        return finding;
    };
    let finding = if has_finalizer(path, va) {
        finding.advise_to_run(
            "As the last resort, when the storage shows that the volume is not attached to this node any more, remove \
             the finalizer without the driver:",
            remove_finalizers(va.name(), std::slice::from_ref(&finalizer)),
        )
    } else {
        let others = va.finalizers().join(", ");
        finding
            .because(format!(
                "The attacher's finalizer was removed although the volume may be attached. Only other \
                 finalizers ({others}) keep the VolumeAttachment."
            ))
            .advise("Do not remove them before the storage shows that the volume is not attached to this node any more.")
    };
    finding.danger(
        "If the volume is still attached, it will be attached to another node as well, and its data can be \
             destroyed.",
    )
}

fn foreign_finalizer(path: &VolumePath<'_>, va: &VolumeAttachment, since: Option<Timestamp>) -> Finding {
    let finalizers = va.finalizers().join(", ");
    let name = va.name();
    path.due(
        since,
        Cause::ForeignFinalizer,
        Actor::Administrator,
        format!("The VolumeAttachment is deleted and kept by a finalizer that is not this attacher's: {finalizers}."),
    )
    .because("The attacher has done its part. The component that added the finalizer must remove it.")
    .advise_to_run(
        "See what it is and which manager wrote it.",
        format!("kubectl get volumeattachment {name} -o yaml --show-managed-fields"),
    )
    .advise_to_run(
        "If its owner does not exist any more, remove it by hand.",
        remove_finalizers(name, va.finalizers()),
    )
    .danger("What the finalizer's owner had to clean up stays behind.")
}

/// The volume is attached, no pod on the node uses it, and the VolumeAttachment is not deleted.
pub(super) fn not_requested(path: &VolumePath<'_>, va: &VolumeAttachment) -> Finding {
    let node = &va.spec.node_name;
    if path.node_is_gone() {
        return node::gone(path, va.created_at());
    }
    if !path.is_in_use() {
        return Finding::new(
            Cause::DetachNotRequested,
            State::Progressing,
            Actor::AttachDetachController,
            format!("No pod uses the volume on node {node} any more; it is about to be detached."),
        )
        .because("kubelet does not report the volume in use. The attach/detach controller deletes the VolumeAttachment, unless that was created by hand: it does not know those.")
        .advise("If this lasts for more than a minute, look at kube-controller-manager's log.");
    }
    let Some((since, message)) = path.node_not_ready() else {
        return Finding::new(
            Cause::StillMounted,
            State::Progressing,
            Actor::Kubelet,
            format!("No pod uses the volume on node {node} any more, but kubelet has not unmounted it."),
        )
        .of(node)
        .because("The node's status.volumesInUse still lists it; the volume is not detached before that ends.")
        .advise("If this lasts, look at the kubelet's log on the node for failing unmounts (NodeUnpublishVolume, NodeUnstageVolume).");
    };
    let finding = path.due(
        since,
        Cause::StillMounted,
        Actor::AttachDetachController,
        format!("Node {node} is not ready, so the volume is not unmounted there."),
    )
    .because(format!("kubelet reported it in use before the node became unreachable: {message}"))
    .because("As no pod needs it there any more, the attach/detach controller force-detaches it six minutes after the detach was due.");
    node::with_out_of_service(path, finding)
}
