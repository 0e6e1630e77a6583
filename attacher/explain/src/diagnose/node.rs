//! Findings from Node and CSINode objects, and pods without a node.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::objects::{CsiNodeExt, NodeExt, ObjectExt, PodExt, text};
use crate::path::{ClusterView, VolumePath};
use crate::report::{Actor, Cause, Finding};
use crate::snapshot::Lookup;
use crate::time::ago;

/// The taint by which an administrator confirms that a node is shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The pod has no node yet.
pub(super) fn unscheduled(path: &VolumePath<'_>, pod: &Pod) -> Option<Finding> {
    if !pod.node_name().is_empty() {
        return None;
    }
    let (namespace, name) = (pod.namespace(), pod.name());
    let condition = pod.condition("PodScheduled");
    let since = condition
        .and_then(|condition| Some(condition.last_transition_time.as_ref()?.0))
        .or(pod.created_at());
    let finding = path.due(
        since,
        Cause::PodUnscheduled,
        Actor::Scheduler,
        "The pod has no node yet, so nothing can be attached.",
    );
    let Some(condition) = condition else {
        return Some(
            finding
                .because("No scheduler has processed the pod: either it was just created, or no scheduler of its schedulerName runs.")
                .advise_to_run("See which scheduler the pod asks for.", format!("kubectl -n {namespace} get pod {name} -o jsonpath='{{.spec.schedulerName}}'")),
        );
    };
    let message = text(&condition.message);
    let mut finding = finding.because(format!(
        "The scheduler says: {} {message}",
        text(&condition.reason)
    ));
    if message.contains("max volume count") {
        finding = finding.because("\"exceed max volume count\" means: as many volumes of the driver are attached to the node as its CSINode allows (spec.drivers[].allocatable.count).");
    }
    if message.contains("volume node affinity conflict") {
        finding = finding.because("\"volume node affinity conflict\" means: the volume can only be reached from other nodes, mostly those of its zone.");
    }
    Some(finding.advise_to_run(
        "Free capacity on a suitable node, or change the pod's requirements.",
        format!("kubectl -n {namespace} describe pod {name}"),
    ))
}

/// The Node object does not exist.
pub(super) fn gone(path: &VolumePath<'_>, since: Option<Timestamp>) -> Finding {
    let node = path.node_name.unwrap_or_default();
    Finding::stuck(
        Cause::NodeGone,
        Actor::AttachDetachController,
        format!("There is no node {node} any more."),
    )
    .since(since)
    .because("Pods of a deleted node are removed after a minute or so; then the attach/detach controller deletes the attachment.")
    .advise_to_run(
        "If a pod stays behind, delete it.",
        format!("kubectl get pods -A --field-selector spec.nodeName={node}"),
    )
}

/// A pod uses the volume on a node that is not ready.
pub(super) fn lost(path: &VolumePath<'_>, since: Option<Timestamp>, message: &str) -> Finding {
    let node = path.node_name.unwrap_or_default();
    let finding = path.due(
        since,
        Cause::NodeLost,
        Actor::Administrator,
        format!("Node {node} is not ready, and its pod still uses the volume."),
    )
    .because(format!("The node's Ready condition: {message}"))
    .because("As long as the pod object exists, Kubernetes does not know whether the node still writes, and does not detach the volume.");
    with_out_of_service(path, finding)
}

/// How an administrator confirms that the node is shut down, or the consequence if the taint is set.
pub(super) fn with_out_of_service(path: &VolumePath<'_>, mut finding: Finding) -> Finding {
    let node = path.node_name.unwrap_or_default();
    let is_tainted = path
        .node()
        .is_some_and(|node| node.taints().iter().any(|taint| taint.key == OUT_OF_SERVICE));
    if is_tainted {
        finding.actor = Actor::AttachDetachController;
        return finding.of("").because(format!(
            "The node has the taint {OUT_OF_SERVICE}: its pods are removed and its volumes detached at once."
        ));
    }
    finding
        .advise("Bring the node back: its kubelet then unmounts the volume, and the detach follows.")
        .advise_to_run(
            "Or, if the machine is certainly shut down (power off, instance terminated), confirm that; pods are then removed and volumes detached at once.",
            format!("kubectl taint nodes {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"),
        )
        .danger("If the machine is still running, two nodes write to the same volume and its data is destroyed. Remove the taint when the node comes back.")
}

/// The maximum number of the driver's volumes on the node.
pub(super) fn limit(view: ClusterView<'_>, node: &str, driver: &str) -> Option<String> {
    let driver_on_node = view.csi_node(node).found()?.driver(driver)?;
    let limit = driver_on_node.allocatable.as_ref()?.count?;
    Some(format!(
        "CSINode {node} says that it may have {limit} volumes of driver {driver} (allocatable.count)."
    ))
}

/// Facts about the node other than its volumes.
pub(super) fn notes(view: ClusterView<'_>, name: &str) -> Vec<String> {
    let mut notes = Vec::new();
    match view.node(name) {
        Lookup::NotFound => notes.push(format!(
            "There is no node {name} any more; its VolumeAttachments are left over."
        )),
        Lookup::Unknown => {}
        Lookup::Found(node) => {
            if let Some(ready) = node.ready().filter(|ready| ready.status != "True") {
                let since = ready.last_transition_time.as_ref();
                let since = since.map(|time| ago(view.age(time.0))).unwrap_or_default();
                notes.push(format!(
                    "The node is not ready since {since}: {} {}",
                    text(&ready.reason),
                    text(&ready.message)
                ));
            }
            let taints: Vec<_> = node.taints().iter().map(|taint| taint.key.as_str()).collect();
            if !taints.is_empty() {
                notes.push(format!("The node is tainted: {}.", taints.join(", ")));
            }
        }
    }
    match view.csi_node(name) {
        Lookup::NotFound => {
            notes.push("It has no CSINode: kubelet has not registered any CSI driver.".to_owned());
        }
        Lookup::Unknown => {}
        Lookup::Found(csi_node) => {
            let drivers = csi_node.spec.drivers.iter();
            let drivers: Vec<_> = drivers.map(|driver| driver.name.as_str()).collect();
            let list = if drivers.is_empty() {
                "none".to_owned()
            } else {
                drivers.join(", ")
            };
            notes.push(format!("Drivers in its CSINode: {list}."));
            notes.extend(drivers.into_iter().filter_map(|driver| usage(view, name, driver)));
        }
    }
    notes
}

/// The limit of a driver on a node, and its usage.
fn usage(view: ClusterView<'_>, node: &str, driver: &str) -> Option<String> {
    let limit = limit(view, node, driver)?;
    let attachments = view.snapshot.attachments.iter();
    let used = attachments.filter(|va| va.spec.node_name == node && va.spec.attacher == driver);
    Some(format!(
        "{limit} There are {} VolumeAttachments of it.",
        used.count()
    ))
}
