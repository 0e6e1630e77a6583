//! Queries of the PV controller for a claim that waits for a class or for a pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::claims::annotation;
use crate::informers::Informers;
use crate::pod;
use crate::volume::{ANN_IS_DEFAULT_CLASS, claim_name};

/// The default class for an unbound claim without a class, created before the cluster had a default class.
pub(super) fn default_class_for(
    claim: &PersistentVolumeClaim,
    informers: &Informers,
) -> Option<Arc<StorageClass>> {
    let spec = claim.spec.as_ref()?;
    if spec.storage_class_name.is_some() || spec.volume_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return None;
    }
    let is_default = |class: &Arc<StorageClass>| {
        let mut keys = ANN_IS_DEFAULT_CLASS.iter();
        keys.any(|key| annotation(&**class, key) == Some("true"))
    };
    // The newest class takes precedence, then the first by name: `max_by_key` returns the last maximum, so the list
    // is reversed.
    let classes = informers.classes.list().into_iter().rev().filter(is_default);
    classes.max_by_key(|class| class.metadata.creation_timestamp.clone())
}

/// Reason and message of the event of a claim with WaitForFirstConsumer.
pub(super) fn consumers_text(claim: &PersistentVolumeClaim, informers: &Informers) -> (&'static str, String) {
    let pods = informers.pods.list();
    let waiting = pods.iter().filter(|pod| {
        pod.metadata.namespace == claim.metadata.namespace
            && pod::node_name(pod).is_none()
            && !pod::is_terminated(pod)
            && pod::volumes(pod)
                .iter()
                .any(|volume| claim_name(pod, volume) == claim.metadata.name)
    });
    let names: Vec<&str> = waiting.filter_map(|pod| pod.metadata.name.as_deref()).collect();
    match names.as_slice() {
        [] => (
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding".to_owned(),
        ),
        [name] => (
            "WaitForPodScheduled",
            format!("waiting for pod {name} to be scheduled"),
        ),
        names => (
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", names.join(",")),
        ),
    }
}
