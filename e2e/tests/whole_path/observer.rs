//! Watches the objects of the attach path, for the timeline and the invariants.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use csi_e2e::fixture::OUT_OF_SERVICE;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::invariant::Invariants;
use crate::timeline::Timeline;

/// A constant backoff of failed watches, without jitter.
struct Pause;

/// An object in one line.
struct Line {
    volume: Option<String>,
    text: String,
}

// === impl Pause ===

impl Iterator for Pause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }
}

impl Backoff for Pause {
    fn reset(&mut self) {}
}

// === functions ===

/// Observes until dropped.
pub(crate) async fn run(client: Client, timeline: Timeline, invariants: Invariants) {
    let attachments = watch(&client, &timeline, |attachment: &VolumeAttachment, deleted| {
        attachment_line(attachment, deleted, &invariants)
    });
    let nodes = watch(&client, &timeline, |node: &Node, deleted| {
        node_line(node, deleted, &invariants)
    });
    let volumes = watch(&client, &timeline, |volume: &PersistentVolume, _| {
        volume_line(volume, &timeline)
    });
    let pods = watch(&client, &timeline, |pod: &Pod, _| pod_line(pod));
    let claims = watch(&client, &timeline, |claim: &PersistentVolumeClaim, _| {
        claim_line(claim)
    });
    let csi_nodes = watch(&client, &timeline, |csi_node: &CSINode, _| {
        csi_node_line(csi_node)
    });
    futures::join!(nodes, csi_nodes, attachments, volumes, claims, pods);
}

/// The timeline's name of a PersistentVolume's volume: its handle, which has the same number, or, for a provisioned one, the
/// PersistentVolume's name.
pub(crate) fn volume_of(name: &str) -> String {
    match name.strip_prefix("pv-") {
        Some(number) => format!("vol-{number}"),
        None => name.to_owned(),
    }
}

/// The name of the pod's claim.
pub(crate) fn claim_of(pod: &Pod) -> Option<&str> {
    let mut volumes = pod.spec.as_ref()?.volumes.iter().flatten();
    volumes.find_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

async fn watch<K>(client: &Client, timeline: &Timeline, mut line: impl FnMut(&K, bool) -> Line)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api = Api::<K>::all(client.clone());
    let mut events = watcher(api, watcher::Config::default()).backoff(Pause).boxed();
    let mut known: BTreeMap<String, (K, String)> = BTreeMap::new();
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        let (object, deleted) = match event {
            Ok(Event::Apply(object)) => (object, false),
            Ok(Event::InitApply(object)) => {
                listed.push(object.name_any());
                (object, false)
            }
            Ok(Event::Delete(object)) => (object, true),
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitDone) => {
                let gone: Vec<_> = known
                    .keys()
                    .filter(|name| !listed.contains(name))
                    .cloned()
                    .collect();
                for name in gone {
                    if let Some((object, _)) = known.remove(&name) {
                        note(timeline, &object, line(&object, true), true);
                    }
                }
                continue;
            }
            Err(_) => continue,
        };
        let shown = line(&object, deleted);
        let name = object.name_any();
        if deleted {
            known.remove(&name);
            note(timeline, &object, shown, true);
        } else if known.get(&name).is_none_or(|(_, text)| *text != shown.text) {
            known.insert(name, (object.clone(), shown.text.clone()));
            note(timeline, &object, shown, false);
        }
    }
}

fn note<K: Resource<DynamicType = ()>>(timeline: &Timeline, object: &K, line: Line, deleted: bool) {
    let name = object.meta().name.as_deref().unwrap_or_default();
    let text = if deleted { "deleted" } else { line.text.as_str() };
    // The hash in the name of a VolumeAttachment adds no information.
    let name = if name.starts_with("csi-") { "" } else { name };
    let text = format!("{name} {text}");
    timeline.note(K::kind(&()), line.volume.as_deref(), text);
}

fn attachment_line(attachment: &VolumeAttachment, deleted: bool, invariants: &Invariants) -> Line {
    let spec = &attachment.spec;
    let volume = volume_of(spec.source.persistent_volume_name.as_deref().unwrap_or_default());
    let deleting = attachment.metadata.deletion_timestamp.is_some();
    if !deleted {
        invariants.attachment_changed(&volume, &spec.node_name, deleting);
    }
    let status = attachment.status.clone().unwrap_or_default();
    if status.attached && !deleting && !deleted {
        invariants.reported_as_attached(&volume, &spec.node_name);
    }
    let mut text = format!("on {}: attached={}", spec.node_name, status.attached);
    if deleting {
        text += " deleting";
    }
    if attachment.finalizers().is_empty() {
        text += " without finalizer";
    }
    for (side, error) in [
        ("attachError", status.attach_error),
        ("detachError", status.detach_error),
    ] {
        if let Some(message) = error.and_then(|error| error.message) {
            text += &format!(" {side}={message:?}");
        }
    }
    Line {
        volume: Some(volume),
        text,
    }
}

fn node_line(node: &Node, deleted: bool, invariants: &Invariants) -> Line {
    let status = node.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .map_or("", |condition| condition.status.as_str());
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let in_service = !taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
    invariants.node_changed(&node.name_any(), !deleted && ready == "True" && in_service);
    let short = |name: &String| name.rsplit('^').next().unwrap_or_default().to_owned();
    let in_use: Vec<_> = status.volumes_in_use.iter().flatten().map(short).collect();
    let attached = status.volumes_attached.unwrap_or_default();
    let attached: Vec<_> = attached.iter().map(|volume| short(&volume.name)).collect();
    let mut text = format!("ready={ready} volumesInUse={in_use:?} volumesAttached={attached:?}");
    if !in_service {
        text += " out of service";
    }
    Line { volume: None, text }
}

fn csi_node_line(csi_node: &CSINode) -> Line {
    let ids: Vec<_> = csi_node
        .spec
        .drivers
        .iter()
        .map(|driver| &driver.node_id)
        .collect();
    Line {
        volume: None,
        text: format!("nodeIDs={ids:?}"),
    }
}

/// The end of a line about an object that is being deleted; else empty.
fn deleting(object: &impl ResourceExt) -> &'static str {
    match object.meta().deletion_timestamp {
        Some(_) => " deleting",
        None => "",
    }
}

fn volume_line(volume: &PersistentVolume, timeline: &Timeline) -> Line {
    let name = volume_of(&volume.name_any());
    let mut finalizers = volume.finalizers().to_vec();
    let count = finalizers.len();
    finalizers.sort();
    finalizers.dedup();
    if finalizers.len() < count {
        timeline.violated(
            Some(&name),
            format!("a finalizer is there twice: {:?}", volume.finalizers()),
        );
    }
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let deleting = deleting(volume);
    Line {
        volume: Some(name),
        text: format!(
            "{}{deleting} finalizers={finalizers:?}",
            phase.unwrap_or_default()
        ),
    }
}

fn claim_line(claim: &PersistentVolumeClaim) -> Line {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let deleting = deleting(claim);
    Line {
        volume: volume.map(volume_of),
        text: format!("{}{deleting}", phase.unwrap_or_default()),
    }
}

fn pod_line(pod: &Pod) -> Line {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    // Only static claims (`claim-N`) always have the same volume; a claim from a template gets a new one after each deletion.
    let number = claim_of(pod).and_then(|claim| claim.strip_prefix("claim-"));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let deleting = deleting(pod);
    Line {
        volume: number.map(|number| format!("vol-{number}")),
        text: format!(
            "{} on {}{deleting}",
            phase.unwrap_or_default(),
            node.unwrap_or("no node")
        ),
    }
}
