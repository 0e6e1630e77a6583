//! `kubernetes.io/azure-disk`: managed disks only. Blobs in a storage account have no CSI driver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::AzureDiskVolumeSource;

use super::Plugin;
use crate::model::CsiSource;

const MANAGED: &str = "Managed";

/// A disk that is no managed one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kind({0}) is not supported in csi migration")]
pub struct UnsupportedKind(pub String);

pub(super) fn translate(source: &AzureDiskVolumeSource) -> Result<CsiSource, UnsupportedKind> {
    if let Some(kind) = source
        .kind
        .as_ref()
        .filter(|kind| !kind.eq_ignore_ascii_case(MANAGED))
    {
        return Err(UnsupportedKind(kind.clone()));
    }
    // The driver reads the filesystem type from here too, and knows the kind by this spelling alone.
    let mut attributes = BTreeMap::from([("kind".to_owned(), MANAGED.to_owned())]);
    let given = [("cachingmode", &source.caching_mode), ("fstype", &source.fs_type)];
    for (name, value) in given {
        attributes.extend(value.as_ref().map(|value| (name.to_owned(), value.clone())));
    }
    Ok(CsiSource {
        driver: Plugin::AzureDisk.driver().to_owned(),
        handle: source.disk_uri.as_str().into(),
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        attributes,
        publish_secret: None,
    })
}
