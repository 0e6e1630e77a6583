//! Executes mount and unmount operations through the driver's Node service.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::node_service_capability::Type;
use csi_proto::v1::node_service_capability::rpc::Type as Rpc;
use k8s_openapi::api::core::v1::{Node, Pod, SecretReference};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, Client};

use super::disk::{NodeDisk, VolumeData};
use super::mount_spec::MountSpec;
use super::volume_manager::{Operation, Outcome};
use crate::api_error::message_of;
use crate::driver_connection::{DriverClient, DriverConnection, describe, is_final};
use crate::pod;
use crate::secret::get_credentials;
use crate::volume::attachment_name;

/// Timeout of the calls of one step: kubelet's `csiTimeout`.
pub(super) const CSI_TIMEOUT: Duration = Duration::from_secs(120);
/// gRPC code that the external-attacher reports for an attach that failed because the node is at its attach
/// limit.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Upstream's two steps of a mount.
const MOUNT_DEVICE: &str = "MountVolume.MountDevice";
const SET_UP: &str = "MountVolume.SetUp";

/// The result of an operation, and the event for the pod.
#[derive(Debug)]
pub(crate) struct Finished {
    pub outcome: Outcome,
    /// Message of a FailedMount event.
    pub message: Option<String>,
    /// The attach failed because the node is at its attach limit.
    pub attach_limit_exceeded: bool,
}

/// Capabilities of a driver's Node service.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeCapabilities {
    pub stages: bool,
    pub single_node_multi_writer: bool,
}

/// A client of one node's driver.
#[derive(Clone)]
pub(crate) struct CsiMounter {
    client: Client,
    node: String,
    driver: Option<(String, DriverConnection)>,
    pub(super) disk: NodeDisk,
}

// === impl Finished ===

impl Finished {
    pub(super) fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            message: None,
            attach_limit_exceeded: false,
        }
    }

    pub(super) fn failed(outcome: Outcome, step: &str, spec: &MountSpec, error: &str) -> Self {
        Self {
            message: Some(format!("{step} failed for volume {:?} : {error}", spec.name)),
            ..Self::new(outcome)
        }
    }
}

// === impl CsiMounter ===

impl CsiMounter {
    pub(crate) fn new(
        client: Client,
        node: &str,
        driver: Option<(String, DriverConnection)>,
        disk: NodeDisk,
    ) -> Self {
        Self {
            client,
            node: node.to_owned(),
            driver,
            disk,
        }
    }

    /// Executes one operation. `pod` is the pod of a mount.
    ///
    /// Cancellation: a dropped call may have taken effect; the disk has a record of it, so that a restarted
    /// kubelet cleans it up.
    pub(crate) async fn run(&self, operation: &Operation, pod: Option<&Pod>) -> Finished {
        match operation {
            Operation::VerifyControllerAttachedVolume(spec) => self.verify_attached(spec).await,
            Operation::MountVolume { spec, staged, .. } => match pod {
                Some(pod) => self.mount(spec, pod, *staged).await,
                None => Finished::new(Outcome::Failed),
            },
            Operation::UnmountVolume { spec, pod } => self.unmount(spec, pod).await,
            Operation::UnmountDevice(spec) => self.unmount_device(spec).await,
        }
    }

    /// Reads from the API server instead of a watch: the response must be newer than the write of
    /// `volumesInUse`.
    async fn verify_attached(&self, spec: &MountSpec) -> Finished {
        if !spec.attachable {
            return Finished::new(Outcome::Done);
        }
        let node = Api::<Node>::all(self.client.clone()).get(&self.node).await;
        let attached = node
            .ok()
            .and_then(|node| node.status?.volumes_attached)
            .is_some_and(|attached| attached.iter().any(|volume| volume.name == spec.unique_name));
        if attached {
            return Finished::new(Outcome::Done);
        }
        Finished {
            attach_limit_exceeded: spec.reports_attach_limit && self.is_attach_limit_exceeded(spec).await,
            ..Finished::new(Outcome::NotAttachedYet)
        }
    }

    async fn is_attach_limit_exceeded(&self, spec: &MountSpec) -> bool {
        let name = attachment_name(&spec.handle, &spec.driver, &self.node);
        let attachment = Api::<VolumeAttachment>::all(self.client.clone())
            .get_opt(&name)
            .await;
        attachment
            .ok()
            .flatten()
            .and_then(|attachment| attachment.status?.attach_error?.error_code)
            == Some(RESOURCE_EXHAUSTED)
    }

    async fn mount(&self, spec: &MountSpec, pod: &Pod, staged: bool) -> Finished {
        let publish_context = match self.wait_for_attach(spec).await {
            Ok(context) => context,
            Err(error) => {
                return Finished::failed(Outcome::Failed, "MountVolume.WaitForAttach", spec, &error);
            }
        };
        let is_device_mounted = staged || spec.ephemeral;
        let step = if is_device_mounted { SET_UP } else { MOUNT_DEVICE };
        let Some(mut driver) = self.driver_of(spec) else {
            let text = if is_device_mounted {
                "mounter.SetUpAt failed to get CSI client"
            } else {
                "attacher.MountDevice failed to create newCsiDriverClient"
            };
            let name = &spec.driver;
            let error = format!(
                "kubernetes.io/csi: {text}: driver name {name} not found in the list of registered CSI drivers"
            );
            return Finished::failed(Outcome::Failed, step, spec, &error);
        };
        let mut capabilities = match capabilities(&driver).await {
            Ok(capabilities) => capabilities,
            Err(status) => {
                let error = capabilities_error(spec, staged, &status);
                return Finished::failed(Outcome::Failed, step, spec, &error);
            }
        };
        capabilities.stages &= !spec.ephemeral;
        if capabilities.stages
            && !staged
            && let Err(finished) = self.stage(&driver, spec, &publish_context, capabilities).await
        {
            return finished;
        }
        if capabilities.stages && !staged {
            // Each step has a deadline of its own.
            driver = self.driver_of(spec).unwrap_or(driver);
        }
        self.publish(&driver, spec, pod, publish_context, capabilities)
            .await
    }

    async fn stage(
        &self,
        driver: &DriverClient,
        spec: &MountSpec,
        publish_context: &HashMap<String, String>,
        capabilities: NodeCapabilities,
    ) -> Result<(), Finished> {
        let failed = |outcome, error: &str| Finished::failed(outcome, MOUNT_DEVICE, spec, error);
        let path = self.disk.staging_path(spec);
        let secrets = self.secrets("NodeStageSecretRef", spec.stage_secret.as_ref());
        let secrets = secrets.await.map_err(|error| failed(Outcome::Failed, &error))?;
        let data = VolumeData {
            spec: spec.clone(),
            pod: None,
        };
        if let Err(error) = self.disk.save(&path, data) {
            return Err(failed(Outcome::Failed, &error.to_string()));
        }
        let request = v1::NodeStageVolumeRequest {
            volume_id: spec.handle.clone(),
            publish_context: publish_context.clone(),
            staging_target_path: text(&path),
            volume_capability: Some(spec.capability(capabilities.single_node_multi_writer)),
            secrets,
            volume_context: spec.attributes.clone().into_iter().collect(),
        };
        match driver.node().node_stage_volume(request).await {
            Ok(_) => Ok(()),
            Err(status) => {
                let outcome = if is_final(status.code()) {
                    Outcome::NotStaged
                } else {
                    Outcome::StageUncertain
                };
                Err(failed(outcome, &describe(&status)))
            }
        }
    }

    async fn publish(
        &self,
        driver: &DriverClient,
        spec: &MountSpec,
        pod: &Pod,
        publish_context: HashMap<String, String>,
        capabilities: NodeCapabilities,
    ) -> Finished {
        let failed = |outcome, error: &str| Finished::failed(outcome, SET_UP, spec, error);
        let uid = pod::uid(pod);
        let path = self.disk.target_path(spec, uid);
        let secrets = self.secrets("NodePublishSecretRef", spec.publish_secret.as_ref());
        let secrets = match secrets.await {
            Ok(secrets) => secrets,
            Err(error) => return failed(Outcome::PublishNotCalled, &error),
        };
        let data = VolumeData {
            spec: spec.clone(),
            pod: Some(uid.to_owned()),
        };
        if let Err(error) = self.disk.save(&path, data) {
            // As upstream, where this error is final, unlike that of the Secret.
            return failed(Outcome::NotPublished, &error.to_string());
        }
        let mut volume_context: HashMap<_, _> = spec.attributes.clone().into_iter().collect();
        if spec.pod_info {
            volume_context.extend(pod_info(pod, spec.ephemeral));
        }
        let request = v1::NodePublishVolumeRequest {
            volume_id: spec.handle.clone(),
            publish_context,
            staging_target_path: if capabilities.stages {
                text(&self.disk.staging_path(spec))
            } else {
                String::new()
            },
            target_path: text(&path),
            volume_capability: Some(spec.capability(capabilities.single_node_multi_writer)),
            readonly: spec.read_only,
            secrets,
            volume_context,
        };
        match driver.node().node_publish_volume(request).await {
            Ok(_) => Finished::new(Outcome::Done),
            Err(status) => {
                let outcome = if is_final(status.code()) {
                    Outcome::NotPublished
                } else {
                    Outcome::PublishUncertain
                };
                failed(outcome, &describe(&status))
            }
        }
    }

    /// The publish context from the VolumeAttachment, which must be attached.
    async fn wait_for_attach(&self, spec: &MountSpec) -> Result<HashMap<String, String>, String> {
        if !spec.attachable {
            return Ok(HashMap::new());
        }
        let name = attachment_name(&spec.handle, &spec.driver, &self.node);
        let attachment = Api::<VolumeAttachment>::all(self.client.clone())
            .get(&name)
            .await
            .map_err(|error| {
                let (handle, message) = (&spec.handle, message_of(&error));
                format!("volume {handle} has GET error for volume attachment {name}: {message}")
            })?;
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err("volume attachment is being deleted".to_owned());
        }
        let status = attachment.status.unwrap_or_default();
        if status.attached {
            return Ok(status
                .attachment_metadata
                .unwrap_or_default()
                .into_iter()
                .collect());
        }
        Err(status.attach_error.map_or_else(
            || {
                format!(
                    "volume {} is not attached for volume attachment {name}",
                    spec.handle
                )
            },
            |error| error.message.unwrap_or_default(),
        ))
    }

    /// The data of the Secret in this field of the volume's source.
    async fn secrets(
        &self,
        field: &str,
        reference: Option<&SecretReference>,
    ) -> Result<HashMap<String, String>, String> {
        get_credentials(&self.client, reference, |name, namespace, error| {
            format!(
                "fetching {field} {namespace}/{name} failed: kubernetes.io/csi: failed to find the secret {name} in the \
                 namespace {namespace} with error: {error}"
            )
        })
        .await
    }

    /// A client of the volume's driver for one step.
    pub(super) fn driver_of(&self, spec: &MountSpec) -> Option<DriverClient> {
        let (name, driver) = self.driver.as_ref()?;
        (*name == spec.driver).then(|| driver.with_timeout(CSI_TIMEOUT))
    }
}

// === functions ===

pub(super) async fn capabilities(driver: &DriverClient) -> Result<NodeCapabilities, tonic::Status> {
    let request = v1::NodeGetCapabilitiesRequest {};
    let response = driver.node().node_get_capabilities(request).await?.into_inner();
    let has = |wanted: Rpc| {
        response
            .capabilities
            .iter()
            .any(|capability| matches!(&capability.r#type, Some(Type::Rpc(rpc)) if rpc.r#type() == wanted))
    };
    Ok(NodeCapabilities {
        stages: has(Rpc::StageUnstageVolume),
        single_node_multi_writer: has(Rpc::SingleNodeMultiWriter),
    })
}

/// The error of a mount whose NodeGetCapabilities call failed. MountDevice adds nothing to that of the call.
fn capabilities_error(spec: &MountSpec, staged: bool, status: &tonic::Status) -> String {
    let status = describe(status);
    let failed = if spec.ephemeral {
        "failed to determine if the node service has VOLUME_MOUNT_GROUP capability"
    } else if staged {
        "failed to check for STAGE_UNSTAGE_VOLUME capability"
    } else {
        return status;
    };
    format!("kubernetes.io/csi: mounter.SetUpAt {failed}: {status}")
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}

fn pod_info(pod: &Pod, ephemeral: bool) -> [(String, String); 5] {
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.clone());
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    [
        ("pod.name", text(&pod.metadata.name)),
        ("pod.namespace", text(&pod.metadata.namespace)),
        ("pod.uid", text(&pod.metadata.uid)),
        (
            "serviceAccount.name",
            account.unwrap_or_else(|| "default".to_owned()),
        ),
        ("ephemeral", ephemeral.to_string()),
    ]
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
}
