use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::explain::objects::{Attachment, CsiNode, Lease, Volume};
use crate::explain::print;
use crate::explain::snapshot::Look;
use crate::explain::subject::Subject;

const NOW: &str = "2026-01-01T01:00:00Z";
const EARLIER: &str = "2026-01-01T00:50:00Z";
const UNIQUE: &str = "kubernetes.io/csi/d.example^h-1";

/// A cluster as JSON, one object a key. Objects of a kind have keys that begin with the kind's.
struct World(Vec<(&'static str, Value)>);

impl World {
    /// A pod that runs with its volume.
    fn fine() -> Self {
        let meta =
            |name: &str| json!({"name": name, "uid": format!("u-{name}"), "creationTimestamp": EARLIER});
        let in_shop = |name: &str| {
            let mut meta = meta(name);
            meta["namespace"] = json!("shop");
            meta
        };
        let mut va = json!({
            "metadata": meta("va-1"),
            "spec": {"attacher": "d.example", "nodeName": "node-a", "source": {"persistentVolumeName": "pv-1"}},
            "status": {"attached": true},
        });
        va["metadata"]["finalizers"] = json!(["external-attacher/d-example"]);
        va["metadata"]["annotations"] = json!({"csi.alpha.kubernetes.io/node-id": "id-a"});
        let mut node = json!({
            "metadata": meta("node-a"),
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "volumesAttached": [{"name": UNIQUE}], "volumesInUse": [UNIQUE],
            },
        });
        node["metadata"]["annotations"] =
            json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        Self(vec![
            (
                "pod",
                json!({
                    "metadata": in_shop("db-0"),
                    "spec": {"nodeName": "node-a", "volumes": [
                        {"name": "config"}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                    ]},
                    "status": {"phase": "Running", "conditions": [
                        {"type": "PodScheduled", "status": "True", "lastTransitionTime": EARLIER},
                    ]},
                }),
            ),
            (
                "claim",
                json!({
                    "metadata": in_shop("data"), "spec": {"volumeName": "pv-1", "storageClassName": "fast"},
                    "status": {"phase": "Bound"},
                }),
            ),
            (
                "pv",
                json!({
                    "metadata": meta("pv-1"),
                    "spec": {
                        "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete",
                        "claimRef": {"namespace": "shop", "name": "data", "uid": "u-data"},
                        "csi": {"driver": "d.example", "volumeHandle": "h-1"},
                    },
                    "status": {"phase": "Bound"},
                }),
            ),
            ("va", va),
            ("node", node),
            (
                "csinode",
                json!({"metadata": meta("node-a"), "spec": {"drivers": [
                    {"name": "d.example", "nodeID": "id-a", "allocatable": {"count": 8}},
                ]}}),
            ),
            (
                "driver",
                json!({"metadata": meta("d.example"), "spec": {"attachRequired": true}}),
            ),
            (
                "lease",
                json!({
                    "metadata": {"name": "external-attacher-leader-d-example", "namespace": "csi"},
                    "spec": {"holderIdentity": "attacher-0", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:59:58Z"},
                }),
            ),
        ])
    }

    /// The same pod, a moment after it was given its node: no attachment, nothing on the node.
    fn waiting() -> Self {
        let mut world = Self::fine();
        world.set("pod", json!({"status": {"phase": "Pending"}}));
        world.set(
            "node",
            json!({"status": {"volumesAttached": null, "volumesInUse": null}}),
        );
        world.remove("va");
        world
    }

    /// The attachment is made, and the attacher has not come to it.
    fn unattached() -> Self {
        let mut world = Self::waiting();
        let va = Self::fine().take("va");
        world.add("va", va);
        world.set(
            "va",
            json!({"metadata": {"finalizers": null, "annotations": null}, "status": {"attached": false}}),
        );
        world
    }

    /// The pod is gone and the attachment is to go.
    fn deleting() -> Self {
        let mut world = Self::fine();
        world.remove("pod");
        world.set(
            "va",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:55:00Z"}}),
        );
        world.set(
            "node",
            json!({"status": {"volumesAttached": null, "volumesInUse": null}}),
        );
        world
    }

    /// The volume is on node-a, and another pod wants it on node-b.
    fn wanted_elsewhere() -> Self {
        let mut world = Self::fine();
        let mut add = |kind: &'static str, like: &str, name: &str, patch: Value| {
            let mut object = Self::fine().take(like);
            merge(
                &mut object,
                json!({"metadata": {"name": name, "uid": format!("u-{name}")}}),
            );
            merge(&mut object, patch);
            world.0.insert(0, (kind, object));
        };
        add(
            "pod-b",
            "pod",
            "db-1",
            json!({"spec": {"nodeName": "node-b"}, "status": {"phase": "Pending"}}),
        );
        add(
            "node-b",
            "node",
            "node-b",
            json!({"status": {"volumesAttached": null, "volumesInUse": null}}),
        );
        add("csinode-b", "csinode", "node-b", json!({}));
        world
    }

    fn set(&mut self, key: &str, patch: Value) {
        let object = self.0.iter_mut().find(|(known, _)| *known == key);
        merge(
            &mut object.unwrap_or_else(|| panic!("{key} must be there")).1,
            patch,
        );
    }

    fn add(&mut self, key: &'static str, object: Value) {
        self.0.push((key, object));
    }

    fn take(&mut self, key: &str) -> Value {
        let index = self.0.iter().position(|(known, _)| *known == key);
        self.0
            .remove(index.unwrap_or_else(|| panic!("{key} must be there")))
            .1
    }

    fn remove(&mut self, key: &str) {
        self.take(key);
    }

    fn event(&mut self, kind: &str, name: &str, reason: &str, message: &str) {
        self.add(
            "event",
            json!({
                "involvedObject": {"kind": kind, "namespace": "shop", "name": name},
                "type": "Warning", "reason": reason, "message": message, "lastTimestamp": EARLIER,
            }),
        );
    }

    fn all<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let objects = self
            .0
            .iter()
            .filter(|(key, _)| key.split('-').next() == Some(kind));
        objects
            .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    fn by_name<T: DeserializeOwned>(
        &self,
        kind: &str,
        usual: &str,
    ) -> std::collections::BTreeMap<String, Look<T>> {
        let names = self
            .all::<Value>(kind)
            .into_iter()
            .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
        let found: Vec<_> = names.zip(self.all(kind).into_iter().map(Look::Found)).collect();
        std::iter::once((usual.to_owned(), Look::Absent))
            .chain(found)
            .collect()
    }

    fn snapshot(&self, kind: Kind, name: &str) -> Snapshot {
        let namespaced = matches!(kind, Kind::Pod | Kind::Claim);
        let leases: Vec<Lease> = self.all("lease");
        let volumes = self
            .by_name::<Value>("pv", "pv-1")
            .into_iter()
            .map(|(name, look)| {
                let volume = look.found().map(|value| Volume {
                    more: serde_json::from_value(value.clone()).unwrap(),
                    wire: serde_json::from_value(value.clone()).unwrap(),
                });
                (name, volume.map_or(Look::Absent, Look::Found))
            });
        let csi_nodes = self
            .by_name::<Value>("csinode", "node-a")
            .into_iter()
            .map(|(name, look)| {
                let node = look.found().map(|value| CsiNode {
                    more: serde_json::from_value(value.clone()).unwrap(),
                    wire: serde_json::from_value(value.clone()).unwrap(),
                });
                (name, node.map_or(Look::Absent, Look::Found))
            });
        let claims = self.by_name("claim", "data").into_iter();
        let mut pods: Vec<Pod> = self.all("pod");
        let mut attachments: Vec<Attachment> = self.all("va");
        // The subject is read first.
        pods.sort_by_key(|pod| pod.metadata.name != name);
        attachments.sort_by_key(|va| va.metadata.name != name);
        Snapshot {
            subject: Subject {
                kind,
                namespace: if namespaced {
                    "shop".to_owned()
                } else {
                    String::new()
                },
                name: name.to_owned(),
            },
            pods,
            claims: claims
                .map(|(name, claim)| (("shop".to_owned(), name), claim))
                .collect(),
            volumes: volumes.collect(),
            classes: self.by_name("class", "fast"),
            attachments,
            attachments_complete: true,
            nodes: self.by_name("node", "node-a"),
            csi_nodes: csi_nodes.collect(),
            drivers: self.by_name("driver", "d.example"),
            leases: [("d.example".to_owned(), Look::Found(leases))].into(),
            holders: [(("csi".to_owned(), "attacher-0".to_owned()), Look::Absent)].into(),
            events: self.all("event"),
            ..Snapshot::default()
        }
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|object| object.remove(&key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn question() -> Question<'static> {
    Question {
        driver: None,
        patience: Duration::from_secs(30),
    }
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn explain(snapshot: &Snapshot) -> Report {
    diagnose(snapshot, question(), now())
}

/// A situation, what is asked about, and what is to be found: cause, state, actor, and words of the text.
type Row = (
    &'static str,
    fn() -> World,
    fn(&mut World),
    (Kind, &'static str),
    (Cause, State, Actor),
    &'static [&'static str],
);

fn check(rows: &[Row]) {
    for (name, world, change, (kind, object), (cause, state, actor), words) in rows {
        let mut world = world();
        change(&mut world);
        let report = explain(&world.snapshot(*kind, object));
        let text = print::text(&report, now());
        assert_eq!(report.paths.len(), 1, "{name}:\n{text}");
        let finding = &report.paths[0].finding;
        assert_eq!(
            (finding.cause, finding.state, finding.actor),
            (*cause, *state, *actor),
            "{name}:\n{text}"
        );
        assert_eq!(report.state, *state, "{name}");
        // Wrapping must not matter.
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in *words {
            assert!(flat.contains(word), "{name}: no {word:?} in\n{text}");
        }
    }
}

use Actor::*;
use State::{Fine, Progressing, Stuck};

const POD: (Kind, &str) = (Kind::Pod, "db-0");
const VA: (Kind, &str) = (Kind::Attachment, "va-1");
const PV: (Kind, &str) = (Kind::Volume, "pv-1");
const PVC: (Kind, &str) = (Kind::Claim, "data");

fn unbound(world: &mut World) {
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

fn lease_ended(world: &mut World) {
    world.set("lease", json!({"spec": {"renewTime": "2026-01-01T00:40:00Z"}}));
}

fn node_down(world: &mut World) {
    world.set("node", json!({"status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status.", "lastTransitionTime": EARLIER},
    ]}}));
}

fn pod_leaving(world: &mut World) {
    world.set("pod", json!({"metadata": {"deletionTimestamp": EARLIER}}));
}

const CLAIMS_VOLUMES_AND_SCHEDULING: &[Row] = &[
    (
        "fine",
        World::fine,
        |_| (),
        POD,
        (Cause::Fine, Fine, Nobody),
        &["pod/db-0 in namespace shop: fine", "[x] mounted"],
    ),
    (
        "no claim",
        World::waiting,
        |w| w.remove("claim"),
        POD,
        (Cause::ClaimMissing, Stuck, Person),
        &["no PersistentVolumeClaim data"],
    ),
    (
        "no class",
        World::waiting,
        unbound,
        POD,
        (Cause::ClaimPending, Stuck, Person),
        &["There is no StorageClass fast"],
    ),
    (
        "provisioner",
        World::waiting,
        |w| {
            unbound(w);
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
            unbound(w);
            w.add("class", json!({"metadata": {"name": "fast"}, "provisioner": "d.example", "volumeBindingMode": "WaitForFirstConsumer"}));
        },
        POD,
        (Cause::ClaimWaitsForConsumer, Stuck, Scheduler),
        &["WaitForFirstConsumer", "No scheduler has looked at the pod"],
    ),
    (
        "first consumer, none there",
        World::waiting,
        |w| {
            unbound(w);
            w.remove("pod");
            w.add("class", json!({"metadata": {"name": "fast"}, "provisioner": "d.example", "volumeBindingMode": "WaitForFirstConsumer"}));
        },
        PVC,
        (Cause::ClaimWaitsForConsumer, Fine, Nobody),
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
        (Cause::ClaimLost, Stuck, Person),
        &["PersistentVolume pv-1", "does not exist"],
    ),
    (
        "bound elsewhere",
        World::waiting,
        |w| w.set("pv", json!({"spec": {"claimRef": {"name": "other", "uid": "x"}}})),
        POD,
        (Cause::VolumeBoundElsewhere, Stuck, Person),
        &["bound to another claim: shop/other", "DANGER"],
    ),
    (
        "bound to an earlier claim",
        World::waiting,
        |w| w.set("pv", json!({"spec": {"claimRef": {"uid": "old"}}})),
        POD,
        (Cause::VolumeBoundElsewhere, Stuck, Person),
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
        (Cause::VolumeReleased, Fine, Nobody),
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
        (Cause::VolumeTerminating, Stuck, Person),
        &["kubectl -n shop delete pvc data"],
    ),
    (
        "attacher's finalizer on a volume that is attached nowhere",
        World::waiting,
        |w| {
            w.remove("pod");
            w.remove("claim");
            w.set("pv", json!({"metadata": {"deletionTimestamp": EARLIER, "finalizers": ["external-attacher/d-example"]}, "status": {"phase": "Released"}}));
            lease_ended(w);
        },
        PV,
        (Cause::AttacherLeaseStale, Stuck, Attacher),
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
            "[>] pod given a node",
        ],
    ),
];

#[test]
fn claims_volumes_and_scheduling() {
    check(CLAIMS_VOLUMES_AND_SCHEDULING);
}

const ATTACHMENTS_THAT_ARE_NOT_THERE: &[Row] = &[
    (
        "just scheduled",
        World::waiting,
        |w| {
            w.set("pod", json!({"status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:59:50Z"}]}}))
        },
        POD,
        (Cause::NoAttachmentYet, Progressing, AttachDetachController),
        &["on its way", "10 s ago"],
    ),
    (
        "controller silent",
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
        "no CSI volume",
        World::waiting,
        |w| w.set("pv", json!({"spec": {"csi": null, "nfs": {"server": "s"}}})),
        POD,
        (Cause::NotCsi, Fine, Kubelet),
        &["no CSI volume"],
    ),
    (
        "in-tree volume that a CSI driver has taken over",
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
        World::wanted_elsewhere,
        |w| {
            w.event(
                "Pod",
                "db-1",
                "FailedAttachVolume",
                "Multi-Attach error for volume \"pv-1\"",
            )
        },
        (Kind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Person),
        &[
            "still attached to node node-a",
            "ReadWriteOnce",
            "Pod shop/db-0 uses it",
            "delete pod db-0",
            "Multi-Attach error",
        ],
    ),
    (
        "other pod leaving, node down",
        World::wanted_elsewhere,
        |w| {
            node_down(w);
            pod_leaving(w);
        },
        (Kind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Person),
        &[
            "kubectl taint nodes node-a node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            "DANGER",
        ],
    ),
    (
        "detach of the other fails",
        World::wanted_elsewhere,
        |w| {
            w.remove("pod");
            w.set("va", json!({"metadata": {"deletionTimestamp": EARLIER}, "status": {"detachError": {"message": "rpc error: code = Internal desc = broken"}}}));
        },
        (Kind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Driver),
        &["The detach fails", "code = Internal desc = broken"],
    ),
    (
        "the controller asks for an attach although the other detach fails",
        World::wanted_elsewhere,
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
        (Kind::Pod, "db-1"),
        (Cause::MultiAttach, Stuck, Driver),
        &[
            "still attached to node node-a",
            "desc = broken",
            "desc = elsewhere",
        ],
    ),
    (
        "many nodes may have it",
        World::wanted_elsewhere,
        |w| w.set("pv", json!({"spec": {"accessModes": ["ReadWriteMany"]}})),
        (Kind::Pod, "db-1"),
        (Cause::NoAttachmentYet, Stuck, AttachDetachController),
        &[],
    ),
];

#[test]
fn attachments_that_are_not_there() {
    check(ATTACHMENTS_THAT_ARE_NOT_THERE);
}

const ATTACHMENTS_THAT_ARE_NOT_ATTACHED: &[Row] = &[
    (
        "untouched, leader there",
        World::unattached,
        |_| (),
        VA,
        (Cause::AttacherBehind, Stuck, Attacher),
        &["held by attacher-0"],
    ),
    (
        "untouched, no lease",
        World::unattached,
        |w| w.remove("lease"),
        POD,
        (Cause::AttacherSilent, Stuck, Attacher),
        &["There is no lease external-attacher-leader-d-example"],
    ),
    (
        "lease stale",
        World::unattached,
        lease_ended,
        POD,
        (Cause::AttacherLeaseStale, Stuck, Attacher),
        &["renewed it last 20 min 0 s ago", "valid for 15 s"],
    ),
    (
        "nobody leads",
        World::unattached,
        |w| w.set("lease", json!({"spec": {"holderIdentity": ""}})),
        POD,
        (Cause::NobodyLeads, Stuck, Attacher),
        &["was given back"],
    ),
    (
        "lease left over from before leader election was switched off",
        World::unattached,
        |w| {
            lease_ended(w);
            w.set("va", json!({"status": {"attachError": {"message": "rpc error: code = Aborted desc = busy", "time": EARLIER}}}));
        },
        VA,
        (Cause::AttachFails, Stuck, Driver),
        &["still under way"],
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
        (Cause::AttachLimit, Stuck, Person),
        &["no more volumes of driver d.example", "may have 8 volumes"],
    ),
    (
        "secret",
        World::unattached,
        |w| {
            w.set("pv", json!({"spec": {"csi": {"controllerPublishSecretRef": {"namespace": "ns", "name": "creds"}}}}));
            w.set("va", json!({"status": {"attachError": {"message": "failed to load secret \"ns/creds\": secrets \"creds\" not found"}}}));
        },
        POD,
        (Cause::SecretUnreadable, Stuck, Person),
        &["kubectl -n ns get secret creds"],
    ),
    (
        "driver not on node",
        World::unattached,
        |w| w.set("csinode", json!({"spec": {"drivers": []}})),
        POD,
        (Cause::DriverNotOnNode, Stuck, Person),
        &[
            "CSINode node-a does not contain driver d.example",
            "kubectl get csinode node-a",
        ],
    ),
    (
        "driver unheard of",
        World::unattached,
        |w| {
            w.remove("lease");
            w.remove("driver");
            w.set("csinode", json!({"spec": {"drivers": null}}));
        },
        POD,
        (Cause::DriverUnknown, Stuck, Person),
        &["knows a CSI driver named d.example"],
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
        (Cause::VolumeMissing, Stuck, Person),
        &["persistentvolume \"pv-1\" not found"],
    ),
    (
        "volume leaving",
        World::unattached,
        |w| w.set("pv", json!({"metadata": {"deletionTimestamp": EARLIER}})),
        VA,
        (Cause::VolumeTerminating, Stuck, Person),
        &["marked for deletion"],
    ),
    (
        "foreign volume",
        World::unattached,
        |w| w.set("pv", json!({"spec": {"csi": {"driver": "other"}}})),
        VA,
        (Cause::AttachmentRefused, Stuck, Person),
        &["belongs to CSI driver \"other\""],
    ),
    (
        "called",
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
        (Cause::AttachmentNotRequired, Stuck, Person),
        &["kubectl delete volumeattachment va-1"],
    ),
];

#[test]
fn attachments_that_are_not_attached() {
    check(ATTACHMENTS_THAT_ARE_NOT_ATTACHED);
}

const ATTACHED_AND_ON_THE_WAY_INTO_THE_POD: &[Row] = &[
    (
        "node not told",
        World::fine,
        |w| {
            w.set("pod", json!({"status": {"phase": "Pending"}}));
            w.set("node", json!({"status": {"volumesAttached": []}}));
        },
        POD,
        (Cause::NodeNotTold, Stuck, AttachDetachController),
        &[
            "volumesAttached lacks kubernetes.io/csi/d.example^h-1",
            "[>] told to kubelet",
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
        (Cause::Fine, Fine, Nobody),
        &["has another reason", "ImagePullBackOff"],
    ),
    (
        "node not ready",
        World::fine,
        node_down,
        POD,
        (Cause::NodeNotReady, Stuck, Kubelet),
        &["stopped posting"],
    ),
    (
        "pod leaving, node down",
        World::fine,
        |w| {
            node_down(w);
            pod_leaving(w);
        },
        POD,
        (Cause::NodeLost, Stuck, Person),
        &["out-of-service", "DANGER"],
    ),
    (
        "pod leaving, node down and vouched for",
        World::fine,
        |w| {
            node_down(w);
            pod_leaving(w);
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
        "pod leaving",
        World::fine,
        pod_leaving,
        POD,
        (Cause::StillMounted, Stuck, Kubelet),
        &["grace period"],
    ),
];

#[test]
fn attached_and_on_the_way_into_the_pod() {
    check(ATTACHED_AND_ON_THE_WAY_INTO_THE_POD);
}

const DETACHING_AND_LEFT_OVER: &[Row] = &[
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
        "nobody detaches",
        World::deleting,
        lease_ended,
        VA,
        (Cause::AttacherLeaseStale, Stuck, Attacher),
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
        |w| w.set("va", json!({"metadata": {"finalizers": ["example.com/hold"]}})),
        VA,
        (Cause::ForeignFinalizer, Stuck, Person),
        &["example.com/hold", "--show-managed-fields", "DANGER"],
    ),
    (
        "volume gone",
        World::deleting,
        |w| w.remove("pv"),
        VA,
        (Cause::VolumeMissing, Stuck, Person),
        &["\"pv-1\" not found"],
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
        "wanted again",
        World::fine,
        |w| {
            w.set(
                "va",
                json!({"metadata": {"deletionTimestamp": EARLIER, "finalizers": null}}),
            )
        },
        POD,
        (Cause::Vanishing, Stuck, Nobody),
        &["Pod shop/db-0 wants the volume on this node again"],
    ),
    (
        "nobody needs it",
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
        "nobody needs it, mounted",
        World::fine,
        |w| w.remove("pod"),
        VA,
        (Cause::StillMounted, Progressing, Kubelet),
        &["volumesInUse"],
    ),
    (
        "nobody needs it, node down",
        World::fine,
        |w| {
            w.remove("pod");
            node_down(w);
        },
        VA,
        (Cause::StillMounted, Stuck, AttachDetachController),
        &["six minutes", "kubectl taint"],
    ),
    (
        "nobody needs it, node gone",
        World::fine,
        |w| {
            w.remove("pod");
            w.remove("node");
        },
        (Kind::Node, "node-a"),
        (Cause::NodeGone, Stuck, AttachDetachController),
        &["left over"],
    ),
];

#[test]
fn detaching_and_left_over() {
    check(DETACHING_AND_LEFT_OVER);
}

#[test]
fn a_volume_that_is_deleted_waits_for_its_attachments() {
    let mut world = World::deleting();
    let finalizers = json!(["external-attacher/d-example", "kubernetes.io/pv-protection"]);
    world.set(
        "pv",
        json!({"metadata": {"deletionTimestamp": EARLIER, "finalizers": finalizers}}),
    );
    let report = explain(&world.snapshot(Kind::Volume, "pv-1"));
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
fn a_node_shows_all_its_volumes_and_a_driver_can_be_asked_for_alone() {
    let mut world = World::fine();
    let mut other = World::unattached().take("va");
    merge(
        &mut other,
        json!({"metadata": {"name": "va-2", "uid": "u-2"}, "spec": {"attacher": "e.example", "source": {"persistentVolumeName": "pv-2"}}}),
    );
    world.add("va-2", other);
    let snapshot = world.snapshot(Kind::Node, "node-a");
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
    let only = Question {
        driver: Some("d.example"),
        ..question()
    };
    let report = diagnose(&snapshot, only, now());
    assert_eq!((report.paths.len(), report.state), (1, Fine));
}

#[test]
fn what_could_not_be_read_is_not_taken_for_absent() {
    let mut world = World::waiting();
    world.remove("lease");
    let mut snapshot = world.snapshot(Kind::Pod, "db-0");
    snapshot.attachments_complete = false;
    snapshot.gaps = vec!["cannot look at volumeattachments: forbidden (who)".to_owned()];
    let report = explain(&snapshot);
    assert_eq!(report.paths[0].finding.cause, Cause::Unreadable);
    assert!(print::text(&report, now()).contains("note: cannot look at volumeattachments: forbidden (who)"));

    // Nor is a volume without visible pods taken for one that nobody uses.
    let mut world = World::fine();
    world.remove("pod");
    let mut snapshot = world.snapshot(Kind::Attachment, "va-1");
    snapshot.pods_hidden = true;
    snapshot.leases.clear();
    assert_eq!(explain(&snapshot).paths[0].finding.cause, Cause::Fine);

    // Nor a PersistentVolume that is hidden for one that is gone.
    let mut snapshot = World::unattached().snapshot(Kind::Attachment, "va-1");
    snapshot.volumes.clear();
    snapshot.leases.clear();
    let report = explain(&snapshot);
    assert_eq!(report.paths[0].finding.cause, Cause::AttacherSilent);
    assert!(
        report.paths[0]
            .finding
            .why
            .iter()
            .any(|why| why.contains("could not be looked at"))
    );
}

#[test]
fn a_pod_without_claims_has_nothing_to_explain() {
    let mut world = World::fine();
    world.set("pod", json!({"spec": {"volumes": [{"name": "config"}]}}));
    let report = explain(&world.snapshot(Kind::Pod, "db-0"));
    assert_eq!(
        (report.state, report.paths.len(), report.notes.len()),
        (Fine, 0, 1)
    );
}

#[test]
fn json_has_stable_names() {
    let report = explain(&World::unattached().snapshot(Kind::Pod, "db-0"));
    let json: Value = serde_json::from_str(&print::json(&report).unwrap()).unwrap();
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
        json!({"done": true, "text": "VolumeAttachment va-1 made", "since": EARLIER})
    );
}
