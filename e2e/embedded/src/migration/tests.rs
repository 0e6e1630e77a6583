//! Table tests of translations; another test compares many more with Go's library.

use serde_json::{Value, json};

use super::*;

fn handle_of(spec: Value) -> Result<(String, String), String> {
    let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec}));
    match to_csi(&volume.unwrap()) {
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
        (json!({"cinder": {"volumeID": "c"}}), CINDER, "c"),
        (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "d", "h"),
    ];
    for (spec, driver, handle) in cases {
        let expected = Ok((driver.to_owned(), handle.to_owned()));
        assert_eq!(handle_of(spec.clone()), expected, "{spec}");
    }
    for other in [
        json!({"nfs": {"server": "s", "path": "/"}}),
        json!({"gcePersistentDisk": {"pdName": "p"}}),
    ] {
        assert_eq!(handle_of(other), Err("no driver".to_owned()));
    }
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
    ];
    for (spec, why) in cases {
        let expected = Err(format!("failed to translate in-tree pv to CSI: {why}"));
        assert_eq!(handle_of(spec.clone()), expected, "{spec}");
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
            json!({"cinder": {"volumeID": "c"}}),
            "cinder.csi.openstack.org-c",
            "ReadWriteOnce",
        ),
    ];
    for (mut source, name, mode) in cases {
        source["name"] = "v".into();
        let volume: Volume = serde_json::from_value(source.clone()).unwrap();
        assert!(is_migrated(&volume), "{source}");
        let translated = inline_to_csi(&volume).unwrap().unwrap();
        assert_eq!(translated.metadata.name.as_deref(), Some(name));
        assert_eq!(translated.spec.unwrap().access_modes.unwrap(), [mode], "{source}");
    }
    let other: Volume = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap();
    assert!(!is_migrated(&other));
    assert_eq!(inline_to_csi(&other), Ok(None));
}
