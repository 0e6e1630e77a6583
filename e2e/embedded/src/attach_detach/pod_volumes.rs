//! Determines the volumes to attach for a pod: upstream's `util.ProcessPodVolumes`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Volume};

use super::State;
use super::csi_plugin::CsiPlugin;
use super::desired_state_of_world::PodToAdd;
use crate::informers::Informers;
use crate::persistent_volume::claim_phase;
use crate::pod;
use crate::volume::{VolumeSpec, claim_name};

/// The spec of a pod's volume; `None` if it is not attachable or not bound yet.
pub(crate) fn create_volume_spec(
    pod: &Pod,
    volume: &Volume,
    informers: &Informers,
    plugin: &CsiPlugin,
) -> Option<Arc<VolumeSpec>> {
    let spec = find_volume_spec(pod, volume, informers)?;
    plugin.can_attach(&spec.driver).then(|| Arc::new(spec))
}

/// The driver of a pod's volume, even if the volume needs no attach.
pub(crate) fn driver_of(pod: &Pod, volume: &Volume, informers: &Informers) -> Option<String> {
    let inline = volume.csi.as_ref().map(|csi| csi.driver.clone());
    inline.or_else(|| find_volume_spec(pod, volume, informers).map(|spec| spec.driver))
}

fn find_volume_spec(pod: &Pod, volume: &Volume, informers: &Informers) -> Option<VolumeSpec> {
    match claim_name(pod, volume) {
        Some(claim) => bound_volume(pod, volume, &claim, informers),
        None => VolumeSpec::from_inline(volume),
    }
}

fn bound_volume(pod: &Pod, volume: &Volume, claim: &str, informers: &Informers) -> Option<VolumeSpec> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claim = informers.claims.get(namespace, claim)?;
    // The claim of an ephemeral volume must be owned by this pod.
    if volume.ephemeral.is_some() && !pod::owns(pod, &claim.metadata) {
        return None;
    }
    if claim_phase(&claim) != "Bound" {
        return None;
    }
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    let volume = informers.volumes.get("", name)?;
    let owner = volume.spec.as_ref()?.claim_ref.as_ref()?;
    if owner.uid != claim.metadata.uid {
        return None;
    }
    VolumeSpec::from_persistent_volume(&volume)
}

/// Adds the pod's volumes to the desired state, or removes them.
pub(crate) fn process_pod_volumes(
    pod: &Pod,
    add: bool,
    state: &mut State,
    informers: &Informers,
    plugin: &CsiPlugin,
) {
    let Some(node) = pod::node_name(pod).filter(|node| state.desired.node_exists(node)) else {
        return;
    };
    for volume in pod::volumes(pod) {
        let Some(spec) = create_volume_spec(pod, volume, informers, plugin) else {
            continue;
        };
        let name = spec.unique_name();
        if !add {
            state.delete_pod(pod::uid(pod), &name, node);
        } else if state.desired.add_pod(pod_to_add(pod), spec, node) {
            state.mark_unsettled(&name, node);
        }
    }
}

/// Whether a pod's volumes should be attached: not if it is terminated.
pub(crate) fn determine_volume_action(pod: &Pod) -> bool {
    pod::volumes(pod).is_empty() || !pod::is_terminated(pod)
}

fn pod_to_add(pod: &Pod) -> PodToAdd {
    PodToAdd {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod::uid(pod).to_owned(),
    }
}
