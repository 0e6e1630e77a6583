//! VolumeAttachments that are not attached: the attacher's and the driver's part.

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};

use super::attachment::{describe, has_finalizer, last_write, recorded_at};
use super::multi_attach::{self, Holder};
use super::{attacher, grpc_code, node, refusal};
use crate::objects::{AttachmentExt, ObjectExt};
use crate::path::{Leader, VolumePath};
use crate::report::{Actor, Cause, Finding};

/// The VolumeAttachment is not attached and not being deleted.
pub(super) fn not_attached(
    path: &VolumePath<'_>,
    va: &VolumeAttachment,
    holder: Option<&Holder<'_>>,
) -> Finding {
    let error = va.attach_error();
    let refusal = path.refusal();
    let last_write = last_write(va, error);
    if let Some(down) = attacher::down(path.view, &va.spec.attacher, last_write, va.created_at()) {
        return down
            .because_of(error.map(|error| format!("Before that, the attach failed: {}", describe(error))))
            .because_of(refusal.map(|refusal| format!("The next attacher will refuse it: {refusal}.")));
    }
    match (error, refusal) {
        (_, Some(refusal)) => refusal::refused(path, va, &refusal, error),
        (Some(error), None) => failed(path, va, error, holder),
        (None, None) if has_finalizer(path, va) => attaching(path, va),
        (None, None) => not_recorded(path, va),
    }
}

/// The driver, or a step before the call, failed.
fn failed(
    path: &VolumePath<'_>,
    va: &VolumeAttachment,
    error: &VolumeError,
    holder: Option<&Holder<'_>>,
) -> Finding {
    let since = va.created_at();
    if let Some(finding) = refusal::secret_unusable(path, error, since) {
        return finding;
    }
    if let Some(finding) = attacher::waits(path, va, error, since) {
        return finding;
    }
    let code = grpc_code::of(error);
    let number = code.map(|code| code.number);
    // The attach/detach controller stops waiting for a detach that fails, and creates the next VolumeAttachment,
    // which the driver then refuses.
    if number == Some(grpc_code::FAILED_PRECONDITION)
        && !path.is_multi_node()
        && let Some(holder) = holder
    {
        let finding = multi_attach::diagnose(path, holder, since);
        return finding.because(format!("The attach fails meanwhile: {}", describe(error)));
    }
    let driver = &va.spec.attacher;
    let finding = if number == Some(grpc_code::RESOURCE_EXHAUSTED) {
        let summary = format!(
            "Node {} has its maximum of volumes of driver {driver}.",
            va.spec.node_name
        );
        Finding::stuck(Cause::AttachLimit, Actor::Administrator, summary)
    } else {
        let actor = if code.is_some() {
            Actor::Driver
        } else {
            Actor::Attacher
        };
        Finding::stuck(Cause::AttachFails, actor, "The attach fails.")
    };
    let is_limit = finding.cause == Cause::AttachLimit;
    let limit = is_limit
        .then(|| node::limit(path.view, &va.spec.node_name, driver))
        .flatten();
    let finding = finding.of(driver).since(since).because(describe(error));
    let finding = attacher::with_code(code, finding).because_of(limit);
    attacher::with_retry(path.view, driver, finding)
}

/// The driver was called, or is about to be.
fn attaching(path: &VolumePath<'_>, va: &VolumeAttachment) -> Finding {
    let driver = &va.spec.attacher;
    let since = recorded_at(va).or(va.created_at());
    let finding = path
        .due(
            since,
            Cause::Attaching,
            Actor::Driver,
            "The attacher has recorded the attach and called the driver, which has not answered yet.",
        )
        .of(driver);
    attacher::with_lease(path.view, driver, finding)
}

/// No attacher has written the VolumeAttachment.
fn not_recorded(path: &VolumePath<'_>, va: &VolumeAttachment) -> Finding {
    let driver = &va.spec.attacher;
    let since = va.created_at();
    let cause = match path.view.leader(driver) {
        Leader::Held(_) => Cause::AttacherBehind,
        Leader::Unknown | Leader::NoLease | Leader::Released(_) | Leader::Expired(_) => Cause::AttacherSilent,
    };
    let finding = Finding::new(
        cause,
        path.view.pending(since),
        Actor::Attacher,
        "The attacher has not written the VolumeAttachment.",
    )
    .of(driver)
    .since(since)
    .because(format!("It has neither the attacher's finalizer nor an error. Only an attacher whose driver's name is {driver} handles it."));
    attacher::with_lease(path.view, driver, finding)
}
