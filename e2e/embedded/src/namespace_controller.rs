//! The namespace controller of kube-controller-manager: deletes the content of a terminating namespace, then removes its own
//! finalizer from it.

mod remaining_content;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api_error::{ignore_not_found, message_of};
use crate::apiserver::Clock;
use crate::informer::{Change, Resync};
use crate::informers::Informers;
use crate::pod;
use remaining_content::RemainingContent;

/// Delay before a namespace that still has content is requeued.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The controller's finalizer in the namespace's spec.
const FINALIZER: &str = "kubernetes";

/// The namespace controller.
pub(crate) struct NamespaceController {
    pub client: Client,
    pub clock: Clock,
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
        let mut content = RemainingContent::default();
        let deleted_at = namespace.metadata.deletion_timestamp.clone();
        let awaits_pods = self.awaits_grace_period(name, deleted_at).await?;
        self.delete_all::<Pod>(name, awaits_pods, &mut content).await;
        let pods_remain = !content.objects.is_empty();
        if pods_remain {
            // Other content must outlive the pods that use it. kube-controller-manager does not report the pods, either.
            content.objects.clear();
            content.finalizers.clear();
        } else {
            self.delete_all::<PersistentVolumeClaim>(name, false, &mut content)
                .await;
            self.delete_all::<Secret>(name, false, &mut content).await;
            self.delete_all::<ServiceAccount>(name, false, &mut content).await;
            self.delete_all::<Lease>(name, false, &mut content).await;
            self.delete_all::<CSIStorageCapacity>(name, false, &mut content)
                .await;
            self.delete_all::<Event>(name, false, &mut content).await;
        }
        let status = namespace.status.get_or_insert_default();
        if content.update_conditions(status.conditions.get_or_insert_default(), &self.clock) {
            let replaced = namespaces
                .replace_subresource("status", name, &PostParams::default(), &namespace)
                .await;
            match replaced {
                Ok(updated) => namespace = updated,
                Err(error) => tracing::debug!(namespace = name, %error, "conditions were not updated"),
            }
        }
        if pods_remain || !content.objects.is_empty() || !content.errors.is_empty() {
            return Ok(());
        }
        let spec = namespace.spec.get_or_insert_default();
        let finalizers = spec.finalizers.take().unwrap_or_default();
        let others: BTreeSet<&String> = finalizers.iter().filter(|name| *name != FINALIZER).collect();
        let others: Vec<String> = others.into_iter().cloned().collect();
        if others == finalizers {
            return Ok(());
        }
        spec.finalizers = Some(others);
        let replaced = namespaces
            .replace_subresource("finalize", name, &PostParams::default(), &namespace)
            .await;
        ignore_not_found(replaced)
    }

    /// Whether pods may still terminate within their grace period, which begins with the namespace's deletion.
    async fn awaits_grace_period(&self, namespace: &str, deleted_at: Option<Time>) -> kube::Result<bool> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let pods = pods.list(&ListParams::default()).await?;
        let running = pods.iter().filter(|pod| !pod::is_finished(pod));
        let grace = running
            .filter_map(|pod| pod.spec.as_ref()?.termination_grace_period_seconds)
            .max();
        let end = deleted_at.zip(grace).and_then(|(Time(deleted_at), grace)| {
            deleted_at.checked_add(SignedDuration::from_secs(grace)).ok()
        });
        Ok(end.is_some_and(|end| self.clock.now() < end))
    }

    /// Deletes all objects of a kind and adds the remaining ones to `content`. Remaining objects without finalizers are an error,
    /// unless they are pods within their grace period (`awaits_grace_period`).
    async fn delete_all<K>(&self, namespace: &str, awaits_grace_period: bool, content: &mut RemainingContent)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let objects = Api::<K>::namespaced(self.client.clone(), namespace);
        let (deletion, all) = (DeleteParams::background(), ListParams::default());
        let remaining = async {
            objects.delete_collection(&deletion, &all).await?;
            objects.list_metadata(&all).await
        };
        let remaining = match remaining.await {
            Ok(remaining) => remaining.items,
            Err(error) => {
                content.errors.insert(message_of(&error));
                return;
            }
        };
        if remaining.is_empty() {
            return;
        }
        let (group, version, plural) = (K::group(&()), K::version(&()), K::plural(&()));
        content
            .objects
            .insert(format!("{plural}.{group}"), remaining.len());
        let finalizers: Vec<&String> = remaining.iter().flat_map(|object| object.finalizers()).collect();
        if finalizers.is_empty() && !awaits_grace_period {
            content.errors.insert(format!(
                "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={plural}"
            ));
        }
        for finalizer in finalizers {
            *content.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
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

    use super::remaining_content::CONTENT_FAILURE;
    use super::*;
    use crate::apiserver::{ApiServer, Options};

    fn mk_controller(client: &Client) -> NamespaceController {
        NamespaceController {
            client: client.clone(),
            clock: Clock::system(),
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

    fn condition(namespace: &Namespace, kind: &str) -> (String, String, String) {
        let mut conditions = namespace
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        let found = conditions
            .find(|condition| condition.type_ == kind)
            .unwrap()
            .clone();
        (found.status, found.reason.unwrap(), found.message.unwrap())
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
    async fn conditions_show_the_remaining_content() {
        let client = ApiServer::new(&Options::default()).client();
        let namespaces = Api::<Namespace>::all(client.clone());
        create(&namespaces, json!({"metadata": {"name": "a"}})).await;
        let secrets = Api::<Secret>::namespaced(client.clone(), "a");
        create(
            &secrets,
            json!({"metadata": {"name": "s", "finalizers": ["example.com/x"]}}),
        )
        .await;
        namespaces.delete("a", &DeleteParams::default()).await.unwrap();
        let controller = mk_controller(&client);
        controller.sync(&namespaces.get("a").await.unwrap()).await;
        let namespace = namespaces.get("a").await.unwrap();
        for (kind, status, reason, message) in [
            (
                "NamespaceDeletionDiscoveryFailure",
                "False",
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            (
                "NamespaceDeletionContentFailure",
                "False",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            (
                "NamespaceContentRemaining",
                "True",
                "SomeResourcesRemain",
                "Some resources are remaining: secrets. has 1 resource instances",
            ),
            (
                "NamespaceFinalizersRemaining",
                "True",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: example.com/x in 1 resource instances",
            ),
        ] {
            let expected = (status.to_owned(), reason.to_owned(), message.to_owned());
            assert_eq!(condition(&namespace, kind), expected);
        }
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
        assert_eq!(
            condition(&namespace, CONTENT_FAILURE).0,
            "False",
            "within the grace period"
        );
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
