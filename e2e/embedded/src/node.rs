//! Helpers for Node objects.

use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint, Toleration};
use kube::api::Patch;
use serde::Serialize;
use serde_json::{Value, json};

/// Key of the out-of-service taint, which an administrator sets on a node that is shut down.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Key of the taint of a node whose Ready condition is Unknown.
pub(crate) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Key of the taint that admission adds to every new node, and the node lifecycle controller removes when the node is ready.
pub(crate) const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Annotation with which a kubelet enables controller-managed attach and detach.
pub(crate) const CONTROLLER_MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Namespace in which kubelets keep their heartbeat leases.
pub(crate) const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// Whether the node's Ready condition is True.
pub(crate) fn is_ready(node: &Node) -> bool {
    ready_status(node) == Some("True")
}

/// The status of the node's Ready condition.
pub(crate) fn ready_status(node: &Node) -> Option<&str> {
    condition(node, "Ready").map(|ready| ready.status.as_str())
}

pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn has_taint(node: &Node, key: &str) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_ref())
        .into_iter()
        .flatten()
        .any(|taint| taint.key == key)
}

/// The difference between a list of the Node's status as an informer or the API server has it and `new`, as `PatchNodeStatus`:
/// if the informer is late, nothing changes although the API server has another list.
pub(crate) fn status_patch<T>(field: &str, known: Option<&[T]>, new: &[T]) -> Patch<Value>
where
    T: PartialEq + Serialize,
{
    let list = match new {
        [] => Value::Null,
        new => json!(new),
    };
    let is_equal = known.unwrap_or_default() == new;
    Patch::Strategic(match is_equal {
        true => json!({}),
        false => json!({"status": {field: list}}),
    })
}

/// Whether the toleration matches the taint (`Toleration.ToleratesTaint`). Operators `Lt` and `Gt` need an alpha feature.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let matches = |given: &Option<String>, found: &str| {
        let given = given.as_deref().unwrap_or_default();
        given.is_empty() || given == found
    };
    matches(&toleration.effect, &taint.effect)
        && matches(&toleration.key, &taint.key)
        && match toleration.operator.as_deref() {
            None | Some("" | "Equal") => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            Some(operator) => operator == "Exists",
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_patch_is_the_difference_to_the_known_list() {
        let patch = |known: Option<&[&str]>, new: &[&str]| {
            let Patch::Strategic(patch) = status_patch("volumesInUse", known, new) else {
                panic!("the patch must be a strategic one");
            };
            patch
        };
        let cases = [
            (None, &["a"][..], json!({"status": {"volumesInUse": ["a"]}})),
            (
                Some(&["a", "b"][..]),
                &["a"][..],
                json!({"status": {"volumesInUse": ["a"]}}),
            ),
            (
                Some(&["a"][..]),
                &[][..],
                json!({"status": {"volumesInUse": null}}),
            ),
            (Some(&["a"][..]), &["a"][..], json!({})),
            (None, &[][..], json!({})),
        ];
        for (known, new, expected) in cases {
            assert_eq!(patch(known, new), expected, "{known:?} to {new:?}");
        }
    }
}
