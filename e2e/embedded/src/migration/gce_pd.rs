//! GCE persistent disks: the handle has a zone, or the region of several zones. The driver completes the
//! handle.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{GCEPersistentDiskVolumeSource, PersistentVolume};

use super::{GCE_PD, Translated, TranslationError, mk_source};

const UNSPECIFIED: &str = "UNSPECIFIED";

/// The zones in the volume's labels. The older label comes first, and a volume without labels has no zones.
pub(super) fn zones(volume: &PersistentVolume) -> Vec<&str> {
    let label = |key: &&str| {
        let zones = volume.metadata.labels.as_ref()?.get(*key)?;
        (!zones.is_empty()).then(|| zones.split("__").collect())
    };
    let labels = [
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ];
    labels.iter().find_map(label).unwrap_or_default()
}

pub(super) fn translate(source: &GCEPersistentDiskVolumeSource, zones: &[&str]) -> Translated {
    let location = match zones {
        [] => format!("zones/{UNSPECIFIED}"),
        [zone] => format!("zones/{zone}"),
        zones => format!("regions/{}", region(zones)?),
    };
    let handle = format!("projects/{UNSPECIFIED}/{location}/disks/{}", source.pd_name);
    let mut csi = mk_source(GCE_PD, &handle, source.fs_type.as_ref(), source.read_only);
    let partition = source.partition.filter(|partition| *partition != 0);
    let partition = partition.map(|partition| partition.to_string());
    csi.volume_attributes = Some(BTreeMap::from([(
        "partition".to_owned(),
        partition.unwrap_or_default(),
    )]));
    Ok(csi)
}

/// The in-tree plugin treated every volume that is not read-only as ReadWriteOnce.
pub(super) fn access_modes(modes: Option<Vec<String>>) -> Option<Vec<String>> {
    let modes = modes?;
    let has = |mode: &str| modes.iter().any(|own| own == mode);
    let is_read_only = has("ReadOnlyMany") && !has("ReadWriteOnce") && !has("ReadWriteMany");
    let mode = if is_read_only {
        "ReadOnlyMany"
    } else {
        "ReadWriteOnce"
    };
    Some(vec![mode.to_owned()])
}

fn region(zones: &[&str]) -> Result<String, TranslationError> {
    let failed = |why: String| TranslationError(format!("failed to get region from zones: {why}"));
    let mut regions = BTreeSet::new();
    for zone in zones {
        match *zone.split('-').collect::<Vec<_>>() {
            [locale, region, _] => regions.insert(format!("{locale}-{region}")),
            _ => {
                let expected = "{locale}-{region}-{zone}";
                let why = format!("zone in unexpected format, expected: {expected}, got: {zone}");
                return Err(failed(why));
            }
        };
    }
    let found: Vec<String> = regions.into_iter().collect();
    match found.as_slice() {
        [region] => Ok(region.clone()),
        several => {
            // As Go prints a set.
            let several: Vec<String> = several.iter().map(|region| format!("{region}:{{}}")).collect();
            let several = several.join(" ");
            Err(failed(format!(
                "multiple or no regions gotten from zones, got: map[{several}]"
            )))
        }
    }
}
