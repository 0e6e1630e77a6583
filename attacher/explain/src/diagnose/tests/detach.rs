//! Detaches, and VolumeAttachments that no pod needs.

use serde_json::json;

use super::*;

const DETACHES: &[Row] = &[
    (
        "detaching",
        World::deleting,
        |_| (),
        VA,
        (Cause::Detaching, Stuck, Driver),
        &["from node node-a", "[>] detached by the driver"],
    ),
    (
        "detach fails",
        World::deleting,
        |w| {
            w.set("va", json!({"status": {"detachError": {"message": "rpc error: code = Unavailable desc = away", "time": EARLIER}}}))
        },
        PV,
        (Cause::DetachFails, Stuck, Driver),
        &[
            "Code Unavailable (14)",
            "DANGER",
            "kubectl patch volumeattachment va-1",
        ],
    ),
    (
        "the driver is down",
        World::deleting,
        |w| {
            w.set("va", json!({"status": {"detachError": {"message": "rpc error: code = Unavailable desc = away; waits for the driver (down for 40 s)", "time": EARLIER}}}))
        },
        PV,
        (Cause::DriverDown, Stuck, Driver),
        &["It waits for the driver (down for 40 s)."],
    ),
    (
        "nothing proves the detach",
        World::deleting,
        |w| {
            let message = "nothing proves that volume \"h\" is detached, set --assume-unpublished-after=DURATION; Last answer: rpc error: code = NotFound desc = no node";
            w.set(
                "va",
                json!({"status": {"detachError": {"message": message, "time": EARLIER, "errorCode": 5}}}),
            );
        },
        PV,
        (Cause::DetachFails, Stuck, Driver),
        &[
            "--assume-unpublished-after=10m",
            "DANGER",
            "kubectl patch volumeattachment va-1",
        ],
    ),
    (
        "lease expired",
        World::deleting,
        expired_lease,
        VA,
        (Cause::AttacherLeaseExpired, Stuck, Attacher),
        &["attacher-0"],
    ),
    (
        "in use",
        World::deleting,
        |w| w.set("node", json!({"status": {"volumesInUse": [UNIQUE]}})),
        VA,
        (Cause::DetachWhileInUse, Stuck, Driver),
        &["still reports it in use", "[>] unmounted"],
    ),
    (
        "foreign finalizer",
        World::deleting,
        |w| {
            w.set(
                "va",
                json!({"metadata": {"finalizers": ["example.com/hold"]}, "status": {"attached": false}}),
            )
        },
        VA,
        (Cause::ForeignFinalizer, Stuck, Administrator),
        &["example.com/hold", "--show-managed-fields", "DANGER"],
    ),
    (
        "foreign finalizer, attached",
        World::deleting,
        |w| w.set("va", json!({"metadata": {"finalizers": ["example.com/hold"]}})),
        VA,
        (Cause::Detaching, Stuck, Driver),
        &[
            "Only other finalizers (example.com/hold) keep the VolumeAttachment",
            "DANGER",
            "If the volume is still attached",
        ],
    ),
    (
        "foreign finalizer, detach fails",
        World::deleting,
        |w| {
            w.set(
                "va",
                json!({"metadata": {"finalizers": ["example.com/hold"]}, "status": {
                    "attached": false,
                    "detachError": {"message": "rpc error: code = Unavailable desc = away", "time": EARLIER},
                }}),
            )
        },
        PV,
        (Cause::DetachFails, Stuck, Driver),
        &[
            "Only other finalizers (example.com/hold) keep the VolumeAttachment",
            "DANGER",
            "If the volume is still attached",
        ],
    ),
    (
        "volume gone",
        World::deleting,
        |w| w.remove("pv"),
        VA,
        (Cause::VolumeMissing, Stuck, Administrator),
        &["\"pv-1\" not found"],
    ),
    (
        "volume created again",
        World::deleting,
        |w| {
            w.set(
                "pv",
                json!({"metadata": {"creationTimestamp": "2026-01-01T00:59:00Z"}}),
            );
            let message = csi_attacher::plan::Refusal::VolumeRecreated("pv-1".into()).to_string();
            w.set(
                "va",
                json!({"status": {"detachError": {"message": message, "time": EARLIER}}}),
            );
        },
        VA,
        (Cause::AttachmentRefused, Stuck, Administrator),
        &["$ kubectl annotate volumeattachment va-1 external-attacher/volume-handle=HANDLE"],
    ),
    (
        "volume created again, Go sidecar",
        World::deleting,
        |w| {
            w.set(
                "pv",
                json!({"metadata": {"creationTimestamp": "2026-01-01T00:59:00Z"}}),
            )
        },
        VA,
        (Cause::Detaching, Stuck, Driver),
        &[],
    ),
    (
        "volume gone, handle recorded",
        World::deleting,
        |w| {
            w.remove("pv");
            w.set(
                "va",
                json!({"metadata": {"annotations": {"external-attacher/volume-handle": "h-1"}}}),
            );
        },
        VA,
        (Cause::Detaching, Stuck, Driver),
        &[],
    ),
    (
        "needed again",
        World::fine,
        |w| {
            w.set(
                "va",
                json!({"metadata": {"deletionTimestamp": EARLIER, "finalizers": null}}),
            )
        },
        POD,
        (Cause::Terminating, Stuck, Nothing),
        &["Pod shop/db-0 needs the volume on this node again"],
    ),
    (
        "not needed",
        World::fine,
        |w| {
            w.remove("pod");
            w.set("node", json!({"status": {"volumesInUse": []}}));
        },
        VA,
        (Cause::DetachNotRequested, Progressing, AttachDetachController),
        &["No pod uses the volume"],
    ),
    (
        "not needed, mounted",
        World::fine,
        |w| w.remove("pod"),
        VA,
        (Cause::StillMounted, Progressing, Kubelet),
        &["volumesInUse"],
    ),
    (
        "not needed, node down",
        World::fine,
        |w| {
            w.remove("pod");
            node_not_ready(w);
        },
        VA,
        (Cause::StillMounted, Stuck, AttachDetachController),
        &["six minutes", "kubectl taint"],
    ),
    (
        "not needed, node gone",
        World::fine,
        |w| {
            w.remove("pod");
            w.remove("node");
        },
        (ResourceKind::Node, "node-a"),
        (Cause::NodeGone, Stuck, AttachDetachController),
        &["left over"],
    ),
];

#[test]
fn explains_detaches_and_unneeded_attachments() {
    check(DETACHES);
}
