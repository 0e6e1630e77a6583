//! Table tests of the translations. `e2e/tests/migration_matches_go` compares them with Go's library on thousands of volumes.

mod azure;
mod ebs;
mod gce_pd;

use serde_json::{Value, json};

use super::*;
use crate::model::Capabilities;

/// A PersistentVolume of this spec, with the labels and annotations that are given.
fn pv(spec: Value, labels: Value, annotations: Value) -> VolumeObject {
    serde_json::from_value(json!({
        "metadata": {"name": "pv", "labels": labels, "annotations": annotations},
        "spec": spec,
    }))
    .unwrap()
}

/// The translated handle, or the error.
fn handle(volume: &VolumeObject) -> Result<String, String> {
    let translation = translate(volume).expect("the volume is migrated");
    translation
        .map(|translation| translation.source.handle.to_string())
        .map_err(|error| error.to_string())
}

fn translated(volume: &VolumeObject) -> Translation {
    translate(volume).expect("the volume is migrated").unwrap()
}

fn attributes<const N: usize>(entries: [(&str, &str); N]) -> std::collections::BTreeMap<String, String> {
    entries
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn nothing() -> Value {
    json!({})
}

#[test]
fn recognizes_migration_drivers_by_name() {
    for plugin in Plugin::ALL {
        assert!(is_migration_driver(plugin.driver()), "{plugin:?}");
    }
    for other in ["", "d.example", "kubernetes.io/aws-ebs", "EBS.csi.aws.com"] {
        assert!(!is_migration_driver(other), "{other:?}");
    }
}

#[test]
fn does_not_translate_volumes_that_are_not_migrated() {
    for spec in [
        json!({}),
        json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}),
        json!({"nfs": {"server": "s", "path": "/"}}),
        json!({"hostPath": {"path": "/"}}),
    ] {
        assert_eq!(translate(&pv(spec.clone(), nothing(), nothing())), None, "{spec}");
    }
}

#[test]
fn cinder_vsphere_and_portworx_keep_their_ids() {
    let of = |spec: Value| translated(&pv(spec, nothing(), nothing())).source;
    assert_eq!(
        of(json!({"cinder": {"volumeID": "c", "fsType": "ext4", "readOnly": true}})),
        CsiSource {
            driver: "cinder.csi.openstack.org".into(),
            handle: "c".into(),
            read_only: true,
            fs_type: "ext4".into(),
            ..CsiSource::default()
        }
    );
    assert_eq!(
        of(
            json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk", "fsType": "ext4", "storagePolicyName": "gold"}})
        ),
        CsiSource {
            driver: "csi.vsphere.vmware.com".into(),
            handle: "[ds] a/b.vmdk".into(),
            fs_type: "ext4".into(),
            attributes: attributes([("storagepolicyname", "gold")]),
            ..CsiSource::default()
        }
    );
    assert_eq!(
        of(json!({"portworxVolume": {"volumeID": "p", "fsType": "xfs", "readOnly": true}})),
        CsiSource {
            driver: "pxd.portworx.com".into(),
            handle: "p".into(),
            fs_type: "xfs".into(),
            ..CsiSource::default()
        }
    );
}

#[test]
fn portworx_volume_has_a_secret_if_both_annotations_name_it() {
    let of = |annotations: Value| {
        let spec = json!({"portworxVolume": {"volumeID": "p"}});
        translated(&pv(spec, nothing(), annotations))
            .source
            .publish_secret
    };
    const NAME: &str = "openstorage.io/auth-secret-name";
    const NAMESPACE: &str = "openstorage.io/auth-secret-namespace";
    assert_eq!(
        of(json!({NAME: "token", NAMESPACE: "px"})).map(|secret| secret.to_string()),
        Some("px/token".to_owned())
    );
    assert_eq!(of(json!({NAME: "token"})), None);
    assert_eq!(of(json!({NAMESPACE: "px"})), None);
}

fn decoded(object: Value, driver: &str) -> (Volume, bool) {
    let driver = Driver::new(driver, Capabilities::default(), "");
    let volume = decode(serde_json::from_value(object).unwrap(), &driver);
    let concerns = volume.concerns(&driver);
    (volume, concerns)
}

fn ebs(annotations: Value, finalizers: Value) -> Value {
    json!({
        "metadata": {"name": "pv", "annotations": annotations, "finalizers": finalizers},
        "spec": {"awsElasticBlockStore": {"volumeID": "vol-1"}, "accessModes": ["ReadWriteOnce"]},
    })
}

#[test]
fn in_tree_volume_concerns_its_migration_driver() {
    let (volume, concerns) = decoded(ebs(json!({}), json!([])), "ebs.csi.aws.com");
    assert!(concerns);
    assert_eq!(volume.spec.csi().map(|csi| &*csi.handle), Some("vol-1"));
    assert!(volume.spec.migrated);
    assert_eq!(volume.spec.access_modes, ["ReadWriteOnce"]);
    let (volume, concerns) = decoded(ebs(json!({}), json!([])), "d.example");
    assert!(!concerns);
    assert_eq!(volume.spec.driver(), Some("ebs.csi.aws.com"));
    let malformed = json!({"spec": {"azureDisk": {"diskURI": "d", "kind": "Shared"}}});
    assert!(decoded(malformed.clone(), "disk.csi.azure.com").1);
    assert!(!decoded(malformed, "d.example").1);
    let nfs = json!({"spec": {"nfs": {"server": "s", "path": "/"}}});
    assert!(!decoded(nfs, "ebs.csi.aws.com").1);
}

#[test]
fn volume_is_left_in_tree_until_annotated_with_our_driver() {
    const KEY: &str = "pv.kubernetes.io/migrated-to";
    for (annotations, left) in [
        (json!({}), true),
        (json!({KEY: "other"}), true),
        (json!({KEY: ""}), true),
        (json!({KEY: "ebs.csi.aws.com"}), false),
    ] {
        let (volume, _) = decoded(ebs(annotations.clone(), json!([])), "ebs.csi.aws.com");
        assert_eq!(volume.left_in_tree, left, "{annotations}");
    }
    let native = json!({"spec": {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}});
    assert!(!decoded(native, "ebs.csi.aws.com").0.left_in_tree);
    // Our finalizer on another driver's volume must be removed eventually.
    let finalizers = json!(["external-attacher/d-example"]);
    let (volume, concerns) = decoded(ebs(json!({}), finalizers), "d.example");
    assert!(concerns && volume.finalizer && volume.left_in_tree);
}

#[test]
fn decodes_volumes_without_metadata_and_spec_fields() {
    for object in [
        json!({}),
        json!({"metadata": {"labels": null, "annotations": null}, "spec": {"accessModes": null}}),
    ] {
        assert_eq!(decoded(object, "d.example").0.spec, VolumeSpec::default());
    }
}
