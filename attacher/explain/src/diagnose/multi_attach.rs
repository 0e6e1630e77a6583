//! A single-node volume that is needed on a second node.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{node, pod};
use crate::objects::{ObjectExt, VolumeExt};
use crate::path::VolumePath;
use crate::report::{Actor, Cause, Finding};

/// The attachment to another node.
pub(super) struct Holder<'s> {
    pub(super) path: VolumePath<'s>,
    pub(super) va: &'s VolumeAttachment,
    /// What that attachment is waiting for itself.
    pub(super) finding: Finding,
}

/// The volume cannot be attached before `holder` is detached.
pub(super) fn diagnose(path: &VolumePath<'_>, holder: &Holder<'_>, since: Option<Timestamp>) -> Finding {
    let node = &holder.va.spec.node_name;
    let modes = path.volume().map(|volume| volume.access_modes().join(", "));
    let users = holder.path.pods_on_node();
    let user = users.iter().find(|(pod, _)| pod.deleted_at().is_none());
    let mut finding = match user {
        Some((pod, _)) => in_use(holder, pod),
        None => {
            let Finding {
                state,
                actor,
                who,
                summary,
                why,
                advice,
                ..
            } = holder.finding.clone();
            let mut finding =
                Finding::new(Cause::MultiAttach, path.view.pending(since).max(state), actor, "");
            finding.who = who;
            finding.advice = advice;
            finding.because(summary).because_of(why)
        }
    };
    finding.since = since;
    finding.summary =
        format!("The volume is still attached to node {node}, and only one node at a time may have it.");
    finding.why.insert(
        0,
        format!(
            "Its access modes are {}; VolumeAttachment {} keeps it on node {node}.",
            modes.unwrap_or_default(),
            holder.va.name()
        ),
    );
    finding.because_of(pod::warning(path, &["FailedAttachVolume"]))
}

/// A pod that is not being deleted uses the volume on the other node: Kubernetes will not detach it.
fn in_use(holder: &Holder<'_>, pod: &Pod) -> Finding {
    let node = &holder.va.spec.node_name;
    let (namespace, name) = (pod.namespace(), pod.name());
    let finding = Finding::stuck(Cause::MultiAttach, Actor::Administrator, "")
        .because(format!("Pod {namespace}/{name} uses it on node {node}."))
        .advise("Run both pods on one node, use a volume with access mode ReadWriteMany, or delete the other pod:")
        .advise_to_run(
            "Delete the other pod, if this one replaces it.",
            format!("kubectl -n {namespace} delete pod {name}"),
        );
    let Some((since, message)) = holder.path.node_not_ready() else {
        return finding;
    };
    let lost = node::lost(&holder.path, since, message);
    let mut finding = finding.because_of(lost.why);
    finding.advice.extend(lost.advice);
    finding
}
