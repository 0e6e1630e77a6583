//! CSI migration: translates EBS, Azure disk and Cinder volumes to those of the CSI drivers that replaced their in-tree plugins.
//!
//! The rules are those of <https://github.com/kubernetes/csi-translation-lib>, with which `e2e/tests/migration_matches_go`
//! compares them. csi-attacher does not share this code, so that tests compare two implementations. Topology keys in a
//! volume's node affinity are not translated.

mod ebs;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIPersistentVolumeSource, PersistentVolume,
    PersistentVolumeSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const EBS: &str = "ebs.csi.aws.com";
const AZURE_DISK: &str = "disk.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";

/// An in-tree volume has no CSI source.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("failed to translate in-tree pv to CSI: {0}")]
pub struct TranslationError(String);

type Translated = Result<CSIPersistentVolumeSource, TranslationError>;

/// The driver that replaced an in-tree plugin.
pub(crate) fn migrated_driver(plugin: &str) -> Option<&'static str> {
    Some(match plugin {
        "kubernetes.io/aws-ebs" => EBS,
        "kubernetes.io/azure-disk" => AZURE_DISK,
        "kubernetes.io/cinder" => CINDER,
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
    let Some(csi) = translate(spec)? else {
        return Ok(None);
    };
    let mut volume = volume.clone();
    volume.spec = Some(PersistentVolumeSpec {
        csi: Some(csi),
        aws_elastic_block_store: None,
        azure_disk: None,
        cinder: None,
        ..spec.clone()
    });
    Ok(Some(Cow::Owned(volume)))
}

fn translate(spec: &PersistentVolumeSpec) -> Result<Option<CSIPersistentVolumeSource>, TranslationError> {
    Ok(Some(if let Some(source) = &spec.aws_elastic_block_store {
        ebs(source)?
    } else if let Some(source) = &spec.azure_disk {
        azure_disk(source, source.caching_mode.as_ref())?
    } else if let Some(source) = &spec.cinder {
        mk_source(
            CINDER,
            &source.volume_id,
            source.fs_type.as_ref(),
            source.read_only,
        )
    } else {
        return Ok(None);
    }))
}

// === volumes of pods ===

/// Whether a pod's volume has an in-tree source that a CSI driver serves.
pub(crate) fn is_migrated(volume: &Volume) -> bool {
    volume.aws_elastic_block_store.is_some() || volume.azure_disk.is_some() || volume.cinder.is_some()
}

/// The translated PersistentVolume for the in-tree source of a pod; `None` if no CSI driver serves the volume.
///
/// # Errors
/// The in-tree source has no equivalent.
pub fn inline_to_csi(volume: &Volume) -> Result<Option<PersistentVolume>, TranslationError> {
    let mut name = None;
    let csi = if let Some(source) = &volume.aws_elastic_block_store {
        ebs(source)?
    } else if let Some(source) = &volume.azure_disk {
        name = Some(source.disk_uri.clone());
        azure_disk(
            source,
            source.caching_mode.as_ref().filter(|mode| !mode.is_empty()),
        )?
    } else if let Some(source) = &volume.cinder {
        mk_source(
            CINDER,
            &source.volume_id,
            source.fs_type.as_ref(),
            source.read_only,
        )
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
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
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

#[cfg(test)]
mod tests;
