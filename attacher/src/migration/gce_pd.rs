//! `kubernetes.io/gce-pd`: a disk by its name, in the zone of a label, or in a region if the label has several zones. The
//! project is unknown until the disk has a node ([`repaired`]).

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::GCEPersistentDiskVolumeSource;
use kube::ResourceExt as _;

use super::Fault;
use crate::model::CsiSource;
use crate::model::handle::{Irreparable, UNSPECIFIED, completed, region, regional, zonal};
use crate::model::wire::VolumeObject;

/// The labels with the zones of a disk. The older label takes precedence.
const ZONE_LABELS: [&str; 2] = [
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/zone",
];

/// Separates the zones of a regional disk.
const ZONE_SEPARATOR: &str = "__";

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

/// Completes `handle` from the id of the node that the disk is published to. As in csi-translation-lib, one with a project is
/// complete.
pub(super) fn repaired<'h>(handle: &'h str, node_id: &str) -> Result<Cow<'h, str>, Irreparable> {
    match handle.split('/').collect::<Vec<_>>()[..] {
        [_, project, _, _, _, _, ..] if project != UNSPECIFIED => Ok(handle.into()),
        _ => completed(handle, node_id),
    }
}
