//! Forms of a volume handle. That of a migrated GCE disk may leave project and zone open, which the driver completes from the
//! node, so that several handles name one disk.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Placeholder for the parts that only the node id contains.
pub(crate) const UNSPECIFIED: &str = "UNSPECIFIED";

/// Parts of `projects/<project>/zones/<zone>/disks/<name>`, of the regional form, and of a node's id.
const PARTS: usize = 6;
const PROJECT: usize = 1;
const SCOPE: usize = 2;
const LOCATION: usize = 3;
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

/// The handle as a driver completes it for this node; as it is, if nothing is missing, or the node id does not contain it. Two that
/// are equal then name the same volume. Only handles of migrated disks are incomplete, so this needs no driver.
pub(crate) fn completed_if_possible<'h>(handle: &'h str, node_id: &str) -> Cow<'h, str> {
    match handle.contains(UNSPECIFIED) {
        true => completed(handle, node_id).unwrap_or(handle.into()),
        false => handle.into(),
    }
}

/// Whether the two handles may name the same volume on this node. If its id does not complete them, what one of them leaves open
/// is equal to anything.
pub(crate) fn may_be_same_volume(one: &str, other: &str, node_id: &str) -> bool {
    let (first, second) = (
        completed_if_possible(one, node_id),
        completed_if_possible(other, node_id),
    );
    one == other || first == second || may_be_same_disk(&first, &second)
}

fn may_be_same_disk(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|handle| handle.split('/').collect::<Vec<_>>());
    let is_open = |part: usize| one[part] == UNSPECIFIED || other[part] == UNSPECIFIED;
    let is_same =
        |part: usize| one[part] == other[part] || matches!(part, PROJECT | LOCATION) && is_open(part);
    one.len() == PARTS && other.len() == PARTS && (0..PARTS).all(is_same)
}

/// A value that all handles of a volume share, and few other volumes: for an index, where the node is not known.
pub(crate) fn index_value(handle: &Arc<str>) -> Arc<str> {
    match handle.split('/').collect::<Vec<_>>()[..] {
        ["projects", _, scope @ ("zones" | "regions"), _, "disks", name] => {
            format!("{scope}/{name}").as_str().into()
        }
        _ => handle.clone(),
    }
}

/// Completes project and location of `handle` from the id of the node that the disk is published to.
///
/// # Errors
///
/// If the handle is incomplete and the node id does not complete it.
pub(crate) fn completed<'h>(handle: &'h str, node_id: &str) -> Result<Cow<'h, str>, Irreparable> {
    let disk: Vec<&str> = handle.split('/').collect();
    if disk.len() < PARTS {
        return Err(Irreparable::Handle(disk.len()));
    }
    let open = disk[LOCATION] == UNSPECIFIED;
    if disk[PROJECT] != UNSPECIFIED && !open {
        return Ok(handle.into());
    }
    let node: Vec<&str> = node_id.split('/').collect();
    if node.len() < PARTS {
        return Err(Irreparable::NodeId(node.len()));
    }
    let zone = node[LOCATION];
    let project = match disk[PROJECT] {
        UNSPECIFIED => node[PROJECT],
        project => project,
    };
    match disk[SCOPE] {
        "zones" => {
            let zone = if open { zone } else { disk[LOCATION] };
            Ok(zonal(project, zone, disk[NAME]).into())
        }
        "regions" if open => match region(&[zone]) {
            Ok(region) => Ok(regional(project, &region, disk[NAME]).into()),
            Err(problem) => Err(Irreparable::Region(zone.to_owned(), problem)),
        },
        "regions" => Ok(regional(project, disk[LOCATION], disk[NAME]).into()),
        other => Err(Irreparable::Scope(other.to_owned())),
    }
}

pub(crate) fn zonal(project: &str, zone: &str, disk: &str) -> String {
    format!("projects/{project}/zones/{zone}/disks/{disk}")
}

pub(crate) fn regional(project: &str, region: &str, disk: &str) -> String {
    format!("projects/{project}/regions/{region}/disks/{disk}")
}

/// The common region of the zones: `europe-west1-b` is in `europe-west1`.
pub(crate) fn region(zones: &[&str]) -> Result<String, UnknownRegion> {
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
