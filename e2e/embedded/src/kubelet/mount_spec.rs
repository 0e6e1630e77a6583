//! Kubelet's specification of a volume to mount.

use std::collections::BTreeMap;

use csi_proto::v1::VolumeCapability;
use csi_proto::v1::volume_capability::AccessType;
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, Pod, SecretReference, Volume};
use k8s_openapi::api::storage::v1::CSIDriver;

use crate::pod;
use crate::volume::{CSI_PLUGIN, UniqueVolumeName, VolumeSpec, access_mode, sha256_hex, volume_capability};

/// A CSI volume of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MountSpec {
    pub unique_name: UniqueVolumeName,
    /// Name of the PersistentVolume, or of the pod's volume if it is inline.
    pub name: String,
    /// Its name in the pod: upstream's `OuterVolumeSpecName`.
    pub outer_name: String,
    pub driver: String,
    pub handle: String,
    /// Whether the attach/detach controller attaches the volume.
    pub attachable: bool,
    /// A CSI inline volume, whose lifetime is that of its pod.
    pub ephemeral: bool,
    pub block: bool,
    pub fs_type: String,
    pub mount_options: Vec<String>,
    pub access_modes: Vec<String>,
    pub node_affinity: Option<NodeSelector>,
    /// `readOnly` of the claim in the pod, or of the inline volume. That of a PersistentVolume's source is for the attacher.
    pub read_only: bool,
    pub attributes: BTreeMap<String, String>,
    pub pod_info: bool,
    /// Why the driver does not support the volume's lifecycle mode.
    pub unsupported: Option<String>,
    /// The driver supports updates of the attach limit: a pod whose volume exceeds the limit fails.
    pub reports_attach_limit: bool,
    pub stage_secret: Option<SecretReference>,
    pub publish_secret: Option<SecretReference>,
}

// === impl MountSpec ===

impl MountSpec {
    /// The volume of a PersistentVolume that has a CSI source.
    pub(crate) fn from_translated(
        outer_name: &str,
        volume: &PersistentVolume,
        driver: Option<&CSIDriver>,
        read_only: bool,
    ) -> Option<Self> {
        let translated = VolumeSpec::from_translated(volume)?;
        let spec = volume.spec.clone()?;
        let csi = spec.csi.unwrap_or_default();
        Some(Self {
            unique_name: translated.unique_name(),
            name: translated.name,
            outer_name: outer_name.to_owned(),
            driver: translated.driver,
            handle: translated.handle,
            attachable: driver
                .and_then(|driver| driver.spec.attach_required)
                .unwrap_or(true),
            ephemeral: false,
            block: spec.volume_mode.as_deref() == Some("Block"),
            fs_type: csi.fs_type.unwrap_or_default(),
            mount_options: spec.mount_options.unwrap_or_default(),
            access_modes: spec.access_modes.unwrap_or_default(),
            node_affinity: spec.node_affinity.and_then(|affinity| affinity.required),
            read_only,
            attributes: csi.volume_attributes.unwrap_or_default(),
            pod_info: wants_pod_info(driver),
            unsupported: unsupported_mode("Persistent", &csi.driver, driver),
            reports_attach_limit: driver
                .is_some_and(|driver| driver.spec.node_allocatable_update_period_seconds.is_some()),
            stage_secret: csi.node_stage_secret_ref,
            publish_secret: csi.node_publish_secret_ref,
        })
    }

    /// A CSI inline volume.
    pub(crate) fn from_inline(pod: &Pod, volume: &Volume, driver: Option<&CSIDriver>) -> Option<Self> {
        let csi = volume.csi.clone()?;
        let uid = pod::uid(pod);
        Some(Self {
            unique_name: format!("{CSI_PLUGIN}/{uid}-{}", volume.name),
            name: volume.name.clone(),
            outer_name: volume.name.clone(),
            unsupported: unsupported_mode("Ephemeral", &csi.driver, driver),
            driver: csi.driver,
            handle: format!("csi-{}", sha256_hex(&format!("{uid}{}", volume.name))),
            attachable: false,
            ephemeral: true,
            block: false,
            fs_type: csi.fs_type.unwrap_or_default(),
            mount_options: Vec::new(),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            node_affinity: None,
            read_only: csi.read_only == Some(true),
            attributes: csi.volume_attributes.unwrap_or_default(),
            pod_info: wants_pod_info(driver),
            reports_attach_limit: driver
                .is_some_and(|driver| driver.spec.node_allocatable_update_period_seconds.is_some()),
            stage_secret: None,
            publish_secret: csi.node_publish_secret_ref.map(|secret| SecretReference {
                name: Some(secret.name),
                namespace: pod.metadata.namespace.clone(),
            }),
        })
    }

    /// The capability in kubelet's requests: the first access mode, as upstream, and the group of a filesystem volume.
    pub(crate) fn capability(&self, single_node_multi_writer: bool, group: Option<i64>) -> VolumeCapability {
        let mode = self.access_modes.first().map(String::as_str);
        let mode = access_mode(mode, single_node_multi_writer);
        let mut capability = volume_capability(mode, self.block, &self.fs_type, &self.mount_options);
        if let (Some(AccessType::Mount(mount)), Some(group)) = (&mut capability.access_type, group) {
            mount.volume_mount_group = group.to_string();
        }
        capability
    }
}

// === functions ===

fn wants_pod_info(driver: Option<&CSIDriver>) -> bool {
    driver.and_then(|driver| driver.spec.pod_info_on_mount) == Some(true)
}

/// Upstream's error if the driver does not support volumes of this mode.
fn unsupported_mode(mode: &str, name: &str, driver: Option<&CSIDriver>) -> Option<String> {
    let error = format!("volume mode {mode:?} not supported by driver {name}");
    let Some(driver) = driver else {
        return (mode == "Ephemeral").then(|| format!("{error} (no CSIDriver object)"));
    };
    let modes = driver.spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
    let quoted: Vec<_> = modes.iter().map(|mode| format!("{mode:?}")).collect();
    let is_supported = modes.iter().any(|known| known == mode);
    (!is_supported).then(|| format!("{error} (only supports [{}])", quoted.join(" ")))
}

#[cfg(test)]
pub(super) mod tests {
    use csi_proto::v1::volume_capability::access_mode::Mode;

    use super::*;
    use crate::volume::unique_volume_name;

    pub(in crate::kubelet) fn mk_spec() -> MountSpec {
        MountSpec {
            unique_name: unique_volume_name("d", "h"),
            name: "pv".to_owned(),
            outer_name: "data".to_owned(),
            driver: "d".to_owned(),
            handle: "h".to_owned(),
            attachable: true,
            ephemeral: false,
            block: false,
            fs_type: String::new(),
            mount_options: Vec::new(),
            access_modes: Vec::new(),
            node_affinity: None,
            read_only: false,
            attributes: BTreeMap::new(),
            pod_info: false,
            unsupported: None,
            reports_attach_limit: false,
            stage_secret: None,
            publish_secret: None,
        }
    }

    #[test]
    fn inline_volume_belongs_to_its_pod() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "volumes": [{"name": "v", "csi": {"driver": "d"}}]},
        }))
        .unwrap();
        let spec = MountSpec::from_inline(&pod, &pod::volumes(&pod)[0], None).unwrap();
        assert_eq!(spec.unique_name, "kubernetes.io/csi/u-v");
        assert_eq!(spec.handle, format!("csi-{}", sha256_hex("uv")));
        assert!(spec.ephemeral && !spec.attachable);
    }

    #[test]
    fn driver_without_attach_needs_no_attach() {
        let volume: PersistentVolume = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "pv"},
            "spec": {"accessModes": ["ReadWriteMany"], "csi": {"driver": "d", "volumeHandle": "h"}},
        }))
        .unwrap();
        let driver: CSIDriver = serde_json::from_value(
            serde_json::json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}}),
        )
        .unwrap();
        assert!(
            MountSpec::from_translated("data", &volume, None, false)
                .unwrap()
                .attachable
        );
        let spec = MountSpec::from_translated("data", &volume, Some(&driver), false).unwrap();
        assert!(!spec.attachable);
        let mode = spec.capability(true, None).access_mode.unwrap().mode();
        assert_eq!(mode, Mode::MultiNodeMultiWriter);
    }

    #[test]
    fn driver_supports_the_lifecycle_modes_of_its_object() {
        let driver: CSIDriver = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "d"}, "spec": {"volumeLifecycleModes": ["Persistent"]},
        }))
        .unwrap();
        let only = "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])";
        let none = "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)";
        let cases = [
            ("Persistent", None, None),
            ("Persistent", Some(&driver), None),
            ("Ephemeral", Some(&driver), Some(only)),
            ("Ephemeral", None, Some(none)),
        ];
        for (mode, driver, expected) in cases {
            assert_eq!(unsupported_mode(mode, "d", driver).as_deref(), expected);
        }
    }

    #[test]
    fn claim_and_not_the_source_makes_a_volume_read_only() {
        let volume: PersistentVolume = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "pv"}, "spec": {"csi": {"driver": "d", "volumeHandle": "h", "readOnly": true}},
        }))
        .unwrap();
        for read_only in [false, true] {
            let spec = MountSpec::from_translated("data", &volume, None, read_only).unwrap();
            assert_eq!(spec.read_only, read_only);
        }
    }

    #[test]
    fn group_is_in_the_capability_of_a_filesystem_volume_only() {
        for (block, expected) in [(false, Some("1000")), (true, None)] {
            let spec = MountSpec { block, ..mk_spec() };
            let group = match spec.capability(false, Some(1000)).access_type {
                Some(AccessType::Mount(mount)) => Some(mount.volume_mount_group),
                Some(AccessType::Block(_)) | None => None,
            };
            assert_eq!(group.as_deref(), expected);
        }
    }
}
