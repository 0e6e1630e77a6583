//! Teardown of a test environment: reads the journals, then deletes all objects.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::super::test_context::TestContext;
use super::sidecars::STOP;
use super::{ACCOUNT, SIDECAR_ACCOUNT, TestEnv};
use crate::cluster::ignore_not_found;
use crate::driver::FAULTS;
use crate::fixture::{NODE_LEASE_NAMESPACE, SCENARIO_LABEL};
use crate::invariant;
use crate::invariant::observations::WatchEvent;
use crate::wait::{self, Progress};

/// Timeout for the deletion of a test environment's objects, with hundreds of volumes.
const CLEAN_UP: Duration = Duration::from_secs(180);

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Logs and output of the attachers, the sidecars and the drivers, and the drivers' journals and fault rules. Each node
    /// driver has its own subdirectory. The other files have credentials or the drivers' state.
    pub fn log_files(&self) -> Result<Vec<PathBuf>> {
        let (subdirs, mut files): (Vec<_>, Vec<_>) =
            entries(&self.dir)?.into_iter().partition(|path| path.is_dir());
        for subdir in subdirs {
            files.extend(entries(&subdir)?);
        }
        let is_log = |path: &Path| {
            let extension = path.extension().and_then(OsStr::to_str);
            matches!(extension, Some("log" | "stdout" | "jsonl")) || path.ends_with(FAULTS)
        };
        files.retain(|path| is_log(path));
        files.sort();
        Ok(files)
    }

    /// Output by source: logs, journals, events and objects, and the end of the controllers' logs.
    pub async fn texts(&self) -> Result<Vec<(String, String)>> {
        let mut texts = Vec::new();
        for path in self.log_files()? {
            texts.push((path.display().to_string(), read_lossy(&path)?));
        }
        for (component, log) in self.ctx.cluster().component_logs() {
            texts.push((format!("the log of {component}"), log));
        }
        texts.push((
            "the objects and events of the cluster".to_owned(),
            self.objects().await?,
        ));
        Ok(texts)
    }

    /// The test environment's objects and events as YAML, without Secrets.
    pub async fn objects(&self) -> Result<String> {
        let (prefix, driver) = (self.prefix.clone(), self.driver.name().to_owned());
        let mine = move |object: &DynamicObject| {
            object.name_any().starts_with(&prefix)
                || object.labels().get(SCENARIO_LABEL) == Some(&prefix)
                || object
                    .data
                    .pointer("/spec/attacher")
                    .and_then(serde_json::Value::as_str)
                    == Some(&driver)
                // An Event that the attacher wrote.
                || object
                    .data
                    .pointer("/reportingComponent")
                    .and_then(serde_json::Value::as_str)
                    .is_some_and(|component| component.ends_with(&format!("/{driver}")))
        };
        self.ctx.cluster().dump(&self.prefix, &mine).await
    }

    /// Deletes all objects in the order in which a user does, then checks the invariants.
    ///
    /// # Errors
    /// An object was not deleted in time, or an invariant was violated.
    pub async fn clear(&self) -> Result<()> {
        let client = self.client();
        let pods = self.pods();
        delete_all(&pods, &ListParams::default(), "pods").await?;
        wait_for_none(&pods, "pods").await?;
        self.wait_until_all_detached(CLEAN_UP).await?;

        let mine = self.mine();
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &self.prefix);
        let volumes = Api::<PersistentVolume>::all(client.clone());
        delete_all(&claims, &mine, "claims").await?;
        delete_all(&volumes, &mine, "volumes").await?;
        wait_for_none(&claims, "claims").await?;
        let config = watcher::Config::default().labels(&format!("{SCENARIO_LABEL}={}", self.prefix));
        wait::for_objects(&volumes, config, CLEAN_UP, "all volumes to go", none_left).await?;
        self.wait_until_recorded().await;
        tracing::info!(prefix = self.prefix, "objects gone");
        for volume in self.volumes.values() {
            self.driver.delete_volume(&volume.handle).await?;
        }
        tracing::info!(prefix = self.prefix, "volumes deleted at the driver");
        invariant::enforce(&invariant::check_cleaned_up(&self.observations().await?))?;
        self.attacher.ensure_no_unexpected_exits()
    }

    /// Waits until the record shows that the attacher has released all volumes: after an outage its watch may resume late. Otherwise
    /// the invariants report it.
    async fn wait_until_recorded(&self) {
        let finalizer = self.finalizer();
        let mut recorded = self.recorder.volumes();
        let released = recorded.wait_for(|events| {
            let last: BTreeMap<_, _> = events.iter().map(|event| (event.object.uid(), event)).collect();
            let is_held = |event: &WatchEvent<PersistentVolume>| {
                !event.gone && event.object.finalizers().contains(&finalizer)
            };
            last.into_iter().all(|(uid, event)| {
                !is_held(event) || uid.is_some_and(|uid| self.lost_objects.contains(&uid))
            })
        });
        tokio::time::timeout(CLEAN_UP, released).await.ok();
    }

    /// Stops the processes and deletes the test environment's namespace, accounts and registrations.
    ///
    /// # Errors
    /// A process did not exit as expected.
    pub async fn teardown(mut self) -> Result<()> {
        self.attacher.stop().await?;
        for sidecar in &self.sidecars {
            // The Go sidecars have no handler and exit by the signal.
            sidecar.ensure_alive()?;
            sidecar.stop(STOP).await?;
        }
        self.provisioners.shutdown().await;
        for node in self.nodes {
            node.deregister().await?;
        }
        self.driver.stop().await?;
        self.recorder.end().await?;
        delete_scope(self.ctx, &self.prefix).await
    }

    /// Waits until the driver has no attachments.
    pub async fn wait_until_all_detached(&self, within: Duration) -> Result<()> {
        let attacher = self.driver.name();
        let attachments = Api::<VolumeAttachment>::all(self.client());
        let what = "all attachments to go";
        wait::for_objects(&attachments, watcher::Config::default(), within, what, |seen| {
            let left: Vec<_> = seen
                .values()
                .filter(|va| va.spec.attacher == attacher)
                .map(|va| format!("{} (finalizers {:?})", va.name_any(), va.finalizers()))
                .collect();
            Progress::of(left.is_empty(), || {
                format!("{} are left, such as {:?}", left.len(), left.first())
            })
        })
        .await
    }
}

/// Force-deletes the objects of a failed scenario, whose processes must have exited. Does not delete a namespace of
/// this name that the harness did not create.
pub async fn force_cleanup(ctx: &TestContext, prefix: &str) -> Result<()> {
    let client = ctx.cluster().client();
    let mine = ListParams::default().labels(&format!("{SCENARIO_LABEL}={prefix}"));
    let pods = Api::<Pod>::namespaced(client.clone(), prefix);
    pods.delete_collection(&DeleteParams::default().grace_period(0), &mine)
        .await?;

    let attachments = Api::<VolumeAttachment>::all(client.clone());
    let drivers = Api::<CSIDriver>::all(client.clone()).list(&mine).await?;
    let is_mine = |attacher: &str| drivers.iter().any(|driver| driver.name_any() == attacher);
    for attachment in attachments.list(&ListParams::default()).await?.items {
        if is_mine(&attachment.spec.attacher) {
            force_delete(&attachments, &attachment.name_any()).await?;
        }
    }
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), prefix);
    for claim in claims.list(&mine).await?.items {
        force_delete(&claims, &claim.name_any()).await?;
    }
    let volumes = Api::<PersistentVolume>::all(client.clone());
    for volume in volumes.list(&mine).await?.items {
        force_delete(&volumes, &volume.name_any()).await?;
    }
    for node in Api::<ApiNode>::all(client.clone()).list(&mine).await?.items {
        let name = node.name_any();
        let delete = DeleteParams::default();
        let leases = Api::<Lease>::namespaced(client.clone(), NODE_LEASE_NAMESPACE);
        ignore_not_found(leases.delete(&name, &delete).await)?;
        ignore_not_found(Api::<CSINode>::all(client.clone()).delete(&name, &delete).await)?;
        ignore_not_found(Api::<ApiNode>::all(client.clone()).delete(&name, &delete).await)?;
    }
    delete_scope(ctx, prefix).await
}

/// Deletes the test environment's CSIDrivers, StorageClasses, ServiceAccounts and namespaces. On an existing cluster,
/// waits until the namespaces are deleted, so that another run can create them again.
async fn delete_scope(ctx: &TestContext, prefix: &str) -> Result<()> {
    let client = ctx.cluster().client();
    let delete = DeleteParams::default();
    let drivers = Api::<CSIDriver>::all(client.clone());
    let mine = ListParams::default().labels(&format!("{SCENARIO_LABEL}={prefix}"));
    delete_all(&drivers, &mine, "driver registrations").await?;
    let classes = Api::<StorageClass>::all(client.clone());
    delete_all(&classes, &mine, "storage classes").await?;
    for account in [ACCOUNT, SIDECAR_ACCOUNT] {
        ctx.cluster().delete_account(prefix, account).await?;
    }
    let namespaces = Api::<Namespace>::all(client);
    for namespace in namespaces.list(&mine).await?.items {
        let name = namespace.name_any();
        ignore_not_found(namespaces.delete(&name, &delete).await)?;
        if ctx.cluster().is_existing() {
            wait::for_absence(&namespaces, &name, CLEAN_UP, "the namespace to be deleted").await?;
        }
    }
    Ok(())
}

// === functions ===

async fn delete_all<K>(api: &Api<K>, which: &ListParams, what: &str) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    api.delete_collection(&DeleteParams::default(), which)
        .await
        .with_context(|| format!("delete all {what}"))?;
    Ok(())
}

async fn wait_for_none<K>(api: &Api<K>, what: &str) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default();
    wait::for_objects(api, config, CLEAN_UP, &format!("all {what} to go"), none_left).await
}

fn none_left<K: Resource>(seen: &BTreeMap<wait::Key, K>) -> Progress<()> {
    Progress::of(seen.is_empty(), || {
        let first = seen
            .values()
            .next()
            .map(|object| format!("{} (finalizers {:?})", object.name_any(), object.finalizers()));
        format!("{} are left, such as {first:?}", seen.len())
    })
}

/// Deletes an object and removes its finalizers.
async fn force_delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    ignore_not_found(api.delete(name, &DeleteParams::default()).await)?;
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    ignore_not_found(api.patch(name, &PatchParams::default(), &patch).await)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    std::fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .with_context(|| format!("list {}", dir.display()))
}

fn read_lossy(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
