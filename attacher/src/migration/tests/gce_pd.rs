//! `kubernetes.io/gce-pd`.

use super::*;

#[test]
fn takes_zone_or_region_from_labels() {
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
fn translates_writable_modes_to_read_write_once() {
    let of = |modes: &[&str]| {
        let spec = json!({"accessModes": modes, "gcePersistentDisk": {"pdName": "d", "partition": 2}});
        let translation = translated(&pv(spec, nothing(), nothing()));
        assert_eq!(translation.source.attributes, attributes([("partition", "2")]));
        translation.access_modes
    };
    let (once, read_only) = (&["ReadWriteOnce"][..], &["ReadOnlyMany"][..]);
    for (modes, expected) in [
        (&["ReadWriteOnce"][..], once),
        (&["ReadWriteMany"], once),
        (&["ReadOnlyMany", "ReadWriteOnce"], once),
        (&["ReadOnlyMany", "ReadWriteMany"], once),
        (&["ReadOnlyMany"], read_only),
        (&["ReadOnlyMany", "ReadWriteOncePod"], read_only),
        (&["ReadWriteOncePod"], once),
        (&["SomethingNew"], once),
        (&[], &[]),
    ] {
        assert_eq!(of(modes), expected, "{modes:?}");
    }
    let whole = json!({"gcePersistentDisk": {"pdName": "d"}});
    let whole = translated(&pv(whole, nothing(), nothing())).source;
    assert_eq!(whole.attributes, attributes([("partition", "")]));
}

#[test]
fn completes_handle_from_node_id() {
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
    // Handles of other drivers are not completed.
    let handle = "projects/UNSPECIFIED/zones/z/disks/d";
    for driver in ["ebs.csi.aws.com", "d.example"] {
        assert_eq!(repaired(driver, handle, "i").as_deref(), Ok(handle));
    }
}
