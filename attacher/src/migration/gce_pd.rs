//! `kubernetes.io/gce-pd`: a disk by its name, in the zone of a label, or in a region if the label has several zones. The
//! project is unknown until the disk has a node ([`repaired`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::GCEPersistentDiskVolumeSource;
use kube::ResourceExt as _;

use super::Fault;
use crate::model::CsiSource;
use crate::model::wire::VolumeObject;

/// The labels with the zones of a disk. The older label takes precedence.
const ZONE_LABELS: [&str; 2] = [
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/zone",
];

/// Separates the zones of a regional disk.
const ZONE_SEPARATOR: &str = "__";

/// Placeholder for the parts that only the node id contains.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Parts of `projects/<project>/zones/<zone>/disks/<name>`, of its regional sister, and of a node's id.
const PARTS: usize = 6;
const PROJECT: usize = 1;
const SCOPE: usize = 2;
const PLACE: usize = 3;
const NAME: usize = 5;

/// Zones without a common region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum UnknownRegion {
    #[error("zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {0}")]
    Malformed(String),
    #[error("multiple or no regions gotten from zones, got: {}", AsMap(.0))]
    Several(BTreeSet<String>),
}

/// The error of an incomplete handle that cannot be completed, with csi-translation-lib's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum Irreparable {
    #[error("volume handle has wrong number of elements; got {0}, wanted {PARTS} or more")]
    Handle(usize),
    #[error("expected volume handle to have zones or regions regionality value, got: {0}")]
    Scope(String),
    #[error("node handle has wrong number of elements; got {0}, wanted {PARTS} or more")]
    NodeId(usize),
    #[error("failed to get region from zone {0}: {1}")]
    Region(String, UnknownRegion),
}

/// A set in Go's format of a map.
struct AsMap<'s>(&'s BTreeSet<String>);

// === impl AsMap ===

impl fmt::Display for AsMap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> = self.0.iter().map(|entry| format!("{entry}:{{}}")).collect();
        write!(f, "map[{}]", entries.join(" "))
    }
}

pub(super) fn translate(
    volume: &VolumeObject,
    source: &GCEPersistentDiskVolumeSource,
) -> Result<CsiSource, Fault> {
    let label = |key: &&str| volume.labels().get(*key).filter(|zones| !zones.is_empty());
    let zones: Vec<&str> = match ZONE_LABELS.iter().find_map(label) {
        Some(zones) => zones.split(ZONE_SEPARATOR).collect(),
        None => vec![UNSPECIFIED],
    };
    let handle = match *zones {
        [zone] => zonal(UNSPECIFIED, zone, &source.pd_name),
        _ => regional(UNSPECIFIED, &region(&zones)?, &source.pd_name),
    };
    // Partition 0, the whole disk, is an empty attribute.
    let partition = match source.partition.unwrap_or_default() {
        0 => String::new(),
        partition => partition.to_string(),
    };
    Ok(CsiSource {
        handle: handle.into(),
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        attributes: BTreeMap::from([("partition".to_owned(), partition)]),
        ..CsiSource::default()
    })
}

/// The in-tree plugin ignored access modes, and a disk is writable on one node only: all but read-only modes become
/// ReadWriteOnce. A volume without access modes has none.
pub(super) fn access_modes(names: &[String]) -> Vec<String> {
    let has = |mode: &str| names.iter().any(|name| name == mode);
    match has("ReadOnlyMany") && !has("ReadWriteOnce") && !has("ReadWriteMany") {
        _ if names.is_empty() => Vec::new(),
        true => vec!["ReadOnlyMany".to_owned()],
        false => vec!["ReadWriteOnce".to_owned()],
    }
}

/// Completes `handle` from the id of the node that the disk is published to.
pub(super) fn repaired<'h>(handle: &'h str, node_id: &str) -> Result<Cow<'h, str>, Irreparable> {
    let disk: Vec<&str> = handle.split('/').collect();
    if disk.len() < PARTS {
        return Err(Irreparable::Handle(disk.len()));
    }
    if disk[PROJECT] != UNSPECIFIED {
        return Ok(handle.into());
    }
    let node: Vec<&str> = node_id.split('/').collect();
    if node.len() < PARTS {
        return Err(Irreparable::NodeId(node.len()));
    }
    let (project, zone) = (node[PROJECT], node[PLACE]);
    let open = disk[PLACE] == UNSPECIFIED;
    match disk[SCOPE] {
        "zones" => {
            let zone = if open { zone } else { disk[PLACE] };
            Ok(zonal(project, zone, disk[NAME]).into())
        }
        "regions" if open => match region(&[zone]) {
            Ok(region) => Ok(regional(project, &region, disk[NAME]).into()),
            Err(problem) => Err(Irreparable::Region(zone.to_owned(), problem)),
        },
        "regions" => Ok(regional(project, disk[PLACE], disk[NAME]).into()),
        other => Err(Irreparable::Scope(other.to_owned())),
    }
}

fn zonal(project: &str, zone: &str, disk: &str) -> String {
    format!("projects/{project}/zones/{zone}/disks/{disk}")
}

fn regional(project: &str, region: &str, disk: &str) -> String {
    format!("projects/{project}/regions/{region}/disks/{disk}")
}

/// The common region of the zones: `europe-west1-b` is in `europe-west1`.
fn region(zones: &[&str]) -> Result<String, UnknownRegion> {
    let region_of = |zone: &&str| match *zone.split('-').collect::<Vec<_>>() {
        [locale, region, _] => Ok(format!("{locale}-{region}")),
        _ => Err(UnknownRegion::Malformed((*zone).to_owned())),
    };
    let mut regions = zones.iter().map(region_of).collect::<Result<BTreeSet<_>, _>>()?;
    match (regions.pop_first(), regions.is_empty()) {
        (Some(region), true) => Ok(region),
        (first, _) => {
            regions.extend(first);
            Err(UnknownRegion::Several(regions))
        }
    }
}
