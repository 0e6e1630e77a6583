//! VolumeAttachments: describes the change between two states and the component that made it.

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus, VolumeError};
use kube::ResourceExt;

use super::{Actor, Names, Narration, without_rpc_prefix};
use csi_e2e::invariant::observations::WatchEvent;

/// The annotation that holds the driver's id of the node.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// Describes how `now` differs from the state before it.
pub fn describe(before: Option<&VolumeAttachment>, now: &WatchEvent, names: &Names) -> Vec<Narration> {
    let attachment = &now.object;
    let name = names.short(&attachment.name_any());
    let Some(before) = before else {
        let (volume, node) = (volume(attachment, names), names.short(&attachment.spec.node_name));
        let text = format!("creates VolumeAttachment {name}: attach {volume} to {node}");
        return vec![Narration::cause(Actor::AttachDetach, text)];
    };
    let mut described = Vec::new();
    let (held, holds) = (before.finalizers().len(), attachment.finalizers().len());
    if holds > held {
        let node = attachment
            .annotations()
            .get(NODE_ID)
            .map(String::as_str)
            .unwrap_or_default();
        let node = names.node(node);
        let text = format!("adds its finalizer to {name}, records the driver's id of node {node}");
        described.push(Narration::cause(Actor::Attacher, text));
    }
    if before.metadata.deletion_timestamp.is_none() && attachment.metadata.deletion_timestamp.is_some() {
        let pending = if holds > 0 {
            ", which waits for the finalizer"
        } else {
            ""
        };
        let text = format!("deletes VolumeAttachment {name}{pending}");
        described.push(Narration::cause(Actor::AttachDetach, text));
    }
    let mut reports = |text: String| described.push(Narration::effect(Actor::Attacher, text));
    let (old, new) = (status(before), status(attachment));
    if !old.attached && new.attached {
        reports(format!("reports {name} attached"));
    }
    if let Some(text) = news(old.attach_error.as_ref(), new.attach_error.as_ref()) {
        reports(format!(
            "reports attachError on {name}: {}",
            names.translated(&text)
        ));
    }
    if let Some(text) = news(old.detach_error.as_ref(), new.detach_error.as_ref()) {
        reports(format!(
            "reports detachError on {name}: {}",
            names.translated(&text)
        ));
    }
    if now.gone {
        reports(format!(
            "removes its finalizer: {name} is deleted, the volume is detached"
        ));
    }
    described
}

/// Name of the attachment's volume.
pub(super) fn volume(attachment: &VolumeAttachment, names: &Names) -> String {
    let pv = attachment.spec.source.persistent_volume_name.as_deref();
    names.short(pv.unwrap_or("an inline volume"))
}

fn status(attachment: &VolumeAttachment) -> VolumeAttachmentStatus {
    attachment.status.clone().unwrap_or_default()
}

/// The new message, if it differs from the old one.
fn news(old: Option<&VolumeError>, new: Option<&VolumeError>) -> Option<String> {
    let message = new?.message.as_deref()?;
    (old.and_then(|old| old.message.as_deref()) != Some(message)).then(|| without_rpc_prefix(message))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use csi_e2e::fixture::mk_attachment;

    fn attachment() -> VolumeAttachment {
        mk_attachment("s", "csi-1", "d", "pv", "node-a")
    }

    fn described(
        before: Option<&VolumeAttachment>,
        after: VolumeAttachment,
        gone: bool,
    ) -> Vec<(Actor, String)> {
        let event = WatchEvent {
            at: Timestamp::UNIX_EPOCH,
            gone,
            object: after,
        };
        let lines = describe(before, &event, &Names::with_prefix("s"));
        lines.into_iter().map(|line| (line.actor, line.text)).collect()
    }

    #[test]
    fn a_new_attachment_is_the_controllers_doing() {
        let lines = described(None, attachment(), false);
        assert!(
            matches!(&lines[..], [(Actor::AttachDetach, text)] if text.contains("attach pv to node-a")),
            "{lines:?}"
        );
    }

    #[test]
    fn each_step_of_an_attach_is_described_once() {
        let mut marked = attachment();
        marked.metadata.finalizers = Some(vec!["f".to_owned()]);
        assert!(
            described(Some(&attachment()), marked.clone(), false)[0]
                .1
                .starts_with("adds its finalizer to csi-1, ")
        );
        let mut attached = marked.clone();
        attached.status = Some(VolumeAttachmentStatus {
            attached: true,
            ..Default::default()
        });
        assert_eq!(
            described(Some(&marked), attached.clone(), false),
            [(Actor::Attacher, "reports csi-1 attached".to_owned())]
        );
        assert_eq!(described(Some(&attached), attached.clone(), false), []);
    }

    #[test]
    fn a_repeated_error_is_no_news() {
        let mut failed = attachment();
        let error = VolumeError {
            message: Some("no slot".to_owned()),
            ..VolumeError::default()
        };
        failed.status = Some(VolumeAttachmentStatus {
            attach_error: Some(error),
            ..Default::default()
        });
        assert_eq!(described(Some(&attachment()), failed.clone(), false).len(), 1);
        assert_eq!(described(Some(&failed), failed.clone(), false), []);
    }

    #[test]
    fn the_end_is_described() {
        let mut deleting = attachment();
        deleting.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        deleting.metadata.finalizers = Some(vec!["f".to_owned()]);
        let lines = described(Some(&attachment()), deleting.clone(), false);
        assert!(
            lines.iter().any(|(actor, _)| *actor == Actor::AttachDetach),
            "{lines:?}"
        );
        let lines = described(Some(&deleting), deleting.clone(), true);
        assert!(lines[0].1.contains("is deleted"), "{lines:?}");
    }
}
