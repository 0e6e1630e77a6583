//! Volumes of in-tree plugins, as far as attaching needs them.

use serde::Deserialize;

/// Which driver the PersistentVolume controller handed an in-tree volume to.
pub const MIGRATED_TO_ANNOTATION: &str = "pv.kubernetes.io/migrated-to";
/// The labels with the zones of a GCE disk. The older label wins.
pub(crate) const ZONE_LABELS: [&str; 2] = [
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/zone",
];
/// The annotation with the resource group of an Azure file share.
pub(crate) const AZURE_RESOURCE_GROUP_ANNOTATION: &str = "kubernetes.io/azure-file-resource-group";
/// The annotations with name and namespace of a Portworx volume's Secret.
pub(crate) const PORTWORX_SECRET_NAME_ANNOTATION: &str = "openstorage.io/auth-secret-name";
pub(crate) const PORTWORX_SECRET_NAMESPACE_ANNOTATION: &str = "openstorage.io/auth-secret-namespace";

/// The in-tree source of a volume, if it is one that is migrated to CSI.
#[derive(Clone, Copy, Debug)]
pub enum InTree<'o> {
    /// `awsElasticBlockStore`.
    Ebs(&'o EbsObject),
    /// `gcePersistentDisk`.
    GcePd(&'o GcePdObject),
    /// `cinder`.
    Cinder(&'o CinderObject),
    /// `azureDisk`.
    AzureDisk(&'o AzureDiskObject),
    /// `azureFile`.
    AzureFile(&'o AzureFileObject),
    /// `vsphereVolume`.
    Vsphere(&'o VsphereObject),
    /// `portworxVolume`.
    Portworx(&'o PortworxObject),
}

/// `AWSElasticBlockStoreVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EbsObject {
    /// `vol-…`, or `aws://<zone>/vol-…`.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Filesystem type.
    pub fs_type: String,
    /// Partition of the volume that is meant.
    pub partition: i32,
    /// Whether to publish read-only.
    pub read_only: bool,
}

/// `GCEPersistentDiskVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GcePdObject {
    /// Name of the disk.
    pub pd_name: String,
    /// Filesystem type.
    pub fs_type: String,
    /// Partition of the disk that is meant.
    pub partition: i32,
    /// Whether to publish read-only.
    pub read_only: bool,
}

/// `CinderPersistentVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CinderObject {
    /// Cinder's id of the volume.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Filesystem type.
    pub fs_type: String,
    /// Whether to publish read-only.
    pub read_only: bool,
}

/// `AzureDiskVolumeSource`. The driver is told whether a field was given at all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AzureDiskObject {
    /// The disk's resource id.
    #[serde(rename = "diskURI")]
    pub disk_uri: String,
    /// How the host caches the disk.
    pub caching_mode: Option<String>,
    /// Filesystem type.
    pub fs_type: Option<String>,
    /// Whether to publish read-only.
    pub read_only: Option<bool>,
    /// `Managed`, or a kind that has no CSI equivalent.
    pub kind: Option<String>,
}

/// `AzureFilePersistentVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AzureFileObject {
    /// Name of the Secret with the storage account's key.
    pub secret_name: String,
    /// Namespace of that Secret; the claim's if it is not given.
    pub secret_namespace: Option<String>,
    /// Name of the share.
    pub share_name: String,
    /// Whether to publish read-only.
    pub read_only: bool,
}

/// `VsphereVirtualDiskVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VsphereObject {
    /// Datastore and path of the disk.
    pub volume_path: String,
    /// Filesystem type.
    pub fs_type: String,
    /// Name of the storage policy.
    pub storage_policy_name: String,
}

/// `PortworxVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortworxObject {
    /// Portworx's id of the volume.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Filesystem type.
    pub fs_type: String,
}
