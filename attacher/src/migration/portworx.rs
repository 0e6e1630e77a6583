//! `kubernetes.io/portworx-volume`: annotations of the PersistentVolume name the Secret of its publish calls. csi-translation-lib
//! ignores `readOnly`.

use k8s_openapi::api::core::v1::PortworxVolumeSource;
use kube::ResourceExt as _;

use crate::model::wire::VolumeObject;
use crate::model::{CsiSource, SecretRef};

const SECRET_NAME_ANNOTATION: &str = "openstorage.io/auth-secret-name";
const SECRET_NAMESPACE_ANNOTATION: &str = "openstorage.io/auth-secret-namespace";

pub(super) fn translate(volume: &VolumeObject, source: &PortworxVolumeSource) -> CsiSource {
    let annotation = |key| volume.annotations().get(key).map(String::as_str);
    let name = annotation(SECRET_NAME_ANNOTATION);
    let namespace = annotation(SECRET_NAMESPACE_ANNOTATION);
    CsiSource {
        handle: source.volume_id.as_str().into(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        publish_secret: name.zip(namespace).map(|(name, namespace)| SecretRef {
            namespace: namespace.into(),
            name: name.into(),
        }),
        ..CsiSource::default()
    }
}
