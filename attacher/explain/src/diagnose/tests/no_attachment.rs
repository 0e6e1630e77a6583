//! Volumes without a VolumeAttachment.

use serde_json::json;

use super::*;

const MISSING_ATTACHMENTS: &[Row] = &[
    (
        "just scheduled",
        World::waiting,
        |w| {
            w.set("pod", json!({"status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:59:50Z"}]}}))
        },
        POD,
        (Cause::NoAttachmentYet, Progressing, AttachDetachController),
        &["in progress", "10 s ago"],
    ),
    (
        "controller creates no attachment",
        World::waiting,
        |w| {
            w.event(
                "Pod",
                "db-0",
                "FailedAttachVolume",
                "AttachVolume.Attach failed for volume \"pv-1\": why",
            )
        },
        POD,
        (Cause::NoAttachmentYet, Stuck, AttachDetachController),
        &["AttachVolume.Attach failed", "kube-controller-manager"],
    ),
    (
        "node not managed",
        World::waiting,
        |w| w.set("node", json!({"metadata": {"annotations": null}})),
        POD,
        (Cause::NodeNotManaged, Stuck, Kubelet),
        &["enableControllerAttachDetach"],
    ),
    (
        "node gone",
        World::waiting,
        |w| w.remove("node"),
        POD,
        (Cause::NodeGone, Stuck, AttachDetachController),
        &["no node node-a"],
    ),
    (
        "not a CSI volume",
        World::waiting,
        |w| w.set("pv", json!({"spec": {"csi": null, "nfs": {"server": "s"}}})),
        POD,
        (Cause::NotCsi, Fine, Kubelet),
        &["not a CSI volume"],
    ),
    (
        "migrated in-tree volume",
        World::waiting,
        |w| {
            w.set(
                "pv",
                json!({"spec": {"csi": null, "awsElasticBlockStore": {"volumeID": "vol-1"}}}),
            )
        },
        POD,
        (Cause::NoAttachmentYet, Stuck, AttachDetachController),
        &["driver ebs.csi.aws.com"],
    ),
    (
        "needs no attachment, mount fails",
        World::waiting,
        |w| {
            w.set("driver", json!({"spec": {"attachRequired": false}}));
            w.event(
                "Pod",
                "db-0",
                "FailedMount",
                "MountVolume.SetUp failed for volume \"pv-1\" : no route",
            );
        },
        POD,
        (Cause::MountFails, Stuck, Kubelet),
        &["no route", "attachRequired: false"],
    ),
    (
        "used on another node",
        World::needed_on_another_node,
        |w| {
            w.event(
                "Pod",
                "db-1",
                "FailedAttachVolume",
                "Multi-Attach error for volume \"pv-1\"",
            )
        },
        (ResourceKind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Administrator),
        &[
            "still attached to node node-a",
            "ReadWriteOnce",
            "Pod shop/db-0 uses it",
            "delete pod db-0",
            "Multi-Attach error",
        ],
    ),
    (
        "other pod deleting, node down",
        World::needed_on_another_node,
        |w| {
            node_not_ready(w);
            pod_deleted(w);
        },
        (ResourceKind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Administrator),
        &[
            "kubectl taint nodes node-a node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            "DANGER",
        ],
    ),
    (
        "detach of the other fails",
        World::needed_on_another_node,
        |w| {
            w.remove("pod");
            w.set("va", json!({"metadata": {"deletionTimestamp": EARLIER}, "status": {"detachError": {"message": "rpc error: code = Internal desc = broken"}}}));
        },
        (ResourceKind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Driver),
        &["The detach fails", "code = Internal desc = broken"],
    ),
    (
        "attachment created while the other detach fails",
        World::needed_on_another_node,
        |w| {
            w.remove("pod");
            let mut va = w.take("va");
            let mut next = va.clone();
            merge(
                &mut va,
                json!({"metadata": {"deletionTimestamp": EARLIER}, "status": {"detachError": {"message": "rpc error: code = Internal desc = broken"}}}),
            );
            merge(
                &mut next,
                json!({
                    "metadata": {"name": "va-b", "uid": "u-va-b"}, "spec": {"nodeName": "node-b"},
                    "status": {"attached": false, "attachError": {"message": "rpc error: code = FailedPrecondition desc = elsewhere"}},
                }),
            );
            w.add("va", va);
            w.add("va-b", next);
        },
        (ResourceKind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Driver),
        &[
            "still attached to node node-a",
            "desc = broken",
            "desc = elsewhere",
        ],
    ),
    (
        "ReadWriteMany",
        World::needed_on_another_node,
        |w| w.set("pv", json!({"spec": {"accessModes": ["ReadWriteMany"]}})),
        (ResourceKind::Pod, "db-1"),
        (Cause::NoAttachmentYet, Stuck, AttachDetachController),
        &[],
    ),
];

#[test]
fn explains_missing_volume_attachments() {
    check(MISSING_ATTACHMENTS);
}
