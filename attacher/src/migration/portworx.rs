//! `kubernetes.io/portworx-volume`: the one plugin whose publish calls may need a secret, which
//! annotations of the PersistentVolume name. Its `readOnly` is not carried over.

use super::Plugin;
use crate::model::wire::{
    PORTWORX_SECRET_NAME_ANNOTATION, PORTWORX_SECRET_NAMESPACE_ANNOTATION, PortworxObject, VolumeObject,
};
use crate::model::{CsiSource, SecretRef};

pub(super) fn translate(volume: &VolumeObject, source: &PortworxObject) -> CsiSource {
    let annotation = |key| volume.metadata.annotation(key);
    let name = annotation(PORTWORX_SECRET_NAME_ANNOTATION);
    let namespace = annotation(PORTWORX_SECRET_NAMESPACE_ANNOTATION);
    CsiSource {
        driver: Plugin::Portworx.driver().to_owned(),
        handle: source.volume_id.as_str().into(),
        fs_type: source.fs_type.clone(),
        publish_secret: name.zip(namespace).map(|(name, namespace)| SecretRef {
            namespace: namespace.into(),
            name: name.into(),
        }),
        ..CsiSource::default()
    }
}
