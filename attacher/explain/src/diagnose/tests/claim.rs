//! Claims, their volumes, and scheduling.

use serde_json::json;

use super::*;

const CLAIMS_VOLUMES_AND_SCHEDULING: &[Row] = &[
    (
        "fine",
        World::fine,
        |_| (),
        POD,
        (Cause::Fine, Fine, Nothing),
        &["pod/db-0 in namespace shop: fine", "[x] mounted"],
    ),
    (
        "no claim",
        World::waiting,
        |w| w.remove("claim"),
        POD,
        (Cause::ClaimMissing, Stuck, Administrator),
        &["no PersistentVolumeClaim data"],
    ),
    (
        "no class",
        World::waiting,
        unbound_claim,
        POD,
        (Cause::ClaimPending, Stuck, Administrator),
        &["There is no StorageClass fast"],
    ),
    (
        "provisioner",
        World::waiting,
        |w| {
            unbound_claim(w);
            w.add("class", json!({"metadata": {"name": "fast"}, "provisioner": "d.example", "volumeBindingMode": "Immediate"}));
            w.event(
                "PersistentVolumeClaim",
                "data",
                "ProvisioningFailed",
                "array is full",
            );
        },
        POD,
        (Cause::ClaimPending, Stuck, Provisioner),
        &[
            "the provisioner of d.example",
            "ProvisioningFailed: array is full",
        ],
    ),
    (
        "first consumer",
        World::waiting,
        |w| {
            unbound_claim(w);
            w.add("class", json!({"metadata": {"name": "fast"}, "provisioner": "d.example", "volumeBindingMode": "WaitForFirstConsumer"}));
        },
        POD,
        (Cause::ClaimWaitsForConsumer, Stuck, Scheduler),
        &["WaitForFirstConsumer", "No scheduler has processed the pod"],
    ),
    (
        "first consumer, no pod",
        World::waiting,
        |w| {
            unbound_claim(w);
            w.remove("pod");
            w.add("class", json!({"metadata": {"name": "fast"}, "provisioner": "d.example", "volumeBindingMode": "WaitForFirstConsumer"}));
        },
        PVC,
        (Cause::ClaimWaitsForConsumer, Fine, Nothing),
        &["waits for the first pod"],
    ),
    (
        "lost",
        World::waiting,
        |w| {
            w.set("claim", json!({"status": {"phase": "Lost"}}));
            w.remove("pv");
        },
        POD,
        (Cause::ClaimLost, Stuck, Administrator),
        &["PersistentVolume pv-1", "does not exist"],
    ),
    (
        "bound elsewhere",
        World::waiting,
        |w| w.set("pv", json!({"spec": {"claimRef": {"name": "other", "uid": "x"}}})),
        POD,
        (Cause::VolumeBoundElsewhere, Stuck, Administrator),
        &["bound to another claim: shop/other", "DANGER"],
    ),
    (
        "bound to an earlier claim",
        World::waiting,
        |w| w.set("pv", json!({"spec": {"claimRef": {"uid": "old"}}})),
        POD,
        (Cause::VolumeBoundElsewhere, Stuck, Administrator),
        &["earlier claim of the same name"],
    ),
    (
        "released",
        World::waiting,
        |w| {
            w.remove("pod");
            w.remove("claim");
            w.set(
                "pv",
                json!({"status": {"phase": "Released"}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}),
            );
        },
        PV,
        (Cause::VolumeReleased, Fine, Nothing),
        &["its data is kept", "Retain"],
    ),
    (
        "volume protected by its claim",
        World::waiting,
        |w| {
            w.remove("pod");
            w.set("pv", json!({"metadata": {"deletionTimestamp": EARLIER, "finalizers": ["kubernetes.io/pv-protection"]}}));
        },
        PV,
        (Cause::VolumeTerminating, Stuck, Administrator),
        &["kubectl -n shop delete pvc data"],
    ),
    (
        "attacher's finalizer on an unattached volume",
        World::waiting,
        |w| {
            w.remove("pod");
            w.remove("claim");
            w.set("pv", json!({"metadata": {"deletionTimestamp": EARLIER, "finalizers": ["external-attacher/d-example"]}, "status": {"phase": "Released"}}));
            expired_lease(w);
        },
        PV,
        (Cause::AttacherLeaseExpired, Stuck, Attacher),
        &["held by attacher-0", "There is no pod csi/attacher-0"],
    ),
    (
        "unscheduled",
        World::waiting,
        |w| {
            let message = "0/2 nodes are available: 2 node(s) exceed max volume count.";
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": EARLIER});
            w.set(
                "pod",
                json!({"spec": {"nodeName": ""}, "status": {"conditions": [condition]}}),
            );
        },
        POD,
        (Cause::PodUnscheduled, Stuck, Scheduler),
        &[
            "exceed max volume count",
            "allocatable.count",
            "[>] pod scheduled",
        ],
    ),
];

#[test]
fn explains_claims_volumes_and_scheduling() {
    check(CLAIMS_VOLUMES_AND_SCHEDULING);
}
