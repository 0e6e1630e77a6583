use serde_json::{Value, json};

use super::*;
use crate::printer;
use crate::report::Actor;
use world::{World, merge};

mod attach;
mod claim;
mod cluster;
mod detach;
mod mount;
mod no_attachment;
mod world;

const NOW: &str = "2026-01-01T01:00:00Z";
const EARLIER: &str = "2026-01-01T00:50:00Z";
const UNIQUE: &str = "kubernetes.io/csi/d.example^h-1";

const STUCK_AFTER: Duration = Duration::from_secs(30);

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn explain(snapshot: &Snapshot) -> Report {
    diagnose(snapshot, None, STUCK_AFTER, now())
}

/// Name of the case, cluster, change, the object to explain, and the expected cause, state, actor and words.
type Row = (
    &'static str,
    fn() -> World,
    fn(&mut World),
    (ResourceKind, &'static str),
    (Cause, State, Actor),
    &'static [&'static str],
);

fn check(rows: &[Row]) {
    for (name, world, change, (kind, object), (cause, state, actor), words) in rows {
        let mut world = world();
        change(&mut world);
        let report = explain(&world.snapshot(*kind, object));
        let text = printer::text(&report, now());
        assert_eq!(report.paths.len(), 1, "{name}:\n{text}");
        let finding = &report.paths[0].finding;
        assert_eq!(
            (finding.cause, finding.state, finding.actor),
            (*cause, *state, *actor),
            "{name}:\n{text}"
        );
        assert_eq!(report.state, *state, "{name}");
        // Ignore line wrapping.
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in *words {
            assert!(flat.contains(word), "{name}: no {word:?} in\n{text}");
        }
    }
}

use Actor::*;
use State::{Fine, Progressing, Stuck};

const POD: (ResourceKind, &str) = (ResourceKind::Pod, "db-0");
const VA: (ResourceKind, &str) = (ResourceKind::VolumeAttachment, "va-1");
const PV: (ResourceKind, &str) = (ResourceKind::PersistentVolume, "pv-1");
const PVC: (ResourceKind, &str) = (ResourceKind::PersistentVolumeClaim, "data");

fn unbound_claim(world: &mut World) {
    world.set(
        "pod",
        json!({"spec": {"nodeName": ""}, "status": {"conditions": []}}),
    );
    world.set(
        "claim",
        json!({"spec": {"volumeName": ""}, "status": {"phase": "Pending"}}),
    );
    world.remove("pv");
}

fn expired_lease(world: &mut World) {
    world.set("lease", json!({"spec": {"renewTime": "2026-01-01T00:40:00Z"}}));
}

fn node_not_ready(world: &mut World) {
    world.set("node", json!({"status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status.", "lastTransitionTime": EARLIER},
    ]}}));
}

fn pod_deleted(world: &mut World) {
    world.set("pod", json!({"metadata": {"deletionTimestamp": EARLIER}}));
}

#[test]
fn volume_is_not_listed_for_kubelet_if_the_node_is_gone() {
    let mut world = World::fine();
    world.remove("pod");
    let is_listed = |world: &World| {
        let report = explain(&world.snapshot(VA.0, VA.1));
        let steps = &report.paths[0].steps;
        let step = steps
            .iter()
            .find(|step| step.text.starts_with("listed for kubelet"));
        step.map(|step| step.done)
    };
    assert_eq!(is_listed(&world), Some(true));
    world.remove("node");
    assert_eq!(is_listed(&world), Some(false));
}

#[test]
fn inline_volume_is_titled_as_inline_volume() {
    let mut world = World::unattached();
    let inline =
        json!({"csi": {"driver": "d.example", "volumeHandle": "h-1"}, "accessModes": ["ReadWriteOnce"]});
    world.set(
        "va",
        json!({"spec": {"source": {"persistentVolumeName": null, "inlineVolumeSpec": inline}}}),
    );
    for gone in ["pod", "claim", "pv"] {
        world.remove(gone);
    }
    let report = explain(&world.snapshot(VA.0, VA.1));
    let title = &report.paths[0].title;
    assert!(title.starts_with("inline volume (driver d.example"), "{title}");
}

#[test]
fn deleted_volume_waits_for_its_attachments() {
    let mut world = World::deleting();
    let finalizers = json!(["external-attacher/d-example", "kubernetes.io/pv-protection"]);
    world.set(
        "pv",
        json!({"metadata": {"deletionTimestamp": EARLIER, "finalizers": finalizers}}),
    );
    let report = explain(&world.snapshot(ResourceKind::PersistentVolume, "pv-1"));
    let causes: Vec<_> = report.paths.iter().map(|path| path.finding.cause).collect();
    assert_eq!(causes, [Cause::Detaching, Cause::VolumeHeldByAttachment]);
    assert_eq!(report.paths[1].finding.actor, Driver);
    assert!(
        report.paths[1]
            .finding
            .why
            .iter()
            .any(|why| why.contains("va-1 (node node-a)"))
    );
}

#[test]
fn node_has_all_its_volumes_and_driver_selects_some() {
    let mut world = World::fine();
    let mut other = World::unattached().take("va");
    merge(
        &mut other,
        json!({"metadata": {"name": "va-2", "uid": "u-2"}, "spec": {"attacher": "e.example", "source": {"persistentVolumeName": "pv-2"}}}),
    );
    world.add("va-2", other);
    let snapshot = world.snapshot(ResourceKind::Node, "node-a");
    let report = explain(&snapshot);
    let found: Vec<_> = report
        .paths
        .iter()
        .map(|path| (path.names.volume_attachment.as_deref(), path.finding.state))
        .collect();
    assert_eq!(found, [(Some("va-2"), Stuck), (Some("va-1"), Fine)]);
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("may have 8 volumes")),
        "{:?}",
        report.notes
    );
    let report = diagnose(&snapshot, Some("d.example"), STUCK_AFTER, now());
    assert_eq!((report.paths.len(), report.state), (1, Fine));
}

#[test]
fn unreadable_objects_are_not_assumed_absent() {
    let mut world = World::waiting();
    world.remove("lease");
    let mut snapshot = world.snapshot(ResourceKind::Pod, "db-0");
    snapshot.attachments_complete = false;
    snapshot.gaps = vec!["cannot read volumeattachments: forbidden (who)".to_owned()];
    let report = explain(&snapshot);
    assert_eq!(report.paths[0].finding.cause, Cause::Unreadable);
    assert!(printer::text(&report, now()).contains("note: cannot read volumeattachments: forbidden (who)"));

    // Pods that could not be read may use the volume.
    let mut world = World::fine();
    world.remove("pod");
    let mut snapshot = world.snapshot(ResourceKind::VolumeAttachment, "va-1");
    snapshot.pods_incomplete = true;
    snapshot.leases.clear();
    assert_eq!(explain(&snapshot).paths[0].finding.cause, Cause::Fine);

    // A PersistentVolume that could not be read may exist.
    let mut snapshot = World::unattached().snapshot(ResourceKind::VolumeAttachment, "va-1");
    snapshot.volumes.clear();
    snapshot.leases.clear();
    let report = explain(&snapshot);
    assert_eq!(report.paths[0].finding.cause, Cause::AttacherSilent);
    assert!(
        report.paths[0]
            .finding
            .why
            .iter()
            .any(|why| why.contains("could not be read"))
    );
}

#[test]
fn pod_without_claims_has_no_path() {
    let mut world = World::fine();
    world.set("pod", json!({"spec": {"volumes": [{"name": "config"}]}}));
    let report = explain(&world.snapshot(ResourceKind::Pod, "db-0"));
    assert_eq!(
        (report.state, report.paths.len(), report.notes.len()),
        (Fine, 0, 1)
    );
}

#[test]
fn json_has_stable_names() {
    let report = explain(&World::unattached().snapshot(ResourceKind::Pod, "db-0"));
    let json: Value = serde_json::from_str(&printer::json(&report).unwrap()).unwrap();
    assert_eq!(json["state"], "stuck");
    let path = &json["paths"][0];
    assert_eq!(
        path["names"],
        json!({
            "pod": "shop/db-0", "persistentVolumeClaim": "shop/data", "persistentVolume": "pv-1",
            "volumeAttachment": "va-1", "node": "node-a", "driver": "d.example",
        })
    );
    assert_eq!(path["finding"]["cause"], "attacher-behind");
    assert_eq!(path["finding"]["actor"], "attacher");
    assert_eq!(path["finding"]["since"], EARLIER);
    assert_eq!(
        path["steps"][2],
        json!({"done": true, "text": "VolumeAttachment va-1 created", "since": EARLIER})
    );
}

/// The volume is attached elsewhere outside Kubernetes: the explanations must not recurse into each other endlessly.
#[test]
fn attachments_that_block_each_other_are_explained_by_the_driver() {
    let mut world = World::needed_on_another_node();
    world.remove("pod");
    world.remove("pod-b");
    let failed = json!({"status": {"attached": false, "attachError": {"message": "rpc error: code = FailedPrecondition desc = elsewhere"}}});
    world.set("va", failed.clone());
    let mut second = world.take("va");
    world.add("va", second.clone());
    merge(
        &mut second,
        json!({"metadata": {"name": "va-b", "uid": "u-va-b"}, "spec": {"nodeName": "node-b"}}),
    );
    world.add("va-b", second);
    let report = explain(&world.snapshot(VA.0, VA.1));
    let finding = &report.paths[0].finding;
    assert_eq!(
        (finding.cause, finding.state, finding.actor),
        (Cause::MultiAttach, Stuck, Driver)
    );
}
