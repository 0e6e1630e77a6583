//! Findings from a pod's events, conditions and container states.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::objects::{EventExt, ObjectExt, PodExt, text};
use crate::path::VolumePath;
use crate::snapshot::NamespacedName;

/// Waiting reasons of a container while kubelet mounts the pod's volumes.
const BEFORE_MOUNT: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// Progress of kubelet with the volumes of a pod.
pub(super) enum Mount {
    Pending,
    /// All volumes are mounted, which kubelet does before it starts any container.
    Done {
        /// Another reason why the pod does not run.
        waiting: Option<String>,
    },
}

/// The pod's newest warning with one of these reasons, preferably about this volume.
pub(super) fn warning(path: &VolumePath<'_>, reasons: &[&str]) -> Option<String> {
    let pod = path.pod?;
    let events = path
        .view
        .events("Pod", &NamespacedName::new(pod.namespace(), pod.name()));
    let mut warnings = events.iter().filter(|event| reasons.contains(&event.reason()));
    // Events contain the pod's name for the volume, or the PersistentVolume's name.
    let names = [path.pod_volume, path.volume_name.as_deref()];
    let is_about = |text: &str| {
        names
            .iter()
            .flatten()
            .any(|name| text.contains(&format!("\"{name}\"")) || text.contains(&format!("[{name}]")))
    };
    let event = warnings
        .clone()
        .find(|event| is_about(event.message()))
        .or_else(|| warnings.next())?;
    Some(format!("The pod's event {}: {}", event.reason(), event.message()))
}

/// When the pod was scheduled.
pub(super) fn scheduled_at(pod: &Pod) -> Option<Timestamp> {
    let condition = pod
        .condition("PodScheduled")
        .filter(|condition| condition.status == "True");
    let scheduled = condition.and_then(|condition| Some(condition.last_transition_time.as_ref()?.0));
    scheduled.or(pod.created_at())
}

/// Whether kubelet has mounted the pod's volumes.
pub(super) fn mount(pod: &Pod) -> Mount {
    if pod.phase() == "Running" {
        return Mount::Done { waiting: None };
    }
    for container in pod.container_statuses() {
        let Some(state) = &container.state else { continue };
        if state.running.is_some() || state.terminated.is_some() {
            return Mount::Done { waiting: None };
        }
        if let Some(waiting) = &state.waiting
            && !BEFORE_MOUNT.contains(&text(&waiting.reason))
        {
            let reason = format!("{} {}", text(&waiting.reason), text(&waiting.message));
            let waiting = format!(
                "That the pod does not run has another reason: container {} waits: {}",
                container.name,
                reason.trim_end()
            );
            return Mount::Done {
                waiting: Some(waiting),
            };
        }
    }
    Mount::Pending
}

/// When the first container started.
pub(super) fn started_at(pod: &Pod) -> Option<Timestamp> {
    let states = pod
        .container_statuses()
        .filter_map(|status| status.state.as_ref());
    let started = states.filter_map(|state| state.running.as_ref()?.started_at.as_ref());
    started.map(|time| time.0).min()
}
