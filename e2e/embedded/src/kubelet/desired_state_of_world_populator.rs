//! Resolves the volumes of kubelet's pods, as upstream's populator of the desired state of world.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client};

use super::mount_spec::MountSpec;
use crate::api_error::message_of;
use crate::informer::has_finalizer;
use crate::migration;
use crate::persistent_volume::claim_phase;
use crate::pod::{self, VolumeNames};
use crate::volume::{CLAIM_FINALIZER, claim_name};

/// Reads the objects of pods' volumes.
#[derive(Clone)]
pub(crate) struct DesiredStateOfWorldPopulator {
    pub client: Client,
}

/// The names of a pod's volumes that could not be resolved, and the reasons.
#[derive(Debug)]
pub(crate) struct ResolveError(pub Vec<(String, String)>);

// === impl DesiredStateOfWorldPopulator ===

impl DesiredStateOfWorldPopulator {
    /// The CSI volumes that the pod's containers use.
    ///
    /// # Errors
    /// Some volumes do not exist, are not bound yet, or are used in the wrong mode.
    pub(crate) async fn resolve(&self, pod: &Pod) -> Result<Vec<MountSpec>, ResolveError> {
        let mut specs = Vec::new();
        let mut failed = Vec::new();
        let names = pod::volume_names(pod);
        for volume in pod::volumes(pod) {
            if !names.contains(&volume.name) {
                continue;
            }
            match self.create_volume_spec(pod, volume).await {
                Ok(Some(spec)) => match check_volume_mode(&spec, &names) {
                    Ok(()) => specs.push(spec),
                    Err(why) => failed.push((volume.name.clone(), why)),
                },
                Ok(None) => {}
                Err(why) => failed.push((volume.name.clone(), why)),
            }
        }
        if failed.is_empty() {
            Ok(specs)
        } else {
            Err(ResolveError(failed))
        }
    }

    /// `None` for a volume without a CSI driver.
    async fn create_volume_spec(&self, pod: &Pod, volume: &Volume) -> Result<Option<MountSpec>, String> {
        if let Some(csi) = &volume.csi {
            let driver = self.csi_driver(&csi.driver).await?;
            return Ok(MountSpec::from_inline(pod, volume, driver.as_ref()));
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(name) = claim_name(pod, volume) else {
            let translated = migration::inline_to_csi(volume).map_err(|error| error.to_string())?;
            return match translated {
                Some(translated) => self.mount_spec(volume, &translated, false).await,
                None => Ok(None),
            };
        };
        let failed = |why: String| format!("error processing PVC {namespace}/{name}: {why}");
        let claim = self.bound_claim(namespace, &name).await.map_err(failed)?;
        if volume.ephemeral.is_some() {
            pod::check_owner(pod, &claim.metadata)?;
        }
        let bound = self.volume_of(&claim).await.map_err(failed)?;
        let Some(translated) = migration::to_csi(&bound).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let source = volume.persistent_volume_claim.as_ref();
        let read_only = source.is_some_and(|claim| claim.read_only == Some(true));
        self.mount_spec(volume, &translated, read_only).await
    }

    async fn mount_spec(
        &self,
        volume: &Volume,
        translated: &PersistentVolume,
        read_only: bool,
    ) -> Result<Option<MountSpec>, String> {
        let csi = translated.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let driver = match csi {
            Some(csi) => self.csi_driver(&csi.driver).await?,
            None => None,
        };
        Ok(MountSpec::from_translated(
            &volume.name,
            translated,
            driver.as_ref(),
            read_only,
        ))
    }

    async fn bound_claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, String> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
        let claim = claims.get(name).await;
        let claim =
            claim.map_err(|error| format!("failed to fetch PVC from API server: {}", message_of(&error)))?;
        if claim.metadata.deletion_timestamp.is_some() && !has_finalizer(&claim.metadata, CLAIM_FINALIZER) {
            return Err("PVC is being deleted".to_owned());
        }
        if claim_phase(&claim) != "Bound" {
            return Err("PVC is not bound".to_owned());
        }
        Ok(claim)
    }

    async fn volume_of(&self, claim: &PersistentVolumeClaim) -> Result<PersistentVolume, String> {
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let name = name
            .filter(|name| !name.is_empty())
            .ok_or("PVC has empty pvc.Spec.VolumeName")?;
        let volume = Api::<PersistentVolume>::all(self.client.clone()).get(name).await;
        let volume = volume.map_err(|error| {
            format!(
                "failed to fetch PV {name} from API server: {}",
                message_of(&error)
            )
        })?;
        let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let Some(owner) = owner else {
            return Err(format!(
                "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
            ));
        };
        if owner.uid != claim.metadata.uid {
            let [found, wanted] =
                [&owner.uid, &claim.metadata.uid].map(|uid| uid.as_deref().unwrap_or_default());
            return Err(format!(
                "found PV object {name} but its pv.Spec.ClaimRef.UID {found} does not point to claim.UID {wanted}"
            ));
        }
        Ok(volume)
    }

    async fn csi_driver(&self, name: &str) -> Result<Option<CSIDriver>, String> {
        let driver = Api::<CSIDriver>::all(self.client.clone()).get_opt(name).await;
        driver.map_err(|error| message_of(&error))
    }
}

// === impl ResolveError ===

impl ResolveError {
    /// Message of a FailedMount event.
    pub(crate) fn message(&self, pod: &Pod) -> String {
        let list = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.dedup();
            names.join(" ")
        };
        // Other volumes, such as tokens, count as mounted.
        let of_driver = |volume: &&Volume| {
            volume.csi.is_some() || claim_name(pod, volume).is_some() || migration::is_migrated(volume)
        };
        let volumes = pod::volumes(pod).iter().filter(of_driver);
        let used = pod::volume_names(pod);
        let names = volumes.map(|volume| volume.name.as_str());
        let unmounted = names.filter(|name| used.contains(name)).collect();
        let failed = list(self.0.iter().map(|(name, _)| name.as_str()).collect());
        let errors: Vec<&str> = self.0.iter().map(|(_, why)| why.as_str()).collect();
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process \
             volumes=[{failed}]: {}",
            list(unmounted),
            errors.join("; ")
        )
    }
}

// === functions ===

/// Containers mount filesystem volumes and use block volumes as devices.
fn check_volume_mode(spec: &MountSpec, names: &VolumeNames<'_>) -> Result<(), String> {
    let (mode, wrong, field) = if spec.block {
        ("Block", &names.mounts, "volumeMounts")
    } else {
        ("Filesystem", &names.devices, "volumeDevices")
    };
    let name = spec.outer_name.as_str();
    if wrong.contains(name) {
        return Err(format!(
            "volume {name} has volumeMode {mode}, but is specified in {field}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::mount_spec::tests::mk_spec;
    use super::*;

    #[test]
    fn volume_used_in_the_wrong_mode_is_rejected() {
        let mounted = VolumeNames {
            mounts: ["data"].into(),
            ..VolumeNames::default()
        };
        let device = VolumeNames {
            devices: ["data"].into(),
            ..VolumeNames::default()
        };
        let cases = [
            (&mounted, false, None),
            (
                &mounted,
                true,
                Some("volume data has volumeMode Block, but is specified in volumeMounts"),
            ),
            (
                &device,
                false,
                Some("volume data has volumeMode Filesystem, but is specified in volumeDevices"),
            ),
            (&device, true, None),
        ];
        for (names, block, expected) in cases {
            let error = check_volume_mode(&MountSpec { block, ..mk_spec() }, names).err();
            assert_eq!(error.as_deref(), expected);
        }
    }
}
