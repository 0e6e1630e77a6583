//! The namespace controller of kube-controller-manager: deletes the content of a terminating namespace, then removes its own
//! finalizer from it.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api_error::ignore_not_found;
use crate::informer::{Change, Resync};
use crate::informers::Informers;

/// Delay before a namespace that still has content is requeued.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The controller's finalizer in the namespace's spec.
const FINALIZER: &str = "kubernetes";

/// The namespace controller.
pub(crate) struct NamespaceController {
    pub client: Client,
    pub informers: Informers,
}

// === impl NamespaceController ===

impl NamespaceController {
    /// Runs until the future is dropped. The call subscribes, so that the controller misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let changes = self.informers.namespaces.subscribe();
        async move {
            let mut changes = Resync::new(changes, RETRY_PERIOD);
            loop {
                match changes.next().await {
                    Some(Change::Applied { new, .. }) => self.sync(&new).await,
                    Some(Change::Deleted(_)) => {}
                    None => {
                        for namespace in self.informers.namespaces.list() {
                            self.sync(&namespace).await;
                        }
                    }
                }
            }
        }
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
        let Some(mut namespace) = namespaces.get_opt(name).await?.filter(is_unfinalized) else {
            return Ok(());
        };
        // Other content must outlive the pods that use it.
        if !self.delete_all::<Pod>(name).await? {
            return Ok(());
        }
        let claims = self.delete_all::<PersistentVolumeClaim>(name).await?;
        let secrets = self.delete_all::<Secret>(name).await?;
        let accounts = self.delete_all::<ServiceAccount>(name).await?;
        let leases = self.delete_all::<Lease>(name).await?;
        let capacities = self.delete_all::<CSIStorageCapacity>(name).await?;
        let events = self.delete_all::<Event>(name).await?;
        if !(claims && secrets && accounts && leases && capacities && events) {
            return Ok(());
        }
        let spec = namespace.spec.get_or_insert_default();
        let mut finalizers = spec.finalizers.take().unwrap_or_default();
        let before = finalizers.len();
        finalizers.retain(|name| name != FINALIZER);
        if finalizers.len() == before {
            return Ok(());
        }
        spec.finalizers = Some(finalizers);
        let replaced = namespaces
            .replace_subresource("finalize", name, &PostParams::default(), &namespace)
            .await;
        ignore_not_found(replaced)
    }

    /// Deletes all objects of a kind; returns whether none is left.
    async fn delete_all<K>(&self, namespace: &str) -> kube::Result<bool>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let objects = Api::<K>::namespaced(self.client.clone(), namespace);
        let all = ListParams::default();
        objects
            .delete_collection(&DeleteParams::background(), &all)
            .await?;
        Ok(objects.list_metadata(&all).await?.items.is_empty())
    }
}

// === functions ===

/// Whether a namespace is terminating and has finalizers in its spec.
fn is_unfinalized(namespace: &Namespace) -> bool {
    let spec = namespace.spec.as_ref();
    let finalizers = spec.and_then(|spec| spec.finalizers.as_ref());
    namespace.metadata.deletion_timestamp.is_some() && finalizers.is_some_and(|names| !names.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apiserver::{ApiServer, Options};

    fn mk_controller(client: &Client) -> NamespaceController {
        NamespaceController {
            client: client.clone(),
            informers: Informers::default(),
        }
    }

    async fn create<K>(api: &Api<K>, object: serde_json::Value)
    where
        K: Clone + Debug + DeserializeOwned + serde::Serialize,
    {
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    #[tokio::test]
    async fn namespace_with_another_finalizer_stays() {
        let client = ApiServer::new(&Options::default()).client();
        let namespaces = Api::<Namespace>::all(client.clone());
        let spec = json!({"finalizers": ["kubernetes", "example.com/keep"]});
        create(&namespaces, json!({"metadata": {"name": "a"}, "spec": spec})).await;
        namespaces.delete("a", &DeleteParams::default()).await.unwrap();
        let controller = mk_controller(&client);
        controller.sync(&namespaces.get("a").await.unwrap()).await;
        let kept = namespaces.get("a").await.unwrap();
        assert_eq!(kept.spec.unwrap().finalizers.unwrap(), ["example.com/keep"]);
        let version = kept.metadata.resource_version;
        controller.sync(&namespaces.get("a").await.unwrap()).await;
        let kept = namespaces.get("a").await.unwrap();
        assert_eq!(
            kept.metadata.resource_version, version,
            "nothing is left to write"
        );
    }

    #[tokio::test]
    async fn content_is_deleted_after_the_pods_that_use_it() {
        let client = ApiServer::new(&Options::default()).client();
        let namespaces = Api::<Namespace>::all(client.clone());
        create(&namespaces, json!({"metadata": {"name": "a"}})).await;
        let secrets = Api::<Secret>::namespaced(client.clone(), "a");
        create(&secrets, json!({"metadata": {"name": "s"}})).await;
        let pods = Api::<Pod>::namespaced(client.clone(), "a");
        create(
            &pods,
            json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n",
                "containers": [{"name": "app", "image": "pause"}]}}),
        )
        .await;
        namespaces.delete("a", &DeleteParams::default()).await.unwrap();
        let controller = mk_controller(&client);
        controller.sync(&namespaces.get("a").await.unwrap()).await;
        assert!(pods.get("p").await.unwrap().metadata.deletion_timestamp.is_some());
        assert!(secrets.get_opt("s").await.unwrap().is_some());
        let namespace = namespaces.get("a").await.unwrap();
        pods.delete("p", &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
        controller.sync(&namespace).await;
        assert!(namespaces.get_opt("a").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn content_of_a_recreated_namespace_stays() {
        let client = ApiServer::new(&Options::default()).client();
        let namespaces = Api::<Namespace>::all(client.clone());
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let controller = mk_controller(&client);
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
