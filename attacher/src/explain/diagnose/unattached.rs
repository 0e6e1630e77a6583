//! Attachments that are made and not attached: the attacher's and the driver's part.

use jiff::Timestamp;

use super::attach::{multi_attach, node_gone};
use super::{attacher, code, node};
use crate::decide::Refusal;
use crate::explain::objects::Attachment;
use crate::explain::report::{Actor, Cause, Finding, State};
use crate::explain::scene::{Leader, Way};
use crate::explain::snapshot::Look;
use crate::kube_api::NOT_TEXT;
use crate::model::SecretRef;
use crate::model::wire::VolumeErrorObject;

/// How the attacher, ours and the Go one, begins to tell that it could not read a Secret.
pub(super) const SECRET_UNREADABLE: &str = "failed to load secret";
/// The code by which drivers say that the volume is attached elsewhere.
const FAILED_PRECONDITION: i32 = 9;
/// The manager under which attachers write.
pub(super) const MANAGER: &str = "csi-attacher";

/// An attachment that is to be attached and is not.
pub(super) fn not_attached(way: &Way<'_>, va: &Attachment) -> Finding {
    let driver = &va.spec.attacher;
    let since = va.metadata.creation_timestamp;
    let error = va.status.attach_error.as_ref();
    let refusal = way.refusal();
    if let Some(mut down) = attacher::is_down(way.scene, driver, last_sign(va, error), since) {
        down = down.because_of(error.map(|error| format!("Before that, the attach failed: {}", said(error))));
        return down.because_of(
            refusal.map(|refusal| format!("It will be refused when an attacher comes: {refusal}.")),
        );
    }
    match (error, refusal) {
        (_, Some(refusal)) => refused(way, va, &refusal, error),
        (Some(error), None) => failed(way, va, error),
        (None, None) if is_recorded(way, va) => attaching(way, va),
        (None, None) => untouched(way, va),
    }
}

/// The attacher will not work on the attachment as it is.
pub(super) fn refused(
    way: &Way<'_>,
    va: &Attachment,
    refusal: &Refusal,
    error: Option<&VolumeErrorObject>,
) -> Finding {
    let (driver, node) = (&va.spec.attacher, &va.spec.node_name);
    let since = va.metadata.deletion_timestamp.or(va.metadata.creation_timestamp);
    let stuck =
        |cause, actor, summary: String| Finding::new(cause, State::Stuck, actor, summary).since(since);
    let finding = if let Refusal::VolumeNotFound(name) = refusal {
        stuck(
            Cause::VolumeMissing,
            Actor::Person,
            format!("PersistentVolume {name}, which the VolumeAttachment names, does not exist."),
        )
        .advise("It was removed while it was wanted. Make it again with the same handle, or remove the pod so that the attachment goes.")
    } else if let Refusal::VolumeDeleting(name) = refusal {
        stuck(
            Cause::VolumeTerminating,
            Actor::Person,
            format!("PersistentVolume {name} is being deleted, so it is not attached any more."),
        )
        .advise("A deletion cannot be taken back: remove the pod, let the volume go, and use another one.")
    } else if matches!(
        refusal,
        Refusal::NodeNotFound(_) | Refusal::DriverNotOnNode { .. }
    ) {
        if way.node_is_gone() {
            return node_gone(way, since).because(format!("{refusal}."));
        }
        driver_not_on_node(way, driver, node).since(since)
    } else {
        stuck(
            Cause::AttachmentRefused,
            Actor::Person,
            "The attacher refuses this VolumeAttachment as it is.".to_owned(),
        )
        .advise("Mend the PersistentVolume or the VolumeAttachment as the text says; both are mostly immutable, so make them anew.")
    };
    let finding = finding.because(format!("{refusal}."));
    match error {
        Some(error) if error.message.as_deref() != Some(refusal.to_string().as_str()) => {
            finding.because(format!("The attacher said last: {}", said(error)))
        }
        Some(_) | None => finding,
    }
}

fn driver_not_on_node(way: &Way<'_>, driver: &str, node: &str) -> Finding {
    // The node's plugin registers the driver; if nothing else knows the driver either, its name is wrong.
    let unheard_of = way
        .scene
        .snapshot
        .drivers
        .get(driver)
        .is_some_and(Look::is_absent)
        && way.scene.leader(driver) == Leader::NoLease;
    if unheard_of {
        return Finding::new(
            Cause::DriverUnknown,
            State::Stuck,
            Actor::Person,
            format!("Nothing in the cluster knows a CSI driver named {driver}."),
        )
        .because(format!("There is no CSIDriver {driver}, no lease of its attacher, and node {node} has not registered it."))
        .advise_to_run(
            "Compare the driver's name in the PersistentVolume or StorageClass with the drivers that are there.",
            "kubectl get csidrivers,csinodes",
        );
    }
    Finding::new(
        Cause::DriverNotOnNode,
        State::Stuck,
        Actor::Person,
        format!("Driver {driver} is not registered on node {node}, so the driver's id of the node is not known."),
    )
    .because("The driver's node plugin registers itself with kubelet through its node-driver-registrar; it does not run there, or has not succeeded.")
    .advise_to_run(
        "See whether the driver's node plugin (a DaemonSet) runs on the node, and what its registrar says.",
        format!("kubectl get pods -A -o wide --field-selector spec.nodeName={node}"),
    )
    .advise_to_run("See what is registered.", format!("kubectl get csinode {node} -o yaml"))
}

/// The driver, or what comes before the call, failed.
fn failed(way: &Way<'_>, va: &Attachment, error: &VolumeErrorObject) -> Finding {
    let message = error.message.clone().unwrap_or_default();
    if message.contains(SECRET_UNREADABLE) {
        return secret_unreadable(way, error, va.metadata.creation_timestamp);
    }
    let code = code::of(error);
    let driver = &va.spec.attacher;
    // The attach/detach controller gives up waiting for a detach that fails, and asks for the next
    // attach, which the driver then refuses.
    if code.is_some_and(|code| code.number() == FAILED_PRECONDITION)
        && !way.is_multi_node()
        && let Some(other) = way.elsewhere().next()
    {
        let finding = multi_attach(way, other, va.metadata.creation_timestamp);
        return finding.because(format!("The attach fails meanwhile: {}", said(error)));
    }
    let (cause, actor) = match code.map(|code| code.number()) {
        Some(8) => (Cause::AttachLimit, Actor::Person),
        Some(_) => (Cause::AttachFails, Actor::Driver),
        None => (Cause::AttachFails, Actor::Attacher),
    };
    let summary = if cause == Cause::AttachLimit {
        format!(
            "Node {} can take no more volumes of driver {driver}.",
            va.spec.node_name
        )
    } else {
        "The attach fails.".to_owned()
    };
    let mut finding = Finding::new(cause, State::Stuck, actor, summary)
        .of(driver)
        .since(va.metadata.creation_timestamp)
        .because(said(error));
    if let Some(code) = code {
        finding = finding
            .because(format!(
                "Code {code} ({}) means: {}.",
                code.number(),
                code::meaning(code)
            ))
            .advise(code::advice(code));
    }
    if cause == Cause::AttachLimit {
        finding = finding.because_of(node::limit(way, driver));
    }
    retries(way, driver, finding)
}

/// Publish or unpublish cannot be called without its Secret.
pub(super) fn secret_unreadable(
    way: &Way<'_>,
    error: &VolumeErrorObject,
    since: Option<Timestamp>,
) -> Finding {
    let secret = way.csi().and_then(|csi| csi.publish_secret);
    if error
        .message
        .as_deref()
        .is_some_and(|message| message.contains(NOT_TEXT))
    {
        return secret_not_text(secret.as_ref(), error, since);
    }
    let finding = Finding::new(
        Cause::SecretUnreadable,
        State::Stuck,
        Actor::Person,
        "The attacher cannot read the Secret that goes with each call for this volume.",
    )
    .since(since)
    .because(said(error));
    let Some(secret) = secret else {
        return finding.advise("Restore the Secret that the message names.");
    };
    finding
        .advise_to_run(
            format!("Restore Secret {secret}, which the PersistentVolume names, if it is not there."),
            format!("kubectl -n {} get secret {}", secret.namespace, secret.name),
        )
        .advise_to_run(
            "If it is there, let the attacher's service account read it.",
            format!(
                "kubectl -n {} auth can-i get secret/{} --as=system:serviceaccount:NAMESPACE:ATTACHER-SERVICE-ACCOUNT",
                secret.namespace, secret.name
            ),
        )
}

/// The Secret is there, but CSI has only text for its values.
fn secret_not_text(
    secret: Option<&SecretRef>,
    error: &VolumeErrorObject,
    since: Option<Timestamp>,
) -> Finding {
    let finding = Finding::new(
        Cause::SecretUnreadable,
        State::Stuck,
        Actor::Person,
        "The Secret that goes with each call for this volume has a value that is no text, which CSI cannot carry.",
    )
    .since(since)
    .because(said(error));
    const CURE: &str = "Put text (UTF-8) in the place of the value that the message names, in base64 for instance, as the driver \
                        documents it, or take the key out.";
    match secret {
        Some(secret) => finding.advise_to_run(
            CURE,
            format!("kubectl -n {} edit secret {}", secret.namespace, secret.name),
        ),
        None => finding.advise(CURE),
    }
}

/// The driver was, or is being, called.
fn attaching(way: &Way<'_>, va: &Attachment) -> Finding {
    let driver = &va.spec.attacher;
    let since = va
        .metadata
        .written_by(MANAGER, "")
        .or(va.metadata.creation_timestamp);
    let finding = Finding::new(
        Cause::Attaching,
        way.scene.waiting(since),
        Actor::Driver,
        "The attacher has recorded the attach and called the driver; there is no answer yet.",
    )
    .of(driver)
    .since(since);
    attacher::look_after(way.scene, driver, finding)
}

/// No attacher has left a trace on the attachment.
fn untouched(way: &Way<'_>, va: &Attachment) -> Finding {
    let driver = &va.spec.attacher;
    let since = va.metadata.creation_timestamp;
    let cause = match way.scene.leader(driver) {
        Leader::Held(_) => Cause::AttacherBehind,
        Leader::Unknown | Leader::NoLease | Leader::Released(_) | Leader::Stale(_) => Cause::AttacherSilent,
    };
    let finding = Finding::new(
        cause,
        way.scene.waiting(since),
        Actor::Attacher,
        "The attacher has not touched the VolumeAttachment.",
    )
    .of(driver)
    .since(since)
    .because(format!("It has neither the attacher's finalizer nor an error. Only an attacher whose driver calls itself {driver} works on it."));
    attacher::look_after(way.scene, driver, finding)
}

/// Tells what an error says, and since when.
pub(super) fn said(error: &VolumeErrorObject) -> String {
    let message = error.message.as_deref().unwrap_or("(no message)");
    match &error.time {
        Some(time) => format!("{message} (last at {time})"),
        None => message.to_owned(),
    }
}

/// The attacher tries again; how its lease stands.
pub(super) fn retries(way: &Way<'_>, driver: &str, finding: Finding) -> Finding {
    let finding = finding.because("The attacher tries again by itself, with pauses of up to --retry-interval-max (5 minutes by default).");
    attacher::look_after(way.scene, driver, finding)
}

/// When an attacher was last seen to work on the attachment.
pub(super) fn last_sign(va: &Attachment, error: Option<&VolumeErrorObject>) -> Option<Timestamp> {
    let error = error.and_then(|error| error.time.as_ref()?.parse().ok());
    let object = va.metadata.written_by(MANAGER, "");
    error.max(object).max(va.metadata.written_by(MANAGER, "status"))
}

/// Whether the attacher's finalizer is on the attachment, so that the driver may have been called.
pub(super) fn is_recorded(way: &Way<'_>, va: &Attachment) -> bool {
    way.finalizer()
        .is_some_and(|finalizer| va.metadata.finalizers.contains(&finalizer))
}
