//! Helpers for Pod objects.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The names of a pod's volumes that its containers mount, and of those that they use as devices.
#[derive(Debug, Default)]
pub(crate) struct VolumeNames<'a> {
    pub mounts: BTreeSet<&'a str>,
    pub devices: BTreeSet<&'a str>,
}

// === impl VolumeNames ===

impl VolumeNames<'_> {
    /// Whether a container uses the volume.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.mounts.contains(name) || self.devices.contains(name)
    }
}

// === functions ===

/// The node the pod was bound to.
pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_deref())
        .unwrap_or_default()
}

/// The volumes that containers use: upstream's `GetPodVolumeNames`.
pub(crate) fn volume_names(pod: &Pod) -> VolumeNames<'_> {
    let mut names = VolumeNames::default();
    let Some(spec) = &pod.spec else {
        return names;
    };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let containers = containers.map(|container| (&container.volume_mounts, &container.volume_devices));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|container| (&container.volume_mounts, &container.volume_devices));
    for (mounts, devices) in containers.chain(ephemeral) {
        let mounts = mounts.iter().flatten().map(|mount| mount.name.as_str());
        names.mounts.extend(mounts);
        let devices = devices.iter().flatten().map(|device| device.name.as_str());
        names.devices.extend(devices);
    }
    names
}

pub(crate) fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// The status of the pod's Ready condition.
pub(crate) fn ready_status(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    Some(&ready.status)
}

pub(crate) fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod is terminated: by its phase, or because it is terminating and no container runs.
pub(crate) fn is_terminated(pod: &Pod) -> bool {
    is_finished(pod) || (is_deleting(pod) && !has_running_container(pod))
}

/// Whether the pod's phase is final.
pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Succeeded" | "Failed"))
}

/// Whether the restart policy restarts a container that exits with this code.
pub(crate) fn restarts_containers(pod: &Pod, exit_code: i32) -> bool {
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    match policy {
        Some("Never") => false,
        Some("OnFailure") => exit_code != 0,
        _ => true,
    }
}

/// Whether a container of any type has neither ended nor still to start.
fn has_running_container(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return false;
    };
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().any(|container| {
        container
            .state
            .as_ref()
            .is_none_or(|state| state.terminated.is_none() && state.waiting.is_none())
    })
}

/// Whether the pod is the controller of an object, such as the claim of its ephemeral volume.
pub(crate) fn owns(pod: &Pod, object: &ObjectMeta) -> bool {
    object
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.controller == Some(true) && owner.uid == uid(pod))
}

/// Checks that the pod is the owner of a claim of one of its ephemeral volumes (`ephemeral.VolumeIsForPod`).
///
/// # Errors
/// The message of upstream's error.
pub(crate) fn check_owner(pod: &Pod, claim: &ObjectMeta) -> Result<(), String> {
    if owns(pod, claim) {
        return Ok(());
    }
    let named = |meta: &ObjectMeta| {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default())
    };
    Err(format!(
        "PVC {} was not created for pod {} (pod is not owner)",
        named(claim),
        named(&pod.metadata)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_all_containers_are_used() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "initContainers": [{"name": "i", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
            "containers": [{"name": "c", "volumeDevices": [{"name": "b", "devicePath": "/b"}]}],
            "ephemeralContainers": [{"name": "e", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}],
            "volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}],
        }}))
        .unwrap();
        let names = volume_names(&pod);
        assert_eq!(names.mounts, BTreeSet::from(["a", "c"]));
        assert_eq!(names.devices, BTreeSet::from(["b"]));
        assert!(!names.contains("d"));
    }

    #[test]
    fn terminated_pod_has_a_final_phase_or_no_running_container_while_deleting() {
        let deleting = serde_json::json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let running = serde_json::json!([{"name": "c", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "state": {"running": {}}}]);
        let ended = serde_json::json!([{"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]);
        let cases = [
            (
                "running",
                serde_json::json!({}),
                "Running",
                running.clone(),
                false,
            ),
            (
                "succeeded",
                serde_json::json!({}),
                "Succeeded",
                ended.clone(),
                true,
            ),
            ("failed", serde_json::json!({}), "Failed", running.clone(), true),
            (
                "deleting, running",
                deleting.clone(),
                "Running",
                running.clone(),
                false,
            ),
            ("deleting, ended", deleting.clone(), "Running", ended, true),
            (
                "deleting, never started",
                deleting,
                "Pending",
                serde_json::json!([]),
                true,
            ),
        ];
        for (case, metadata, phase, containers, terminated) in cases {
            let pod: Pod = serde_json::from_value(serde_json::json!({
                "metadata": metadata,
                "status": {"phase": phase, "containerStatuses": containers},
            }))
            .unwrap();
            assert_eq!(is_terminated(&pod), terminated, "{case}");
        }
        for list in ["initContainerStatuses", "ephemeralContainerStatuses"] {
            let pod: Pod = serde_json::from_value(serde_json::json!({
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"phase": "Pending", list: running},
            }))
            .unwrap();
            assert!(!is_terminated(&pod), "{list}");
        }
    }
}
