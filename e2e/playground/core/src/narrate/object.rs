//! Sentences about changes of pods, nodes, volumes and events.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Pod};
use kube::ResourceExt;

use super::{Actor, Names, Narration, without_rpc_prefix};

/// The holder of a Lease and the time at which it acquired it; `None` after it was released.
pub(super) fn leader(lease: &Lease) -> Option<(String, Timestamp)> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
    Some((holder, spec.acquire_time.as_ref()?.0))
}

/// Describes how a pod changed; `now` is `None` if it was deleted.
pub fn pod(before: Option<&Pod>, now: Option<&Pod>, names: &Names) -> Vec<Narration> {
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    let Some(pod) = now.or(before) else {
        return Vec::new();
    };
    let Some(node_name) = node(pod) else {
        return Vec::new();
    };
    let (name, node_name) = (pod.name_any(), names.short(&node_name));
    let kubelet = |text: String| Narration::effect(Actor::Kubelet(node_name.clone()), text);
    let Some(now) = now else {
        // kubelet removes a pod only after it has reported that the containers ended.
        return match phase(pod).as_deref() {
            Some("Succeeded" | "Failed") => vec![kubelet(format!("removes pod {name}"))],
            _ => vec![Narration::effect(Actor::Api, format!("pod {name} is gone"))],
        };
    };
    let mut described = Vec::new();
    if before.and_then(node).is_none() {
        let text = format!("binds pod {name} to node {node_name}");
        described.push(Narration::effect(Actor::Scheduler, text));
    }
    let (old, new) = (before.and_then(phase), phase(now));
    match new.as_deref() {
        _ if old == new => {}
        Some("Running") => described.push(kubelet(format!("pod {name} runs"))),
        Some("Succeeded") => described.push(kubelet(format!("ends the containers of pod {name}"))),
        _ => {}
    }
    described
}

/// Names of the pod's claims.
pub fn claims(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let claims = volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.map(|claim| claim.claim_name.clone()).collect()
}

/// Describes how a node's lists of volumes in use and of attached volumes changed.
pub fn node(before: Option<&Node>, now: &Node, names: &Names) -> Vec<Narration> {
    let name = names.short(&now.name_any());
    let mut described = Vec::new();
    let (old, new) = (before.map(in_use).unwrap_or_default(), in_use(now));
    if old != new {
        let volumes: Vec<_> = new.iter().map(|handle| names.volume(handle)).collect();
        let text = match volumes.is_empty() {
            true => "reports no volume in use".to_owned(),
            false => format!("reports in use: {}", volumes.join(", ")),
        };
        described.push(Narration::effect(Actor::Kubelet(name.clone()), text));
    }
    let (old, new) = (before.map(attached).unwrap_or_default(), attached(now));
    let report = |handle: &str, what: &str| {
        let volume = names.volume(handle);
        format!("reports to kubelet on {name} that {volume} is {what}")
    };
    let added = new
        .difference(&old)
        .map(|handle| Narration::effect(Actor::AttachDetach, report(handle, "attached")));
    let removed = old
        .difference(&new)
        .map(|handle| Narration::cause(Actor::AttachDetach, report(handle, "about to be detached")));
    described.extend(added.chain(removed));
    described
}

pub(crate) fn in_use(node: &Node) -> BTreeSet<String> {
    let status = node.status.as_ref();
    let names = status.and_then(|status| status.volumes_in_use.as_ref());
    names.into_iter().flatten().map(|name| handle(name)).collect()
}

pub(crate) fn attached(node: &Node) -> BTreeSet<String> {
    let status = node.status.as_ref();
    let volumes = status.and_then(|status| status.volumes_attached.as_ref());
    volumes
        .into_iter()
        .flatten()
        .map(|volume| handle(&volume.name))
        .collect()
}

/// Describes how a volume changed; `now` is `None` if it was deleted.
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
                    "adds its finalizer to volume {}, so that it is not removed while attached",
                    names.short(&now.name_any())
                );
                return vec![Narration::cause(Actor::Attacher, text)];
            }
            Vec::new()
        }
        (Some(before), None) => {
            let text = format!("volume {} is gone", names.short(&before.name_any()));
            vec![Narration::effect(Actor::Api, text)]
        }
        (None, None) => Vec::new(),
    }
}

/// Describes a warning event about a pod.
pub fn event(event: &Event, names: &Names) -> Option<Narration> {
    let message = names.translated(&without_rpc_prefix(event.message.as_deref()?));
    let pod = event.involved_object.name.as_deref()?;
    let reason = event.reason.as_deref()?;
    (reason == "FailedAttachVolume").then(|| {
        Narration::effect(
            Actor::AttachDetach,
            format!("emits an event for pod {pod}: {message}"),
        )
    })
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
    use k8s_openapi::api::core::v1::{AttachedVolume, NodeStatus, PodStatus};

    use super::*;
    use csi_e2e::fixture::{mk_meta, mk_pod};

    fn mk_names() -> Names {
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
    fn describes_a_pod_from_scheduling_to_deletion() {
        let pending = mk_pod("s", "web", "a", &[]);
        let mut scheduled = pending.clone();
        scheduled.spec.as_mut().unwrap().node_name = Some("a".to_owned());
        let in_phase = |phase: &str| Pod {
            status: Some(PodStatus {
                phase: Some(phase.to_owned()),
                ..PodStatus::default()
            }),
            ..scheduled.clone()
        };
        let (running, ended) = (in_phase("Running"), in_phase("Succeeded"));
        let history = [&pending, &scheduled, &running, &running, &ended];
        let mut described = pod(None, Some(history[0]), &mk_names());
        for states in history.windows(2) {
            described.extend(pod(Some(states[0]), Some(states[1]), &mk_names()));
        }
        described.extend(pod(Some(&ended), None, &mk_names()));
        let kubelet = |text: &str| Narration::effect(Actor::Kubelet("a".to_owned()), text.to_owned());
        assert_eq!(
            described,
            [
                Narration::effect(Actor::Scheduler, "binds pod web to node a".to_owned()),
                kubelet("pod web runs"),
                kubelet("ends the containers of pod web"),
                kubelet("removes pod web"),
            ]
        );
        assert_eq!(
            pod(Some(&running), None, &mk_names()),
            [Narration::effect(Actor::Api, "pod web is gone".to_owned())]
        );
    }

    #[test]
    fn describes_volumes_in_use_if_they_change() {
        let using = |handles: &[&str]| {
            let mut node = node_with(&[]);
            let names = handles
                .iter()
                .map(|handle| format!("kubernetes.io/csi/d^{handle}"));
            node.status.as_mut().unwrap().volumes_in_use = Some(names.collect());
            node
        };
        let kubelet = |text: &str| Narration::effect(Actor::Kubelet("node-a".to_owned()), text.to_owned());
        let (none, one) = (using(&[]), using(&["v1"]));
        assert_eq!(node(None, &none, &mk_names()), []);
        assert_eq!(
            node(Some(&none), &one, &mk_names()),
            [kubelet("reports in use: v1")]
        );
        assert_eq!(node(Some(&one), &one, &mk_names()), []);
        assert_eq!(
            node(Some(&one), &none, &mk_names()),
            [kubelet("reports no volume in use")]
        );
    }

    #[test]
    fn describes_changes_of_volumes_attached() {
        let described = node(Some(&node_with(&["v1"])), &node_with(&["v2"]), &mk_names());
        let texts: Vec<_> = described.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "reports to kubelet on node-a that v2 is attached",
                "reports to kubelet on node-a that v1 is about to be detached"
            ]
        );
    }

    #[test]
    fn describes_a_volume_that_gets_a_finalizer_or_is_deleted() {
        let free = PersistentVolume {
            metadata: mk_meta("s", "pv"),
            ..PersistentVolume::default()
        };
        let mut held = free.clone();
        held.metadata.finalizers = Some(vec!["external-attacher/d".to_owned()]);
        assert_eq!(volume(None, Some(&free), &mk_names()), []);
        assert_eq!(volume(Some(&free), Some(&held), &mk_names()).len(), 1);
        assert_eq!(volume(Some(&held), Some(&held), &mk_names()), []);
        assert_eq!(volume(Some(&held), None, &mk_names()).len(), 1);
    }
}
