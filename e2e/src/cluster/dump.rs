//! Dump of a cluster after a failed scenario.

use anyhow::{Context, Result};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use kube::core::{GroupVersionKind, TypeMeta};

use super::Cluster;

/// Kinds of objects in a scenario's namespace.
const NAMESPACED: &[(&str, &str)] = &[("", "Pod"), ("", "PersistentVolumeClaim"), ("", "Event")];
/// Kinds of objects that all scenarios share.
const CLUSTER_WIDE: &[(&str, &str)] = &[
    ("storage.k8s.io", "VolumeAttachment"),
    ("", "PersistentVolume"),
    ("", "Node"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "CSIDriver"),
];

impl Cluster {
    /// The objects on the attach path, and the events, as YAML: those in `namespace`, and the cluster-scoped ones
    /// that `keep` selects. Secrets are never listed; managed fields are omitted.
    pub async fn dump(
        &self,
        namespace: &str,
        keep: &(dyn Fn(&DynamicObject) -> bool + Sync),
    ) -> Result<String> {
        let mut text = String::new();
        for (group, kind) in NAMESPACED {
            self.dump_kind(&mut text, group, kind, Some(namespace), &|_| true)
                .await?;
        }
        for (group, kind) in CLUSTER_WIDE {
            self.dump_kind(&mut text, group, kind, None, keep).await?;
        }
        // Events about cluster-scoped objects are in the namespace `default`, and their names begin with the
        // object's name.
        self.dump_kind(&mut text, "", "Event", Some("default"), keep)
            .await?;
        Ok(text)
    }

    async fn dump_kind(
        &self,
        text: &mut String,
        group: &str,
        kind: &str,
        namespace: Option<&str>,
        keep: &(dyn Fn(&DynamicObject) -> bool + Sync),
    ) -> Result<()> {
        let gvk = GroupVersionKind::gvk(group, "v1", kind);
        let types = TypeMeta {
            api_version: gvk.api_version(),
            kind: gvk.kind.clone(),
        };
        let api = self.api(&gvk, namespace).await?;
        let list = api.list(&ListParams::default()).await;
        let list = list.with_context(|| format!("list {kind} objects"))?;
        for mut object in list.items.into_iter().filter(|object| keep(object)) {
            object.metadata.managed_fields = None;
            object.types = Some(types.clone());
            text.push_str(&format!("--- # {kind} {}\n", object.name_any()));
            text.push_str(&serde_saphyr::to_string(&object).context("serialise an object")?);
            text.push('\n');
        }
        Ok(())
    }
}
