//! The PersistentVolume of a case, and the request that it asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use attacher_contract::Observation;
use attacher_contract::observation::{PublishRequest, Volume};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeSpec, SecretReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::PostParams;

use super::CaseEnv;
use crate::conform::api::Object;
use crate::fixture::{CAPACITY, mk_meta};
use crate::observe;

// === impl CaseEnv ===

impl CaseEnv {
    pub(super) async fn create_objects(&self) -> Result<()> {
        for node in ["a", "b"] {
            self.register(node, Some(&self.node_id(node))).await?;
        }
        if self.shape.secret {
            self.set_secret(true).await?;
        }
        let volume = self.persistent_volume();
        let driver = self.driver.name().to_owned();
        let seen = observe::volume(&volume, &driver, &self.cluster.finalizer);
        if let Some(seen) = seen {
            let request = (!self.shape.foreign).then(|| Arc::new(self.request()));
            self.observer
                .observe(Observation::Volume(Arc::new(Volume { request, ..seen })));
        }
        let create = async |api: Api<PersistentVolume>| api.create(&PostParams::default(), &volume).await;
        let object = Object::Volume(self.name("pv"));
        self.cluster.change(object, create).await
    }

    fn persistent_volume(&self) -> PersistentVolume {
        let shape = &self.shape;
        let driver = match shape.foreign {
            true => "other.csi.local".to_owned(),
            false => self.driver.name().to_owned(),
        };
        let secret = shape.secret.then(|| SecretReference {
            name: Some(self.name("secret")),
            namespace: Some("default".to_owned()),
        });
        let source = CSIPersistentVolumeSource {
            driver,
            volume_handle: "vol-0".to_owned(),
            fs_type: (!shape.fs_type.is_empty()).then(|| shape.fs_type.to_owned()),
            read_only: shape.read_only.then_some(true),
            volume_attributes: (!shape.attributes().is_empty()).then(|| shape.attributes()),
            controller_publish_secret_ref: secret,
            ..CSIPersistentVolumeSource::default()
        };
        // Bound, so that no PersistentVolume controller acts on it.
        let claim = ObjectReference {
            namespace: Some("default".to_owned()),
            name: Some(self.name("claim")),
            ..ObjectReference::default()
        };
        PersistentVolume {
            metadata: mk_meta(&self.prefix, &self.name("pv")),
            spec: Some(PersistentVolumeSpec {
                access_modes: Some(shape.access_modes.iter().map(|&mode| mode.to_owned()).collect()),
                capacity: Some(BTreeMap::from([(
                    "storage".to_owned(),
                    Quantity(CAPACITY.to_owned()),
                )])),
                csi: Some(source),
                claim_ref: Some(claim),
                mount_options: (!shape.mount_options.is_empty()).then(|| {
                    shape
                        .mount_options
                        .iter()
                        .map(|&option| option.to_owned())
                        .collect()
                }),
                persistent_volume_reclaim_policy: Some("Retain".to_owned()),
                volume_mode: shape.block.then(|| "Block".to_owned()),
                ..PersistentVolumeSpec::default()
            }),
            ..PersistentVolume::default()
        }
    }

    /// The request that the PersistentVolume asks for, by the CSI specification and the API's documentation.
    fn request(&self) -> PublishRequest {
        let shape = &self.shape;
        let has = |mode: &str| shape.access_modes.contains(&mode);
        let has_single_node_modes = !self.case.capabilities.contains("-SINGLE_NODE_MULTI_WRITER");
        let access_mode = match (has("ReadWriteMany"), has("ReadOnlyMany"), has("ReadWriteOncePod")) {
            (true, ..) => "MULTI_NODE_MULTI_WRITER",
            (_, true, _) => "MULTI_NODE_READER_ONLY",
            (.., true) if has_single_node_modes => "SINGLE_NODE_SINGLE_WRITER",
            _ if has_single_node_modes && !has("ReadWriteOncePod") => "SINGLE_NODE_MULTI_WRITER",
            _ => "SINGLE_NODE_WRITER",
        };
        let has_readonly = !self.case.capabilities.contains("-PUBLISH_READONLY");
        PublishRequest {
            access_mode: access_mode.to_owned(),
            block: shape.block,
            fs_type: shape.fs_type.to_owned(),
            mount_flags: shape
                .mount_options
                .iter()
                .map(|&option| option.to_owned())
                .collect(),
            readonly: shape.read_only && has_readonly,
            context: shape.attributes(),
        }
    }
}
