//! `kubernetes.io/azure-disk`: only managed disks; blobs in a storage account have no CSI driver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::AzureDiskVolumeSource;

use super::Fault;
use crate::model::CsiSource;

const MANAGED: &str = "Managed";

pub(super) fn translate(source: &AzureDiskVolumeSource) -> Result<CsiSource, Fault> {
    if let Some(kind) = source
        .kind
        .as_ref()
        .filter(|kind| !kind.eq_ignore_ascii_case(MANAGED))
    {
        return Err(Fault::AzureDiskKind(kind.clone()));
    }
    // The driver also reads the filesystem type from the attributes, and accepts only this spelling of the kind.
    let mut attributes = BTreeMap::from([("kind".to_owned(), MANAGED.to_owned())]);
    let given = [("cachingmode", &source.caching_mode), ("fstype", &source.fs_type)];
    for (name, value) in given {
        attributes.extend(value.as_ref().map(|value| (name.to_owned(), value.clone())));
    }
    Ok(CsiSource {
        handle: source.disk_uri.as_str().into(),
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        attributes,
        ..CsiSource::default()
    })
}
