//! Pods, nodes, volumes and events: what changed, and who did it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Pod};
use kube::ResourceExt;

use super::{Names, Party};
use crate::node::Deed;

/// What happened to an object, without its time.
pub type Told = (Party, String);

/// Tells how a pod changed.
pub fn pod(before: Option<&Pod>, now: &Pod, names: &Names) -> Vec<Told> {
    let mut told = Vec::new();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    if let (None, Some(node)) = (before.and_then(node), node(now)) {
        told.push((
            Party::Scheduler,
            format!("puts pod {} on {}", now.name_any(), names.short(&node)),
        ));
    }
    told
}

/// Tells how a node's list of attached volumes changed.
pub fn node(before: Option<&Node>, now: &Node, names: &Names) -> Vec<Told> {
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
            "tells kubelet on {name} that {} is attached",
            names.volume(handle)
        )
    });
    let removed = old.difference(&new).map(|handle| {
        format!(
            "tells kubelet on {name} that {} is about to go",
            names.volume(handle)
        )
    });
    added
        .chain(removed)
        .map(|text| (Party::AttachDetach, text))
        .collect()
}

/// Tells how a volume changed; nothing as `now` means that it is gone.
pub fn volume(before: Option<&PersistentVolume>, now: Option<&PersistentVolume>, names: &Names) -> Vec<Told> {
    match (before, now) {
        (before, Some(now)) => {
            let held = |volume: &PersistentVolume| volume.finalizers().iter().any(|name| is_attachers(name));
            if held(now) && !before.is_some_and(held) {
                let text = format!(
                    "adds its finalizer to volume {}, so that it stays while attached",
                    names.short(&now.name_any())
                );
                return vec![(Party::Attacher, text)];
            }
            Vec::new()
        }
        (Some(before), None) => vec![(
            Party::Api,
            format!("volume {} is gone", names.short(&before.name_any())),
        )],
        (None, None) => Vec::new(),
    }
}

/// Tells an event that warns about a pod.
pub fn event(event: &Event) -> Option<Told> {
    let message = event.message.as_deref()?;
    let pod = event.involved_object.name.as_deref()?;
    let reason = event.reason.as_deref()?;
    (reason == "FailedAttachVolume").then(|| {
        (
            Party::AttachDetach,
            format!("tells the owner of pod {pod}: {message}"),
        )
    })
}

/// Tells what a node did.
pub fn deed(node: &str, deed: &Deed, names: &Names) -> Told {
    let text = match deed {
        Deed::InUse { handles } if handles.is_empty() => "reports no volume in use".to_owned(),
        Deed::InUse { handles } => {
            let volumes: Vec<_> = handles.iter().map(|handle| names.volume(handle)).collect();
            format!("reports in use: {}", volumes.join(", "))
        }
        Deed::Mounted { handle } => format!("mounts {}", names.volume(handle)),
        Deed::Unmounted { handle } => format!("unmounts {}", names.volume(handle)),
        Deed::Started { pod } => format!("pod {pod} runs"),
        Deed::Stopped { pod } => format!("ends the containers of pod {pod}"),
        Deed::Finished { pod } => format!("removes pod {pod}"),
    };
    (Party::Kubelet(names.short(node)), text)
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
        Names::of_stage("s")
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
    fn a_pod_is_told_once_it_has_a_node() {
        let unscheduled = mk_pod("s", "web", "a", &[]);
        assert_eq!(pod(None, &unscheduled, &as_is()), []);
        let mut scheduled = unscheduled.clone();
        scheduled.spec.as_mut().unwrap().node_name = Some("a".to_owned());
        assert_eq!(
            pod(Some(&unscheduled), &scheduled, &as_is()),
            [(Party::Scheduler, "puts pod web on a".to_owned())]
        );
        assert_eq!(pod(Some(&scheduled), &scheduled, &as_is()), []);
    }

    #[test]
    fn attached_volumes_come_and_go() {
        let told = node(Some(&node_with(&["v1"])), &node_with(&["v2"]), &as_is());
        let texts: Vec<_> = told.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "tells kubelet on node-a that v2 is attached",
                "tells kubelet on node-a that v1 is about to go"
            ]
        );
    }

    #[test]
    fn a_volume_is_told_when_it_is_held_and_when_it_is_gone() {
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
