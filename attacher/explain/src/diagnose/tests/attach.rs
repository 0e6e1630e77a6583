//! VolumeAttachments that exist and are not attached.

use serde_json::json;

use super::*;

const UNATTACHED: &[Row] = &[
    (
        "not processed, lease held",
        World::unattached,
        |_| (),
        VA,
        (Cause::AttacherBehind, Stuck, Attacher),
        &["held by attacher-0"],
    ),
    (
        "not processed, no lease",
        World::unattached,
        |w| w.remove("lease"),
        POD,
        (Cause::AttacherSilent, Stuck, Attacher),
        &["There is no lease external-attacher-leader-d-example"],
    ),
    (
        "lease expired",
        World::unattached,
        expired_lease,
        POD,
        (Cause::AttacherLeaseExpired, Stuck, Attacher),
        &["last renewed it 20 min 0 s ago", "valid for 15 s"],
    ),
    (
        "lease released",
        World::unattached,
        |w| w.set("lease", json!({"spec": {"holderIdentity": ""}})),
        POD,
        (Cause::NoLeader, Stuck, Attacher),
        &["was released"],
    ),
    (
        "lease expired, leader election disabled since",
        World::unattached,
        |w| {
            expired_lease(w);
            w.set("va", json!({"status": {"attachError": {"message": "rpc error: code = Aborted desc = busy", "time": EARLIER}}}));
        },
        VA,
        (Cause::AttachFails, Stuck, Driver),
        &[
            "still under way",
            "Yet an attacher has written since, so one seems to run",
            "without --leader-election",
        ],
    ),
    (
        "the driver refuses calls beside others",
        World::unattached,
        |w| {
            w.set("va", json!({"status": {"attachError": {"message": "rpc error: code = Aborted desc = busy; waits for its turn on node node-a (limit 2 learned), refused for 17 s", "time": EARLIER}}}));
        },
        VA,
        (Cause::WaitsForTurn, Stuck, Driver),
        &[
            "It waits for its turn on node node-a (limit 2 learned), refused for 17 s.",
            "in order of age",
        ],
    ),
    (
        "the driver is down",
        World::unattached,
        |w| {
            w.set("va", json!({"status": {"attachError": {"message": "rpc error: code = Unavailable desc = array; waits for its turn on desk; waits for the driver (down for 12 s)", "time": EARLIER}}}));
        },
        VA,
        (Cause::DriverDown, Stuck, Driver),
        &[
            "It waits for the driver (down for 12 s).",
            "next: the CSI driver d.example",
            "probes it with one call at a time",
        ],
    ),
    (
        "the driver's own text waits for something",
        World::unattached,
        |w| {
            w.set("va", json!({"status": {"attachError": {"message": "rpc error: code = Unavailable desc = array; waits for a disk", "time": EARLIER}}}));
        },
        VA,
        (Cause::AttachFails, Stuck, Driver),
        &["Code Unavailable (14)"],
    ),
    (
        "lease released, leader election disabled since",
        World::unattached,
        |w| {
            w.set(
                "lease",
                json!({"spec": {"holderIdentity": "", "renewTime": "2026-01-01T00:40:00Z"}}),
            );
            w.set(
                "va",
                json!({"status": {"attachError": {"message": "boom", "time": EARLIER, "errorCode": 13}}}),
            );
        },
        VA,
        (Cause::AttachFails, Stuck, Driver),
        &[
            "was released 20 min 0 s ago",
            "without --leader-election",
            "Find the attacher",
        ],
    ),
    (
        "driver fails",
        World::unattached,
        |w| {
            w.set(
                "va",
                json!({"status": {"attachError": {"message": "boom", "time": EARLIER, "errorCode": 13}}}),
            )
        },
        VA,
        (Cause::AttachFails, Stuck, Driver),
        &["boom", "Code Internal (13)", "--retry-interval-max"],
    ),
    (
        "limit",
        World::unattached,
        |w| {
            w.set("va", json!({"status": {"attachError": {"message": "rpc error: code = ResourceExhausted desc = full", "errorCode": 8}}}))
        },
        POD,
        (Cause::AttachLimit, Stuck, Administrator),
        &["maximum of volumes of driver d.example", "may have 8 volumes"],
    ),
    (
        "secret",
        World::unattached,
        |w| {
            w.set("pv", json!({"spec": {"csi": {"controllerPublishSecretRef": {"namespace": "ns", "name": "creds"}}}}));
            w.set("va", json!({"status": {"attachError": {"message": "failed to load secret \"ns/creds\": secrets \"creds\" not found"}}}));
        },
        POD,
        (Cause::SecretUnreadable, Stuck, Administrator),
        &["kubectl -n ns get secret creds"],
    ),
    (
        "secret that is not UTF-8",
        World::unattached,
        |w| {
            w.set("pv", json!({"spec": {"csi": {"controllerPublishSecretRef": {"namespace": "ns", "name": "creds"}}}}));
            w.set("va", json!({"status": {"attachError": {"message": "failed to load secret \"ns/creds\": the value of key \"bin\" is not valid UTF-8"}}}));
        },
        POD,
        (Cause::SecretUnreadable, Stuck, Administrator),
        &["key \"bin\"", "no text", "kubectl -n ns edit secret creds"],
    ),
    (
        "driver not on node",
        World::unattached,
        |w| w.set("csinode", json!({"spec": {"drivers": []}})),
        POD,
        (Cause::DriverNotOnNode, Stuck, Administrator),
        &[
            "CSINode node-a does not contain driver d.example",
            "kubectl get csinode node-a",
        ],
    ),
    (
        "driver not installed",
        World::unattached,
        |w| {
            w.remove("lease");
            w.remove("driver");
            w.set("csinode", json!({"spec": {"drivers": null}}));
        },
        POD,
        (Cause::DriverUnknown, Stuck, Administrator),
        &["No CSI driver named d.example"],
    ),
    (
        "node gone",
        World::unattached,
        |w| {
            w.remove("csinode");
            w.remove("node");
        },
        VA,
        (Cause::NodeGone, Stuck, AttachDetachController),
        &["\"node-a\" not found"],
    ),
    (
        "volume gone",
        World::unattached,
        |w| w.remove("pv"),
        VA,
        (Cause::VolumeMissing, Stuck, Administrator),
        &["persistentvolume \"pv-1\" not found"],
    ),
    (
        "volume deleting",
        World::unattached,
        |w| w.set("pv", json!({"metadata": {"deletionTimestamp": EARLIER}})),
        VA,
        (Cause::VolumeTerminating, Stuck, Administrator),
        &["marked for deletion"],
    ),
    (
        "foreign volume",
        World::unattached,
        |w| w.set("pv", json!({"spec": {"csi": {"driver": "other"}}})),
        VA,
        (Cause::AttachmentRefused, Stuck, Administrator),
        &["belongs to CSI driver \"other\""],
    ),
    (
        "call running",
        World::unattached,
        |w| {
            w.set("va", json!({"metadata": {"finalizers": ["external-attacher/d-example"], "managedFields": [{"manager": "csi-attacher", "time": "2026-01-01T00:59:45Z"}]}}))
        },
        POD,
        (Cause::Attaching, Progressing, Driver),
        &["15 s ago", "[>] attached by the driver"],
    ),
    (
        "attachRequired: false",
        World::unattached,
        |w| w.set("driver", json!({"spec": {"attachRequired": false}})),
        VA,
        (Cause::AttachmentNotRequired, Stuck, Administrator),
        &["kubectl delete volumeattachment va-1"],
    ),
];

#[test]
fn explains_unattached_volume_attachments() {
    check(UNATTACHED);
}
