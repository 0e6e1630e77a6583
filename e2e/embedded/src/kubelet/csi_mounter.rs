//! Executes mount and unmount operations through the driver's Node service.

use std::collections::HashMap;
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::node_service_capability::Type;
use csi_proto::v1::node_service_capability::rpc::Type as Rpc;
use k8s_openapi::api::core::v1::{Node, Pod, SecretReference};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, Client};

use super::disk::{NodeDisk, VolumeData};
use super::mount_spec::MountSpec;
use super::operation_result::{Finished, Step};
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

/// Capabilities of a driver's Node service.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeCapabilities {
    pub stages: bool,
    single_node_multi_writer: bool,
    volume_mount_group: bool,
}

/// A client of one node's driver.
#[derive(Clone)]
pub(crate) struct CsiMounter {
    client: Client,
    node: String,
    driver: Option<(String, DriverConnection)>,
    pub(super) disk: NodeDisk,
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
        Finished::new(Outcome::NotAttachedYet)
    }

    /// Whether the attach failed because the node is at its attach limit.
    pub(super) async fn is_attach_limit_exceeded(&self, spec: &MountSpec) -> bool {
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

    async fn mount(&self, spec: &MountSpec, pod: &Pod, is_device_mounted: bool) -> Finished {
        let publish_context = match self.wait_for_attach(spec).await {
            Ok(context) => context,
            Err(error) => return Finished::failed(Outcome::Failed, Step::WaitForAttach, spec, &error),
        };
        if !is_device_mounted
            && !spec.ephemeral
            && let Err((outcome, error)) = self.mount_device(spec, pod, &publish_context).await
        {
            return Finished::failed(outcome, Step::MountDevice, spec, &error);
        }
        match self.set_up(spec, pod, publish_context).await {
            Ok(()) => Finished::new(Outcome::Done),
            Err((outcome, error)) => Finished::failed(outcome, Step::SetUp, spec, &error),
        }
    }

    /// Stages the volume if the driver has the capability: `MountDevice`, and `SetUpDevice` of a block volume.
    async fn mount_device(
        &self,
        spec: &MountSpec,
        pod: &Pod,
        publish_context: &HashMap<String, String>,
    ) -> Result<(), (Outcome, String)> {
        let failed = |error| (Outcome::Failed, error);
        let text = if spec.block {
            "blockMapper.SetUpDevice failed to get CSI client"
        } else {
            "attacher.MountDevice failed to create newCsiDriverClient"
        };
        let driver = self.driver_of(spec, text).map_err(failed)?;
        let capabilities = capabilities(&driver).await.map_err(|status| {
            // MountDevice adds nothing to the error of the call.
            let text = "blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability";
            failed(step_error(spec.block.then_some(text), &status))
        })?;
        if !capabilities.stages {
            return Ok(());
        }
        let secrets = self.secrets(spec, "", "NodeStageSecretRef", spec.stage_secret.as_ref());
        let secrets = secrets.await.map_err(failed)?;
        let path = self.disk.staging_path(spec);
        let data = VolumeData {
            spec: spec.clone(),
            pod: None,
        };
        let saved = self.disk.save(&path, data);
        saved.map_err(|error| failed(error.to_string()))?;
        let request = v1::NodeStageVolumeRequest {
            volume_id: spec.handle.clone(),
            publish_context: publish_context.clone(),
            staging_target_path: path.display().to_string(),
            volume_capability: Some(volume_capability(spec, pod, capabilities)),
            secrets,
            volume_context: spec.attributes.clone().into_iter().collect(),
        };
        driver
            .node()
            .node_stage_volume(request)
            .await
            .map(drop)
            .map_err(|status| {
                let is_final = is_final(status.code());
                let outcome = if is_final {
                    Outcome::NotStaged
                } else {
                    Outcome::StageUncertain
                };
                (outcome, describe(&status))
            })
    }

    /// Publishes the volume: `SetUp`, and `MapPodDevice` of a block volume.
    async fn set_up(
        &self,
        spec: &MountSpec,
        pod: &Pod,
        publish_context: HashMap<String, String>,
    ) -> Result<(), (Outcome, String)> {
        let failed = |error| (Outcome::PublishNotCalled, error);
        let text = if spec.block {
            "blockMapper.MapPodDevice failed to get CSI client"
        } else {
            "mounter.SetUpAt failed to get CSI client"
        };
        let driver = self.driver_of(spec, text).map_err(failed)?;
        if let (Some(why), false) = (&spec.unsupported, spec.block) {
            let text = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode";
            return Err(failed(format!("{text}: {why}")));
        }
        let capabilities = capabilities(&driver).await.map_err(|status| {
            let needed = match (spec.block, spec.ephemeral) {
                (true, _) => None,
                (false, false) => Some("mounter.SetUpAt failed to check for STAGE_UNSTAGE_VOLUME capability"),
                (false, true) => Some(
                    "mounter.SetUpAt failed to determine if the node service has VOLUME_MOUNT_GROUP capability",
                ),
            };
            failed(step_error(needed, &status))
        })?;
        let text = "blockMapper.publishVolumeForBlock ";
        let secrets = self.secrets(spec, text, "NodePublishSecretRef", spec.publish_secret.as_ref());
        let secrets = secrets.await.map_err(failed)?;
        let uid = pod::uid(pod);
        let path = self.disk.target_path(spec, uid);
        let data = VolumeData {
            spec: spec.clone(),
            pod: Some(uid.to_owned()),
        };
        // As upstream, where this error is final, unlike that of the Secret.
        let saved = self.disk.save(&path, data);
        saved.map_err(|error| (Outcome::NotPublished, error.to_string()))?;
        let mut volume_context: HashMap<_, _> = spec.attributes.clone().into_iter().collect();
        if spec.pod_info {
            volume_context.extend(pod_info(pod, spec.ephemeral));
        }
        // That of a block volume is set even if the driver does not stage.
        let is_staged = spec.block || (capabilities.stages && !spec.ephemeral);
        let staging_path = is_staged.then(|| self.disk.staging_path(spec).display().to_string());
        let request = v1::NodePublishVolumeRequest {
            volume_id: spec.handle.clone(),
            publish_context,
            staging_target_path: staging_path.unwrap_or_default(),
            target_path: path.display().to_string(),
            volume_capability: Some(volume_capability(spec, pod, capabilities)),
            readonly: spec.read_only,
            secrets,
            volume_context,
        };
        driver
            .node()
            .node_publish_volume(request)
            .await
            .map(drop)
            .map_err(|status| {
                let is_final = is_final(status.code());
                let outcome = if is_final {
                    Outcome::NotPublished
                } else {
                    Outcome::PublishUncertain
                };
                (outcome, describe(&status))
            })
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

    /// The data of the Secret in this field of the volume's source. `block_step` is upstream's name of a step in the error for a
    /// block volume.
    async fn secrets(
        &self,
        spec: &MountSpec,
        block_step: &str,
        field: &str,
        reference: Option<&SecretReference>,
    ) -> Result<HashMap<String, String>, String> {
        get_credentials(&self.client, reference, |name, namespace, error| {
            let cause = format!(
                "kubernetes.io/csi: failed to find the secret {name} in the namespace {namespace} with error: {error}"
            );
            if spec.block {
                format!("kubernetes.io/csi: {block_step}failed to get {field} {namespace}/{name}: {cause}")
            } else {
                format!("fetching {field} {namespace}/{name} failed: {cause}")
            }
        })
        .await
    }

    /// A client of the volume's driver for one step.
    ///
    /// # Errors
    /// Upstream's error, with the name of the step in `text`, if kubelet has not registered the driver.
    pub(super) fn driver_of(&self, spec: &MountSpec, text: &str) -> Result<DriverClient, String> {
        let registered = self.driver.iter().find(|(name, _)| *name == spec.driver);
        let (_, driver) = registered.ok_or_else(|| {
            let name = &spec.driver;
            format!("kubernetes.io/csi: {text}: driver name {name} not found in the list of registered CSI drivers")
        })?;
        Ok(driver.with_timeout(CSI_TIMEOUT))
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
        volume_mount_group: has(Rpc::VolumeMountGroup),
    })
}

/// The error of a call, after the text of the step that failed.
pub(super) fn step_error(text: Option<&str>, status: &tonic::Status) -> String {
    let status = describe(status);
    text.map_or_else(
        || status.clone(),
        |text| format!("kubernetes.io/csi: {text}: {status}"),
    )
}

/// The capability in a request. A driver with VOLUME_MOUNT_GROUP gets the pod's `fsGroup`.
fn volume_capability(spec: &MountSpec, pod: &Pod, capabilities: NodeCapabilities) -> v1::VolumeCapability {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let group = context.and_then(|context| context.fs_group);
    let group = group.filter(|_| capabilities.volume_mount_group);
    spec.capability(capabilities.single_node_multi_writer, group)
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
