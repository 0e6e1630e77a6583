use serde_json::{Value, json};

use super::super::claims::ANN_BOUND_BY_CONTROLLER;
use super::*;

fn mk_claim(change: impl Fn(&mut Value)) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "uid-c", "annotations": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "fast"},
        "status": {"phase": "Pending"},
    });
    change(&mut claim);
    serde_json::from_value(claim).unwrap()
}

fn mk_volume(change: impl Fn(&mut Value)) -> Arc<PersistentVolume> {
    let mut volume = json!({
        "metadata": {"name": "pv", "annotations": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "fast",
            "csi": {"driver": "d", "volumeHandle": "h"}},
        "status": {"phase": "Available"},
    });
    change(&mut volume);
    Arc::new(serde_json::from_value(volume).unwrap())
}

fn mk_class(mode: &str) -> StorageClass {
    serde_json::from_value(json!({
        "metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": mode,
    }))
    .unwrap()
}

fn owned_by(uid: &str) -> Value {
    json!({"namespace": "default", "name": "data", "uid": uid})
}

#[test]
fn unbound_claim_is_bound_provisioned_or_waits() {
    let immediate = mk_class("Immediate");
    let late = mk_class("WaitForFirstConsumer");
    let manual = StorageClass {
        provisioner: "kubernetes.io/no-provisioner".to_owned(),
        ..mk_class("Immediate")
    };
    let plain = mk_claim(|_| {});
    let selected = mk_claim(|c| c["metadata"]["annotations"][ANN_SELECTED_NODE] = json!("a"));
    let free = mk_volume(|_| {});
    let prebound = mk_volume(|v| v["spec"]["claimRef"] = json!({"namespace": "default", "name": "data"}));
    let cases = [
        (
            &plain,
            vec![free.clone()],
            Some(&immediate),
            ClaimAction::Bind("pv".to_owned()),
        ),
        (
            &plain,
            vec![],
            Some(&immediate),
            ClaimAction::Provision("d".to_owned()),
        ),
        (
            &plain,
            vec![free.clone()],
            Some(&late),
            ClaimAction::WaitForFirstConsumer,
        ),
        (
            &plain,
            vec![prebound],
            Some(&late),
            ClaimAction::Bind("pv".to_owned()),
        ),
        (
            &selected,
            vec![free],
            Some(&late),
            ClaimAction::Provision("d".to_owned()),
        ),
        (
            &plain,
            vec![],
            Some(&manual),
            ClaimAction::Wait(
                EventType::Warning,
                "ProvisioningFailed",
                "no volume plugin matched name: kubernetes.io/no-provisioner".to_owned(),
            ),
        ),
        (
            &plain,
            vec![],
            None,
            ClaimAction::Wait(
                EventType::Warning,
                "ProvisioningFailed",
                "storageclass.storage.k8s.io \"fast\" not found".to_owned(),
            ),
        ),
    ];
    for (number, (claim, volumes, class, expected)) in cases.into_iter().enumerate() {
        assert_eq!(decide_claim(claim, &volumes, class), expected, "case {number}");
    }
}

#[test]
fn claim_that_names_a_volume_waits_for_it() {
    let claim = mk_claim(|c| c["spec"]["volumeName"] = json!("pv"));
    let taken = mk_volume(|v| v["spec"]["claimRef"] = owned_by("uid-other"));
    assert_eq!(decide_claim(&claim, &[], None), ClaimAction::WaitForVolume);
    assert_eq!(
        decide_claim(&claim, &[mk_volume(|_| {})], None),
        ClaimAction::Bind("pv".to_owned())
    );
    assert!(matches!(
        decide_claim(&claim, &[taken], None),
        ClaimAction::Wait(EventType::Warning, "FailedBinding", _)
    ));
}

#[test]
fn bound_claim_is_lost_with_its_volume() {
    let bound = |volume: Option<&str>| {
        mk_claim(|c| {
            c["metadata"]["annotations"][ANN_BIND_COMPLETED] = json!("yes");
            c["spec"]["volumeName"] = json!(volume);
            c["status"]["phase"] = json!("Bound");
        })
    };
    let own = mk_volume(|v| {
        v["spec"]["claimRef"] = owned_by("uid-c");
        v["status"]["phase"] = json!("Bound");
    });
    let others = mk_volume(|v| v["spec"]["claimRef"] = owned_by("uid-other"));
    let cases = [
        (bound(Some("pv")), vec![own], "Nothing"),
        (bound(Some("pv")), vec![], "ClaimLost"),
        (bound(None), vec![], "ClaimLost"),
        (bound(Some("pv")), vec![others], "ClaimMisbound"),
        (bound(Some("pv")), vec![mk_volume(|_| {})], "Bind"),
    ];
    for (claim, volumes, expected) in cases {
        let action = format!("{:?}", decide_claim(&claim, &volumes, None));
        assert!(action.contains(expected), "{action} is not {expected}");
    }
}

#[test]
fn volume_follows_its_claim() {
    let claim = mk_claim(|_| {});
    let bound = mk_claim(|c| c["spec"]["volumeName"] = json!("pv"));
    let elsewhere = mk_claim(|c| c["spec"]["volumeName"] = json!("other"));
    let owned = mk_volume(|v| v["spec"]["claimRef"] = owned_by("uid-c"));
    let by_controller = mk_volume(|v| {
        v["spec"]["claimRef"] = owned_by("uid-c");
        v["metadata"]["annotations"][ANN_BOUND_BY_CONTROLLER] = json!("yes");
    });
    let provisioned = mk_volume(|v| {
        v["spec"]["claimRef"] = owned_by("uid-c");
        v["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
        v["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = json!("d");
    });
    let undeletable = |phase: &str| {
        mk_volume(|v| {
            v["spec"]["claimRef"] = owned_by("uid-c");
            v["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
            v["status"]["phase"] = json!(phase);
        })
    };
    let (bound_before, released, failed) = (
        undeletable("Bound"),
        undeletable("Released"),
        undeletable("Failed"),
    );
    let new = mk_volume(|v| v["status"]["phase"] = json!("Pending"));
    let recreated = mk_volume(|v| v["spec"]["claimRef"] = owned_by("uid-before"));
    let cases = [
        (&new, None, VolumeAction::SetPhase("Available")),
        (&owned, None, VolumeAction::SetPhase("Released")),
        (&recreated, Some(&claim), VolumeAction::SetPhase("Released")),
        (&bound_before, None, VolumeAction::SetPhase("Released")),
        (&released, None, VolumeAction::FailDelete),
        (&failed, None, VolumeAction::Nothing),
        (&owned, Some(&claim), VolumeAction::Nothing),
        (&owned, Some(&bound), VolumeAction::SetPhase("Bound")),
        (&by_controller, Some(&elsewhere), VolumeAction::Unbind),
        (&owned, Some(&elsewhere), VolumeAction::Unbind),
        (&provisioned, Some(&elsewhere), VolumeAction::SetPhase("Released")),
    ];
    for (number, (volume, claim, expected)) in cases.into_iter().enumerate() {
        assert_eq!(decide_volume(volume, claim), expected, "case {number}");
    }
}
