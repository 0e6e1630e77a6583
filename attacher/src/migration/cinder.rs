//! `kubernetes.io/cinder`: the id is the same in the CSI driver.

use k8s_openapi::api::core::v1::CinderPersistentVolumeSource;

use crate::model::CsiSource;

pub(super) fn translate(source: &CinderPersistentVolumeSource) -> CsiSource {
    CsiSource {
        handle: source.volume_id.as_str().into(),
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        ..CsiSource::default()
    }
}
