//! Table tests of translations; another test compares many more with Go's library.

use serde_json::{Value, json};

use super::*;

fn mk_volume(spec: Value, labels: Value) -> PersistentVolume {
    let volume = json!({"metadata": {"name": "pv", "labels": labels}, "spec": spec});
    serde_json::from_value(volume).unwrap()
}

fn handle_of(spec: Value, labels: Value) -> Result<(String, String), String> {
    match to_csi(&mk_volume(spec, labels)) {
        Ok(Some(volume)) => {
            let csi = volume.spec.clone().unwrap().csi.unwrap();
            Ok((csi.driver, csi.volume_handle))
        }
        Ok(None) => Err("no driver".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn in_tree_volumes_get_driver_and_handle() {
    let cases = [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}),
            EBS,
            "vol-1",
        ),
        (
            json!({"azureDisk": {"diskName": "n", "diskURI": "/subscriptions/x"}}),
            AZURE_DISK,
            "/subscriptions/x",
        ),
        (
            json!({"azureFile": {"secretName": "azure-storage-account-a-secret", "shareName": "s",
                "secretNamespace": "ns"}}),
            AZURE_FILE,
            "#a#s#pv#ns",
        ),
        (json!({"cinder": {"volumeID": "c"}}), CINDER, "c"),
        (json!({"portworxVolume": {"volumeID": "p"}}), PORTWORX, "p"),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] v"}}),
            VSPHERE,
            "[ds] v",
        ),
        (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "d", "h"),
    ];
    for (spec, driver, handle) in cases {
        let expected = Ok((driver.to_owned(), handle.to_owned()));
        assert_eq!(handle_of(spec.clone(), json!({})), expected, "{spec}");
    }
    let nfs = handle_of(json!({"nfs": {"server": "s", "path": "/"}}), json!({}));
    assert_eq!(nfs, Err("no driver".to_owned()));
}

#[test]
fn untranslatable_volumes_are_refused() {
    let cases = [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://z/1"}}),
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://z/1)",
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://z:x/vol-1"}}),
            "failed to translate Kubernetes ID to EBS Volume ID Invalid disk name (aws://z:x/vol-1): parse \
             \"aws://z:x/vol-1\"",
        ),
        (
            json!({"azureDisk": {"diskName": "n", "diskURI": "d", "kind": "Shared"}}),
            "kind(Shared) is not supported in csi migration",
        ),
        (
            json!({"azureFile": {"secretName": "a", "shareName": "s"}}),
            "could not find a secret namespace in PersistentVolumeSource or ClaimRef",
        ),
    ];
    for (spec, why) in cases {
        let expected = Err(format!("failed to translate in-tree pv to CSI: {why}"));
        assert_eq!(handle_of(spec.clone(), json!({})), expected, "{spec}");
    }
}

#[test]
fn gce_disk_takes_zone_from_labels() {
    const OLDER: &str = "failure-domain.beta.kubernetes.io/zone";
    const ZONE: &str = "topology.kubernetes.io/zone";
    let of = |labels: Value| {
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": ZONE, "operator": "In", "values": ["other-zone-x"]}]}]}});
        let spec = json!({"gcePersistentDisk": {"pdName": "p"}, "nodeAffinity": affinity});
        handle_of(spec, labels).map(|(_, handle)| handle)
    };
    let cases = [
        (json!({}), "zones/UNSPECIFIED"),
        (json!({ZONE: "us-east1-b"}), "zones/us-east1-b"),
        (
            json!({ZONE: "us-east1-b", OLDER: "us-east1-c"}),
            "zones/us-east1-c",
        ),
        (json!({ZONE: "us-east1-b", OLDER: ""}), "zones/us-east1-b"),
        (json!({ZONE: "us-east1-b__us-east1-c"}), "regions/us-east1"),
    ];
    for (labels, place) in cases {
        let expected = Ok(format!("projects/UNSPECIFIED/{place}/disks/p"));
        assert_eq!(of(labels.clone()), expected, "{labels}");
    }
    assert!(of(json!({ZONE: "us-east1-b__us-west1-c"})).is_err());
    assert!(of(json!({ZONE: "a__b"})).is_err());
}

#[test]
fn gce_disk_is_for_one_writer() {
    let cases: [(&[&str], &str); 4] = [
        (&["ReadOnlyMany"], "ReadOnlyMany"),
        (&["ReadOnlyMany", "ReadWriteOnce"], "ReadWriteOnce"),
        (&["ReadWriteMany"], "ReadWriteOnce"),
        (&["ReadWriteOncePod"], "ReadWriteOnce"),
    ];
    for (modes, expected) in cases {
        let spec = json!({"gcePersistentDisk": {"pdName": "p"}, "accessModes": modes});
        let volume = mk_volume(spec, json!({}));
        let translated = to_csi(&volume).unwrap().unwrap().into_owned();
        let translated = translated.spec.unwrap().access_modes.unwrap();
        assert_eq!(translated, [expected], "{modes:?}");
    }
}

#[test]
fn inline_in_tree_volumes_are_translated_to_persistent_volumes() {
    let cases = [
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}),
            "ebs.csi.aws.com-vol-1",
            "ReadWriteOnce",
        ),
        (
            json!({"azureDisk": {"diskName": "n", "diskURI": "u"}}),
            "u",
            "ReadWriteOnce",
        ),
        (
            json!({"azureFile": {"secretName": "a", "shareName": "s"}}),
            "#a#s#v#ns",
            "ReadWriteMany",
        ),
        (
            json!({"cinder": {"volumeID": "c"}}),
            "cinder.csi.openstack.org-c",
            "ReadWriteOnce",
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "p", "readOnly": true}}),
            "pd.csi.storage.gke.io-p",
            "ReadOnlyMany",
        ),
        (
            json!({"portworxVolume": {"volumeID": "p"}}),
            "pxd.portworx.com-p",
            "ReadWriteOnce",
        ),
        (
            json!({"vsphereVolume": {"volumePath": "p"}}),
            "csi.vsphere.vmware.com-p",
            "ReadWriteOnce",
        ),
    ];
    for (mut source, name, mode) in cases {
        source["name"] = "v".into();
        let volume: Volume = serde_json::from_value(source.clone()).unwrap();
        assert!(is_migrated(&volume), "{source}");
        let translated = inline_to_csi(&volume, "ns").unwrap().unwrap();
        assert_eq!(translated.metadata.name.as_deref(), Some(name));
        assert_eq!(translated.spec.unwrap().access_modes.unwrap(), [mode], "{source}");
    }
    let other: Volume = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap();
    assert!(!is_migrated(&other));
    assert_eq!(inline_to_csi(&other, "ns"), Ok(None));
}
