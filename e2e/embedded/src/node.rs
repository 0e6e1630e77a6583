//! Helpers for Node objects.

use k8s_openapi::api::core::v1::Node;

/// Key of the taint by which an administrator says that a node is down for good.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Annotation by which a kubelet leaves attach and detach to the controller.
pub(crate) const CONTROLLER_MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Whether the node's Ready condition is True.
pub(crate) fn is_ready(node: &Node) -> bool {
    ready_status(node) == Some("True")
}

/// The status of the node's Ready condition.
pub(crate) fn ready_status(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    Some(&ready.status)
}

pub(crate) fn has_taint(node: &Node, key: &str) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_ref())
        .into_iter()
        .flatten()
        .any(|taint| taint.key == key)
}

pub(crate) fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}
