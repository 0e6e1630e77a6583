//! Names and sources of volumes as kube-controller-manager and kubelet know them: `volume.Spec`, unique volume
//! names, and the translation of migrated in-tree volumes to CSI.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Pod, Volume};

/// Name of the in-tree plugin for CSI volumes.
pub(crate) const CSI_PLUGIN: &str = "kubernetes.io/csi";

/// `kubernetes.io/csi/<driver>^<handle>`, as in a node's `volumesAttached` and `volumesInUse`.
pub type UniqueVolumeName = String;

/// A volume that the CSI plugin attaches or mounts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VolumeSpec {
    /// Name of the PersistentVolume, or of the pod's volume if it is inline.
    pub name: String,
    pub driver: String,
    pub handle: String,
    pub access_modes: Vec<String>,
    /// The translated source of an inline in-tree volume; the VolumeAttachment then carries it.
    pub inline: Option<Box<PersistentVolumeSpec>>,
}

// === impl VolumeSpec ===

impl VolumeSpec {
    /// The volume behind `volume`, or `None` if no CSI driver serves it.
    pub(crate) fn from_persistent_volume(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let (driver, handle) = driver_and_handle(spec)?;
        Some(Self {
            name: volume.metadata.name.clone()?,
            driver,
            handle,
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            inline: None,
        })
    }

    /// The volume of a pod that names an in-tree source itself.
    pub(crate) fn from_inline(volume: &Volume) -> Option<Self> {
        let spec = PersistentVolumeSpec {
            aws_elastic_block_store: volume.aws_elastic_block_store.clone(),
            azure_disk: volume.azure_disk.clone(),
            gce_persistent_disk: volume.gce_persistent_disk.clone(),
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            ..PersistentVolumeSpec::default()
        };
        let (driver, handle) = driver_and_handle(&spec)?;
        let csi = k8s_openapi::api::core::v1::CSIPersistentVolumeSource {
            driver: driver.clone(),
            volume_handle: handle.clone(),
            ..Default::default()
        };
        Some(Self {
            name: volume.name.clone(),
            driver,
            handle,
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            inline: Some(Box::new(PersistentVolumeSpec {
                csi: Some(csi),
                access_modes: spec.access_modes,
                ..PersistentVolumeSpec::default()
            })),
        })
    }

    pub(crate) fn unique_name(&self) -> UniqueVolumeName {
        unique_volume_name(&self.driver, &self.handle)
    }

    /// Whether several nodes may have the volume at once. Without access modes the driver decides.
    pub(crate) fn is_multi_attach_allowed(&self) -> bool {
        self.access_modes.is_empty()
            || self
                .access_modes
                .iter()
                .any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
    }
}

// === names ===

/// The name Kubernetes gives a CSI volume in a node's `volumesInUse` and `volumesAttached`.
pub fn unique_volume_name(driver: &str, handle: &str) -> UniqueVolumeName {
    format!("{CSI_PLUGIN}/{driver}^{handle}")
}

/// Driver and handle of a unique volume name.
pub(crate) fn split_unique_name(name: &str) -> Option<(&str, &str)> {
    let (driver, handle) = name
        .strip_prefix(CSI_PLUGIN)?
        .strip_prefix('/')?
        .split_once('^')?;
    // As upstream: a handle with the separator in it cannot be split again.
    (!handle.contains('^')).then_some((driver, handle))
}

/// The name the CSI plugin gives the VolumeAttachment of a volume on a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(&format!("{handle}{driver}{node}")))
}

pub(crate) fn sha256_hex(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest
        .as_ref()
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a String must succeed");
            hex
        })
}

/// The name of the claim behind a pod's volume, generic ephemeral volumes included.
pub(crate) fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    volume.ephemeral.as_ref()?;
    Some(format!(
        "{}-{}",
        pod.metadata.name.as_deref().unwrap_or_default(),
        volume.name
    ))
}

// === migration ===

/// The CSI driver of a volume and its handle, also if the driver took over from an in-tree plugin.
///
/// See <https://github.com/kubernetes/csi-translation-lib>.
pub(crate) fn driver_and_handle(spec: &PersistentVolumeSpec) -> Option<(String, String)> {
    let of = |driver: &str, handle: String| Some((driver.to_owned(), handle));
    if let Some(csi) = &spec.csi {
        return of(&csi.driver, csi.volume_handle.clone());
    }
    if let Some(ebs) = &spec.aws_elastic_block_store {
        // Both `vol-1` and `aws://zone/vol-1` are in use.
        let id = ebs.volume_id.rsplit('/').next().unwrap_or_default();
        return of("ebs.csi.aws.com", id.to_owned());
    }
    if let Some(disk) = &spec.azure_disk {
        return of("disk.csi.azure.com", disk.disk_uri.clone());
    }
    if let Some(cinder) = &spec.cinder {
        return of("cinder.csi.openstack.org", cinder.volume_id.clone());
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        let zone = gce_zone(spec).unwrap_or_else(|| "UNSPECIFIED".to_owned());
        let handle = format!("projects/UNSPECIFIED/zones/{zone}/disks/{}", disk.pd_name);
        return of("pd.csi.storage.gke.io", handle);
    }
    if let Some(portworx) = &spec.portworx_volume {
        return of("pxd.portworx.com", portworx.volume_id.clone());
    }
    if let Some(vsphere) = &spec.vsphere_volume {
        return of("csi.vsphere.vmware.com", vsphere.volume_path.clone());
    }
    None
}

/// The CSI driver that took over from an in-tree plugin.
pub(crate) fn migrated_driver(plugin: &str) -> Option<&'static str> {
    Some(match plugin {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        _ => return None,
    })
}

/// The zone of a migrated GCE disk, from the volume's node affinity.
fn gce_zone(spec: &PersistentVolumeSpec) -> Option<String> {
    let terms = &spec
        .node_affinity
        .as_ref()?
        .required
        .as_ref()?
        .node_selector_terms;
    terms
        .iter()
        .flat_map(|term| term.match_expressions.iter().flatten())
        .find(|expression| {
            expression.key == "topology.kubernetes.io/zone"
                || expression.key == "failure-domain.beta.kubernetes.io/zone"
        })
        .and_then(|expression| expression.values.as_ref()?.first().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_is_named_as_the_csi_plugin_names_it() {
        // sha256("hdn"), by sha256sum.
        assert_eq!(
            attachment_name("h", "d", "n"),
            "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"
        );
    }

    #[test]
    fn unique_name_splits_into_driver_and_handle() {
        let cases = [
            ("kubernetes.io/csi/a.b^vol-1", Some(("a.b", "vol-1"))),
            ("kubernetes.io/csi/a.b^x/y", Some(("a.b", "x/y"))),
            ("kubernetes.io/csi/a.b^x^y", None),
            ("kubernetes.io/csi/a.b", None),
            ("kubernetes.io/nfs/a^b", None),
        ];
        for (name, expected) in cases {
            assert_eq!(split_unique_name(name), expected, "{name}");
        }
    }

    #[test]
    fn multi_attach_follows_access_modes() {
        let cases: [(&[&str], bool); 5] = [
            (&[], true),
            (&["ReadWriteOnce"], false),
            (&["ReadWriteOncePod"], false),
            (&["ReadOnlyMany"], true),
            (&["ReadWriteOnce", "ReadWriteMany"], true),
        ];
        for (modes, allowed) in cases {
            let spec = VolumeSpec {
                name: "pv".to_owned(),
                driver: "d".to_owned(),
                handle: "h".to_owned(),
                access_modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
                inline: None,
            };
            assert_eq!(spec.is_multi_attach_allowed(), allowed, "{modes:?}");
        }
    }

    #[test]
    fn in_tree_volumes_are_translated() {
        let spec = |json: serde_json::Value| serde_json::from_value::<PersistentVolumeSpec>(json).unwrap();
        let cases = [
            (
                serde_json::json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}),
                "ebs.csi.aws.com",
                "vol-1",
            ),
            (
                serde_json::json!({"azureDisk": {"diskName": "n", "diskURI": "/subscriptions/x"}}),
                "disk.csi.azure.com",
                "/subscriptions/x",
            ),
            (
                serde_json::json!({
                    "gcePersistentDisk": {"pdName": "p"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
                        [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1"]}]}]}},
                }),
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/z1/disks/p",
            ),
        ];
        for (json, driver, handle) in cases {
            assert_eq!(
                driver_and_handle(&spec(json)),
                Some((driver.to_owned(), handle.to_owned()))
            );
        }
        assert_eq!(
            driver_and_handle(&spec(serde_json::json!({"nfs": {"server": "s", "path": "/"}}))),
            None
        );
    }
}
