//! A scheduled pod's volume without a VolumeAttachment, and VolumeAttachments that are not required.

use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::attachment::remove_finalizers;
use super::multi_attach::{self, Holder};
use super::{mount, node, pod};
use crate::objects::ObjectExt;
use crate::path::VolumePath;
use crate::report::{Actor, Cause, Finding, State};

/// Annotation by which a kubelet delegates attaching to the attach/detach controller.
const CONTROLLER_MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// There is no VolumeAttachment to the pod's node.
pub(super) fn diagnose(path: &VolumePath<'_>, holder: Option<&Holder<'_>>) -> Finding {
    let since = path.pod.and_then(pod::scheduled_at);
    let driver = path.driver();
    if path.volume().is_some() && driver.is_none() {
        return Finding::new(
            Cause::NotCsi,
            State::Fine,
            Actor::Kubelet,
            "The volume is not a CSI volume, so no CSI attacher attaches it.",
        )
        .of(path.node_name.unwrap_or_default());
    }
    if let Some(driver) = &driver
        && path.view.needs_no_attachment(driver)
    {
        return mount::without_attachment(path);
    }
    if !path.view.snapshot.attachments_complete {
        return Finding::new(
            Cause::Unreadable,
            State::Progressing,
            Actor::AttachDetachController,
            "Whether there is a VolumeAttachment could not be read.",
        );
    }
    if path.node_is_gone() {
        return node::gone(path, since);
    }
    if !path.is_multi_node()
        && let Some(holder) = holder
    {
        return multi_attach::diagnose(path, holder, since);
    }
    if let Some(node) = path.node()
        && node.annotation(CONTROLLER_MANAGED) != Some("true")
    {
        let name = node.name();
        return path.due(
            since,
            Cause::NodeNotManaged,
            Actor::Kubelet,
            format!("The attach/detach controller does not attach volumes to node {name}, because its kubelet is configured to do that itself."),
        )
        .of(name)
        .because(format!("The node lacks the annotation {CONTROLLER_MANAGED}=true, which kubelet sets unless enableControllerAttachDetach is false."))
        .advise("Set enableControllerAttachDetach: true in the kubelet's configuration and restart it; CSI volumes cannot be attached otherwise.");
    }
    path.due(
        since,
        Cause::NoAttachmentYet,
        Actor::AttachDetachController,
        "There is no VolumeAttachment for this volume and node yet.",
    )
    .because_of(pod::warning(path, &["FailedAttachVolume"]))
    .advise_to_run(
        "If this lasts, check the attach/detach controller: it is part of kube-controller-manager.",
        "kubectl -n kube-system get pods -l component=kube-controller-manager -o wide",
    )
}

/// A VolumeAttachment of a driver with `attachRequired: false`.
pub(super) fn not_required(path: &VolumePath<'_>, va: &VolumeAttachment) -> Finding {
    let driver = &va.spec.attacher;
    let name = va.name();
    let since = va.deleted_at().or(va.created_at());
    let mut finding = path.due(
        since,
        Cause::AttachmentNotRequired,
        Actor::Administrator,
        format!("CSIDriver {driver} has attachRequired: false, so this VolumeAttachment has no use and perhaps no attacher."),
    )
    .because("It was created before the driver was set to attachRequired: false, or by hand.");
    if va.deleted_at().is_none() {
        finding = finding.advise_to_run(
            "When no pod on the node uses the volume, delete it.",
            format!("kubectl delete volumeattachment {name}"),
        );
    }
    if va.finalizers().is_empty() {
        return finding;
    }
    finding
        .because(format!("It has the finalizers {}.", va.finalizers().join(", ")))
        .advise_to_run(
            "If no attacher of this driver runs any more, remove the finalizer by hand.",
            remove_finalizers(name, va.finalizers()),
        )
        .danger("If the driver did attach the volume, it stays attached at the storage.")
}
