//! `kubernetes.io/cinder`: OpenStack's volumes, by the same id in both worlds.

use super::Plugin;
use crate::model::CsiSource;
use crate::model::wire::CinderObject;

pub(super) fn translate(source: &CinderObject) -> CsiSource {
    CsiSource {
        driver: Plugin::Cinder.driver().to_owned(),
        handle: source.volume_id.as_str().into(),
        read_only: source.read_only,
        fs_type: source.fs_type.clone(),
        ..CsiSource::default()
    }
}
