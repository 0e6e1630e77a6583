//! `kubernetes.io/vsphere-volume`: the driver resolves the path.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::VsphereVirtualDiskVolumeSource;

use crate::model::CsiSource;

const POLICY_ATTRIBUTE: &str = "storagepolicyname";

pub(super) fn translate(source: &VsphereVirtualDiskVolumeSource) -> CsiSource {
    let policy = source
        .storage_policy_name
        .as_ref()
        .filter(|policy| !policy.is_empty());
    CsiSource {
        handle: source.volume_path.as_str().into(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        attributes: policy
            .map(|policy| (POLICY_ATTRIBUTE.to_owned(), policy.clone()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        ..CsiSource::default()
    }
}
