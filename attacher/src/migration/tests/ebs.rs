//! `kubernetes.io/aws-ebs`.

use super::*;

#[test]
fn takes_volume_id_from_id_or_url() {
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
        // Without the scheme, the id is not parsed.
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
            "Invalid format for AWS volume (aws://zone/vol-%4)",
        ),
        (
            "aws://zone/vol-%4/%41",
            "Invalid format for AWS volume (aws://zone/vol-%4/%41)",
        ),
        ("aws://?/vol-1", "Invalid format for AWS volume (aws://?/vol-1)"),
    ] {
        assert_eq!(of(id), Err(format!("{before}{expected}")), "{id}");
    }
}

#[test]
fn keeps_partition_fs_type_and_read_only() {
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
    assert_eq!(translation.access_modes, ["ReadWriteOnce"]);
    let plain = json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let plain = translated(&pv(plain, nothing(), nothing())).source;
    assert_eq!(plain.attributes, attributes([("partition", "0")]));
}
