//! Pods, nodes, volumes and events: what changed, and who did it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Pod};
use kube::ResourceExt;

use super::{Actor, Names};
use crate::node::NodeEvent;

/// What happened to an object, without its time.
pub type Narration = (Actor, String);

/// Describes how a pod changed.
pub fn pod(before: Option<&Pod>, now: &Pod, names: &Names) -> Vec<Narration> {
    let mut described = Vec::new();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    if let (None, Some(node)) = (before.and_then(node), node(now)) {
        described.push((
            Actor::Scheduler,
            format!("puts pod {} on {}", now.name_any(), names.short(&node)),
        ));
    }
    described
}

/// Describes how a node's list of attached volumes changed.
pub fn node(before: Option<&Node>, now: &Node, names: &Names) -> Vec<Narration> {
    let listed = |node: &Node| -> BTreeSet<String> {
        let attached = node
            .status
            .as_ref()
            .and_then(|status| status.volumes_attached.as_ref());
        attached
            .into_iter()
            .flatten()
            .map(|volume| handle(&volume.name))
            .collect()
    };
    let (old, new) = (before.map(listed).unwrap_or_default(), listed(now));
    let name = names.short(&now.name_any());
    let added = new.difference(&old).map(|handle| {
        format!(
            "reports to kubelet on {name} that {} is attached",
            names.volume(handle)
        )
    });
    let removed = old.difference(&new).map(|handle| {
        format!(
            "reports to kubelet on {name} that {} is about to be detached",
            names.volume(handle)
        )
    });
    added
        .chain(removed)
        .map(|text| (Actor::AttachDetach, text))
        .collect()
}

/// Describes how a volume changed; nothing as `now` means that it is gone.
pub fn volume(
    before: Option<&PersistentVolume>,
    now: Option<&PersistentVolume>,
    names: &Names,
) -> Vec<Narration> {
    match (before, now) {
        (before, Some(now)) => {
            let held = |volume: &PersistentVolume| volume.finalizers().iter().any(|name| is_attachers(name));
            if held(now) && !before.is_some_and(held) {
                let text = format!(
                    "adds its finalizer to volume {}, so that it stays while attached",
                    names.short(&now.name_any())
                );
                return vec![(Actor::Attacher, text)];
            }
            Vec::new()
        }
        (Some(before), None) => vec![(
            Actor::Api,
            format!("volume {} is gone", names.short(&before.name_any())),
        )],
        (None, None) => Vec::new(),
    }
}

/// Describes an event that warns about a pod.
pub fn event(event: &Event) -> Option<Narration> {
    let message = event.message.as_deref()?;
    let pod = event.involved_object.name.as_deref()?;
    let reason = event.reason.as_deref()?;
    (reason == "FailedAttachVolume").then(|| {
        (
            Actor::AttachDetach,
            format!("emits an event for pod {pod}: {message}"),
        )
    })
}

/// Describes what a node did.
pub fn node_event(node: &str, event: &NodeEvent, names: &Names) -> Narration {
    let text = match event {
        NodeEvent::InUse { handles } if handles.is_empty() => "reports no volume in use".to_owned(),
        NodeEvent::InUse { handles } => {
            let volumes: Vec<_> = handles.iter().map(|handle| names.volume(handle)).collect();
            format!("reports in use: {}", volumes.join(", "))
        }
        NodeEvent::Started { pod } => format!("pod {pod} runs"),
        NodeEvent::Stopped { pod } => format!("ends the containers of pod {pod}"),
        NodeEvent::Finished { pod } => format!("removes pod {pod}"),
    };
    (Actor::Kubelet(names.short(node)), text)
}

fn is_attachers(finalizer: &str) -> bool {
    finalizer.starts_with("external-attacher/")
}

fn handle(unique_name: &str) -> String {
    unique_name
        .rsplit_once('^')
        .map_or(unique_name, |(_, handle)| handle)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{AttachedVolume, NodeStatus};

    use super::*;
    use crate::fixture::{mk_meta, mk_pod};

    fn as_is() -> Names {
        Names::with_prefix("s")
    }

    fn node_with(volumes: &[&str]) -> Node {
        let attached = volumes.iter().map(|handle| AttachedVolume {
            name: format!("kubernetes.io/csi/d^{handle}"),
            device_path: String::new(),
        });
        Node {
            metadata: mk_meta("s", "node-a"),
            status: Some(NodeStatus {
                volumes_attached: Some(attached.collect()),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    #[test]
    fn a_pod_is_described_once_it_has_a_node() {
        let unscheduled = mk_pod("s", "web", "a", &[]);
        assert_eq!(pod(None, &unscheduled, &as_is()), []);
        let mut scheduled = unscheduled.clone();
        scheduled.spec.as_mut().unwrap().node_name = Some("a".to_owned());
        assert_eq!(
            pod(Some(&unscheduled), &scheduled, &as_is()),
            [(Actor::Scheduler, "puts pod web on a".to_owned())]
        );
        assert_eq!(pod(Some(&scheduled), &scheduled, &as_is()), []);
    }

    #[test]
    fn attached_volumes_come_and_go() {
        let described = node(Some(&node_with(&["v1"])), &node_with(&["v2"]), &as_is());
        let texts: Vec<_> = described.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "reports to kubelet on node-a that v2 is attached",
                "reports to kubelet on node-a that v1 is about to be detached"
            ]
        );
    }

    #[test]
    fn a_volume_is_described_when_it_is_held_and_when_it_is_gone() {
        let free = PersistentVolume {
            metadata: mk_meta("s", "pv"),
            ..PersistentVolume::default()
        };
        let mut held = free.clone();
        held.metadata.finalizers = Some(vec!["external-attacher/d".to_owned()]);
        assert_eq!(volume(None, Some(&free), &as_is()), []);
        assert_eq!(volume(Some(&free), Some(&held), &as_is()).len(), 1);
        assert_eq!(volume(Some(&held), Some(&held), &as_is()), []);
        assert_eq!(volume(Some(&held), None, &as_is()).len(), 1);
    }
}
