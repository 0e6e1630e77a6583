use serde_json::{Value, json};

use super::*;

fn mk_node(name: &str, zone: &str) -> Arc<Node> {
    let node = json!({"metadata": {"name": name, "labels": {"zone": zone}}});
    Arc::new(serde_json::from_value(node).unwrap())
}

fn mk_pod(name: &str, node: Option<&str>, claims: &[&str]) -> Arc<Pod> {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"nodeName": node, "containers": [], "volumes": volumes},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn mk_claim(name: &str, volume: Option<&str>, mode: &str) -> Arc<PersistentVolumeClaim> {
    let annotations = if volume.is_some() {
        json!({"pv.kubernetes.io/bind-completed": "yes"})
    } else {
        json!({})
    };
    let claim = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "annotations": annotations},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "delayed", "volumeName": volume},
    });
    Arc::new(serde_json::from_value(claim).unwrap())
}

fn mk_volume(name: &str, zone: Option<&str>) -> Arc<PersistentVolume> {
    let mut volume = json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "delayed",
            "csi": {"driver": "d", "volumeHandle": name}},
        "status": {"phase": "Available"},
    });
    if let Some(zone) = zone {
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "zone", "operator": "In", "values": [zone]}]}]}});
    }
    Arc::new(serde_json::from_value(volume).unwrap())
}

fn mk_snapshot() -> Snapshot {
    let class = json!({"metadata": {"name": "delayed"}, "provisioner": "d",
        "volumeBindingMode": "WaitForFirstConsumer"});
    let mut snapshot = Snapshot {
        nodes: vec![mk_node("a", "z1"), mk_node("b", "z2")],
        ..Snapshot::default()
    };
    snapshot.classes.insert(
        "delayed".to_owned(),
        Arc::new(serde_json::from_value(class).unwrap()),
    );
    snapshot
}

fn add_claim(snapshot: &mut Snapshot, claim: Arc<PersistentVolumeClaim>) {
    let name = claim.metadata.name.clone().unwrap();
    snapshot.claims.insert(("default".to_owned(), name), claim);
}

/// The reason for each node that rejects the pod.
fn reasons(snapshot: &Snapshot, pod: &Pod) -> Vec<Option<String>> {
    let claims = PodVolumeClaims::of(pod, snapshot).unwrap();
    snapshot
        .nodes
        .iter()
        .map(|node| reject(pod, &claims, node, snapshot))
        .collect()
}

#[test]
fn bound_volume_keeps_the_pod_in_its_topology() {
    let mut snapshot = mk_snapshot();
    snapshot.volumes.push(mk_volume("pv", Some("z2")));
    add_claim(&mut snapshot, mk_claim("data", Some("pv"), "ReadWriteOnce"));
    let pod = mk_pod("p", None, &["data"]);
    assert_eq!(
        reasons(&snapshot, &pod),
        [
            Some("node(s) didn't match PersistentVolume's node affinity".to_owned()),
            None
        ]
    );
}

#[test]
fn missing_or_unbound_claims_fit_on_no_node() {
    let mut snapshot = mk_snapshot();
    let pod = mk_pod("p", None, &["data"]);
    assert_eq!(
        PodVolumeClaims::of(&pod, &snapshot).unwrap_err(),
        "persistentvolumeclaim \"data\" not found"
    );
    add_claim(&mut snapshot, mk_claim("data", None, "ReadWriteOnce"));
    snapshot.classes.clear();
    assert_eq!(
        PodVolumeClaims::of(&pod, &snapshot).unwrap_err(),
        "pod has unbound immediate PersistentVolumeClaims"
    );
}

#[test]
fn attach_limit_counts_each_volume_once() {
    let mut snapshot = mk_snapshot();
    let csi_node = json!({"metadata": {"name": "a"}, "spec": {"drivers":
        [{"name": "d", "nodeID": "a", "allocatable": {"count": 1}}]}});
    snapshot.csi_nodes.insert(
        "a".to_owned(),
        Arc::new(serde_json::from_value(csi_node).unwrap()),
    );
    for name in ["one", "two"] {
        snapshot.volumes.push(mk_volume(&format!("pv-{name}"), None));
        add_claim(
            &mut snapshot,
            mk_claim(name, Some(&format!("pv-{name}")), "ReadWriteOnce"),
        );
    }
    snapshot.pods.push(mk_pod("running", Some("a"), &["one"]));
    let full = Some("node(s) exceed max volume count".to_owned());
    assert_eq!(
        reasons(&snapshot, &mk_pod("p", None, &["two"])),
        [full.clone(), None]
    );
    assert_eq!(
        reasons(&snapshot, &mk_pod("p", None, &["one"])),
        [None, None],
        "the same volume"
    );
    assert_eq!(reasons(&snapshot, &mk_pod("p", None, &[])), [None, None]);

    snapshot.pods[0] = mk_pod("running", None, &["one"]);
    snapshot.assumed.insert("uid-running".to_owned(), "a".to_owned());
    assert_eq!(
        reasons(&snapshot, &mk_pod("p", None, &["two"])),
        [full, None],
        "an assumed pod counts"
    );
}

#[test]
fn wait_for_first_consumer_claim_needs_a_volume_or_capacity() {
    let mut snapshot = mk_snapshot();
    add_claim(&mut snapshot, mk_claim("data", None, "ReadWriteOnce"));
    let pod = mk_pod("p", None, &["data"]);
    assert_eq!(reasons(&snapshot, &pod), [None, None], "provisioned anywhere");

    let driver = json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": true}});
    snapshot
        .csi_drivers
        .insert("d".to_owned(), Arc::new(serde_json::from_value(driver).unwrap()));
    let room = |size: &str| {
        let capacity = json!({"metadata": {"name": "c"}, "storageClassName": "delayed", "capacity": size,
            "nodeTopology": {"matchLabels": {"zone": "z1"}}});
        Arc::new(serde_json::from_value::<CSIStorageCapacity>(capacity).unwrap())
    };
    let full = Some("node(s) did not have enough free storage".to_owned());
    for size in ["2Gi", "1Ei"] {
        snapshot.capacities = vec![room(size)];
        assert_eq!(reasons(&snapshot, &pod), [None, full.clone()], "{size}");
    }
    snapshot.capacities = vec![room("500Mi")];
    assert_eq!(reasons(&snapshot, &pod), [full.clone(), full.clone()]);

    snapshot.volumes.push(mk_volume("pv", Some("z2")));
    assert_eq!(
        reasons(&snapshot, &pod),
        [full, None],
        "an existing volume needs no capacity"
    );
    let claim = snapshot.claims[&("default".to_owned(), "data".to_owned())].clone();
    let name = |node: usize| {
        volume_for_node(&claim, &snapshot.nodes[node], &snapshot)
            .and_then(|volume| volume.metadata.name.clone())
    };
    assert_eq!((name(0), name(1).as_deref()), (None, Some("pv")));
}

#[test]
fn node_selector_taints_and_read_write_once_pod_claims_are_respected() {
    let mut snapshot = mk_snapshot();
    let mut pod = (*mk_pod("p", None, &[])).clone();
    pod.spec.as_mut().unwrap().node_selector = Some(BTreeMap::from([("zone".to_owned(), "z1".to_owned())]));
    let selector = "node(s) didn't match Pod's node affinity/selector".to_owned();
    assert_eq!(reasons(&snapshot, &pod), [None, Some(selector)]);

    let tainted =
        json!({"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}});
    snapshot.nodes = vec![Arc::new(serde_json::from_value(tainted).unwrap())];
    let pod = mk_pod("p", None, &[]);
    assert_eq!(
        reasons(&snapshot, &pod),
        [Some("node(s) had untolerated taint(s)".to_owned())]
    );

    let mut snapshot = mk_snapshot();
    snapshot.volumes.push(mk_volume("pv", None));
    add_claim(&mut snapshot, mk_claim("data", Some("pv"), "ReadWriteOncePod"));
    snapshot.pods.push(mk_pod("running", Some("a"), &["data"]));
    let rejected = reasons(&snapshot, &mk_pod("p", None, &["data"]));
    assert!(
        rejected
            .iter()
            .all(|reason| reason.as_ref().is_some_and(|r| r.contains("ReadWriteOncePod")))
    );
}

#[test]
fn second_pod_with_a_read_write_once_pod_claim_is_rejected_while_the_first_is_assumed() {
    let mut snapshot = mk_snapshot();
    add_claim(&mut snapshot, mk_claim("data", None, "ReadWriteOncePod"));
    let (first, second) = (
        mk_pod("first", None, &["data"]),
        mk_pod("second", None, &["data"]),
    );
    snapshot.pods = vec![first.clone(), second.clone()];
    assert_eq!(reasons(&snapshot, &first), [None, None]);
    snapshot.assumed.insert("uid-first".to_owned(), "a".to_owned());
    assert_eq!(reasons(&snapshot, &first), [None, None]);
    for reason in reasons(&snapshot, &second) {
        assert!(reason.unwrap().contains("ReadWriteOncePod"));
    }
}

#[test]
fn claim_with_delayed_binding_that_names_its_volume_is_left_to_the_controller() {
    let mut snapshot = mk_snapshot();
    snapshot.volumes.push(mk_volume("free", None));
    let mut claim = (*mk_claim("data", None, "ReadWriteOnce")).clone();
    claim.spec.as_mut().unwrap().volume_name = Some("missing".to_owned());
    add_claim(&mut snapshot, Arc::new(claim));
    assert_eq!(
        PodVolumeClaims::of(&mk_pod("p", None, &["data"]), &snapshot).unwrap_err(),
        "pod has unbound immediate PersistentVolumeClaims"
    );
}

#[test]
fn ephemeral_volume_does_not_use_the_claim_of_another_owner() {
    let mut snapshot = mk_snapshot();
    snapshot.volumes.push(mk_volume("pv", None));
    let mut pod = (*mk_pod("web", None, &[])).clone();
    let volume = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
    pod.spec.as_mut().unwrap().volumes = Some(vec![serde_json::from_value(volume).unwrap()]);
    let mut claim = (*mk_claim("web-data", Some("pv"), "ReadWriteOnce")).clone();
    add_claim(&mut snapshot, Arc::new(claim.clone()));
    assert_eq!(
        PodVolumeClaims::of(&pod, &snapshot).unwrap_err(),
        "PVC default/web-data was not created for pod default/web (pod is not owner)"
    );
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-web", "controller": true}]);
    claim.metadata.owner_references = serde_json::from_value(owner).unwrap();
    add_claim(&mut snapshot, Arc::new(claim));
    assert_eq!(reasons(&snapshot, &pod), [None, None]);
}
