//! `kubernetes.io/vsphere-volume`: the driver finds out by itself which disk a path is.

use std::collections::BTreeMap;

use super::Plugin;
use crate::model::CsiSource;
use crate::model::wire::VsphereObject;

const POLICY_ATTRIBUTE: &str = "storagepolicyname";

pub(super) fn translate(source: &VsphereObject) -> CsiSource {
    let policy = Some(&source.storage_policy_name).filter(|policy| !policy.is_empty());
    CsiSource {
        driver: Plugin::Vsphere.driver().to_owned(),
        handle: source.volume_path.as_str().into(),
        fs_type: source.fs_type.clone(),
        attributes: policy
            .map(|policy| (POLICY_ATTRIBUTE.to_owned(), policy.clone()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        ..CsiSource::default()
    }
}
