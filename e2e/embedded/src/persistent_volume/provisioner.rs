//! The external-provisioner: creates a volume for a claim that waits for this driver, and deletes released volumes.
//!
//! Cancellation: names are stable, so after a lost response a retry with the same name returns the same volume; a
//! PersistentVolume keeps a finalizer until the driver has deleted its volume.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use csi_proto::v1;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret, SecretReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};
use v1::plugin_capability::Type;
use v1::plugin_capability::service::Type as Service;

use super::claims::{
    ANN_BETA_STORAGE_PROVISIONER, ANN_SELECTED_NODE, ANN_STORAGE_PROVISIONER, annotation, class_name,
};
use super::provisioned_volume::{
    create_request, new_volume, secret_reference, topology_requirement, volume_name,
};
use crate::attach_detach::csi_plugin::message_of;
use crate::driver_connection::{DriverConnection, describe};
use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::Key;
use crate::informers::Informers;
use crate::key_queue::KeyQueue;
use crate::kubelet::with_timeout;

const RETRY_START: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Delay before a failed GetPluginInfo call is retried.
const PROBE_RETRY: Duration = Duration::from_secs(1);

/// A work item of the provisioner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Claim(Key),
    Volume(String),
}

/// An error of provisioning or deleting a volume.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{}", describe(.0))]
    Driver(#[from] tonic::Status),
    #[error("{0}")]
    Api(String),
    #[error("persistentvolume {volume} is still attached to node {node}")]
    StillAttached { volume: String, node: String },
    #[error("driver returned no volume")]
    NoVolume,
}

/// The external-provisioner of one driver.
#[derive(Clone)]
pub(crate) struct Provisioner {
    pub client: Client,
    pub informers: Informers,
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

// === impl Provisioner ===

impl Provisioner {
    /// Runs until the future is dropped. The call subscribes, so that the provisioner misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let mut claims = self.informers.claims.subscribe();
        let mut volumes = self.informers.volumes.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let worker = self.probe().await;
            let mut queue: KeyQueue<Item> = KeyQueue::new(RETRY_START, RETRY_MAX);
            let mut working = BTreeSet::new();
            let mut again = BTreeSet::new();
            let mut running: FuturesUnordered<BoxFuture<'static, (Item, bool)>> = FuturesUnordered::new();
            loop {
                while let Some(item) = queue.pop(Instant::now()) {
                    // One call per claim or volume at a time.
                    if !working.insert(item.clone()) {
                        again.insert(item);
                        continue;
                    }
                    let worker = worker.clone();
                    running.push(
                        async move {
                            let done = worker.sync(&item).await;
                            (item, done)
                        }
                        .boxed(),
                    );
                }
                let due = queue.next_due();
                tokio::select! {
                    biased;
                    Some((item, done)) = running.next(), if !running.is_empty() => {
                        working.remove(&item);
                        if done {
                            queue.forget(&item);
                        } else {
                            queue.failed(item.clone(), Instant::now());
                        }
                        if again.remove(&item) {
                            queue.add_unless_delayed(item);
                        }
                    }
                    Some(change) = claims.recv() => {
                        if let crate::informer::Change::Applied { new, .. } = change {
                            queue.add_unless_delayed(Item::Claim((
                                new.metadata.namespace.clone().unwrap_or_default(),
                                new.metadata.name.clone().unwrap_or_default(),
                            )));
                        }
                    }
                    Some(change) = volumes.recv() => {
                        if let crate::informer::Change::Applied { new, .. } = change {
                            queue.add_unless_delayed(Item::Volume(new.metadata.name.clone().unwrap_or_default()));
                        }
                    }
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                }
            }
        }
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
        let name = self.driver.name().await?;
        let request = with_timeout(v1::GetPluginCapabilitiesRequest {});
        let capabilities = self
            .driver
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
    /// Returns false if the item must be requeued.
    async fn sync(&self, item: &Item) -> bool {
        let informers = &self.provisioner.informers;
        match item {
            Item::Claim((namespace, name)) => {
                let Some(claim) = informers.claims.get(namespace, name) else {
                    return true;
                };
                let class = informers.classes.get("", class_name(&claim));
                match class.filter(|class| self.should_provision(&claim, class)) {
                    Some(class) => self.provision(&claim, &class).await,
                    None => true,
                }
            }
            Item::Volume(name) => match informers.volumes.get("", name) {
                Some(volume) if self.should_delete(&volume) => self.delete(&volume).await,
                Some(_) | None => true,
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
        let late = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        provisioner == Some(&self.name)
            && unbound
            && claim.metadata.deletion_timestamp.is_none()
            && (!late || annotation(claim, ANN_SELECTED_NODE).is_some())
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
        let recorder = &self.provisioner.recorder;
        let volumes = &self.provisioner.informers.volumes;
        if volumes.get("", &volume_name(claim)).is_some() {
            return true;
        }
        let key = format!(
            "{}/{}",
            claim.metadata.namespace.as_deref().unwrap_or_default(),
            claim.metadata.name.as_deref().unwrap_or_default()
        );
        let message = format!("External provisioner is provisioning volume for claim {key:?}");
        recorder.event(claim, EventType::Normal, "Provisioning", &message);
        match self.try_provision(claim, class).await {
            Ok(()) => {
                let message = format!("Successfully provisioned volume {}", volume_name(claim));
                recorder.event(claim, EventType::Normal, "ProvisioningSucceeded", &message);
                true
            }
            Err(error) => {
                let class = class.metadata.name.as_deref().unwrap_or_default();
                let message = format!("failed to provision volume with StorageClass {class:?}: {error}");
                recorder.event(claim, EventType::Warning, "ProvisioningFailed", &message);
                if let Error::Driver(status) = &error
                    && status.code() == tonic::Code::ResourceExhausted
                    && annotation(claim, ANN_SELECTED_NODE).is_some()
                {
                    self.reschedule(claim).await;
                }
                false
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
            topology_requirement(&self.name, pairs, annotation(claim, ANN_SELECTED_NODE))
        });
        let request = create_request(claim, class, secrets, topology.flatten());
        let made = self
            .provisioner
            .driver
            .controller()
            .create_volume(with_timeout(request))
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
            created => created.map(drop).map_err(|error| Error::Api(message_of(&error))),
        }
    }

    pub(super) async fn secrets(
        &self,
        reference: Option<SecretReference>,
    ) -> Result<HashMap<String, String>, Error> {
        let Some(reference) = reference else {
            return Ok(HashMap::new());
        };
        let namespace = reference.namespace.unwrap_or_default();
        let secrets = Api::<Secret>::namespaced(self.provisioner.client.clone(), &namespace);
        let secret = secrets
            .get(&reference.name.unwrap_or_default())
            .await
            .map_err(|error| Error::Api(message_of(&error)))?;
        let data = secret.data.unwrap_or_default().into_iter();
        Ok(data
            .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
            .collect())
    }
}
