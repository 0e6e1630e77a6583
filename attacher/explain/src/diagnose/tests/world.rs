//! A cluster with one pod and its volume, as JSON objects that a test changes.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::*;
use super::{EARLIER, UNIQUE};
use crate::resource::Resource;
use crate::snapshot::Lookup;

/// Objects by key. The keys of one kind share the part before the dash.
pub(super) struct World(Vec<(&'static str, Value)>);

impl World {
    /// The pod runs with its volume.
    pub(super) fn fine() -> Self {
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

    /// The pod was just scheduled: there is no attachment yet.
    pub(super) fn waiting() -> Self {
        let mut world = Self::fine();
        world.set("pod", json!({"status": {"phase": "Pending"}}));
        world.set(
            "node",
            json!({"status": {"volumesAttached": null, "volumesInUse": null}}),
        );
        world.remove("va");
        world
    }

    /// The attachment exists, and the attacher has not written it.
    pub(super) fn unattached() -> Self {
        let mut world = Self::waiting();
        let va = Self::fine().take("va");
        world.add("va", va);
        world.set(
            "va",
            json!({"metadata": {"finalizers": null, "annotations": null}, "status": {"attached": false}}),
        );
        world
    }

    /// The pod is gone and the attachment deleted.
    pub(super) fn deleting() -> Self {
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

    /// The volume is attached to node-a, and another pod needs it on node-b.
    pub(super) fn needed_on_another_node() -> Self {
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

    pub(super) fn set(&mut self, key: &str, patch: Value) {
        let object = self.0.iter_mut().find(|(known, _)| *known == key);
        merge(&mut object.unwrap_or_else(|| panic!("{key} must exist")).1, patch);
    }

    pub(super) fn add(&mut self, key: &'static str, object: Value) {
        self.0.push((key, object));
    }

    pub(super) fn take(&mut self, key: &str) -> Value {
        let index = self.0.iter().position(|(known, _)| *known == key);
        self.0
            .remove(index.unwrap_or_else(|| panic!("{key} must exist")))
            .1
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.take(key);
    }

    pub(super) fn event(&mut self, kind: &str, name: &str, reason: &str, message: &str) {
        self.add(
            "event",
            json!({
                "involvedObject": {"kind": kind, "namespace": "shop", "name": name},
                "type": "Warning", "reason": reason, "message": message, "lastTimestamp": EARLIER,
            }),
        );
    }

    pub(super) fn all<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let objects = self
            .0
            .iter()
            .filter(|(key, _)| key.split('-').next() == Some(kind));
        objects
            .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    pub(super) fn by_name<T: DeserializeOwned>(
        &self,
        kind: &str,
        usual: &str,
    ) -> std::collections::BTreeMap<String, Lookup<T>> {
        let names = self
            .all::<Value>(kind)
            .into_iter()
            .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
        let found: Vec<_> = names.zip(self.all(kind).into_iter().map(Lookup::Found)).collect();
        std::iter::once((usual.to_owned(), Lookup::NotFound))
            .chain(found)
            .collect()
    }

    pub(super) fn snapshot(&self, kind: ResourceKind, name: &str) -> Snapshot {
        let claims = self.by_name("claim", "data").into_iter();
        let mut pods: Vec<Pod> = self.all("pod");
        let mut attachments: Vec<VolumeAttachment> = self.all("va");
        // The object to explain is read first.
        pods.sort_by_key(|pod| pod.name() != name);
        attachments.sort_by_key(|va| va.name() != name);
        Snapshot {
            resource: Resource {
                kind,
                namespace: if kind.is_namespaced() { "shop" } else { "" }.to_owned(),
                name: name.to_owned(),
            },
            pods,
            claims: claims
                .map(|(name, claim)| (NamespacedName::new("shop", &name), claim))
                .collect(),
            volumes: self.by_name("pv", "pv-1"),
            classes: self.by_name("class", "fast"),
            attachments,
            attachments_complete: true,
            nodes: self.by_name("node", "node-a"),
            csi_nodes: self.by_name("csinode", "node-a"),
            drivers: self.by_name("driver", "d.example"),
            leases: [("d.example".to_owned(), Lookup::Found(self.all("lease")))].into(),
            holders: [(NamespacedName::new("csi", "attacher-0"), Lookup::NotFound)].into(),
            events: self.all("event"),
            ..Snapshot::default()
        }
    }
}

/// RFC 7396.
pub(super) fn merge(target: &mut Value, patch: Value) {
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
