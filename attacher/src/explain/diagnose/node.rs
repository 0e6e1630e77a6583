//! Nodes: finding one for a pod, and what is to be known of one.

use crate::explain::objects::Pod;
use crate::explain::print::ago;
use crate::explain::report::{Actor, Cause, Finding};
use crate::explain::scene::{Scene, Way};
use crate::explain::snapshot::Look;

/// A pod that has no node yet.
pub(super) fn unscheduled(way: &Way<'_>, pod: &Pod) -> Option<Finding> {
    if !pod.spec.node_name.is_empty() {
        return None;
    }
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    let condition = pod.condition("PodScheduled");
    let since = condition
        .and_then(|condition| condition.last_transition_time)
        .or(pod.metadata.creation_timestamp);
    let finding = Finding::new(
        Cause::PodUnscheduled,
        way.scene.waiting(since),
        Actor::Scheduler,
        "The pod has no node yet, so nothing can be attached.",
    )
    .since(since);
    let Some(condition) = condition else {
        return Some(
            finding
                .because("No scheduler has looked at the pod: either it has just been made, or no scheduler of its schedulerName runs.")
                .advise_to_run("See which scheduler the pod asks for.", format!("kubectl -n {namespace} get pod {name} -o jsonpath='{{.spec.schedulerName}}'")),
        );
    };
    let mut finding = finding.because(format!(
        "The scheduler says: {} {}",
        condition.reason, condition.message
    ));
    if condition.message.contains("max volume count") {
        finding = finding.because("\"exceed max volume count\" means: as many volumes of the driver are attached to the node as its CSINode allows (spec.drivers[].allocatable.count).");
    }
    if condition.message.contains("volume node affinity conflict") {
        finding = finding.because("\"volume node affinity conflict\" means: the volume can only be reached from other nodes, mostly those of its zone.");
    }
    Some(finding.advise_to_run(
        "Make room on a node that fits, or change what the pod asks for.",
        format!("kubectl -n {namespace} describe pod {name}"),
    ))
}

/// How many volumes of the driver the node may have, and has.
pub(super) fn limit(way: &Way<'_>, driver: &str) -> Option<String> {
    limit_of(way.scene, way.node?, driver)
}

fn limit_of(scene: Scene<'_>, node: &str, driver: &str) -> Option<String> {
    let csi_node = scene.csi_node(node).found()?;
    let drivers = csi_node.more.spec.drivers.as_ref()?;
    let entry = drivers.iter().find(|entry| entry.name == driver)?;
    let limit = entry.allocatable.as_ref()?.count?;
    Some(format!(
        "CSINode {node} says that it may have {limit} volumes of driver {driver} (allocatable.count)."
    ))
}

/// What is to be known of a node beside its volumes.
pub(super) fn notes(scene: Scene<'_>, name: &str) -> Vec<String> {
    let mut notes = Vec::new();
    match scene.node(name) {
        Look::Absent => notes.push(format!(
            "There is no node {name} (any more); what is attached to it is left over."
        )),
        Look::Unknown => {}
        Look::Found(node) => {
            let ready = node.ready();
            if let Some(ready) = ready.filter(|ready| ready.status != "True") {
                let since = ready
                    .last_transition_time
                    .map(|time| ago(scene.age(time)))
                    .unwrap_or_default();
                notes.push(format!(
                    "The node is not ready since {since}: {} {}",
                    ready.reason, ready.message
                ));
            }
            let taints: Vec<_> = node.spec.taints.iter().map(|taint| taint.key.as_str()).collect();
            if !taints.is_empty() {
                notes.push(format!("The node is tainted: {}.", taints.join(", ")));
            }
        }
    }
    match scene.csi_node(name) {
        Look::Absent => notes.push("It has no CSINode: kubelet has registered no CSI driver.".to_owned()),
        Look::Unknown => {}
        Look::Found(csi_node) => {
            let drivers: Vec<_> = csi_node
                .wire
                .spec
                .drivers
                .iter()
                .map(|driver| driver.name.as_str())
                .collect();
            notes.push(format!(
                "Its CSINode has these drivers: {}.",
                if drivers.is_empty() {
                    "none".to_owned()
                } else {
                    drivers.join(", ")
                }
            ));
            for driver in drivers {
                let used = scene.snapshot.attachments.iter();
                let used = used
                    .filter(|va| va.spec.node_name == name && va.spec.attacher == driver)
                    .count();
                if let Some(limit) = limit_of(scene, name, driver) {
                    notes.push(format!("{limit} There are {used} VolumeAttachments of it."));
                }
            }
        }
    }
    notes
}
