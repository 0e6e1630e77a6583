//! Attaches and detaches that fail before the driver is called.

use csi_attacher::model::attachment::VOLUME_HANDLE_ANNOTATION;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};

use super::attachment::{describe, mentions};
use super::node;
use crate::objects::ObjectExt;
use crate::path::{Leader, VolumePath};
use crate::report::{Actor, Cause, Finding};
use crate::rules::{Refusal, SecretRef};
use crate::snapshot::Lookup;

/// Prefix of error messages about a Secret, of this attacher and of the Go sidecar.
const SECRET_ERROR: &str = "failed to load secret";
/// Part of the attacher's message about a Secret whose value CSI cannot transport.
const NOT_UTF8: &str = "is not valid UTF-8";

/// The attacher refuses the VolumeAttachment as it is.
pub(super) fn refused(
    path: &VolumePath<'_>,
    va: &VolumeAttachment,
    refusal: &Refusal,
    error: Option<&VolumeError>,
) -> Finding {
    let since = va.deleted_at().or(va.created_at());
    let stuck = |cause, summary: String| Finding::stuck(cause, Actor::Administrator, summary).since(since);
    let finding = if let Refusal::VolumeNotFound(name) = refusal {
        stuck(
            Cause::VolumeMissing,
            format!("PersistentVolume {name}, which the VolumeAttachment names, does not exist."),
        )
        .advise("It was deleted while in use. Create it again with the same handle, or delete the pod so that the attachment is deleted.")
    } else if let Refusal::VolumeDeleting(name) = refusal {
        stuck(
            Cause::VolumeTerminating,
            format!("PersistentVolume {name} is being deleted, so it is not attached any more."),
        )
        .advise(
            "A deletion cannot be undone: delete the pod, let the volume be deleted, and use another one.",
        )
    } else if let Refusal::VolumeRecreated(name) = refusal {
        stuck(
            Cause::AttachmentRefused,
            format!("PersistentVolume {name} was created again, and the VolumeAttachment does not record its volume's handle."),
        )
        .advise_to_run(
            "Record the handle (spec.csi.volumeHandle) of the volume that is attached. Do not delete either object: that would leave the \
             volume attached.",
            format!("kubectl annotate volumeattachment {} {VOLUME_HANDLE_ANNOTATION}=HANDLE", va.name()),
        )
    } else if matches!(
        refusal,
        Refusal::NodeNotFound(_) | Refusal::DriverNotOnNode { .. }
    ) {
        if path.node_is_gone() {
            return node::gone(path, since).because(format!("{refusal}."));
        }
        driver_not_on_node(path, va).since(since)
    } else {
        stuck(
            Cause::AttachmentRefused,
            "The attacher refuses this VolumeAttachment as it is.".to_owned(),
        )
        .advise("Correct the PersistentVolume or the VolumeAttachment; both are mostly immutable, so create them again.")
    };
    let finding = finding.because(format!("{refusal}."));
    match error {
        Some(error) if error.message.as_deref() != Some(refusal.to_string().as_str()) => {
            finding.because(format!("The attacher's last error: {}", describe(error)))
        }
        Some(_) | None => finding,
    }
}

fn driver_not_on_node(path: &VolumePath<'_>, va: &VolumeAttachment) -> Finding {
    let (driver, node) = (&va.spec.attacher, &va.spec.node_name);
    // The node plugin registers the driver; if there is no other trace of the driver, its name is wrong.
    let is_unknown = path
        .view
        .snapshot
        .drivers
        .get(driver)
        .is_some_and(Lookup::is_not_found)
        && path.view.leader(driver) == Leader::NoLease;
    if is_unknown {
        return Finding::stuck(
            Cause::DriverUnknown,
            Actor::Administrator,
            format!("No CSI driver named {driver} is installed in the cluster."),
        )
        .because(format!(
            "There is no CSIDriver {driver}, no lease of its attacher, and node {node} has not registered it."
        ))
        .advise_to_run(
            "Compare the driver's name in the PersistentVolume or StorageClass with the installed drivers.",
            "kubectl get csidrivers,csinodes",
        );
    }
    Finding::stuck(
        Cause::DriverNotOnNode,
        Actor::Administrator,
        format!("Driver {driver} is not registered on node {node}, so the driver's id of the node is unknown."),
    )
    .because("The driver's node plugin registers itself with kubelet through its node-driver-registrar; it does not run there, or has not succeeded.")
    .advise_to_run(
        "See whether the driver's node plugin (a DaemonSet) runs on the node, and read its registrar's log.",
        format!("kubectl get pods -A -o wide --field-selector spec.nodeName={node}"),
    )
    .advise_to_run("See what is registered.", format!("kubectl get csinode {node} -o yaml"))
}

/// The attacher could not use the publish Secret, if that is the error.
pub(super) fn secret_unusable(
    path: &VolumePath<'_>,
    error: &VolumeError,
    since: Option<Timestamp>,
) -> Option<Finding> {
    if !mentions(error, SECRET_ERROR) {
        return None;
    }
    let secret = path.csi().and_then(|csi| csi.publish_secret);
    let finding = |summary| {
        Finding::stuck(Cause::SecretUnreadable, Actor::Administrator, summary)
            .since(since)
            .because(describe(error))
    };
    Some(if mentions(error, NOT_UTF8) {
        not_utf8(
            secret.as_ref(),
            finding(
                "The Secret that goes with each call for this volume has a value that is no text, which CSI cannot transport.",
            ),
        )
    } else {
        unreadable(
            secret.as_ref(),
            finding("The attacher cannot read the Secret that goes with each call for this volume."),
        )
    })
}

fn unreadable(secret: Option<&SecretRef>, finding: Finding) -> Finding {
    let Some(secret) = secret else {
        return finding.advise("Restore the Secret that the message names.");
    };
    finding
        .advise_to_run(
            format!("Restore Secret {secret}, which the PersistentVolume names, if it does not exist."),
            format!("kubectl -n {} get secret {}", secret.namespace, secret.name),
        )
        .advise_to_run(
            "If it exists, let the attacher's service account read it.",
            format!(
                "kubectl -n {} auth can-i get secret/{} --as=system:serviceaccount:NAMESPACE:ATTACHER-SERVICE-ACCOUNT",
                secret.namespace, secret.name
            ),
        )
}

fn not_utf8(secret: Option<&SecretRef>, finding: Finding) -> Finding {
    const CURE: &str = "Replace the value that the message names by text (UTF-8), in base64 for instance, as the driver documents \
                        it, or remove the key.";
    match secret {
        Some(secret) => finding.advise_to_run(
            CURE,
            format!("kubectl -n {} edit secret {}", secret.namespace, secret.name),
        ),
        None => finding.advise(CURE),
    }
}
