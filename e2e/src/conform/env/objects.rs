//! What a case changes at the API server. Each change is observed before a call that follows from it.

use std::time::Duration;

use anyhow::{Context, Result};
use attacher_contract::Observation;
use attacher_contract::observation::{Name, Registration};
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{CaseEnv, QUIET, SECRET};
use crate::cluster::ignore_not_found;
use crate::conform::api::Object;
use crate::fixture::{mk_attachment, mk_meta, mk_secret};

/// Time for an attacher's informer to handle an event that it got.
const HANDLED: Duration = Duration::from_millis(100);

// === impl CaseEnv ===

impl CaseEnv {
    /// Registers the driver in the CSINode, or, without an ID, removes its entry. Waits until the attacher got the change.
    pub(in crate::conform) async fn register(&self, node: &str, id: Option<&str>) -> Result<()> {
        let name = self.name(node);
        let entry = id.map(|id| CSINodeDriver {
            name: self.driver.name().to_owned(),
            node_id: id.to_owned(),
            ..CSINodeDriver::default()
        });
        let drivers: Vec<_> = entry.into_iter().collect();
        let api = Api::<CSINode>::all(self.cluster.client.clone());
        let text = format!("the node registers {id:?}");
        self.observer.observe(Observation::Fault(text));
        let write = self.cluster.write.lock().await;
        let stored = match api.get_opt(&name).await? {
            None => {
                let csi_node = CSINode {
                    metadata: mk_meta(&self.prefix, &name),
                    spec: CSINodeSpec { drivers },
                    status: None,
                };
                api.create(&PostParams::default(), &csi_node).await
            }
            Some(known) => {
                // The node ID of an entry cannot change: kubelet removes the entry first.
                if !known.spec.drivers.is_empty() && !drivers.is_empty() {
                    let empty = Patch::Merge(json!({"spec": {"drivers": []}}));
                    api.patch(&name, &PatchParams::default(), &empty).await?;
                }
                let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
                api.patch(&name, &PatchParams::default(), &patch).await
            }
        };
        let stored = stored.with_context(|| format!("write CSINode {name}"))?;
        let registration = id.map_or(Registration::NoDriver, |id| Registration::Id(id.into()));
        self.observer
            .observe(Observation::CsiNode(Name::from(name), registration));
        drop(write);
        let version = stored.resource_version().unwrap_or_default();
        self.handled(&format!("\"{version}\"")).await;
        Ok(())
    }

    /// Deletes the CSINode.
    pub(in crate::conform) async fn delete_csi_node(&self, node: &str) -> Result<()> {
        let name = self.name(node);
        let api = Api::<CSINode>::all(self.cluster.client.clone());
        api.delete(&name, &DeleteParams::default())
            .await
            .with_context(|| format!("delete CSINode {name}"))?;
        self.observer
            .observe(Observation::CsiNode(Name::from(name), Registration::NoCsiNode));
        self.handled("\"DELETED\"").await;
        Ok(())
    }

    /// Waits until the attacher has most likely handled a watch event with this text: it got it, and some time has passed, as
    /// nothing outside shows when its informer has stored it. Attachers that decode protobuf get the text elsewhere.
    async fn handled(&self, text: &str) {
        if self.attachers.is_empty() {
            return;
        }
        let number = text.trim_matches('"');
        self.cluster.wait_until_delivered(number, QUIET).await;
        tokio::time::sleep(HANDLED).await;
    }

    /// Creates a VolumeAttachment of the volume to the node.
    pub(in crate::conform) async fn attach(&self, node: &str) -> Result<()> {
        let (name, pv) = (self.va(node), self.name("pv"));
        let attachment = mk_attachment(&self.prefix, &name, self.driver.name(), &pv, &self.name(node));
        let create = async |api: Api<VolumeAttachment>| api.create(&PostParams::default(), &attachment).await;
        self.change(&name, create).await
    }

    /// Requests the deletion of the VolumeAttachment.
    pub(in crate::conform) async fn detach(&self, node: &str) -> Result<()> {
        let name = self.va(node);
        let delete = async |api: Api<VolumeAttachment>| {
            ignore_not_found(api.delete(&name, &DeleteParams::default()).await)
        };
        self.change(&name, delete).await
    }

    /// Patches the VolumeAttachment, as another client does.
    pub(in crate::conform) async fn patch_attachment(&self, node: &str, patch: Value) -> Result<()> {
        let (name, params, patch) = (self.va(node), PatchParams::default(), Patch::Merge(patch));
        let write = async |api: Api<VolumeAttachment>| api.patch(&name, &params, &patch).await;
        self.change(&name, write).await
    }

    /// Patches the status of the VolumeAttachment, as another client does.
    pub(in crate::conform) async fn patch_attachment_status(&self, node: &str, patch: Value) -> Result<()> {
        let (name, params, patch) = (self.va(node), PatchParams::default(), Patch::Merge(patch));
        let write = async |api: Api<VolumeAttachment>| api.patch_status(&name, &params, &patch).await;
        self.change(&name, write).await
    }

    async fn change<T, E: Into<anyhow::Error>>(
        &self,
        name: &str,
        change: impl AsyncFnOnce(Api<VolumeAttachment>) -> Result<T, E>,
    ) -> Result<()> {
        let object = Object::Attachment(name.to_owned());
        self.cluster.change(object, change).await
    }

    /// Requests the deletion of the PersistentVolume.
    pub(in crate::conform) async fn delete_volume(&self) -> Result<()> {
        let name = self.name("pv");
        let delete = async |api: Api<PersistentVolume>| {
            ignore_not_found(api.delete(&name, &DeleteParams::default()).await)
        };
        self.cluster.change(Object::Volume(name.clone()), delete).await
    }

    /// Deletes or creates the Secret.
    pub(in crate::conform) async fn set_secret(&self, exists: bool) -> Result<()> {
        let api = Api::<Secret>::namespaced(self.cluster.client.clone(), "default");
        let name = self.name("secret");
        let text = format!("the Secret exists: {exists}");
        self.observer.observe(Observation::Fault(text));
        if !exists {
            return ignore_not_found(api.delete(&name, &DeleteParams::default()).await);
        }
        let secret = mk_secret(&self.prefix, &name, "password", SECRET);
        let created = api.create(&PostParams::default(), &secret).await;
        created.map(drop).context("create the Secret")
    }

    pub(in crate::conform) fn va(&self, node: &str) -> String {
        self.name(&format!("va-{node}"))
    }
}
