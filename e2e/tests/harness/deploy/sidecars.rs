//! The third-party sidecars beside the attacher: their flags exist, they have the permissions that they need,
//! their ports do not conflict, and the driver implements the calls that only they send.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::{Cluster, manifest};
use csi_e2e::permissions::Permission;
use csi_e2e::toolchain::Validator;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::{
    CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, GetCapacityRequest, GetMetadataAllocatedRequest,
    GetPluginCapabilitiesRequest, plugin_capability,
};
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde::Deserialize;

use super::driver::{BYTES, RunningDriver, kind, provision, reaches_a_pod, whole_driver};
use super::program::FOREIGN;
use super::shape::{Shape, Workload};
use super::{image_name, of_kind};
use crate::Harness;

#[derive(Deserialize)]
struct SidecarFlags {
    flags: BTreeSet<String>,
    /// Feature gates.
    gates: BTreeSet<String>,
}

/// A sidecar that `deploy/` runs.
struct Sidecar {
    /// Image name.
    image: &'static str,
    /// Go module of its release, whose versions are the image's tags.
    module: &'static str,
    /// Files of the module that declare flags and feature gates.
    folders: &'static [&'static str],
    /// Permissions that its sources use beyond those that every driver's sidecar of this kind uses. Without
    /// them it would run without effect.
    needs: &'static [Need],
}

/// Permissions for one purpose.
struct Need {
    /// The argument that makes the sidecar use them; empty if it always does.
    given: &'static str,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
}

const SIDECARS: [Sidecar; 4] = [
    Sidecar {
        image: "csi-provisioner",
        module: "github.com/kubernetes-csi/external-provisioner/v6",
        folders: &["cmd/csi-provisioner", "pkg/features"],
        needs: &[
            need("", "persistentvolumes", &["create", "patch", "delete"]),
            Need {
                given: "--enable-capacity",
                group: "storage.k8s.io",
                resource: "csistoragecapacities",
                verbs: &["list", "watch", "create", "update", "delete"],
            },
            // From the pod through its ReplicaSet to the Deployment.
            Need {
                given: "--capacity-ownerref-level=2",
                ..need("", "pods", &["get"])
            },
            Need {
                given: "--capacity-ownerref-level=2",
                ..need("apps", "replicasets", &["get"])
            },
        ],
    },
    Sidecar {
        image: "csi-resizer",
        module: "github.com/kubernetes-csi/external-resizer/v2",
        folders: &["cmd/csi-resizer"],
        needs: &[
            need("", "persistentvolumes", &["patch"]),
            need("", "persistentvolumeclaims/status", &["patch"]),
        ],
    },
    Sidecar {
        image: "csi-snapshotter",
        module: "github.com/kubernetes-csi/external-snapshotter/v8",
        folders: &["cmd/csi-snapshotter", "pkg/features"],
        needs: &[
            need(SNAPSHOTS, "volumesnapshotcontents", &["list", "watch", "patch"]),
            need(SNAPSHOTS, "volumesnapshotcontents/status", &["update", "patch"]),
            Need {
                given: GROUPS_GATE,
                ..need(GROUPS, "volumegroupsnapshotclasses", &["list", "watch"])
            },
            Need {
                given: GROUPS_GATE,
                ..need(
                    GROUPS,
                    "volumegroupsnapshotcontents",
                    &["get", "list", "watch", "patch"],
                )
            },
            Need {
                given: GROUPS_GATE,
                ..need(GROUPS, "volumegroupsnapshotcontents/status", &["update", "patch"])
            },
        ],
    },
    Sidecar {
        image: METADATA,
        module: "github.com/kubernetes-csi/external-snapshot-metadata",
        folders: &["pkg/sidecar"],
        needs: &[
            need("cbt.storage.k8s.io", "snapshotmetadataservices", &["get"]),
            need("authentication.k8s.io", "tokenreviews", &["create"]),
            need("authorization.k8s.io", "subjectaccessreviews", &["create"]),
            need(SNAPSHOTS, "volumesnapshots", &["get"]),
            need(SNAPSHOTS, "volumesnapshotcontents", &["get"]),
            need(SNAPSHOTS, "volumesnapshotclasses", &["get", "list"]),
        ],
    },
];
/// Name of the image that serves snapshot metadata.
pub(super) const METADATA: &str = "csi-snapshot-metadata";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const GROUPS: &str = "groupsnapshot.storage.k8s.io";
const GROUPS_GATE: &str = "--feature-gates=CSIVolumeGroupSnapshot=true";
/// Flags with a port.
const PORT_FLAGS: [&str; 3] = ["--health-endpoint=:", "--http-endpoint=:", "--port="];

const fn need(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Need {
    Need {
        given: "",
        group,
        resource,
        verbs,
    }
}

trials! { "deploy":
    sidecars_support_their_flags,
    containers_of_a_pod_listen_at_different_ports,
    driver_implements_the_calls_of_its_sidecars,
}

/// Reads the sources of the image's version, which must exist.
async fn sidecars_support_their_flags(harness: Arc<Harness>) -> Result<()> {
    let mut used: BTreeMap<(&str, String), BTreeSet<String>> = BTreeMap::new();
    for shape in Shape::all()? {
        for workload in shape.workloads(&harness).await? {
            for container in workload.containers() {
                let image = container.image.as_deref().unwrap_or_default();
                let (name, version) = image_name(image);
                // Another test runs the Go attacher itself.
                if !image.starts_with(FOREIGN) || name == "csi-attacher" {
                    continue;
                }
                let sidecar = sidecar_of(container);
                let sidecar = sidecar.with_context(|| format!("{shape}: {image} is missing in SIDECARS"))?;
                let version = version.with_context(|| format!("{shape}: {image} must have a version"))?;
                used.entry((sidecar.image, version.to_owned()))
                    .or_default()
                    .extend(container.args.iter().flatten().cloned());
            }
        }
    }
    let run: BTreeSet<_> = used.keys().map(|(image, _)| *image).collect();
    ensure!(
        SIDECARS.iter().all(|sidecar| run.contains(sidecar.image)),
        "only {run:?} are run"
    );
    for ((image, version), args) in used {
        let mut sidecars = SIDECARS.iter();
        let sidecar = sidecars.find(|sidecar| sidecar.image == image);
        let sidecar = sidecar.expect("the loop above collects only known sidecars");
        let release = format!("{}@{version}", sidecar.module);
        let sources = [&[release.as_str()], sidecar.folders].concat();
        let known = harness.toolchain.read(Validator::SidecarFlags, &sources, "");
        let known: SidecarFlags = known.await?;
        for arg in args {
            let (flag, value) = arg.split_once('=').unwrap_or((&arg, ""));
            let name = flag.trim_start_matches('-');
            ensure!(known.flags.contains(name), "{release} does not support {flag}");
            let gates = value.split(',').filter(|_| name == "feature-gates");
            for gate in gates {
                let (gate, _) = gate.split_once('=').with_context(|| format!("{image}: {arg}"))?;
                ensure!(
                    known.gates.contains(gate),
                    "{release} does not support the gate {gate}"
                );
            }
        }
    }
    Ok(())
}

/// The containers share one network namespace: a program whose port is taken exits, and restarts forever.
async fn containers_of_a_pod_listen_at_different_ports(harness: Arc<Harness>) -> Result<()> {
    let mut most = 0;
    for shape in Shape::all()? {
        for workload in shape.workloads(&harness).await? {
            let mut taken = BTreeMap::new();
            for container in workload.containers() {
                let what = format!("{shape}: {}, container {}", workload.name, container.name);
                let configured: BTreeSet<i32> = container
                    .args
                    .iter()
                    .flatten()
                    .filter_map(|arg| PORT_FLAGS.iter().find_map(|flag| arg.strip_prefix(flag)))
                    .map(|port| port.parse().with_context(|| format!("{what}: port {port}")))
                    .collect::<Result<_>>()?;
                let declared: BTreeSet<i32> = container
                    .ports
                    .iter()
                    .flatten()
                    .map(|port| port.container_port)
                    .collect();
                ensure!(
                    configured == declared || !is_own_image(container),
                    "{what} listens on {configured:?} and declares {declared:?}"
                );
                for port in declared {
                    let other = taken.insert(port, container.name.clone());
                    ensure!(other.is_none(), "{what} and {other:?} use port {port}");
                }
            }
            most = most.max(taken.len());
        }
    }
    ensure!(
        most >= 3,
        "no pod has more than {most} ports, so no ports were compared"
    );
    Ok(())
}

/// Whether all ports of the container are named by flags that are known here.
fn is_own_image(container: &Container) -> bool {
    let (name, _) = image_name(container.image.as_deref().unwrap_or_default());
    name == "csi-attacher" || sidecar_of(container).is_some()
}

/// Permissions of the pod's account in the namespace to which it was applied.
pub(super) async fn may_do_their_work(cluster: &Cluster, namespace: &str, workload: &Workload) -> Result<()> {
    let account = workload
        .template
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.clone());
    let account = account.context("the pods must have an account of their own")?;
    for container in workload.containers() {
        let Some(sidecar) = sidecar_of(container) else {
            continue;
        };
        let args = container.args.clone().unwrap_or_default();
        let needs = sidecar.needs.iter();
        for need in needs.filter(|need| need.given.is_empty() || args.iter().any(|arg| arg == need.given)) {
            for verb in need.verbs {
                let right = Permission {
                    verb: (*verb).to_owned(),
                    group: need.group.to_owned(),
                    resource: need.resource.to_owned(),
                };
                cluster
                    .wait_until_granted(namespace, &account, Some(namespace), &right, true)
                    .await
                    .with_context(|| format!("of {}", container.name))?;
            }
        }
    }
    Ok(())
}

fn sidecar_of(container: &Container) -> Option<&'static Sidecar> {
    let image = container.image.as_deref().unwrap_or_default();
    let mut sidecars = SIDECARS.iter();
    sidecars.find(|sidecar| image.starts_with(FOREIGN) && image_name(image).0 == sidecar.image)
}

/// GetCapacity for each class and the node's topology, a group snapshot, and the allocated blocks of a
/// snapshot.
async fn driver_implements_the_calls_of_its_sidecars(harness: Arc<Harness>) -> Result<()> {
    let objects = manifest::parse(&whole_driver().build(&harness).await?)?;
    let driver = RunningDriver::start(&harness, "called").await?;
    let classes = of_kind::<StorageClass>(&objects, "StorageClass")?;
    let late: Vec<_> = classes
        .iter()
        .filter(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
        .collect();
    let class = *late.first().context("a class must wait for the scheduler")?;
    for class in late {
        // As the sidecar does, with all parameters of the class, including the sidecar's own.
        let request = GetCapacityRequest {
            parameters: class.parameters.clone().unwrap_or_default().into_iter().collect(),
            accessible_topology: Some(driver.info.accessible_topology.clone().unwrap_or_default()),
            ..GetCapacityRequest::default()
        };
        let left = driver.controller().get_capacity(request).await?.into_inner();
        let largest = left.maximum_volume_size.unwrap_or_default();
        ensure!(
            left.available_capacity >= BYTES && largest >= BYTES,
            "the scheduler would find no capacity for {}: {left:?}",
            class.name_any()
        );
    }

    let mut groups = 0;
    for snapshots in objects
        .iter()
        .filter(|object| kind(object) == "VolumeGroupSnapshotClass")
    {
        let mut source_volume_ids = Vec::new();
        for is_block in [false, true] {
            source_volume_ids.push(provision(&driver, class, is_block, None).await?.id);
        }
        let parameters = snapshots.data.get("parameters").cloned().unwrap_or_default();
        let request = CreateVolumeGroupSnapshotRequest {
            name: "groupsnapshot".to_owned(),
            source_volume_ids,
            parameters: serde_json::from_value(parameters).unwrap_or_default(),
            ..CreateVolumeGroupSnapshotRequest::default()
        };
        let taken = GroupControllerClient::new(driver.identity.clone())
            .create_volume_group_snapshot(request)
            .await?
            .into_inner()
            .group_snapshot;
        let taken = taken.context("the response must have a group snapshot")?;
        ensure!(taken.snapshots.len() == 2, "{taken:?}");
        groups += 1;
    }
    ensure!(groups > 0, "there is no VolumeGroupSnapshotClass");

    lists_allocated_blocks(&driver, class).await?;
    driver.stop().await
}

/// GetMetadataAllocated lists a written block.
async fn lists_allocated_blocks(driver: &RunningDriver, class: &StorageClass) -> Result<()> {
    let offered = IdentityClient::new(driver.identity.clone())
        .get_plugin_capabilities(GetPluginCapabilitiesRequest {})
        .await?
        .into_inner()
        .capabilities;
    let is_served = offered.iter().any(|capability| {
        let service = plugin_capability::service::Type::SnapshotMetadataService;
        matches!(&capability.r#type, Some(plugin_capability::Type::Service(offered)) if offered.r#type() == service)
    });
    ensure!(is_served, "the sidecar would exit: {offered:?}");
    let volume = provision(driver, class, true, None).await?;
    let device = reaches_a_pod(driver, &volume).await?;
    let mut disk = std::fs::OpenOptions::new()
        .write(true)
        .open(&device)
        .with_context(|| format!("open {}", device.display()))?;
    disk.write_all(&[1; 4096])?;
    disk.sync_all()?;
    let request = CreateSnapshotRequest {
        source_volume_id: volume.id,
        name: "backup".to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let taken = driver.controller().create_snapshot(request).await?.into_inner();
    let snapshot_id = taken
        .snapshot
        .context("the response must have a snapshot")?
        .snapshot_id;
    let request = GetMetadataAllocatedRequest {
        snapshot_id,
        ..GetMetadataAllocatedRequest::default()
    };
    let mut blocks = SnapshotMetadataClient::new(driver.identity.clone())
        .get_metadata_allocated(request)
        .await?
        .into_inner();
    let mut starts = Vec::new();
    while let Some(message) = blocks.message().await? {
        starts.extend(message.block_metadata.iter().map(|block| block.byte_offset));
    }
    ensure!(
        starts.first() == Some(&0),
        "the written block is not listed: {starts:?}"
    );
    Ok(())
}
