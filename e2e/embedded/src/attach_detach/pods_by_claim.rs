//! The pods that name a claim, as the informer's index `pod-pvc-index` of the real controller has them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use crate::informer::{Change, Key, key_of};
use crate::volume::claims_of;

/// Claim -> pods.
#[derive(Debug, Default)]
pub(super) struct PodsByClaim {
    pods: BTreeMap<Key, BTreeSet<Key>>,
}

// === impl PodsByClaim ===

impl PodsByClaim {
    /// A pod that was deleted and re-created while the watch was interrupted may name other claims.
    pub(super) fn apply(&mut self, change: &Change<Pod>) {
        match change {
            Change::Applied { old, new } => {
                if let Some(old) = old {
                    self.remove(old);
                }
                for claim in claims_of(new) {
                    self.pods.entry(claim).or_default().insert(key_of(&**new));
                }
            }
            Change::Deleted(pod) => self.remove(pod),
        }
    }

    fn remove(&mut self, pod: &Pod) {
        for claim in claims_of(pod) {
            if let Some(pods) = self.pods.get_mut(&claim) {
                pods.remove(&key_of(pod));
                if pods.is_empty() {
                    self.pods.remove(&claim);
                }
            }
        }
    }

    pub(super) fn get(&self, claim: &Key) -> impl Iterator<Item = &Key> {
        self.pods.get(claim).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn replaced_pod_leaves_its_claims() {
        let mk_pod = |claim: &str| -> Arc<Pod> {
            let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
            let pod = json!({
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {"containers": [], "volumes": volumes},
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let (first, second) = (mk_pod("first"), mk_pod("second"));
        let applied = |old: Option<&Arc<Pod>>, new: &Arc<Pod>| Change::Applied {
            old: old.cloned(),
            new: new.clone(),
        };
        let key = |name: &str| ("default".to_owned(), name.to_owned());
        let mut index = PodsByClaim::default();
        index.apply(&applied(None, &first));
        index.apply(&applied(Some(&first), &second));
        assert_eq!(index.get(&key("first")).count(), 0);
        assert_eq!(index.get(&key("second")).collect::<Vec<_>>(), [&key("web")]);
        index.apply(&Change::Deleted(second));
        assert!(index.pods.is_empty());
    }
}
