//! Creates the claims of generic ephemeral volumes. The garbage collector deletes them with their pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::api_error::message_of;
use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::{Change, Resync};
use crate::informers::Informers;
use crate::pod;
use crate::volume::claim_name;

/// Period of retrying claims that could not be created.
const RESYNC_PERIOD: Duration = Duration::from_secs(5);

/// The ephemeral volume controller.
pub(crate) struct EphemeralVolumeController {
    pub client: Client,
    pub informers: Informers,
    pub recorder: EventRecorder,
}

// === impl EphemeralVolumeController ===

impl EphemeralVolumeController {
    /// Runs until the future is dropped. The call subscribes, so that the controller misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let pods = self.informers.pods.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let mut pods = Resync::new(pods, RESYNC_PERIOD);
            loop {
                match pods.next().await {
                    Some(Change::Applied { new, .. }) => self.make_claims(&new).await,
                    Some(Change::Deleted(_)) => {}
                    None => {
                        for pod in self.informers.pods.list() {
                            self.make_claims(&pod).await;
                        }
                    }
                }
            }
        }
    }

    async fn make_claims(&self, pod: &Pod) {
        if pod::is_deleting(pod) || pod::is_finished(pod) {
            return;
        }
        for volume in pod::volumes(pod)
            .iter()
            .filter(|volume| volume.ephemeral.is_some())
        {
            self.make_claim(pod, volume).await;
        }
    }

    async fn make_claim(&self, pod: &Pod, volume: &Volume) {
        let Some(claim) = new_claim(pod, volume) else {
            return;
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        if let Some(known) = self.informers.claims.get(namespace, name) {
            if !pod::owns(pod, &known.metadata) {
                let message = format!(
                    "PVC {name} was not created for pod {namespace}/{} (pod is not owner)",
                    pod.metadata.name.as_deref().unwrap_or_default()
                );
                self.failed(pod, &message);
            }
            return;
        }
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
        match claims.create(&PostParams::default(), &claim).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            Err(error) => self.failed(pod, &format!("create PVC {name}: {}", message_of(&error))),
        }
    }

    fn failed(&self, pod: &Pod, message: &str) {
        const REASON: &str = "FailedBinding";
        let message = format!("ephemeral volume: {message}");
        self.recorder.event(pod, EventType::Warning, REASON, &message);
    }
}

// === functions ===

fn new_claim(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.clone()?;
    let metadata = template.metadata.unwrap_or_default();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: claim_name(pod, volume),
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: pod::uid(pod).to_owned(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec),
        ..PersistentVolumeClaim::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_is_named_after_and_owned_by_its_pod() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate":
                {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}}}]},
        }))
        .unwrap();
        let claim = new_claim(&pod, &pod::volumes(&pod)[0]).unwrap();
        assert_eq!(claim.metadata.name.as_deref(), Some("p-scratch"));
        assert!(pod::owns(&pod, &claim.metadata));
        assert_eq!(claim.metadata.labels.unwrap()["a"], "b");
    }
}
