//! The driver's other sidecars, StorageClasses, and provisioned volumes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use embedded_cluster::driver_connection::DriverConnection;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::{SECRET, STEP_TIMEOUT, TestEnv, TestVolume};
use crate::cluster::Provisioner;
use crate::fixture::{Access, SCENARIO_LABEL, mk_claim_of_class, mk_storage_class};
use crate::objects;
use crate::process::{Process, Spec};
use crate::toolchain::Peer;
use crate::wait::{self, Progress};

/// Name of the ServiceAccount that the sidecars run under.
pub(super) const SIDECAR_ACCOUNT: &str = "csi-sidecars";
/// Timeout of a sidecar's shutdown.
pub(super) const STOP: Duration = Duration::from_secs(10);

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Starts the cluster's external-provisioner.
    ///
    /// # Errors
    /// The provisioner is a program that cannot be built or started.
    pub async fn start_provisioner(&mut self) -> Result<()> {
        let driver = DriverConnection::new(self.driver.channel());
        match self.ctx.cluster().provisioner(driver) {
            Provisioner::Future(provisioner) => {
                self.provisioners.spawn(provisioner);
                Ok(())
            }
            Provisioner::Program { peer, flags } => self.start_sidecar(peer, flags).await,
        }
    }

    /// Starts the embedded cluster's external-provisioner and creates a StorageClass for a user's own claims; returns its name.
    /// Elsewhere a provisioner is a program that would have to be built: `None`.
    ///
    /// # Errors
    /// The StorageClass cannot be created.
    pub async fn offer_storage_class(&mut self) -> Result<Option<String>> {
        let driver = DriverConnection::new(self.driver.channel());
        let Provisioner::Future(provisioner) = self.ctx.cluster().provisioner(driver) else {
            return Ok(None);
        };
        self.provisioners.spawn(provisioner);
        self.storage_class("mock", "WaitForFirstConsumer").await.map(Some)
    }

    /// Starts the Go external-resizer.
    ///
    /// # Errors
    /// It cannot be built or started.
    pub async fn start_resizer(&mut self) -> Result<()> {
        let flags = [
            "--handle-volume-inuse-error=false",
            "--retry-interval-start=200ms",
        ];
        self.start_sidecar(Peer::ExternalResizer, &flags).await
    }

    /// Starts the Go external-snapshotter and the snapshot controller, and creates VolumeSnapshots' definitions.
    ///
    /// # Errors
    /// They cannot be built or started, or the API server does not serve VolumeSnapshots in time.
    pub async fn start_snapshotter(&mut self) -> Result<()> {
        let cluster = self.ctx.cluster();
        let definitions = self.ctx.snapshot_definitions().await?;
        cluster.apply_definitions(&definitions).await?;
        let controller = self.ctx.peer(Peer::SnapshotController).await?;
        let command = Spec::new(Peer::SnapshotController.name(), controller)
            .dir(&self.dir)
            .arg(format!("--kubeconfig={}", cluster.admin_kubeconfig().display()))
            .arg("-v=5");
        self.start_sidecar(Peer::ExternalSnapshotter, &[]).await?;
        self.sidecars.push(Process::spawn(self.ctx.run(), command)?);
        Ok(())
    }

    async fn start_sidecar(&mut self, program: Peer, flags: &[&str]) -> Result<()> {
        let binary = self.ctx.peer(program).await?;
        let command = Spec::new(program.name(), binary)
            .dir(&self.dir)
            .arg(format!(
                "--kubeconfig={}",
                self.sidecar_kubeconfig().await?.display()
            ))
            .arg(format!("--csi-address={}", self.driver.socket().display()))
            .args(["-v=5", "--timeout=15s"])
            .args(flags);
        let process = Process::spawn(self.ctx.run(), command)?;
        self.sidecars.push(process);
        Ok(())
    }

    async fn sidecar_kubeconfig(&self) -> Result<PathBuf> {
        let cluster = self.ctx.cluster();
        if self.sidecars.is_empty() {
            cluster
                .create_sidecar_account(&self.prefix, SIDECAR_ACCOUNT)
                .await
                .context("create the sidecars' account")?;
        }
        cluster
            .service_account_kubeconfig(&self.prefix, SIDECAR_ACCOUNT, &self.dir)
            .await
            .context("get the sidecars' credentials")
    }

    /// Creates a StorageClass of the driver whose volumes are expandable, are deleted with their claims and have the publish
    /// secret; returns its name.
    pub async fn storage_class(&self, name: &str, binding_mode: &str) -> Result<String> {
        self.storage_class_with(name, binding_mode, "Delete").await
    }

    /// Creates a StorageClass like [`Self::storage_class`] with this reclaim policy.
    pub async fn storage_class_with(
        &self,
        name: &str,
        binding_mode: &str,
        reclaim_policy: &str,
    ) -> Result<String> {
        let name = format!("{}-{name}", self.prefix);
        let mut class = mk_storage_class(&self.prefix, &name, self.driver.name(), binding_mode, SECRET);
        class.reclaim_policy = Some(reclaim_policy.to_owned());
        objects::create(&Api::<StorageClass>::all(self.client()), &class).await?;
        Ok(name)
    }

    /// Creates a claim of the class, for which the provisioner creates a volume.
    pub async fn claim(&self, name: &str, class: &str) -> Result<()> {
        let claim = mk_claim_of_class(&self.prefix, name, class, Access::OneNode);
        self.create_claim(&claim).await
    }

    /// Creates a claim.
    pub async fn create_claim(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        objects::create(&self.claims(), claim).await.map(drop)
    }

    /// Waits until a volume was provisioned for the claim and bound to it.
    pub async fn wait_until_provisioned(&mut self, claim: &str) -> Result<TestVolume> {
        let what = format!("the claim {claim} to be bound");
        let pv = wait::for_object(&self.claims(), claim, STEP_TIMEOUT, &what, |claim| {
            let status = claim.and_then(|claim| claim.status.as_ref());
            let volume = claim.and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
            match (status.and_then(|status| status.phase.as_deref()), volume) {
                (Some("Bound"), Some(volume)) => Progress::Reached(volume),
                (phase, _) => Progress::Pending(format!("its phase is {phase:?}")),
            }
        })
        .await?;
        // The provisioner does not label its objects, and the test environment finds objects by their label.
        let label = Patch::Merge(json!({"metadata": {"labels": {SCENARIO_LABEL: self.prefix}}}));
        let labelled = objects::patch(&Api::<PersistentVolume>::all(self.client()), &pv, &label).await?;
        let source = labelled.spec.and_then(|spec| spec.csi);
        let volume = TestVolume {
            pv: pv.clone(),
            claim: claim.to_owned(),
            handle: source
                .context("a provisioned volume is a CSI volume")?
                .volume_handle,
            access: Access::OneNode,
        };
        self.volumes.insert(pv, volume.clone());
        Ok(volume)
    }

    /// The claims of the test environment's namespace.
    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client(), &self.prefix)
    }
}
