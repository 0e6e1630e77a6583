//! Attached volumes, until they are mounted into the pod.

use serde_json::json;

use super::*;

const ATTACHED_VOLUMES: &[Row] = &[
    (
        "not in volumesAttached",
        World::fine,
        |w| {
            w.set("pod", json!({"status": {"phase": "Pending"}}));
            w.set("node", json!({"status": {"volumesAttached": []}}));
        },
        POD,
        (Cause::NotInVolumesAttached, Stuck, AttachDetachController),
        &[
            "volumesAttached lacks kubernetes.io/csi/d.example^h-1",
            "[>] listed for kubelet",
        ],
    ),
    (
        "mounting",
        World::fine,
        |w| {
            w.set("pod", json!({"status": {"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]}}));
            w.set("va", json!({"metadata": {"managedFields": [{"manager": "csi-attacher", "subresource": "status", "time": "2026-01-01T00:59:55Z"}]}}));
        },
        POD,
        (Cause::Mounting, Progressing, Kubelet),
        &["kubelet on node node-a", "[>] mounted by kubelet"],
    ),
    (
        "mount fails",
        World::fine,
        |w| {
            w.set("pod", json!({"status": {"phase": "Pending"}}));
            w.event(
                "Pod",
                "db-0",
                "FailedMount",
                "MountVolume.MountDevice failed for volume \"pv-1\" : bad superblock",
            );
            w.event(
                "Pod",
                "db-0",
                "FailedMount",
                "MountVolume.SetUp failed for volume \"config\" : other",
            );
        },
        POD,
        (Cause::MountFails, Stuck, Kubelet),
        &["bad superblock", "node plugin"],
    ),
    (
        "image missing",
        World::fine,
        |w| {
            w.set("pod", json!({"status": {"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}))
        },
        POD,
        (Cause::Fine, Fine, Nothing),
        &["has another reason", "ImagePullBackOff"],
    ),
    (
        "warnings of the attacher",
        World::fine,
        |w| {
            w.event(
                "VolumeAttachment",
                "va-1",
                "NodeIDNotUnique",
                "nodes node-a and node-b have the same node id i-1",
            );
            w.event(
                "PersistentVolume",
                "pv-1",
                "PublishedWithoutAttachment",
                "listed on node node-c",
            );
        },
        POD,
        (Cause::Fine, Fine, Nothing),
        &[
            "NodeIDNotUnique: nodes node-a and node-b have the same node id i-1",
            "PublishedWithoutAttachment: listed on node node-c",
        ],
    ),
    (
        "node not ready",
        World::fine,
        node_not_ready,
        POD,
        (Cause::NodeNotReady, Stuck, Kubelet),
        &["stopped posting"],
    ),
    (
        "pod deleting, node down",
        World::fine,
        |w| {
            node_not_ready(w);
            pod_deleted(w);
        },
        POD,
        (Cause::NodeLost, Stuck, Administrator),
        &["out-of-service", "DANGER"],
    ),
    (
        "pod deleting, node out of service",
        World::fine,
        |w| {
            node_not_ready(w);
            pod_deleted(w);
            w.set(
                "node",
                json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service"}]}}),
            );
        },
        POD,
        (Cause::NodeLost, Stuck, AttachDetachController),
        &["the attach/detach controller", "removed and its volumes detached"],
    ),
    (
        "pod deleting",
        World::fine,
        pod_deleted,
        POD,
        (Cause::StillMounted, Stuck, Kubelet),
        &["grace period"],
    ),
];

#[test]
fn explains_attached_volumes_until_the_mount() {
    check(ATTACHED_VOLUMES);
}
