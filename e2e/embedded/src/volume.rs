//! Volumes in kube-controller-manager, kubelet and the external-provisioner: `volume.Spec`, unique volume names, and
//! capabilities in CSI requests.

use std::fmt::Write as _;

use csi_proto::v1::VolumeCapability;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Pod, Volume};

use crate::informer::Key;
use crate::migration::{self, TranslationError};
use crate::pod;

/// Name of the in-tree plugin for CSI volumes.
pub(crate) const CSI_PLUGIN: &str = "kubernetes.io/csi";
/// Finalizer that keeps a claim while pods use it.
pub(crate) const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
/// Annotation with the name of a StorageClass, which takes precedence over the field.
pub(crate) const ANN_BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// Annotations that mark the default StorageClass.
pub(crate) const ANN_IS_DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

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
    /// The spec of `volume`; `None` if no CSI driver serves it.
    pub(crate) fn from_persistent_volume(volume: &PersistentVolume) -> Option<Self> {
        Self::from_translated(skip_untranslatable(migration::to_csi(volume))?.as_ref())
    }

    /// The spec of a pod's inline volume with an in-tree source.
    pub(crate) fn from_inline(volume: &Volume) -> Option<Self> {
        let translated = skip_untranslatable(migration::inline_to_csi(volume))?;
        Some(Self {
            inline: translated.spec.clone().map(Box::new),
            ..Self::from_translated(&translated)?
        })
    }

    /// The spec of a PersistentVolume with a CSI source.
    pub(crate) fn from_translated(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref()?;
        Some(Self {
            name: volume.metadata.name.clone()?,
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            inline: None,
        })
    }

    pub(crate) fn unique_name(&self) -> UniqueVolumeName {
        unique_volume_name(&self.driver, &self.handle)
    }

    /// Whether the volume may be attached to several nodes at once. Without access modes the driver decides.
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

/// The name of the claim of a pod's volume, including generic ephemeral volumes.
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

/// The claims that a pod names.
pub(crate) fn claims_of(pod: &Pod) -> impl Iterator<Item = Key> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let names = pod::volumes(pod)
        .iter()
        .filter_map(|volume| claim_name(pod, volume));
    names.map(move |name| (namespace.clone(), name))
}

/// Skips a volume that cannot be translated to CSI, as kube-controller-manager does.
fn skip_untranslatable<T>(translated: Result<Option<T>, TranslationError>) -> Option<T> {
    translated.unwrap_or_else(|error| {
        tracing::debug!(%error, "skipping volume");
        None
    })
}

// === volume capabilities ===

/// The capability in CSI requests for a volume.
pub(crate) fn volume_capability(
    mode: Mode,
    block: bool,
    fs_type: &str,
    mount_options: &[String],
) -> VolumeCapability {
    let access_type = if block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: mount_options.to_vec(),
            ..MountVolume::default()
        })
    };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

/// The CSI mode of a Kubernetes access mode, for a driver with or without the capability SINGLE_NODE_MULTI_WRITER.
pub(crate) fn access_mode(mode: Option<&str>, single_node_multi_writer: bool) -> Mode {
    match (mode, single_node_multi_writer) {
        (Some("ReadOnlyMany"), _) => Mode::MultiNodeReaderOnly,
        (Some("ReadWriteMany"), _) => Mode::MultiNodeMultiWriter,
        (_, false) => Mode::SingleNodeWriter,
        (Some("ReadWriteOncePod"), true) => Mode::SingleNodeSingleWriter,
        (_, true) => Mode::SingleNodeMultiWriter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_name_equals_that_of_the_csi_plugin() {
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
    fn access_modes_depend_on_single_node_multi_writer() {
        let cases = [
            (
                "ReadWriteOnce",
                Mode::SingleNodeWriter,
                Mode::SingleNodeMultiWriter,
            ),
            (
                "ReadWriteOncePod",
                Mode::SingleNodeWriter,
                Mode::SingleNodeSingleWriter,
            ),
            (
                "ReadOnlyMany",
                Mode::MultiNodeReaderOnly,
                Mode::MultiNodeReaderOnly,
            ),
            (
                "ReadWriteMany",
                Mode::MultiNodeMultiWriter,
                Mode::MultiNodeMultiWriter,
            ),
        ];
        for (mode, without, with) in cases {
            let modes = [false, true].map(|capable| access_mode(Some(mode), capable));
            assert_eq!(modes, [without, with], "{mode}");
        }
    }

    #[test]
    fn attachment_of_an_inline_volume_has_the_translated_source() {
        let volume =
            serde_json::json!({"name": "v", "awsElasticBlockStore": {"volumeID": "vol-1", "fsType": "xfs"}});
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let spec = VolumeSpec::from_inline(&volume).unwrap();
        assert_eq!(spec.handle, "vol-1");
        let inline = serde_json::to_value(spec.inline.unwrap()).unwrap();
        let expected = serde_json::json!({
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "ebs.csi.aws.com", "fsType": "xfs", "volumeAttributes": {"partition": "0"},
                "volumeHandle": "vol-1"},
            "volumeMode": "Filesystem",
        });
        assert_eq!(inline, expected);
    }

    #[test]
    fn untranslatable_volume_is_skipped() {
        let volume = serde_json::json!({"metadata": {"name": "pv"},
            "spec": {"awsElasticBlockStore": {"volumeID": "aws://zone/1"}}});
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        assert_eq!(VolumeSpec::from_persistent_volume(&volume), None);
    }
}
