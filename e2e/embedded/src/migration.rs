//! CSI migration: translates volumes of removed in-tree plugins to those of the CSI drivers that replaced them.
//!
//! The rules are those of <https://github.com/kubernetes/csi-translation-lib>, with which `e2e/tests/migration_matches_go`
//! compares them. csi-attacher does not share this code, so that tests compare two implementations. Topology keys in a
//! volume's node affinity are not translated.

mod ebs;
mod gce_pd;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIPersistentVolumeSource, PersistentVolume,
    PersistentVolumeSpec, SecretReference, Volume, VsphereVirtualDiskVolumeSource,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

const EBS: &str = "ebs.csi.aws.com";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const GCE_PD: &str = "pd.csi.storage.gke.io";
const PORTWORX: &str = "pxd.portworx.com";
const VSPHERE: &str = "csi.vsphere.vmware.com";

/// An in-tree volume has no CSI source.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("failed to translate in-tree pv to CSI: {0}")]
pub struct TranslationError(String);

/// A CSI source and access modes for one of an in-tree plugin.
struct Translation {
    csi: CSIPersistentVolumeSource,
    access_modes: Option<Vec<String>>,
}

type Translated = Result<CSIPersistentVolumeSource, TranslationError>;

/// The driver that replaced an in-tree plugin.
pub(crate) fn migrated_driver(plugin: &str) -> Option<&'static str> {
    Some(match plugin {
        "kubernetes.io/aws-ebs" => EBS,
        "kubernetes.io/azure-disk" => AZURE_DISK,
        "kubernetes.io/azure-file" => AZURE_FILE,
        "kubernetes.io/cinder" => CINDER,
        "kubernetes.io/gce-pd" => GCE_PD,
        "kubernetes.io/portworx-volume" => PORTWORX,
        "kubernetes.io/vsphere-volume" => VSPHERE,
        _ => return None,
    })
}

// === PersistentVolumes ===

/// The volume with a CSI source, translated if its source is in-tree; `None` if no CSI driver serves it.
///
/// # Errors
/// The in-tree source has no equivalent.
pub fn to_csi(volume: &PersistentVolume) -> Result<Option<Cow<'_, PersistentVolume>>, TranslationError> {
    let Some(spec) = &volume.spec else {
        return Ok(None);
    };
    if spec.csi.is_some() {
        return Ok(Some(Cow::Borrowed(volume)));
    }
    let Some(translation) = translate(volume, spec)? else {
        return Ok(None);
    };
    let mut volume = volume.clone();
    volume.spec = Some(PersistentVolumeSpec {
        csi: Some(translation.csi),
        access_modes: translation.access_modes,
        aws_elastic_block_store: None,
        azure_disk: None,
        azure_file: None,
        cinder: None,
        gce_persistent_disk: None,
        portworx_volume: None,
        vsphere_volume: None,
        ..spec.clone()
    });
    Ok(Some(Cow::Owned(volume)))
}

fn translate(
    volume: &PersistentVolume,
    spec: &PersistentVolumeSpec,
) -> Result<Option<Translation>, TranslationError> {
    let annotation = |key: &str| volume.annotations().get(key).cloned();
    let mut access_modes = spec.access_modes.clone();
    let csi = if let Some(source) = &spec.aws_elastic_block_store {
        ebs(source)?
    } else if let Some(source) = &spec.azure_disk {
        azure_disk(source, source.caching_mode.as_ref())?
    } else if let Some(source) = &spec.azure_file {
        let claim = spec.claim_ref.as_ref();
        let namespace = source
            .secret_namespace
            .clone()
            .or_else(|| claim?.namespace.clone());
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        azure_file(&AzureFile {
            secret: &source.secret_name,
            share: &source.share_name,
            resource_group: annotation("kubernetes.io/azure-file-resource-group").unwrap_or_default(),
            volume: volume.metadata.name.as_deref().unwrap_or_default(),
            namespace: &namespace.ok_or_else(|| {
                TranslationError(
                    "could not find a secret namespace in PersistentVolumeSource or ClaimRef".to_owned(),
                )
            })?,
            read_only: source.read_only,
        })
    } else if let Some(source) = &spec.cinder {
        mk_source(
            CINDER,
            &source.volume_id,
            source.fs_type.as_ref(),
            source.read_only,
        )
    } else if let Some(source) = &spec.gce_persistent_disk {
        access_modes = gce_pd::access_modes(access_modes);
        gce_pd::translate(source, &gce_pd::zones(volume))?
    } else if let Some(source) = &spec.portworx_volume {
        let secret = annotation("openstorage.io/auth-secret-name")
            .zip(annotation("openstorage.io/auth-secret-namespace"))
            .map(|(name, namespace)| mk_secret(&name, &namespace));
        CSIPersistentVolumeSource {
            controller_expand_secret_ref: secret.clone(),
            controller_publish_secret_ref: secret.clone(),
            node_expand_secret_ref: secret.clone(),
            node_publish_secret_ref: secret.clone(),
            node_stage_secret_ref: secret,
            ..mk_source(PORTWORX, &source.volume_id, source.fs_type.as_ref(), None)
        }
    } else if let Some(source) = &spec.vsphere_volume {
        vsphere(source)
    } else {
        return Ok(None);
    };
    Ok(Some(Translation { csi, access_modes }))
}

// === volumes of pods ===

/// Whether a pod's volume has an in-tree source that a CSI driver serves.
pub(crate) fn is_migrated(volume: &Volume) -> bool {
    volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.azure_file.is_some()
        || volume.cinder.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.portworx_volume.is_some()
        || volume.vsphere_volume.is_some()
}

/// The translated PersistentVolume for the in-tree source of a pod in this namespace; `None` if no CSI driver serves the
/// volume.
///
/// # Errors
/// The in-tree source has no equivalent.
pub fn inline_to_csi(volume: &Volume, namespace: &str) -> Result<Option<PersistentVolume>, TranslationError> {
    let mode = |read_only: Option<bool>| match read_only {
        Some(true) => "ReadOnlyMany",
        Some(false) | None => "ReadWriteOnce",
    };
    let mut access_mode = "ReadWriteOnce";
    let mut name = None;
    let csi = if let Some(source) = &volume.aws_elastic_block_store {
        ebs(source)?
    } else if let Some(source) = &volume.azure_disk {
        name = Some(source.disk_uri.clone());
        azure_disk(
            source,
            source.caching_mode.as_ref().filter(|mode| !mode.is_empty()),
        )?
    } else if let Some(source) = &volume.azure_file {
        access_mode = "ReadWriteMany";
        let csi = azure_file(&AzureFile {
            secret: &source.secret_name,
            share: &source.share_name,
            resource_group: String::new(),
            volume: &volume.name,
            namespace: if namespace.is_empty() {
                "default"
            } else {
                namespace
            },
            read_only: source.read_only,
        });
        name = Some(csi.volume_handle.clone());
        csi
    } else if let Some(source) = &volume.cinder {
        mk_source(
            CINDER,
            &source.volume_id,
            source.fs_type.as_ref(),
            source.read_only,
        )
    } else if let Some(source) = &volume.gce_persistent_disk {
        access_mode = mode(source.read_only);
        name = Some(format!("{GCE_PD}-{}", source.pd_name));
        gce_pd::translate(source, &[])?
    } else if let Some(source) = &volume.portworx_volume {
        access_mode = mode(source.read_only);
        mk_source(PORTWORX, &source.volume_id, source.fs_type.as_ref(), None)
    } else if let Some(source) = &volume.vsphere_volume {
        vsphere(source)
    } else {
        return Ok(None);
    };
    let name = name.unwrap_or_else(|| format!("{}-{}", csi.driver, csi.volume_handle));
    Ok(Some(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            csi: Some(csi),
            access_modes: Some(vec![access_mode.to_owned()]),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }))
}

// === plugins ===

/// Fields without a value are absent.
fn mk_source(
    driver: &str,
    handle: &str,
    fs_type: Option<&String>,
    read_only: Option<bool>,
) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.to_owned(),
        fs_type: fs_type.filter(|fs_type| !fs_type.is_empty()).cloned(),
        read_only: read_only.filter(|read_only| *read_only),
        ..CSIPersistentVolumeSource::default()
    }
}

fn mk_secret(name: &str, namespace: &str) -> SecretReference {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    SecretReference {
        name: given(name),
        namespace: given(namespace),
    }
}

fn ebs(source: &AWSElasticBlockStoreVolumeSource) -> Translated {
    let id = ebs::volume_id(&source.volume_id).map_err(|why| {
        TranslationError(format!(
            "failed to translate Kubernetes ID to EBS Volume ID {why}"
        ))
    })?;
    let mut csi = mk_source(EBS, &id, source.fs_type.as_ref(), source.read_only);
    let partition = source.partition.unwrap_or_default().to_string();
    csi.volume_attributes = Some(BTreeMap::from([("partition".to_owned(), partition)]));
    Ok(csi)
}

/// Only managed disks have a CSI driver.
fn azure_disk(source: &AzureDiskVolumeSource, caching_mode: Option<&String>) -> Translated {
    const MANAGED: &str = "Managed";
    let kind = source.kind.as_deref().unwrap_or(MANAGED);
    if !kind.eq_ignore_ascii_case(MANAGED) {
        let why = format!("kind({kind}) is not supported in csi migration");
        return Err(TranslationError(why));
    }
    let mut csi = mk_source(
        AZURE_DISK,
        &source.disk_uri,
        source.fs_type.as_ref(),
        source.read_only,
    );
    let mut attributes = BTreeMap::from([("kind".to_owned(), MANAGED.to_owned())]);
    attributes.extend(caching_mode.map(|mode| ("cachingmode".to_owned(), mode.clone())));
    let fs_type = source.fs_type.clone();
    attributes.extend(fs_type.map(|fs_type| ("fstype".to_owned(), fs_type)));
    csi.volume_attributes = Some(attributes);
    Ok(csi)
}

/// A share of a storage account.
struct AzureFile<'a> {
    secret: &'a str,
    share: &'a str,
    resource_group: String,
    volume: &'a str,
    namespace: &'a str,
    read_only: Option<bool>,
}

fn azure_file(file: &AzureFile<'_>) -> CSIPersistentVolumeSource {
    let handle = format!(
        "{}#{}#{}#{}#{}",
        file.resource_group,
        storage_account(file.secret).unwrap_or(file.secret),
        file.share,
        file.volume,
        file.namespace
    );
    let share = ("sharename".to_owned(), file.share.to_owned());
    CSIPersistentVolumeSource {
        volume_attributes: Some(BTreeMap::from([share])),
        node_stage_secret_ref: Some(mk_secret(file.secret, file.namespace)),
        ..mk_source(AZURE_FILE, &handle, None, file.read_only)
    }
}

/// The account in `azure-storage-account-ACCOUNT-secret`, the longest one of the leftmost match, in one line.
fn storage_account(secret: &str) -> Option<&str> {
    const PREFIX: &str = "azure-storage-account-";
    (0..secret.len())
        .filter_map(|at| secret.get(at..)?.strip_prefix(PREFIX)?.split('\n').next())
        .filter_map(|rest| rest.rsplit_once("-secret"))
        .map(|(account, _)| account)
        .find(|account| !account.is_empty())
}

fn vsphere(source: &VsphereVirtualDiskVolumeSource) -> CSIPersistentVolumeSource {
    let policy = source
        .storage_policy_name
        .clone()
        .filter(|policy| !policy.is_empty());
    CSIPersistentVolumeSource {
        volume_attributes: policy.map(|policy| BTreeMap::from([("storagepolicyname".to_owned(), policy)])),
        ..mk_source(VSPHERE, &source.volume_path, source.fs_type.as_ref(), None)
    }
}

#[cfg(test)]
mod tests;
