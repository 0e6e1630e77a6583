//! The driver's description for Kubernetes' storage tests uses field names of the suite, and matches the
//! driver's capabilities.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use csi_e2e::cluster::manifest;
use csi_e2e::toolchain::{Validator, workspace_root};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::controller_service_capability::rpc::Type as Controller;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::node_service_capability::rpc::Type as Node;
use csi_proto::v1::plugin_capability::service::Type as Service;
use csi_proto::v1::plugin_capability::volume_expansion::Type as Expansion;
use csi_proto::v1::{
    ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest, NodeGetCapabilitiesRequest,
    controller_service_capability, node_service_capability, plugin_capability,
};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec};
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

use super::driver::{RunningDriver, whole_driver};
use super::of_kind;
use crate::Harness;

/// The test driver definition of the suite.
#[derive(Deserialize)]
struct StorageSuite {
    fields: Fields,
    capabilities: Vec<String>,
}

/// Fields by name, with their subfields.
#[derive(Deserialize)]
struct Fields(BTreeMap<String, Option<Self>>);

trials! { "deploy":
    testdriver_yaml_matches_the_drivers_capabilities,
}

async fn testdriver_yaml_matches_the_drivers_capabilities(harness: Arc<Harness>) -> Result<()> {
    let text = std::fs::read_to_string(workspace_root().join("deploy/e2e-suite/testdriver.yaml"))?;
    let description: Value = serde_saphyr::from_str(&text)?;
    // In the control plane's version of Kubernetes.
    let suite = harness
        .toolchain
        .read(Validator::StorageSuite, &["e2e/control-plane"], "");
    let suite: StorageSuite = suite.await?;
    ensure_known_fields(&suite.fields, &description, "")?;
    let info = &description["DriverInfo"];
    let claimed: BTreeMap<String, bool> = serde_json::from_value(info["Capabilities"].clone())?;
    for name in claimed.keys() {
        ensure!(
            suite.capabilities.contains(name),
            "the suite has no capability {name}"
        );
    }
    let missing: Vec<_> = suite
        .capabilities
        .iter()
        .filter(|name| !claimed.contains_key(*name))
        .collect();
    ensure!(missing.is_empty(), "capabilities without a value: {missing:?}");

    let objects = manifest::parse(&whole_driver().build(&harness).await?)?;
    let declared = of_kind::<CSIDriver>(&objects, "CSIDriver")?;
    let declared = declared.first().context("there must be a CSIDriver")?;
    ensure!(
        info["Name"] == declared.name_any(),
        "{} is not {}",
        info["Name"],
        declared.name_any()
    );
    let sidecars: BTreeSet<String> = whole_driver()
        .workloads(&harness)
        .await?
        .iter()
        .flat_map(|workload| workload.containers())
        .map(|container| format!("{} {:?}", container.name, container.args))
        .collect();
    let driver = RunningDriver::start(&harness, "described").await?;
    let offered = Offered::by(&driver).await?;
    for (name, claim) in &claimed {
        let truth = offered.supports(name, &declared.spec, &sidecars)?;
        ensure!(*claim == truth, "{name} is {truth}, described as {claim}");
    }

    let keys: Vec<String> = serde_json::from_value(info["TopologyKeys"].clone())?;
    let topology = driver.info.accessible_topology.clone().unwrap_or_default();
    ensure!(
        keys.iter().eq(topology.segments.keys()),
        "TopologyKeys {keys:?}, driver: {topology:?}"
    );
    let is_inline = description["InlineVolumes"]
        .as_array()
        .is_some_and(|volumes| !volumes.is_empty());
    let modes = declared.spec.volume_lifecycle_modes.clone().unwrap_or_default();
    // kubelet marks inline volumes as such only with podInfoOnMount.
    let takes_inline =
        modes.contains(&"Ephemeral".to_owned()) && declared.spec.pod_info_on_mount == Some(true);
    ensure!(
        is_inline == takes_inline,
        "inline volumes: {is_inline}, by the CSIDriver: {takes_inline}"
    );
    classes_exist(&description, &objects)?;
    driver.stop().await
}

/// The suite ignores unknown fields.
fn ensure_known_fields(known: &Fields, object: &Value, path: &str) -> Result<()> {
    let elements: Vec<_> = object
        .as_array()
        .map_or_else(|| vec![object], |list| list.iter().collect());
    for element in elements {
        for (name, value) in element.as_object().into_iter().flatten() {
            match known.0.get(name) {
                None => bail!("the suite has no field {path}{name}"),
                Some(Some(fields)) => ensure_known_fields(fields, value, &format!("{path}{name}."))?,
                Some(None) => {}
            }
        }
    }
    Ok(())
}

fn classes_exist(description: &Value, objects: &[kube::api::DynamicObject]) -> Result<()> {
    let tiers = std::fs::read_to_string(workspace_root().join("deploy/examples/tiers.yaml"))?;
    let tiers = manifest::parse(&tiers)?;
    for (field, kind) in [
        ("StorageClass", "StorageClass"),
        ("SnapshotClass", "VolumeSnapshotClass"),
        ("GroupSnapshotClass", "VolumeGroupSnapshotClass"),
        ("VolumeAttributesClass", "VolumeAttributesClass"),
    ] {
        let name = &description[field]["FromExistingClassName"];
        let found = objects.iter().chain(&tiers).any(|object| {
            object.types.as_ref().is_some_and(|types| types.kind == kind) && *name == object.name_any()
        });
        ensure!(found, "there is no {kind} {name}");
    }
    Ok(())
}

/// Capabilities that the driver reports.
struct Offered {
    services: Vec<i32>,
    expansions: Vec<i32>,
    controller: Vec<i32>,
    node: Vec<i32>,
    limit: i64,
    has_topology: bool,
}

// === impl Offered ===

impl Offered {
    async fn by(driver: &RunningDriver) -> Result<Self> {
        let plugin = IdentityClient::new(driver.identity.clone())
            .get_plugin_capabilities(GetPluginCapabilitiesRequest {})
            .await?
            .into_inner();
        let (mut services, mut expansions) = (Vec::new(), Vec::new());
        for capability in plugin.capabilities {
            match capability.r#type {
                Some(plugin_capability::Type::Service(service)) => services.push(service.r#type),
                Some(plugin_capability::Type::VolumeExpansion(expansion)) => {
                    expansions.push(expansion.r#type)
                }
                None => {}
            }
        }
        let controller = ControllerClient::new(driver.identity.clone())
            .controller_get_capabilities(ControllerGetCapabilitiesRequest {})
            .await?
            .into_inner();
        let node = NodeClient::new(driver.node_channel.clone())
            .node_get_capabilities(NodeGetCapabilitiesRequest {})
            .await?
            .into_inner();
        Ok(Self {
            services,
            expansions,
            controller: controller
                .capabilities
                .into_iter()
                .filter_map(|capability| {
                    let controller_service_capability::Type::Rpc(rpc) = capability.r#type?;
                    Some(rpc.r#type)
                })
                .collect(),
            node: node
                .capabilities
                .into_iter()
                .filter_map(|capability| {
                    let node_service_capability::Type::Rpc(rpc) = capability.r#type?;
                    Some(rpc.r#type)
                })
                .collect(),
            limit: driver.info.max_volumes_per_node,
            has_topology: driver.info.accessible_topology.is_some(),
        })
    }

    /// Whether driver, CSIDriver object and sidecars together support the suite's capability of this name.
    fn supports(&self, name: &str, declared: &CSIDriverSpec, sidecars: &BTreeSet<String>) -> Result<bool> {
        let controller = |rpc: Controller| self.controller.contains(&rpc.into());
        let node = |rpc: Node| self.node.contains(&rpc.into());
        let sidecar = |text: &str| sidecars.iter().any(|sidecar| sidecar.contains(text));
        let is_expandable = controller(Controller::ExpandVolume) && sidecar("csi-resizer");
        let is_shared_on_a_node =
            controller(Controller::SingleNodeMultiWriter) && node(Node::SingleNodeMultiWriter);
        Ok(match name {
            // The driver test uses each class with both volume modes.
            "persistence" | "block" | "exec" => {
                controller(Controller::CreateDeleteVolume) && sidecar("csi-provisioner")
            }
            "fsGroup" => declared.fs_group_policy.as_deref() == Some("File"),
            "volumeMountGroup" => node(Node::VolumeMountGroup),
            "multipods" | "readWriteOncePod" => is_shared_on_a_node,
            "topology" => {
                self.services
                    .contains(&Service::VolumeAccessibilityConstraints.into())
                    && self.has_topology
            }
            "controllerExpansion" => is_expandable,
            "onlineExpansion" => is_expandable && self.expansions.contains(&Expansion::Online.into()),
            // A driver that can expand online can expand offline; it reports OFFLINE if it can only do that.
            "offlineExpansion" => is_expandable && !self.expansions.is_empty(),
            "nodeExpansion" => node(Node::ExpandVolume),
            "snapshotDataSource" => {
                controller(Controller::CreateDeleteSnapshot) && sidecar("csi-snapshotter")
            }
            "pvcDataSource" => controller(Controller::CloneVolume) && sidecar("csi-provisioner"),
            "volumeLimits" => self.limit > 0,
            "capacity" => {
                controller(Controller::GetCapacity)
                    && declared.storage_capacity == Some(true)
                    && sidecar("--enable-capacity")
            }
            "groupSnapshot" => {
                self.services.contains(&Service::GroupControllerService.into())
                    && sidecar("CSIVolumeGroupSnapshot=true")
            }
            "seLinuxMount" => declared.se_linux_mount == Some(true),
            // No filesystem here may be mounted on two nodes at once; a raw volume is staged at one path; the
            // driver is on every node; and staging expands the filesystem to the volume's size. The suite
            // tests snapshot metadata only with drivers that it has deployed itself: other drivers have no
            // namespace, and it panics.
            "RWX"
            | "snapshotMetadata"
            | "capReadOnlyMany"
            | "multiplePVsSameID"
            | "singleNodeVolume"
            | "FSResizeFromSourceNotSupported" => false,
            _ => bail!("capability {name} has no check here"),
        })
    }
}
