//! Builders of the smallest valid Kubernetes objects on the attach path.
//!
//! Every builder returns a valid object with only the fields that the path needs, so that a scenario sets only
//! the fields that it tests. Names come from the caller: a scenario derives them from its own name, so that
//! scenarios do not conflict on one control plane.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, Container, Node, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec, Pod, PodSpec, Secret, SecretReference, Volume, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSIDriverSpec, CSINode, CSINodeDriver, CSINodeSpec, StorageClass, VolumeAttachment,
    VolumeAttachmentSource, VolumeAttachmentSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Label of every object of the harness; its value is the scenario's prefix.
pub const SCENARIO_LABEL: &str = "csi-e2e/scenario";

/// Label by which pods select their node.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// Key of the taint by which an administrator confirms that a node is shut down, so that its volumes may be detached
/// although they were not unmounted.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Annotation with which the PersistentVolume controller marks a bound claim.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Annotation with which a provisioner marks its volumes.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The in-tree plugin for EBS volumes.
pub const EBS_PLUGIN: &str = "kubernetes.io/aws-ebs";

/// The CSI driver that replaced the in-tree plugin.
pub const EBS_DRIVER: &str = "ebs.csi.aws.com";

/// Namespace in which kubelets keep their heartbeat leases.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// Size of every volume, which the API requires; no data is written.
pub const CAPACITY: &str = "1Gi";

/// Access mode of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `ReadWriteOncePod`: one pod at a time.
    OnePod,
    /// `ReadWriteOnce`: one node at a time.
    OneNode,
    /// `ReadOnlyMany`: any number of nodes, read-only.
    ManyReaders,
    /// `ReadWriteMany`: any number of nodes.
    ManyNodes,
}

/// Parameters of a PersistentVolume.
#[derive(Clone, Debug)]
pub struct VolumeSource {
    /// Name of the CSI driver.
    pub driver: String,
    /// The driver's id of the volume.
    pub handle: String,
    /// The driver's volume context, kept in `volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// Access mode.
    pub access: Access,
    /// Namespace and name of the publish Secret.
    pub publish_secret: Option<(String, String)>,
}

// === impl Access ===

impl Access {
    fn mode(self) -> String {
        match self {
            Self::OnePod => "ReadWriteOncePod",
            Self::OneNode => "ReadWriteOnce",
            Self::ManyReaders => "ReadOnlyMany",
            Self::ManyNodes => "ReadWriteMany",
        }
        .to_owned()
    }
}

// === builders ===

/// Metadata of a cluster-scoped object of the scenario `prefix`.
pub fn mk_meta(prefix: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(BTreeMap::from([(SCENARIO_LABEL.to_owned(), prefix.to_owned())])),
        ..ObjectMeta::default()
    }
}

/// The CSIDriver of `driver`; `attach_required`: whether its volumes need a VolumeAttachment.
pub fn mk_csi_driver(prefix: &str, driver: &str, attach_required: bool) -> CSIDriver {
    CSIDriver {
        metadata: mk_meta(prefix, driver),
        spec: CSIDriverSpec {
            attach_required: Some(attach_required),
            ..CSIDriverSpec::default()
        },
    }
}

/// A node without a kubelet.
pub fn mk_node(prefix: &str, name: &str) -> Node {
    Node {
        metadata: mk_meta(prefix, name),
        ..Node::default()
    }
}

/// The CSINode of `node`, with the node id `node_id` of `driver`.
pub fn mk_csi_node(prefix: &str, node: &Node, driver: &str, node_id: &str) -> CSINode {
    let mut metadata = mk_meta(prefix, node.metadata.name.as_deref().unwrap_or_default());
    metadata.owner_references = Some(vec![mk_node_owner(node)]);
    CSINode {
        metadata,
        spec: CSINodeSpec {
            drivers: vec![CSINodeDriver {
                name: driver.to_owned(),
                node_id: node_id.to_owned(),
                ..CSINodeDriver::default()
            }],
        },
        ..CSINode::default()
    }
}

/// A claim that is pre-bound to the volume `pv`.
pub fn mk_claim(prefix: &str, name: &str, pv: &str, access: Access) -> PersistentVolumeClaim {
    PersistentVolumeClaim {
        metadata: mk_meta(prefix, name),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![access.mode()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([(
                    "storage".to_owned(),
                    Quantity(CAPACITY.to_owned()),
                )])),
                ..VolumeResourceRequirements::default()
            }),
            // An empty class disables dynamic provisioning and the default class.
            storage_class_name: Some(String::new()),
            volume_name: Some(pv.to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}

/// A claim of the StorageClass `class`.
pub fn mk_claim_of_class(prefix: &str, name: &str, class: &str, access: Access) -> PersistentVolumeClaim {
    let mut claim = mk_claim(prefix, name, "", access);
    if let Some(spec) = &mut claim.spec {
        spec.storage_class_name = Some(class.to_owned());
        spec.volume_name = None;
    }
    claim
}

/// A StorageClass of `driver` whose volumes are expandable, are deleted with their claims, and are published with
/// `publish_secret` of the scenario's namespace.
pub fn mk_storage_class(
    prefix: &str,
    name: &str,
    driver: &str,
    binding_mode: &str,
    publish_secret: &str,
) -> StorageClass {
    let parameters = [
        (
            "csi.storage.k8s.io/controller-publish-secret-name",
            publish_secret,
        ),
        ("csi.storage.k8s.io/controller-publish-secret-namespace", prefix),
    ];
    let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    StorageClass {
        metadata: mk_meta(prefix, name),
        provisioner: driver.to_owned(),
        parameters: Some(parameters.map(own).into()),
        volume_binding_mode: Some(binding_mode.to_owned()),
        allow_volume_expansion: Some(true),
        reclaim_policy: Some("Delete".to_owned()),
        ..StorageClass::default()
    }
}

/// A volume of `source` pre-bound to `claim`, which must come from the API server because its UID matters.
pub fn mk_persistent_volume(
    prefix: &str,
    name: &str,
    source: &VolumeSource,
    claim: &PersistentVolumeClaim,
) -> PersistentVolume {
    PersistentVolume {
        metadata: mk_meta(prefix, name),
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(vec![source.access.mode()]),
            capacity: Some(BTreeMap::from([(
                "storage".to_owned(),
                Quantity(CAPACITY.to_owned()),
            )])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                name: claim.metadata.name.clone(),
                namespace: claim.metadata.namespace.clone(),
                uid: claim.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            csi: Some(CSIPersistentVolumeSource {
                driver: source.driver.clone(),
                volume_handle: source.handle.clone(),
                volume_attributes: (!source.attributes.is_empty()).then(|| source.attributes.clone()),
                controller_publish_secret_ref: source.publish_secret.as_ref().map(|(namespace, name)| {
                    SecretReference {
                        name: Some(name.clone()),
                        namespace: Some(namespace.clone()),
                    }
                }),
                ..CSIPersistentVolumeSource::default()
            }),
            persistent_volume_reclaim_policy: Some("Retain".to_owned()),
            storage_class_name: Some(String::new()),
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    }
}

/// The same volume as an in-tree EBS volume, which has neither attributes nor secrets.
pub fn into_ebs_volume(mut volume: PersistentVolume, annotation: Option<(&str, &str)>) -> PersistentVolume {
    let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    volume.metadata.annotations = annotation.map(|annotation| BTreeMap::from([own(annotation)]));
    if let Some(spec) = &mut volume.spec {
        spec.aws_elastic_block_store = spec.csi.take().map(|csi| AWSElasticBlockStoreVolumeSource {
            volume_id: csi.volume_handle,
            ..AWSElasticBlockStoreVolumeSource::default()
        });
    }
    volume
}

/// A Secret with one key.
pub fn mk_secret(prefix: &str, name: &str, key: &str, value: &str) -> Secret {
    Secret {
        metadata: mk_meta(prefix, name),
        string_data: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
        ..Secret::default()
    }
}

/// A pod that mounts `claims` and that the scheduler must put on `node`.
pub fn mk_pod(prefix: &str, name: &str, node: &str, claims: &[String]) -> Pod {
    Pod {
        metadata: mk_meta(prefix, name),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            containers: vec![Container {
                name: "app".to_owned(),
                image: Some("registry.k8s.io/pause:3.10".to_owned()),
                // kubelet mounts only volumes that containers use.
                volume_mounts: Some(claims.iter().map(|claim| mk_volume_mount(claim)).collect()),
                ..Container::default()
            }],
            // The pod completes when its containers exit.
            restart_policy: Some("Never".to_owned()),
            node_selector: Some(BTreeMap::from([(HOSTNAME_LABEL.to_owned(), node.to_owned())])),
            volumes: Some(
                claims
                    .iter()
                    .map(|claim| Volume {
                        name: claim.clone(),
                        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                            claim_name: claim.clone(),
                            ..PersistentVolumeClaimVolumeSource::default()
                        }),
                        ..Volume::default()
                    })
                    .collect(),
            ),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

fn mk_volume_mount(claim: &str) -> VolumeMount {
    VolumeMount {
        name: claim.to_owned(),
        mount_path: format!("/volumes/{claim}"),
        ..VolumeMount::default()
    }
}

/// A VolumeAttachment for scenarios without the attach/detach controller.
pub fn mk_attachment(prefix: &str, name: &str, driver: &str, pv: &str, node: &str) -> VolumeAttachment {
    VolumeAttachment {
        metadata: mk_meta(prefix, name),
        spec: VolumeAttachmentSpec {
            attacher: driver.to_owned(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(pv.to_owned()),
                ..VolumeAttachmentSource::default()
            },
        },
        ..VolumeAttachment::default()
    }
}

fn mk_node_owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

/// The finalizer that an attacher of `driver` sets on VolumeAttachments and PersistentVolumes.
pub fn attacher_finalizer(driver: &str) -> String {
    let mut name: String = driver
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '-'
            }
        })
        .collect();
    if name.ends_with('-') {
        name.push('X');
    }
    format!("external-attacher/{name}")
}

/// The name of the Lease of the attachers of `driver`, which is sanitized like the finalizer.
pub fn leader_lease_name(driver: &str) -> String {
    attacher_finalizer(driver).replace("external-attacher/", "external-attacher-leader-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizer_is_named_for_the_driver() {
        let cases = [
            ("ebs.csi.aws.com", "external-attacher/ebs-csi-aws-com"),
            ("plain", "external-attacher/plain"),
            ("odd_", "external-attacher/odd-X"),
        ];
        for (driver, finalizer) in cases {
            assert_eq!(attacher_finalizer(driver), finalizer, "{driver}");
        }
    }

    #[test]
    fn volume_is_bound_to_the_very_claim() {
        let mut claim = mk_claim("s", "data", "s-data", Access::OneNode);
        claim.metadata.namespace = Some("s".to_owned());
        claim.metadata.uid = Some("u-1".to_owned());
        let source = VolumeSource {
            driver: "d".to_owned(),
            handle: "h".to_owned(),
            attributes: BTreeMap::new(),
            access: Access::OneNode,
            publish_secret: None,
        };
        let spec = mk_persistent_volume("s", "s-data", &source, &claim)
            .spec
            .expect("a volume has a spec");
        let reference = spec.claim_ref.expect("the volume must be bound");
        assert_eq!(
            (
                reference.namespace.as_deref(),
                reference.name.as_deref(),
                reference.uid.as_deref()
            ),
            (Some("s"), Some("data"), Some("u-1"))
        );
    }
}
