//! Runs the mock driver as in its overlay: controller and node have the overlay's flags and mounted directories, below one
//! directory that acts as a node's root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::manifest;
use csi_e2e::driver::connect;
use csi_e2e::process::{Process, Spec, stdout_of};
use csi_e2e::wait::{self, Progress};
use csi_proto::registration::registration_client::RegistrationClient;
use csi_proto::registration::{InfoRequest, RegistrationStatus};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::volume_content_source::{SnapshotSource, Type};
use csi_proto::v1::{
    CapacityRange, ControllerModifyVolumeRequest, ControllerPublishVolumeRequest, CreateSnapshotRequest,
    CreateVolumeRequest, GetPluginInfoRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    NodePublishVolumeRequest, NodeStageVolumeRequest, TopologyRequirement, VolumeCapability,
    VolumeContentSource,
};
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttributesClass};
use kube::ResourceExt;
use kube::api::DynamicObject;
use tokio::process::Command;
use tonic::transport::Channel;

use super::program::{NODE, expanded};
use super::shape::{Shape, Workload};
use super::{DEADLINE, kinds, of_kind};
use crate::Harness;

/// Prefix of StorageClass parameters for the sidecar.
const FOR_THE_SIDECAR: &str = "csi.storage.k8s.io/";
/// Kubelet's plugin registration directory.
const REGISTRY: &str = "var/lib/kubelet/plugins_registry";
/// Large enough for each filesystem.
pub(super) const BYTES: i64 = 512 << 20;

trials! { "deploy":
    mock_driver_serves_its_classes_on_controller_and_node,
    examples_are_accepted_and_name_existing_classes,
    startup_probes_of_the_driver_outlast_its_lock_timeout,
    nodes_of_kind_share_the_folder_that_the_driver_uses,
}

/// Default of the driver's `--lock-timeout`, in seconds.
const LOCK_TIMEOUT: i32 = 60;

/// The driver binds its admin socket, which the probes use, only after it has its locks. The charts have the same probes, which
/// another test compares.
async fn startup_probes_of_the_driver_outlast_its_lock_timeout(harness: Arc<Harness>) -> Result<()> {
    let mut checked = 0;
    for shape in Shape::all()? {
        for workload in shape.workloads(&harness).await? {
            for image in ["csi-mock-driver", "csi-mock-driver-node"] {
                let Some(container) = workload.container_of_image(image) else {
                    continue;
                };
                let what = format!("{shape}: {}, container {}", workload.name, container.name);
                let mut args = container.args.iter().flatten();
                ensure!(
                    !args.any(|arg| arg.starts_with("--lock-timeout")),
                    "{what} has its own --lock-timeout, which this test does not read"
                );
                if container.liveness_probe.is_none() {
                    continue;
                }
                let probe = container.startup_probe.as_ref();
                let probe = probe.with_context(|| format!("{what} has no startupProbe"))?;
                let lasts = probe.period_seconds.unwrap_or(10) * probe.failure_threshold.unwrap_or(3);
                ensure!(
                    lasts > LOCK_TIMEOUT,
                    "{what}: the startupProbe fails after {lasts} s, before --lock-timeout ({LOCK_TIMEOUT} s)"
                );
                checked += 1;
            }
        }
    }
    ensure!(checked >= 2, "controller and node must have been checked");
    Ok(())
}

/// The overlay with all layers.
pub(super) fn whole_driver() -> Shape {
    Shape::overlay("mock-driver-snapshot-metadata")
}

/// A running controller and node.
pub(super) struct RunningDriver {
    controller: Process,
    node: Process,
    pub(super) identity: Channel,
    pub(super) node_channel: Channel,
    pub(super) info: NodeGetInfoResponse,
    root: PathBuf,
}

// === impl RunningDriver ===

impl RunningDriver {
    /// Starts both and acts as kubelet until the node is registered.
    pub(super) async fn start(harness: &Harness, name: &str) -> Result<Self> {
        let root = harness.run.subdir(name)?;
        std::fs::create_dir_all(root.join(REGISTRY))?;
        let workloads = whole_driver().workloads(harness).await?;
        let program = harness.toolchain.csi_mock_driver().await?;
        let pod = |image: &str| {
            let mut pods = workloads
                .iter()
                .filter_map(|workload| Some((workload, workload.container_of_image(image)?)));
            pods.next().with_context(|| format!("no container runs {image}"))
        };
        let (deployment, driver) = pod("csi-mock-driver")?;
        let controller = spawn(harness, &root, "controller", &program, deployment, driver)?;
        let socket = flag(&root, deployment, driver, "--endpoint")?;
        controller.while_alive(appears(&socket)).await?;
        for probe in [&driver.startup_probe, &driver.liveness_probe] {
            let command = probe.as_ref().and_then(|probe| probe.exec.as_ref());
            let command = command.and_then(|exec| exec.command.clone());
            let command = command.context("the controller must have probes that run a command")?;
            let probed = probe_until_success(&root, &program, deployment, driver, &command);
            controller.while_alive(probed).await?;
        }
        let identity = connect(socket);

        let (set, driver) = pod("csi-mock-driver-node")?;
        let node = spawn(harness, &root, "node", &program, set, driver)?;
        let probe = driver
            .liveness_probe
            .as_ref()
            .and_then(|probe| probe.exec.as_ref());
        let command = probe.and_then(|exec| exec.command.clone());
        let command = command.context("the node must have a probe that runs a command")?;
        let registered = register(&root);
        let node_channel = node.while_alive(registered).await?;
        let probed = probe_until_success(&root, &program, set, driver, &command);
        node.while_alive(probed).await?;
        let info = NodeClient::new(node_channel.clone())
            .node_get_info(NodeGetInfoRequest {})
            .await
            .context("call NodeGetInfo")?
            .into_inner();
        Ok(Self {
            controller,
            node,
            identity,
            node_channel,
            info,
            root,
        })
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.node.stop(DEADLINE).await?;
        self.controller.stop(DEADLINE).await?;
        Ok(())
    }

    pub(super) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.identity.clone())
    }
}

/// The driver supports every StorageClass, a volume of each reaches a pod's path, and all objects use the
/// driver's name.
async fn mock_driver_serves_its_classes_on_controller_and_node(harness: Arc<Harness>) -> Result<()> {
    let objects = manifest::parse(&whole_driver().build(&harness).await?)?;
    let driver = RunningDriver::start(&harness, "mock").await?;
    let name = IdentityClient::new(driver.identity.clone())
        .get_plugin_info(GetPluginInfoRequest {})
        .await?
        .into_inner()
        .name;
    ensure!(driver.info.node_id == NODE, "{:?}", driver.info);
    for declared in of_kind::<CSIDriver>(&objects, "CSIDriver")? {
        ensure!(
            declared.name_any() == name,
            "{} is not {name}",
            declared.name_any()
        );
    }

    let classes = of_kind::<StorageClass>(&objects, "StorageClass")?;
    ensure!(classes.len() >= 2, "there are {} classes", classes.len());
    for class in &classes {
        ensure!(
            class.provisioner == name,
            "{} is of {}",
            class.name_any(),
            class.provisioner
        );
        for is_block in [false, true] {
            let volume = provision(&driver, class, is_block, None).await;
            let volume = volume.with_context(|| format!("a volume of class {}", class.name_any()))?;
            reaches_a_pod(&driver, &volume).await?;
        }
    }

    let class = classes.first().context("there must be a class")?;
    for snapshots in objects
        .iter()
        .filter(|object| kind(object) == "VolumeSnapshotClass")
    {
        ensure!(snapshots.data["driver"] == name, "{snapshots:?}");
        let source = provision(&driver, class, false, None).await?;
        let parameters = snapshots.data.get("parameters").cloned().unwrap_or_default();
        let request = CreateSnapshotRequest {
            source_volume_id: source.id,
            name: "snapshot".to_owned(),
            parameters: serde_json::from_value(parameters).unwrap_or_default(),
            ..CreateSnapshotRequest::default()
        };
        let taken = driver
            .controller()
            .create_snapshot(request)
            .await?
            .into_inner()
            .snapshot;
        let snapshot_id = taken.context("the response must have a snapshot")?.snapshot_id;
        let restored = provision(&driver, class, false, Some(snapshot_id)).await?;
        reaches_a_pod(&driver, &restored).await?;
    }

    let tiers = std::fs::read_to_string(examples()?.join("tiers.yaml"))?;
    let tiers = of_kind::<VolumeAttributesClass>(&manifest::parse(&tiers)?, "VolumeAttributesClass")?;
    ensure!(
        tiers.len() >= 2,
        "at least two VolumeAttributesClasses are needed"
    );
    let volume = provision(&driver, class, false, None).await?;
    for tier in tiers {
        ensure!(
            tier.driver_name == name,
            "{} is of {}",
            tier.name_any(),
            tier.driver_name
        );
        let request = ControllerModifyVolumeRequest {
            volume_id: volume.id.clone(),
            mutable_parameters: tier.parameters.clone().unwrap_or_default().into_iter().collect(),
            ..ControllerModifyVolumeRequest::default()
        };
        let changed = driver.controller().controller_modify_volume(request).await;
        changed.with_context(|| format!("change a volume to {}", tier.name_any()))?;
    }
    driver.stop().await
}

/// A volume that was created for a claim.
pub(super) struct Provisioned {
    pub(super) id: String,
    context: BTreeMap<String, String>,
    capability: VolumeCapability,
}

/// Creates a volume as the provisioner does for a claim.
pub(super) async fn provision(
    driver: &RunningDriver,
    class: &StorageClass,
    is_block: bool,
    snapshot: Option<String>,
) -> Result<Provisioned> {
    let parameters = class.parameters.clone().unwrap_or_default();
    let (own, mut given): (BTreeMap<_, _>, BTreeMap<_, _>) = parameters
        .into_iter()
        .partition(|(key, _)| key.starts_with(FOR_THE_SIDECAR));
    let unknown: Vec<_> = own.keys().filter(|key| !key.ends_with("/fstype")).collect();
    ensure!(
        unknown.is_empty(),
        "this test does not support the sidecar's {unknown:?}"
    );
    // By --extra-create-metadata.
    for what in ["pvc/name", "pvc/namespace", "pv/name"] {
        given.insert(format!("{FOR_THE_SIDECAR}{what}"), "a-name".to_owned());
    }
    let fs_type = own.get(&format!("{FOR_THE_SIDECAR}fstype")).cloned();
    let capability = VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeMultiWriter.into(),
        }),
        access_type: Some(if is_block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: fs_type.unwrap_or_default(),
                ..MountVolume::default()
            })
        }),
    };
    let here = driver.info.accessible_topology.clone().unwrap_or_default();
    let request = CreateVolumeRequest {
        name: format!(
            "pvc-{}-{is_block}-{}",
            class.name_any(),
            snapshot.as_deref().unwrap_or_default()
        ),
        capacity_range: Some(CapacityRange {
            required_bytes: BYTES,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![capability.clone()],
        parameters: given.into_iter().collect(),
        volume_content_source: snapshot.map(|snapshot_id| VolumeContentSource {
            r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })),
        }),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![here.clone()],
            preferred: vec![here],
        }),
        ..CreateVolumeRequest::default()
    };
    let made = driver.controller().create_volume(request).await?.into_inner();
    let made = made.volume.context("the response must have a volume")?;
    Ok(Provisioned {
        id: made.volume_id,
        context: made.volume_context.into_iter().collect(),
        capability,
    })
}

/// Attaches, stages and publishes at kubelet's paths, and returns the pod's path. The paths must be mounted
/// into the node's container, or the mounts would not be visible.
pub(super) async fn reaches_a_pod(driver: &RunningDriver, volume: &Provisioned) -> Result<PathBuf> {
    let attach = ControllerPublishVolumeRequest {
        volume_id: volume.id.clone(),
        node_id: driver.info.node_id.clone(),
        volume_capability: Some(volume.capability.clone()),
        volume_context: volume.context.clone().into_iter().collect(),
        ..ControllerPublishVolumeRequest::default()
    };
    let attached = driver.controller().controller_publish_volume(attach).await;
    let publish_context = attached.context("attach it")?.into_inner().publish_context;
    let staging = driver
        .root
        .join("var/lib/kubelet/plugins/kubernetes.io/csi")
        .join(&volume.id);
    let pod = driver.root.join("var/lib/kubelet/pods").join(&volume.id);
    std::fs::create_dir_all(&staging)?;
    std::fs::create_dir_all(&pod)?;
    let mut node = NodeClient::new(driver.node_channel.clone());
    let stage = NodeStageVolumeRequest {
        volume_id: volume.id.clone(),
        publish_context: publish_context.clone(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(volume.capability.clone()),
        volume_context: volume.context.clone().into_iter().collect(),
        ..NodeStageVolumeRequest::default()
    };
    node.node_stage_volume(stage).await.context("stage it")?;
    let target = pod.join("mount");
    let publish = NodePublishVolumeRequest {
        volume_id: volume.id.clone(),
        publish_context,
        staging_target_path: staging.display().to_string(),
        target_path: target.display().to_string(),
        volume_capability: Some(volume.capability.clone()),
        volume_context: volume.context.clone().into_iter().collect(),
        ..NodePublishVolumeRequest::default()
    };
    node.node_publish_volume(publish).await.context("publish it")?;
    ensure!(target.exists(), "nothing is at {}", target.display());
    Ok(target)
}

/// The API server accepts the objects in any namespace, and the objects that they refer to exist.
async fn examples_are_accepted_and_name_existing_classes(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    kinds::install(cluster).await?;
    cluster.create_namespace("deploy-examples").await?;
    let mut known: Vec<DynamicObject> = manifest::parse(&whole_driver().build(&harness).await?)?;
    let mut written = Vec::new();
    for entry in std::fs::read_dir(examples()?)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let objects = manifest::parse(&text).with_context(|| path.display().to_string())?;
        for object in &objects {
            let mut placed = object.clone();
            if kind(object) != "VolumeAttributesClass" {
                placed.metadata.namespace = Some("deploy-examples".to_owned());
            }
            let placed = serde_saphyr::to_string(&placed)?;
            let taken = cluster.check(&placed).await;
            taken.with_context(|| format!("{}: {}", path.display(), object.name_any()))?;
        }
        known.extend(objects.iter().cloned());
        written.push((path, objects));
    }
    ensure!(written.len() >= 5, "there are {} examples", written.len());
    let known: Vec<_> = known
        .iter()
        .map(|object| (kind(object), object.name_any()))
        .collect();
    for (path, objects) in written {
        for object in &objects {
            for (kind, name) in named(object) {
                ensure!(
                    known.contains(&(kind.to_owned(), name.clone())),
                    "{}: there is no {kind} {name}",
                    path.display()
                );
            }
        }
    }
    Ok(())
}

/// References of an object, by kind.
fn named(object: &DynamicObject) -> Vec<(&'static str, String)> {
    let spec = &object.data["spec"];
    let mut named = Vec::new();
    let mut name = |kind: &'static str, value: &serde_json::Value| {
        named.extend(value.as_str().map(|value| (kind, value.to_owned())));
    };
    name("StorageClass", &spec["storageClassName"]);
    name("VolumeAttributesClass", &spec["volumeAttributesClassName"]);
    name("VolumeSnapshotClass", &spec["volumeSnapshotClassName"]);
    name("VolumeGroupSnapshotClass", &spec["volumeGroupSnapshotClassName"]);
    name(
        "PersistentVolumeClaim",
        &spec["source"]["persistentVolumeClaimName"],
    );
    match spec["dataSource"]["kind"].as_str() {
        Some("VolumeSnapshot") => name("VolumeSnapshot", &spec["dataSource"]["name"]),
        Some("PersistentVolumeClaim") => name("PersistentVolumeClaim", &spec["dataSource"]["name"]),
        Some(_) | None => {}
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        name(
            "PersistentVolumeClaim",
            &volume["persistentVolumeClaim"]["claimName"],
        );
        name("CSIDriver", &volume["csi"]["driver"]);
    }
    named
}

async fn nodes_of_kind_share_the_folder_that_the_driver_uses(harness: Arc<Harness>) -> Result<()> {
    let file = csi_e2e::toolchain::workspace_root().join("deploy/kind/cluster.yaml");
    let cluster: serde_json::Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
    let nodes = cluster["nodes"].as_array().context("a cluster must have nodes")?;
    ensure!(nodes.len() >= 2, "the array needs at least two nodes");
    let first = nodes[0]["extraMounts"].clone();
    ensure!(nodes.iter().all(|node| node["extraMounts"] == first), "{cluster}");
    for workload in whole_driver().workloads(&harness).await? {
        let volumes = workload.template.spec.clone().and_then(|spec| spec.volumes);
        let array = volumes
            .into_iter()
            .flatten()
            .find(|volume| volume.name == "array");
        let array = array.and_then(|volume| volume.host_path);
        let array = array.with_context(|| format!("{} must have the array's folder", workload.name))?;
        ensure!(
            first[0]["containerPath"] == array.path,
            "{first} is not {}",
            array.path
        );
    }
    Ok(())
}

// === a node's root ===

/// Starts a container's program with its paths below `root`.
fn spawn(
    harness: &Harness,
    root: &Path,
    name: &str,
    program: &Path,
    workload: &Workload,
    container: &Container,
) -> Result<Process> {
    let mut command = Spec::new(name, program).dir(root);
    for arg in expanded(container)? {
        // Not every machine has loop devices, and this test does not need them.
        let arg = arg.replace("--devices=loop", "--devices=emulated");
        command = command.arg(on_the_node(root, workload, container, &arg)?);
    }
    Process::spawn(&harness.run, command)
}

/// Runs the command of a probe until it succeeds, as kubelet does: the driver may not answer it as soon as its socket appears.
async fn probe_until_success(
    root: &Path,
    program: &Path,
    workload: &Workload,
    container: &Container,
    command: &[String],
) -> Result<()> {
    let (first, words) = command.split_first().context("a probe must have a command")?;
    ensure!(first == "/csi-mock-driver", "{first} is not in the image");
    let mut variables = Vec::new();
    for variable in container.env.iter().flatten() {
        if let Some(value) = &variable.value {
            variables.push((&variable.name, on_the_node(root, workload, container, value)?));
        }
    }
    let what = format!("a probe of {} to succeed", workload.name);
    wait::poll(DEADLINE, &what, || async {
        let mut process = Command::new(program);
        process
            .args(words)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        Ok(match stdout_of(&mut process).await {
            Ok(_) => Progress::Reached(()),
            Err(error) => Progress::Pending(format!("{error:#}")),
        })
    })
    .await
}

/// The path in a flag.
fn flag(root: &Path, workload: &Workload, container: &Container, name: &str) -> Result<PathBuf> {
    let args = expanded(container)?;
    let value = args.iter().find_map(|arg| arg.strip_prefix(&format!("{name}=")));
    let value = value.with_context(|| format!("{} must have {name}", workload.name))?;
    let moved = on_the_node(root, workload, container, value)?;
    Ok(PathBuf::from(moved.trim_start_matches("unix://")))
}

/// Replaces a container path in a text by the node's path. A path on no volume is lost with the container.
fn on_the_node(root: &Path, workload: &Workload, container: &Container, text: &str) -> Result<String> {
    let Some(start) = text
        .find("=/")
        .map(|at| at + 1)
        .or_else(|| text.find("///").map(|at| at + 2))
    else {
        return Ok(text.to_owned());
    };
    let path = Path::new(&text[start..]);
    let mounts = container.volume_mounts.iter().flatten();
    let mount = mounts
        .filter(|mount| path.starts_with(&mount.mount_path))
        .max_by_key(|mount| mount.mount_path.len());
    let mount = mount.with_context(|| format!("{}: {text} is on no volume", workload.name))?;
    let volumes = workload
        .template
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.into_iter().find(|volume| volume.name == mount.name);
    let volume = volume.with_context(|| format!("{}: there is no volume {}", workload.name, mount.name))?;
    let outside = match &volume.host_path {
        Some(host) => root.join(host.path.trim_start_matches('/')),
        None => root.join(&volume.name),
    };
    std::fs::create_dir_all(&outside)?;
    let below = path.strip_prefix(&mount.mount_path)?;
    Ok(format!("{}{}", &text[..start], outside.join(below).display()))
}

async fn appears(path: &Path) -> Result<()> {
    wait::poll(DEADLINE, &format!("{} to appear", path.display()), || async {
        Ok(Progress::of(path.exists(), || "it does not exist".to_owned()))
    })
    .await
}

/// Acts as kubelet when a socket appears in the registration directory: calls GetInfo and connects to the
/// endpoint in the response.
async fn register(root: &Path) -> Result<Channel> {
    let registry = root.join(REGISTRY);
    let socket = wait::poll(DEADLINE, "the node to register", || async {
        Ok(match std::fs::read_dir(&registry)?.next() {
            Some(entry) => Progress::Reached(entry?.path()),
            None => Progress::Pending(format!("{} is empty", registry.display())),
        })
    })
    .await?;
    let mut plugin = RegistrationClient::new(connect(socket));
    let info = plugin.get_info(InfoRequest {}).await?.into_inner();
    ensure!(info.r#type == "CSIPlugin", "{info:?}");
    let endpoint = PathBuf::from(&info.endpoint);
    ensure!(
        endpoint.starts_with(root.join("var/lib/kubelet/plugins").join(&info.name)),
        "{} is not where drivers' sockets are",
        info.endpoint
    );
    appears(&endpoint).await?;
    let taken = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    plugin.notify_registration_status(taken).await?;
    Ok(connect(endpoint))
}

fn examples() -> Result<PathBuf> {
    Ok(csi_e2e::toolchain::workspace_root()
        .join("deploy/examples")
        .canonicalize()?)
}

pub(super) fn kind(object: &DynamicObject) -> String {
    object.types.clone().unwrap_or_default().kind
}
