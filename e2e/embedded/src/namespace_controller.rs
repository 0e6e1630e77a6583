//! The namespace controller of kube-controller-manager: deletes the content of a terminating namespace, then finalizes
//! it.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{MissedTickBehavior, interval};

use crate::api_error::ignore_not_found;
use crate::informer::{Change, Informer};

/// Delay before a namespace that still has content is requeued.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// The namespace controller.
pub(crate) struct NamespaceController {
    pub client: Client,
}

// === impl NamespaceController ===

impl NamespaceController {
    /// Runs until the future is dropped.
    pub(crate) async fn run(self) {
        let namespaces = Informer::<Namespace>::default();
        let mut changes = namespaces.subscribe();
        let watching = namespaces.clone().run(Api::all(self.client.clone()));
        let syncing = async {
            let mut ticks = interval(RETRY_PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    biased;
                    Some(change) = changes.recv() => {
                        if let Change::Applied { new, .. } = change {
                            self.sync(&new).await;
                        }
                    }
                    _ = ticks.tick() => {
                        for namespace in namespaces.list() {
                            self.sync(&namespace).await;
                        }
                    }
                }
            }
        };
        futures::join!(watching, syncing);
    }

    async fn sync(&self, namespace: &Namespace) {
        if namespace.metadata.deletion_timestamp.is_none() {
            return;
        }
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        if let Err(error) = self.finalize(name).await {
            tracing::debug!(namespace = name, %error, "namespace was not finalized");
        }
    }

    async fn finalize(&self, name: &str) -> kube::Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        // The informer may still show a terminating namespace that was re-created meanwhile.
        let newest = namespaces.get_opt(name).await?;
        let Some(mut namespace) = newest.filter(|newest| newest.metadata.deletion_timestamp.is_some()) else {
            return Ok(());
        };
        let remains = self.delete_all::<Pod>(name).await?
            | self.delete_all::<PersistentVolumeClaim>(name).await?
            | self.delete_all::<Secret>(name).await?
            | self.delete_all::<ServiceAccount>(name).await?
            | self.delete_all::<Lease>(name).await?
            | self.delete_all::<CSIStorageCapacity>(name).await?
            | self.delete_all::<Event>(name).await?;
        if remains {
            return Ok(());
        }
        namespace.spec.get_or_insert_default().finalizers = None;
        let replaced = namespaces
            .replace_subresource("finalize", name, &PostParams::default(), &namespace)
            .await;
        ignore_not_found(replaced)
    }

    /// Deletes all objects of a kind; returns whether some remain because of finalizers or a pod's grace period.
    async fn delete_all<K>(&self, namespace: &str) -> kube::Result<bool>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let objects = Api::<K>::namespaced(self.client.clone(), namespace);
        objects
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        let remaining = objects.list(&ListParams::default().limit(1)).await?;
        Ok(!remaining.items.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apiserver::{ApiServer, Options};

    #[tokio::test]
    async fn content_of_a_recreated_namespace_stays() {
        let client = ApiServer::new(&Options::default()).client();
        let namespaces = Api::<Namespace>::all(client.clone());
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let controller = NamespaceController {
            client: client.clone(),
        };
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        namespaces.delete("a", &DeleteParams::default()).await.unwrap();
        let terminating = namespaces.get("a").await.unwrap();
        controller.sync(&terminating).await;
        assert!(namespaces.get_opt("a").await.unwrap().is_none(), "finalized");
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let secrets = Api::<Secret>::namespaced(client, "a");
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "s"}})).unwrap();
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        // A late event of the first namespace.
        controller.sync(&terminating).await;
        assert!(secrets.get_opt("s").await.unwrap().is_some());
    }
}
