//! Builds the CreateVolume request for a claim and its class, and the PersistentVolume from the response.

use std::collections::{BTreeMap, HashMap};

use csi_proto::v1;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, SecretReference,
    VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::claims::{ANN_PROVISIONED_BY, requested_bytes};
use crate::volume::{access_mode, volume_capability};

/// Finalizer of a PersistentVolume until the driver has deleted the volume.
pub(crate) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Parameters with this prefix are for the sidecars, not for the driver.
const RESERVED_PREFIX: &str = "csi.storage.k8s.io/";
pub(crate) const ANN_DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
pub(crate) const ANN_DELETION_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// The name of the volume in Kubernetes and in CreateVolume; stable over retries.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// The Secret for `purpose`, such as `provisioner`, in a class's parameters.
pub(crate) fn secret_reference(
    class: &StorageClass,
    claim: &PersistentVolumeClaim,
    purpose: &str,
) -> Option<SecretReference> {
    let parameter = |suffix: &str| {
        let template = class
            .parameters
            .as_ref()?
            .get(&format!("{RESERVED_PREFIX}{purpose}-secret-{suffix}"))?;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        Some(
            template
                .replace("${pv.name}", &volume_name(claim))
                .replace("${pvc.namespace}", &text(&claim.metadata.namespace))
                .replace("${pvc.name}", &text(&claim.metadata.name)),
        )
    };
    Some(SecretReference {
        name: Some(parameter("name")?),
        namespace: Some(parameter("namespace")?),
    })
}

pub(crate) fn create_request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    secrets: HashMap<String, String>,
    topology: Option<v1::TopologyRequirement>,
) -> v1::CreateVolumeRequest {
    let spec = claim.spec.clone().unwrap_or_default();
    let block = spec.volume_mode.as_deref() == Some("Block");
    let fs_type = fs_type(class);
    let mount_options = class.mount_options.as_deref().unwrap_or_default();
    let capabilities = spec.access_modes.iter().flatten().map(|mode| {
        let mode = access_mode(Some(mode), false);
        volume_capability(mode, block, &fs_type, mount_options)
    });
    let parameters = class.parameters.iter().flatten();
    v1::CreateVolumeRequest {
        name: volume_name(claim),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: requested_bytes(claim),
            limit_bytes: 0,
        }),
        volume_capabilities: capabilities.collect(),
        parameters: parameters
            .filter(|(key, _)| !key.starts_with(RESERVED_PREFIX))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        secrets,
        accessibility_requirements: topology,
        ..v1::CreateVolumeRequest::default()
    }
}

/// The accessibility requirements: the topologies of all nodes with the driver. The preferred list is rotated: it begins with
/// the selected node's topology or, without a selected node, with one that the claim's name determines.
pub(crate) fn topology_requirement<'a>(
    driver: &str,
    nodes: impl IntoIterator<Item = (&'a Node, &'a CSINode)>,
    selected: Option<&str>,
    claim: &str,
) -> Option<v1::TopologyRequirement> {
    let mut segments: Vec<BTreeMap<String, String>> = Vec::new();
    let mut preferred = None;
    for (node, csi_node) in nodes {
        let Some(segment) = node_segments(driver, node, csi_node) else {
            continue;
        };
        if selected.is_some() && node.metadata.name.as_deref() == selected {
            preferred = Some(segment.clone());
        }
        if !segments.contains(&segment) {
            segments.push(segment);
        }
    }
    if segments.is_empty() {
        return None;
    }
    segments.sort();
    let first = match selected {
        None => claim_number(claim) as usize % segments.len(),
        Some(_) => segments
            .iter()
            .position(|segment| Some(segment) == preferred.as_ref())
            .unwrap_or_default(),
    };
    let mut ordered = segments.clone();
    ordered.rotate_left(first);
    let topologies = |segments: Vec<BTreeMap<String, String>>| {
        let topology = |segments: BTreeMap<String, String>| v1::Topology {
            segments: segments.into_iter().collect(),
        };
        segments.into_iter().map(topology).collect()
    };
    Some(v1::TopologyRequirement {
        requisite: topologies(segments),
        preferred: topologies(ordered),
    })
}

/// A number that spreads the claims of a StatefulSet over topologies: upstream's `getPVCNameHashAndIndexOffset`.
fn claim_number(claim: &str) -> u32 {
    let indexed = claim
        .rsplit_once('-')
        .and_then(|(name, index)| Some((name, index.parse::<u32>().ok()?)));
    // Without the claim template's name, so that all claims of one replica begin with the same topology.
    let (hashed, index) = indexed.map_or((claim, 0), |(name, index)| {
        (name.rsplit_once('-').map_or(name, |(_, set)| set), index)
    });
    // FNV-1.
    let hash = hashed.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    });
    hash.wrapping_add(index)
}

/// The node's values of the driver's topology keys.
fn node_segments(driver: &str, node: &Node, csi_node: &CSINode) -> Option<BTreeMap<String, String>> {
    let driver = csi_node.spec.drivers.iter().find(|entry| entry.name == driver)?;
    let keys = driver.topology_keys.as_ref()?;
    let labels = node.metadata.labels.as_ref()?;
    let segments: Option<BTreeMap<_, _>> = keys
        .iter()
        .map(|key| Some((key.clone(), labels.get(key)?.clone())))
        .collect();
    segments.filter(|segments| !segments.is_empty())
}

/// The PersistentVolume of a volume that the driver created.
pub(crate) fn new_volume(
    driver: &str,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    made: v1::Volume,
) -> PersistentVolume {
    let wanted = claim.spec.clone().unwrap_or_default();
    let policy = class
        .reclaim_policy
        .clone()
        .unwrap_or_else(|| "Delete".to_owned());
    let secret = secret_reference(class, claim, "provisioner").unwrap_or_default();
    let annotations = BTreeMap::from([
        (ANN_PROVISIONED_BY.to_owned(), driver.to_owned()),
        (
            ANN_DELETION_SECRET_NAME.to_owned(),
            secret.name.unwrap_or_default(),
        ),
        (
            ANN_DELETION_SECRET_NAMESPACE.to_owned(),
            secret.namespace.unwrap_or_default(),
        ),
    ]);
    let size = if made.capacity_bytes > 0 {
        made.capacity_bytes
    } else {
        requested_bytes(claim)
    };
    let block = wanted.volume_mode.as_deref() == Some("Block");
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(volume_name(claim)),
            annotations: Some(annotations),
            finalizers: (policy == "Delete").then(|| vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: wanted.access_modes,
            capacity: Some(BTreeMap::from([(
                "storage".to_owned(),
                Quantity(size.to_string()),
            )])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                name: claim.metadata.name.clone(),
                namespace: claim.metadata.namespace.clone(),
                uid: claim.metadata.uid.clone(),
                resource_version: claim.metadata.resource_version.clone(),
                ..ObjectReference::default()
            }),
            csi: Some(CSIPersistentVolumeSource {
                driver: driver.to_owned(),
                volume_handle: made.volume_id,
                fs_type: (!block)
                    .then(|| fs_type(class))
                    .filter(|fs_type| !fs_type.is_empty()),
                volume_attributes: Some(made.volume_context.into_iter().collect::<BTreeMap<_, _>>())
                    .filter(|attributes| !attributes.is_empty()),
                controller_publish_secret_ref: secret_reference(class, claim, "controller-publish"),
                node_stage_secret_ref: secret_reference(class, claim, "node-stage"),
                node_publish_secret_ref: secret_reference(class, claim, "node-publish"),
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: class.mount_options.clone(),
            node_affinity: node_affinity(&made.accessible_topology),
            persistent_volume_reclaim_policy: Some(policy),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: wanted.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    }
}

fn fs_type(class: &StorageClass) -> String {
    let parameters = class.parameters.as_ref();
    parameters
        .and_then(|parameters| parameters.get(&format!("{RESERVED_PREFIX}fstype")))
        .cloned()
        .unwrap_or_default()
}

fn node_affinity(topologies: &[v1::Topology]) -> Option<VolumeNodeAffinity> {
    if topologies.is_empty() {
        return None;
    }
    let term = |topology: &v1::Topology| {
        let sorted: BTreeMap<_, _> = topology.segments.iter().collect();
        let requirements = sorted.into_iter().map(|(key, value)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".to_owned(),
            values: Some(vec![value.clone()]),
        });
        NodeSelectorTerm {
            match_expressions: Some(requirements.collect()),
            ..NodeSelectorTerm::default()
        }
    };
    Some(VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: topologies.iter().map(term).collect(),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_node(name: &str, zone: &str) -> (Node, CSINode) {
        let node = serde_json::json!({"metadata": {"name": name, "labels": {"zone": zone}}});
        let csi_node = serde_json::json!({"metadata": {"name": name},
            "spec": {"drivers": [{"name": "d", "nodeID": name, "topologyKeys": ["zone"]}]}});
        (
            serde_json::from_value(node).unwrap(),
            serde_json::from_value(csi_node).unwrap(),
        )
    }

    #[test]
    fn each_topology_is_named_once_from_that_of_the_selected_node_or_of_the_claim() {
        let nodes = [
            mk_node("a", "z1"),
            mk_node("b", "z2"),
            mk_node("c", "z1"),
            mk_node("d", "z3"),
        ];
        let pairs = || nodes.iter().map(|(node, csi_node)| (node, csi_node));
        let zones = |topologies: &[v1::Topology]| -> Vec<String> {
            topologies
                .iter()
                .map(|topology| topology.segments["zone"].clone())
                .collect()
        };
        let cases = [
            (Some("b"), "data", ["z2", "z3", "z1"]),
            (Some("d"), "data", ["z3", "z1", "z2"]),
            (None, "data", ["z1", "z2", "z3"]),
            (None, "data-web-0", ["z1", "z2", "z3"]),
            (None, "logs-web-1", ["z2", "z3", "z1"]),
            (None, "web-2", ["z3", "z1", "z2"]),
        ];
        for (selected, claim, preferred) in cases {
            let requirement = topology_requirement("d", pairs(), selected, claim).unwrap();
            assert_eq!(zones(&requirement.requisite), ["z1", "z2", "z3"]);
            assert_eq!(zones(&requirement.preferred), preferred, "{selected:?} {claim}");
        }
        assert!(topology_requirement("other", pairs(), None, "data").is_none());
    }

    #[test]
    fn volume_has_the_fields_of_driver_response_and_class() {
        let claim: PersistentVolumeClaim = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "u"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .unwrap();
        let class: StorageClass = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "fast"}, "provisioner": "d",
            "parameters": {"kind": "ssd", "csi.storage.k8s.io/fstype": "xfs",
                "csi.storage.k8s.io/provisioner-secret-name": "s-${pvc.name}",
                "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}"},
        }))
        .unwrap();
        let request = create_request(&claim, &class, HashMap::new(), None);
        assert_eq!(request.name, "pvc-u");
        assert_eq!(
            request.parameters,
            HashMap::from([("kind".to_owned(), "ssd".to_owned())])
        );
        assert_eq!(request.capacity_range.unwrap().required_bytes, 1 << 30);

        let made = v1::Volume {
            volume_id: "vol-1".to_owned(),
            accessible_topology: vec![v1::Topology {
                segments: HashMap::from([("zone".to_owned(), "z1".to_owned())]),
            }],
            ..v1::Volume::default()
        };
        let volume = new_volume("d", &claim, &class, made);
        assert_eq!(volume.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
        let annotations = volume.metadata.annotations.unwrap();
        assert_eq!(annotations[ANN_DELETION_SECRET_NAME], "s-data");
        assert_eq!(annotations[ANN_DELETION_SECRET_NAMESPACE], "ns");
        let spec = volume.spec.unwrap();
        assert_eq!(spec.csi.unwrap().fs_type.as_deref(), Some("xfs"));
        assert_eq!(spec.capacity.unwrap()["storage"].0, (1_u64 << 30).to_string());
        let (node, _) = mk_node("a", "z1");
        assert!(crate::node_selector::matches(
            &spec.node_affinity.unwrap().required.unwrap(),
            &node
        ));
    }
}
