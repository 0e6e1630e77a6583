//! Randomized in-tree volumes: every field absent, empty, usual or malformed, by a seed.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Building blocks of volume ids, disk names and paths; mostly URLs, valid and malformed.
const SCRAPS: &[&str] = &[
    "aws://",
    "AWS://",
    "aws:/",
    "us-east-1a",
    "/",
    "//",
    "vol-",
    "vol-0a1b",
    "disk",
    "%41",
    "%2F",
    "%2f",
    "%",
    "%4",
    "%zz",
    "%25",
    "%C3%A9",
    "%00",
    "%20",
    "é",
    "日",
    " ",
    "?",
    "#",
    "@",
    ":",
    ":80",
    ":x",
    "user:pw@",
    "u%ser@",
    "\t",
    "\n",
    "\"",
    "\\",
    "[",
    "]",
    "[::1]",
    "[1.2.3.4]",
    "<",
    ">",
    "^",
    "|",
    "{",
    "+",
    "&",
    "~",
    "\u{a0}",
    "\u{200b}",
    "\u{301}",
    "\u{7f}",
    "UNSPECIFIED",
    "projects",
];

const ZONES: &[&str] = &[
    "us-east1-b",
    "us-east1-c",
    "us-west1-a",
    "europe-west1-d",
    "here",
    "a-b",
    "a-b-c-d",
    "",
    "--",
    "UNSPECIFIED",
];

const MODES: &[&str] = &[
    "ReadWriteOnce",
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOncePod",
    "SomethingNew",
];

const TYPES: &[&str] = &["", "ext4", "xfs", "nt fs"];

const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Generates the volumes of one plugin.
pub(crate) type Generator = fn(&mut Rng) -> Value;

/// The name of each plugin's field in a PersistentVolume, and its generator.
pub(crate) const PLUGINS: &[(&str, Generator)] = &[
    ("awsElasticBlockStore", ebs),
    ("gcePersistentDisk", gce_pd),
    ("cinder", cinder),
    ("azureDisk", azure_disk),
    ("azureFile", azure_file),
    ("vsphereVolume", vsphere),
    ("portworxVolume", portworx),
    ("csi", csi),
    ("hostPath", host_path),
];

/// A PersistentVolume of the plugin.
pub(crate) fn volume(random: &mut Rng, field: &str, source: Value) -> Value {
    let mut metadata = json!({"name": pick(random, &["pv", "pvc-1234", "a.b", ""])});
    let mut labels = Map::new();
    for key in [ZONE, BETA_ZONE, "app"] {
        if random.u8(0..3) > 0 {
            labels.insert(key.to_owned(), zones(random).into());
        }
    }
    let mut annotations = Map::new();
    for key in [
        "kubernetes.io/azure-file-resource-group",
        "openstorage.io/auth-secret-name",
        "openstorage.io/auth-secret-namespace",
        "pv.kubernetes.io/migrated-to",
    ] {
        if random.bool() {
            annotations.insert(key.to_owned(), pick(random, &["", "x", "my-group"]).into());
        }
    }
    if random.u8(0..4) > 0 {
        metadata["labels"] = labels.into();
        metadata["annotations"] = annotations.into();
    }
    let mut spec = json!({ field: source });
    if random.u8(0..4) > 0 {
        let modes: Vec<_> = MODES.iter().filter(|_| random.u8(0..3) == 0).collect();
        // The API server omits an empty list.
        if !modes.is_empty() {
            spec["accessModes"] = json!(modes);
        }
    }
    if random.bool() {
        spec["claimRef"] = json!({"name": "claim", "namespace": pick(random, &["", "ns", "other"])});
    }
    json!({"metadata": metadata, "spec": spec})
}

/// A volume handle of a driver, or a malformed one.
pub(crate) fn handle(random: &mut Rng) -> String {
    path(random, &["disks", "disk", "volumes"])
}

/// A node id of a driver, or a malformed one.
pub(crate) fn node_id(random: &mut Rng) -> String {
    path(random, &["instances", "instance"])
}

/// Name of a driver.
pub(crate) fn driver(random: &mut Rng) -> String {
    const KNOWN: &[&str] = &[
        "ebs.csi.aws.com",
        "pd.csi.storage.gke.io",
        "cinder.csi.openstack.org",
        "disk.csi.azure.com",
        "file.csi.azure.com",
        "csi.vsphere.vmware.com",
        "pxd.portworx.com",
        "kubernetes.io/aws-ebs",
        "d.example",
    ];
    if random.bool() {
        pick(random, KNOWN).to_owned()
    } else {
        (0..random.usize(1..6)).map(|_| pick(random, SCRAPS)).collect()
    }
}

fn path(random: &mut Rng, last: &[&str]) -> String {
    if random.u8(0..6) == 0 {
        return scraps(random);
    }
    let project = pick(random, &["UNSPECIFIED", "p", ""]);
    let scope = pick(random, &["zones", "zones", "regions", "places"]);
    let place = if random.bool() {
        "UNSPECIFIED"
    } else {
        pick(random, ZONES)
    };
    let mut path = format!("projects/{project}/{scope}/{place}/{}/d", pick(random, last));
    match random.u8(0..6) {
        0 => path.push_str("/more"),
        1 => path.truncate(path.rfind('/').unwrap_or_default()),
        _ => {}
    }
    path
}

fn ebs(random: &mut Rng) -> Value {
    let mut source = some_of(random, &[("fsType", TYPES)], &["readOnly"], &["partition"]);
    source["volumeID"] = match random.u8(0..4) {
        0 => scraps(random),
        1 => format!("aws://{}/vol-{}", pick(random, ZONES), scraps(random)),
        _ => format!("aws://{}", scraps(random)),
    }
    .into();
    source
}

fn gce_pd(random: &mut Rng) -> Value {
    let mut source = some_of(random, &[("fsType", TYPES)], &["readOnly"], &["partition"]);
    source["pdName"] = scraps(random).into();
    source
}

fn cinder(random: &mut Rng) -> Value {
    let mut source = some_of(random, &[("fsType", TYPES)], &["readOnly"], &[]);
    source["volumeID"] = scraps(random).into();
    if random.bool() {
        source["secretRef"] = json!({"name": "s", "namespace": "ns"});
    }
    source
}

fn azure_disk(random: &mut Rng) -> Value {
    let fields: &[(&str, &[&str])] = &[
        ("fsType", TYPES),
        (
            "kind",
            &[
                "Managed",
                "Managed",
                "managed",
                "MANAGED",
                "Shared",
                "Dedicated",
                "",
                "Managed ",
                "ſ",
            ],
        ),
        ("cachingMode", &["None", "ReadOnly", "ReadWrite", ""]),
    ];
    let mut source = some_of(random, fields, &["readOnly"], &[]);
    for field in ["fsType", "kind", "cachingMode", "readOnly"] {
        if random.u8(0..10) == 0 {
            source[field] = Value::Null;
        }
    }
    source["diskName"] = "d".into();
    source["diskURI"] = scraps(random).into();
    source
}

fn azure_file(random: &mut Rng) -> Value {
    const NAMES: &[&str] = &[
        "azure-storage-account-",
        "-secret",
        "acc",
        "\n",
        "-",
        "secret",
        "日",
        "#",
    ];
    let mut source = some_of(
        random,
        &[("secretNamespace", &["", "secrets", "kube-system"])],
        &["readOnly"],
        &[],
    );
    if random.u8(0..10) == 0 {
        source["secretNamespace"] = Value::Null;
    }
    let name: String = (0..random.usize(0..6)).map(|_| pick(random, NAMES)).collect();
    source["secretName"] = name.into();
    source["shareName"] = scraps(random).into();
    source
}

fn vsphere(random: &mut Rng) -> Value {
    let fields: &[(&str, &[&str])] = &[
        ("fsType", TYPES),
        ("storagePolicyName", &["", "gold", "silver"]),
        ("storagePolicyID", &["", "id"]),
    ];
    let mut source = some_of(random, fields, &[], &[]);
    source["volumePath"] = format!("[ds] {}", scraps(random)).into();
    source
}

fn portworx(random: &mut Rng) -> Value {
    let mut source = some_of(random, &[("fsType", TYPES)], &["readOnly"], &[]);
    source["volumeID"] = scraps(random).into();
    source
}

fn csi(random: &mut Rng) -> Value {
    json!({"driver": driver(random), "volumeHandle": handle(random)})
}

fn host_path(_: &mut Rng) -> Value {
    json!({"path": "/"})
}

/// An object in which each of these fields is present or absent: strings, booleans, numbers.
fn some_of(random: &mut Rng, texts: &[(&str, &[&str])], booleans: &[&str], numbers: &[&str]) -> Value {
    let mut object = Map::new();
    for (name, values) in texts {
        if random.u8(0..4) > 0 {
            object.insert((*name).to_owned(), pick(random, values).into());
        }
    }
    for name in booleans {
        if random.bool() {
            object.insert((*name).to_owned(), random.bool().into());
        }
    }
    for name in numbers {
        if random.bool() {
            let number = if random.bool() {
                random.i32(-3..4)
            } else {
                random.i32(..)
            };
            object.insert((*name).to_owned(), number.into());
        }
    }
    object.into()
}

fn zones(random: &mut Rng) -> String {
    let zones: Vec<_> = (0..random.usize(0..4)).map(|_| pick(random, ZONES)).collect();
    zones.join(pick(random, &["__", "__", "__", "_"]))
}

fn scraps(random: &mut Rng) -> String {
    (0..random.usize(0..6)).map(|_| pick(random, SCRAPS)).collect()
}

fn pick<'t>(random: &mut Rng, texts: &[&'t str]) -> &'t str {
    random.choice(texts).copied().unwrap_or_default()
}
