//! The external-provisioner: creates a volume for a claim that waits for this driver, and deletes released volumes.
//!
//! Cancellation: names are stable, so after a lost response a retry with the same name returns the same volume; a
//! PersistentVolume keeps a finalizer until the driver has deleted its volume.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Code;
use v1::plugin_capability::Type;
use v1::plugin_capability::service::Type as Service;

use super::claims::{
    ANN_BETA_STORAGE_PROVISIONER, ANN_SELECTED_NODE, ANN_STORAGE_PROVISIONER, annotation, class_name,
    is_delay_binding_mode,
};
use super::provisioned_volume::{
    create_request, new_volume, secret_reference, topology_requirement, volume_name,
};
use crate::api_error::message_of;
use crate::driver_connection::{DriverClient, DriverConnection, describe};
use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::{Change, Key, key_of};
use crate::informers::ProvisionerInformers;
use crate::secret::get_credentials;
use crate::workqueue::WorkQueue;

const RETRY_START: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Default of `--timeout`, the timeout of each call.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a failed GetPluginInfo call is retried.
const PROBE_RETRY: Duration = Duration::from_secs(1);

/// A work item of the provisioner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    /// Namespace, name and UID of a claim: one that was re-created needs another volume.
    Claim(Key, String),
    Volume(String),
}

/// The outcome of a sync.
enum Outcome {
    Done,
    /// Requeue: the driver has not created a volume.
    Failed,
    /// Requeue: the sync failed before its driver call; an earlier one may have created the volume.
    FailedEarly,
    /// Requeue, even if the claim is deleted: the driver may have created the volume (`ProvisioningInBackground`).
    InProgress(Arc<PersistentVolumeClaim>),
}

/// An error of provisioning or deleting a volume.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{}", describe(.0))]
    Driver(#[from] tonic::Status),
    #[error("{0}")]
    Api(String),
    #[error("{0}")]
    NotStored(String),
    #[error("persistentvolume {volume} is still attached to node {node}")]
    StillAttached { volume: String, node: String },
    #[error("driver returned no volume")]
    NoVolume,
}

/// The external-provisioner of one driver.
#[derive(Clone)]
pub(crate) struct Provisioner {
    pub client: Client,
    pub informers: ProvisionerInformers,
    pub recorder: EventRecorder,
    pub driver: DriverConnection,
}

/// A provisioner that has connected to its driver.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) provisioner: Provisioner,
    pub(super) name: String,
    /// The driver has the capability VOLUME_ACCESSIBILITY_CONSTRAINTS.
    topology: bool,
}

// === impl Item ===

impl Item {
    fn of_claim(claim: &PersistentVolumeClaim) -> Self {
        Self::Claim(key_of(claim), claim.metadata.uid.clone().unwrap_or_default())
    }
}

// === impl Error ===

impl Error {
    /// What a claim whose provisioning failed waits for (`checkError` of the external-provisioner).
    fn outcome(&self, claim: &Arc<PersistentVolumeClaim>) -> Outcome {
        let is_in_progress = match self {
            Self::Driver(status) => matches!(
                status.code(),
                Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted
            ),
            Self::NotStored(_) => true,
            Self::Api(_) => return Outcome::FailedEarly,
            Self::StillAttached { .. } | Self::NoVolume => false,
        };
        if is_in_progress {
            Outcome::InProgress(claim.clone())
        } else {
            Outcome::Failed
        }
    }
}

// === impl Provisioner ===

impl Provisioner {
    /// Runs until the future is dropped. The call subscribes, so that the provisioner misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let mut claims = self.informers.claims.subscribe();
        let mut volumes = self.informers.volumes.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let worker = self.probe().await;
            let mut queue: WorkQueue<Item> = WorkQueue::new(RETRY_START, RETRY_MAX);
            let mut in_progress = BTreeMap::new();
            let mut working = BTreeSet::new();
            let mut again = BTreeSet::new();
            let mut running: FuturesUnordered<BoxFuture<'static, (Item, Outcome)>> = FuturesUnordered::new();
            loop {
                while let Some(item) = queue.pop(Instant::now()) {
                    // One call per claim or volume at a time.
                    if !working.insert(item.clone()) {
                        again.insert(item);
                        continue;
                    }
                    let worker = worker.clone();
                    let started = in_progress.get(&item).cloned();
                    running.push(
                        async move {
                            let outcome = worker.sync(&item, started).await;
                            (item, outcome)
                        }
                        .boxed(),
                    );
                }
                let due = queue.next_due();
                tokio::select! {
                    biased;
                    Some((item, outcome)) = running.next(), if !running.is_empty() => {
                        working.remove(&item);
                        if matches!(outcome, Outcome::Done) {
                            queue.forget(&item);
                        } else {
                            queue.add_rate_limited(item.clone(), Instant::now());
                        }
                        match outcome {
                            Outcome::Done | Outcome::Failed => drop(in_progress.remove(&item)),
                            Outcome::FailedEarly => {}
                            Outcome::InProgress(claim) => drop(in_progress.insert(item.clone(), claim)),
                        }
                        if again.remove(&item) {
                            queue.add_unless_delayed(item);
                        }
                    }
                    Some(change) = claims.recv() => {
                        if let Change::Applied { new, .. } = change {
                            queue.add_unless_delayed(Item::of_claim(&new));
                        }
                    }
                    Some(change) = volumes.recv() => {
                        if let Change::Applied { new, .. } = change {
                            queue.add_unless_delayed(Item::Volume(new.metadata.name.clone().unwrap_or_default()));
                        }
                    }
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                }
            }
        }
    }

    /// A client of the driver for one call.
    pub(super) fn driver(&self) -> DriverClient {
        self.driver.with_timeout(OPERATION_TIMEOUT)
    }

    async fn probe(&self) -> Worker {
        loop {
            match self.try_probe().await {
                Ok(worker) => return worker,
                Err(status) => tracing::debug!(error = %describe(&status), "CSI driver does not respond"),
            }
            sleep(PROBE_RETRY).await;
        }
    }

    async fn try_probe(&self) -> Result<Worker, tonic::Status> {
        let name = self.driver().name().await?;
        let request = v1::GetPluginCapabilitiesRequest {};
        let capabilities = self
            .driver()
            .identity()
            .get_plugin_capabilities(request)
            .await?
            .into_inner();
        let topology = capabilities.capabilities.iter().any(|capability| {
            matches!(&capability.r#type, Some(Type::Service(service))
                if service.r#type() == Service::VolumeAccessibilityConstraints)
        });
        Ok(Worker {
            provisioner: self.clone(),
            name,
            topology,
        })
    }
}

// === impl Worker ===

impl Worker {
    /// `started` is the claim if the driver may have created its volume.
    async fn sync(&self, item: &Item, started: Option<Arc<PersistentVolumeClaim>>) -> Outcome {
        let informers = &self.provisioner.informers;
        match item {
            Item::Claim((namespace, name), uid) => {
                let current = informers.claims.get(namespace, name);
                let current = current.filter(|claim| claim.metadata.uid.as_ref() == Some(uid));
                let is_wanted =
                    |claim: &Arc<PersistentVolumeClaim>| claim.metadata.deletion_timestamp.is_none();
                let Some(claim) = current.filter(is_wanted).or(started) else {
                    return Outcome::Done;
                };
                let class = informers.classes.get("", class_name(&claim));
                match class.filter(|class| self.should_provision(&claim, class)) {
                    Some(class) => self.provision(&claim, &class).await,
                    None => Outcome::Done,
                }
            }
            Item::Volume(name) => match informers.volumes.get("", name) {
                Some(volume) if self.should_delete(&volume) && !self.delete(&volume).await => Outcome::Failed,
                Some(_) | None => Outcome::Done,
            },
        }
    }

    fn should_provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
        let provisioner = annotation(claim, ANN_STORAGE_PROVISIONER)
            .or_else(|| annotation(claim, ANN_BETA_STORAGE_PROVISIONER));
        let unbound = claim
            .spec
            .as_ref()
            .is_some_and(|spec| spec.volume_name.as_deref().unwrap_or_default().is_empty());
        provisioner == Some(&self.name)
            && unbound
            && claim.metadata.deletion_timestamp.is_none()
            && (!is_delay_binding_mode(class) || annotation(claim, ANN_SELECTED_NODE).is_some())
    }

    async fn provision(&self, claim: &Arc<PersistentVolumeClaim>, class: &StorageClass) -> Outcome {
        let recorder = &self.provisioner.recorder;
        let volumes = &self.provisioner.informers.volumes;
        if volumes.get("", &volume_name(claim)).is_some() {
            return Outcome::Done;
        }
        let key = format!(
            "{}/{}",
            claim.metadata.namespace.as_deref().unwrap_or_default(),
            claim.metadata.name.as_deref().unwrap_or_default()
        );
        let message = format!("External provisioner is provisioning volume for claim {key:?}");
        recorder.event(&**claim, EventType::Normal, "Provisioning", &message);
        match self.try_provision(claim, class).await {
            Ok(()) => {
                let message = format!("Successfully provisioned volume {}", volume_name(claim));
                recorder.event(&**claim, EventType::Normal, "ProvisioningSucceeded", &message);
                Outcome::Done
            }
            Err(error) => {
                let class = class.metadata.name.as_deref().unwrap_or_default();
                let message = format!("failed to provision volume with StorageClass {class:?}: {error}");
                recorder.event(&**claim, EventType::Warning, "ProvisioningFailed", &message);
                if let Error::Driver(status) = &error
                    && status.code() == Code::ResourceExhausted
                    && self.topology
                    && annotation(&**claim, ANN_SELECTED_NODE).is_some()
                {
                    self.reschedule(claim).await;
                    return Outcome::Failed;
                }
                error.outcome(claim)
            }
        }
    }

    /// The selected node's topology has no capacity left: lets the scheduler choose another node.
    async fn reschedule(&self, claim: &PersistentVolumeClaim) {
        let patch = json!({"metadata": {
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {ANN_SELECTED_NODE: null},
        }});
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.provisioner.client.clone(), namespace);
        if let Err(error) = claims
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            tracing::debug!(claim = name, %error, "selected node was not removed");
        }
    }

    async fn try_provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<(), Error> {
        let informers = &self.provisioner.informers;
        let secrets = self
            .secrets(secret_reference(class, claim, "provisioner"))
            .await?;
        let topology = self.topology.then(|| {
            let nodes = informers.nodes.list();
            let csi_nodes = informers.csi_nodes.list();
            let pairs = nodes.iter().filter_map(|node| {
                let csi_node = csi_nodes
                    .iter()
                    .find(|csi_node| csi_node.metadata.name == node.metadata.name)?;
                Some((&**node, &**csi_node))
            });
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            topology_requirement(&self.name, pairs, annotation(claim, ANN_SELECTED_NODE), name)
        });
        let request = create_request(claim, class, secrets, topology.flatten());
        let made = self
            .provisioner
            .driver()
            .controller()
            .create_volume(request)
            .await?
            .into_inner()
            .volume
            .ok_or(Error::NoVolume)?;
        let volume = new_volume(&self.name, claim, class, made);
        match Api::<PersistentVolume>::all(self.provisioner.client.clone())
            .create(&PostParams::default(), &volume)
            .await
        {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            created => created
                .map(drop)
                .map_err(|error| Error::NotStored(message_of(&error))),
        }
    }

    pub(super) async fn secrets(
        &self,
        reference: Option<SecretReference>,
    ) -> Result<HashMap<String, String>, Error> {
        let describe = |name: &str, namespace: &str, error: &str| {
            format!("error getting secret {name} in namespace {namespace}: {error}")
        };
        get_credentials(&self.provisioner.client, reference.as_ref(), describe)
            .await
            .map_err(Error::Api)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_is_in_progress_if_the_driver_may_have_created_its_volume() {
        let driver = |code| Error::Driver(tonic::Status::new(code, ""));
        let cases = [
            (driver(Code::DeadlineExceeded), true),
            (driver(Code::Aborted), true),
            (driver(Code::ResourceExhausted), false),
            (driver(Code::InvalidArgument), false),
            (Error::NotStored(String::new()), true),
            (Error::NoVolume, false),
        ];
        for (error, expected) in cases {
            let outcome = error.outcome(&Arc::default());
            assert_eq!(matches!(outcome, Outcome::InProgress(_)), expected, "{error:?}");
        }
    }
}
