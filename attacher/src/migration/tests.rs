//! The translation of each plugin as a table. What Go's library makes of thousands of volumes is
//! compared elsewhere (`e2e/tests/migration_matches_go`); here stands what is meant.

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
fn drivers_are_told_by_name() {
    for plugin in Plugin::ALL {
        assert!(is_migration_driver(plugin.driver()), "{plugin:?}");
    }
    for other in ["", "d.example", "kubernetes.io/aws-ebs", "EBS.csi.aws.com"] {
        assert!(!is_migration_driver(other), "{other:?}");
    }
}

#[test]
fn volumes_that_are_not_migrated_are_left_alone() {
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
fn ebs_volumes_are_named_by_id_or_by_url() {
    let of = |id: &str| {
        let spec = json!({"awsElasticBlockStore": {"volumeID": id}});
        handle(&pv(spec, nothing(), nothing()))
    };
    for (id, expected) in [
        ("vol-0123", "vol-0123"),
        ("aws://us-east-1a/vol-0123", "vol-0123"),
        ("aws:///vol-0123", "vol-0123"),
        ("aws:////vol-0123//", "vol-0123"),
        ("aws://zone/vol-%41", "vol-A"),
        ("aws://zone/vol-1?a=b#c", "vol-1"),
        ("aws://user:pass@zone:443/vol-1", "vol-1"),
        ("aws://[::1]/vol-1", "vol-1"),
        // Without the scheme anything goes.
        ("volume", "volume"),
        ("AWS://zone/other", "AWS://zone/other"),
        ("", ""),
    ] {
        assert_eq!(of(id).as_deref(), Ok(expected), "{id}");
    }
    let before = "failed to translate in tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID ";
    for (id, expected) in [
        (
            "aws://zone/0123",
            "Invalid format for AWS volume (aws://zone/0123)",
        ),
        (
            "aws://zone/a/vol-1",
            "Invalid format for AWS volume (aws://zone/a/vol-1)",
        ),
        ("aws://zone", "Invalid format for AWS volume (aws://zone)"),
        (
            "aws://zone/vol-%ff",
            "Invalid format for AWS volume (aws://zone/vol-%ff)",
        ),
        (
            "aws://zone/vol-%4",
            r#"Invalid disk name (aws://zone/vol-%4): parse "aws://zone/vol-%4": invalid URL escape "%4""#,
        ),
        (
            "aws://zone a/vol-1",
            r#"Invalid disk name (aws://zone a/vol-1): parse "aws://zone a/vol-1": invalid character " " in host name"#,
        ),
        (
            "aws://zo%6Ee/vol-1",
            r#"Invalid disk name (aws://zo%6Ee/vol-1): parse "aws://zo%6Ee/vol-1": invalid URL escape "%6E""#,
        ),
        (
            "aws://zone:x/vol-1#f",
            r#"Invalid disk name (aws://zone:x/vol-1#f): parse "aws://zone:x/vol-1": invalid port ":x" after host"#,
        ),
        (
            "aws://zone/vol-1#%",
            r#"Invalid disk name (aws://zone/vol-1#%): parse "aws://zone/vol-1#%": invalid URL escape "%""#,
        ),
        (
            "aws://a\tb/vol-1",
            "Invalid disk name (aws://a\tb/vol-1): parse \"aws://a\\tb/vol-1\": net/url: invalid control character in URL",
        ),
        (
            "aws://a\"b@zone/vol-1",
            "Invalid disk name (aws://a\"b@zone/vol-1): parse \"aws://a\\\"b@zone/vol-1\": net/url: invalid userinfo",
        ),
        (
            "aws://\u{301}\u{200b}:x/",
            "Invalid disk name (aws://\u{301}\u{200b}:x/): parse \"aws://\u{301}\\u200b:x/\": invalid port \":x\" after host",
        ),
        (
            "aws://[1.2.3.4]/vol-1",
            r#"Invalid disk name (aws://[1.2.3.4]/vol-1): parse "aws://[1.2.3.4]/vol-1": invalid IP-literal"#,
        ),
        (
            "aws://[::1/vol-1",
            r#"Invalid disk name (aws://[::1/vol-1): parse "aws://[::1/vol-1": missing ']' in host"#,
        ),
    ] {
        assert_eq!(of(id), Err(format!("{before}{expected}")), "{id}");
    }
}

#[test]
fn an_ebs_volume_keeps_partition_type_and_read_only() {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "awsElasticBlockStore": {"volumeID": "vol-1", "fsType": "xfs", "partition": 3, "readOnly": true},
    });
    let translation = translated(&pv(spec, nothing(), nothing()));
    assert_eq!(
        translation.source,
        CsiSource {
            driver: "ebs.csi.aws.com".into(),
            handle: "vol-1".into(),
            read_only: true,
            fs_type: "xfs".into(),
            attributes: attributes([("partition", "3")]),
            publish_secret: None,
        }
    );
    assert!(translation.access_modes.read_write_once);
    let plain = json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let plain = translated(&pv(plain, nothing(), nothing())).source;
    assert_eq!(plain.attributes, attributes([("partition", "0")]));
}

#[test]
fn a_gce_disk_is_where_its_zone_labels_say() {
    const BETA: &str = "failure-domain.beta.kubernetes.io/zone";
    const GA: &str = "topology.kubernetes.io/zone";
    let of = |labels: Value| {
        let spec = json!({"gcePersistentDisk": {"pdName": "d"}});
        handle(&pv(spec, labels, nothing()))
    };
    for (labels, expected) in [
        (json!({}), "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
        (json!({GA: ""}), "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
        (
            json!({GA: "us-east1-b"}),
            "projects/UNSPECIFIED/zones/us-east1-b/disks/d",
        ),
        (
            json!({GA: "anywhere"}),
            "projects/UNSPECIFIED/zones/anywhere/disks/d",
        ),
        (
            json!({GA: "a-b-c", BETA: "d-e-f"}),
            "projects/UNSPECIFIED/zones/d-e-f/disks/d",
        ),
        (
            json!({GA: "a-b-c", BETA: ""}),
            "projects/UNSPECIFIED/zones/a-b-c/disks/d",
        ),
        (
            json!({GA: "us-east1-b__us-east1-c"}),
            "projects/UNSPECIFIED/regions/us-east1/disks/d",
        ),
    ] {
        assert_eq!(of(labels.clone()).as_deref(), Ok(expected), "{labels}");
    }
    let before = "failed to translate in tree pv to CSI: failed to get region from zones: ";
    for (zones, expected) in [
        (
            "us-west1-a__us-east1-b",
            "multiple or no regions gotten from zones, got: map[us-east1:{} us-west1:{}]",
        ),
        (
            "us-east1-b__here",
            "zone in unexpected format, expected: {locale}-{region}-{zone}, got: here",
        ),
        (
            "us-east1-b__",
            "zone in unexpected format, expected: {locale}-{region}-{zone}, got: ",
        ),
    ] {
        assert_eq!(
            of(json!({GA: zones})),
            Err(format!("{before}{expected}")),
            "{zones}"
        );
    }
}

#[test]
fn a_gce_disk_is_written_on_one_node_at_a_time() {
    let of = |modes: &[&str]| {
        let spec = json!({"accessModes": modes, "gcePersistentDisk": {"pdName": "d", "partition": 2}});
        let translation = translated(&pv(spec, nothing(), nothing()));
        assert_eq!(translation.source.attributes, attributes([("partition", "2")]));
        translation.access_modes
    };
    let once = AccessModes {
        read_write_once: true,
        ..AccessModes::default()
    };
    let read_only = AccessModes {
        read_only_many: true,
        ..AccessModes::default()
    };
    for (modes, expected) in [
        (&["ReadWriteOnce"][..], once),
        (&["ReadWriteMany"], once),
        (&["ReadOnlyMany", "ReadWriteOnce"], once),
        (&["ReadOnlyMany", "ReadWriteMany"], once),
        (&["ReadOnlyMany"], read_only),
        (&["ReadOnlyMany", "ReadWriteOncePod"], read_only),
        (&["ReadWriteOncePod"], once),
        (&["SomethingNew"], once),
        (&[], AccessModes::default()),
    ] {
        assert_eq!(of(modes), expected, "{modes:?}");
    }
    let whole = json!({"gcePersistentDisk": {"pdName": "d"}});
    let whole = translated(&pv(whole, nothing(), nothing())).source;
    assert_eq!(whole.attributes, attributes([("partition", "")]));
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
fn a_portworx_volume_has_a_secret_when_both_annotations_name_it() {
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

#[test]
fn an_azure_disk_is_a_managed_one() {
    let of = |disk: Value| translate(&pv(json!({"azureDisk": disk}), nothing(), nothing())).unwrap();
    assert_eq!(
        of(
            json!({"diskURI": "/subscriptions/s/d", "kind": "managed", "cachingMode": "ReadOnly",
                  "fsType": "ext4", "readOnly": true})
        )
        .unwrap()
        .source,
        CsiSource {
            driver: "disk.csi.azure.com".into(),
            handle: "/subscriptions/s/d".into(),
            read_only: true,
            fs_type: "ext4".into(),
            attributes: attributes([
                ("kind", "Managed"),
                ("cachingmode", "ReadOnly"),
                ("fstype", "ext4")
            ]),
            publish_secret: None,
        }
    );
    let bare = of(json!({"diskURI": "d"})).unwrap().source;
    assert_eq!(bare.attributes, attributes([("kind", "Managed")]));
    let empty = of(json!({"diskURI": "d", "cachingMode": "", "fsType": ""}))
        .unwrap()
        .source;
    assert_eq!(
        empty.attributes,
        attributes([("kind", "Managed"), ("cachingmode", ""), ("fstype", "")])
    );
    for kind in ["Shared", "Dedicated", ""] {
        assert_eq!(
            of(json!({"diskURI": "d", "kind": kind})).unwrap_err().to_string(),
            format!("failed to translate in tree pv to CSI: kind({kind}) is not supported in csi migration")
        );
    }
}

#[test]
fn an_azure_file_share_is_named_by_all_that_finds_it() {
    let of = |file: Value, claim: Value, annotations: Value| {
        let spec = json!({"azureFile": file, "claimRef": claim});
        handle(&pv(spec, nothing(), annotations))
    };
    let group = json!({"kubernetes.io/azure-file-resource-group": "rg"});
    let share = json!({"secretName": "azure-storage-account-acc-secret", "shareName": "s"});
    let mut elsewhere = share.clone();
    elsewhere["secretNamespace"] = json!("secrets");
    let mut nowhere = share.clone();
    nowhere["secretNamespace"] = json!("");
    let claim = json!({"namespace": "ns", "name": "c"});
    assert_eq!(
        of(share.clone(), claim.clone(), group).as_deref(),
        Ok("rg#acc#s#pv#ns")
    );
    assert_eq!(
        of(elsewhere, claim.clone(), nothing()).as_deref(),
        Ok("#acc#s#pv#secrets")
    );
    for (share, claim) in [(nowhere, claim), (share, nothing())] {
        assert_eq!(
            of(share, claim, nothing()).unwrap_err(),
            "failed to translate in tree pv to CSI: could not find a secret namespace in PersistentVolumeSource or ClaimRef"
        );
    }
}

#[test]
fn what_a_handle_leaves_open_is_filled_in_from_the_node_id() {
    let node = "projects/p/zones/us-east1-b/instances/i";
    let of = |handle: &str, node: &str| {
        repaired("pd.csi.storage.gke.io", handle, node)
            .map(Cow::into_owned)
            .map_err(|error| error.to_string())
    };
    for (handle, expected) in [
        (
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            "projects/p/zones/us-east1-b/disks/d",
        ),
        (
            "projects/UNSPECIFIED/zones/us-east1-c/disks/d",
            "projects/p/zones/us-east1-c/disks/d",
        ),
        (
            "projects/UNSPECIFIED/regions/UNSPECIFIED/disks/d",
            "projects/p/regions/us-east1/disks/d",
        ),
        (
            "projects/UNSPECIFIED/regions/us-west1/disks/d",
            "projects/p/regions/us-west1/disks/d",
        ),
        (
            "projects/q/zones/UNSPECIFIED/disks/d",
            "projects/q/zones/UNSPECIFIED/disks/d",
        ),
    ] {
        assert_eq!(of(handle, node).as_deref(), Ok(expected), "{handle}");
    }
    for (handle, node, expected) in [
        (
            "d",
            node,
            "volume handle has wrong number of elements; got 1, wanted 6 or more",
        ),
        (
            "projects/UNSPECIFIED/zones/z/disks/d",
            "i",
            "node handle has wrong number of elements; got 1, wanted 6 or more",
        ),
        (
            "projects/UNSPECIFIED/places/z/disks/d",
            node,
            "expected volume handle to have zones or regions regionality value, got: places",
        ),
        (
            "projects/UNSPECIFIED/regions/UNSPECIFIED/disks/d",
            "projects/p/zones/here/instances/i",
            "failed to get region from zone here: zone in unexpected format, expected: {locale}-{region}-{zone}, got: here",
        ),
    ] {
        assert_eq!(of(handle, node).unwrap_err(), expected, "{handle}");
    }
    // No other driver's handles leave anything open, whatever they look like.
    let handle = "projects/UNSPECIFIED/zones/z/disks/d";
    for driver in ["ebs.csi.aws.com", "d.example"] {
        assert_eq!(repaired(driver, handle, "i").as_deref(), Ok(handle));
    }
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
fn an_in_tree_volume_concerns_the_driver_that_took_over() {
    let (volume, concerns) = decoded(ebs(json!({}), json!([])), "ebs.csi.aws.com");
    assert!(concerns);
    assert_eq!(volume.spec.csi().map(|csi| &*csi.handle), Some("vol-1"));
    assert!(volume.spec.is_migrated());
    assert!(volume.spec.access_modes.read_write_once);
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
fn a_volume_is_left_in_tree_until_it_is_handed_to_our_driver() {
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
    // Our finalizer on another driver's volume must come off one day.
    let finalizers = json!(["external-attacher/d-example"]);
    let (volume, concerns) = decoded(ebs(json!({}), finalizers), "d.example");
    assert!(concerns && volume.finalizer && volume.left_in_tree);
}

#[test]
fn of_labels_and_annotations_only_those_that_are_read_are_kept() {
    let object: VolumeObject = serde_json::from_value(json!({
        "metadata": {
            "labels": {"topology.kubernetes.io/zone": "z", "app": "x"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "openstorage.io/auth-secret-name": "s",
            },
        },
    }))
    .unwrap();
    let metadata = &object.metadata.0;
    assert_eq!(
        metadata.labels.as_ref().map(std::collections::BTreeMap::len),
        Some(1)
    );
    assert_eq!(
        metadata.annotations.as_ref().map(std::collections::BTreeMap::len),
        Some(1)
    );
    let bare = json!({"metadata": {"labels": null, "annotations": null}});
    serde_json::from_value::<VolumeObject>(bare).unwrap();
}
