use std::fmt::Debug;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node as ClusterNode, Secret};
use kube::Resource;
use kube::api::PostParams;
use serde::de::DeserializeOwned;

use super::*;
use crate::apiserver::{ApiServer, Options};

/// Longer than watches and retries take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the script beside a collector.
async fn with_collector<F: Future<Output = ()>>(script: impl FnOnce(Client) -> F) {
    let client = ApiServer::new(&Options::default()).client();
    let informers = Informers::default();
    let collector = GarbageCollector {
        client: client.clone(),
        informers: informers.clone(),
    };
    tokio::select! {
        () = collector.run() => panic!("the collector ended"),
        () = informers.run(client.clone()) => panic!("the informers ended"),
        () = script(client.clone()) => {}
    }
}

async fn create<K>(api: &Api<K>, name: &str, owners: &[Value], finalizers: &[&str]) -> String
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + serde::Serialize,
{
    let object = json!({ "metadata": { "name": name, "ownerReferences": owners, "finalizers": finalizers } });
    let object: K = serde_json::from_value(object).unwrap();
    let created = api.create(&PostParams::default(), &object).await.unwrap();
    created.meta().uid.clone().unwrap()
}

fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true })
}

/// Whether the object exists after the collector had time to delete it.
async fn remains<K>(api: &Api<K>, name: &str) -> bool
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    tokio::time::sleep(PATIENCE).await;
    api.get_opt(name).await.unwrap().is_some()
}

fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), "default")
}

#[tokio::test(start_paused = true)]
async fn dependents_of_deleted_and_unknown_owners_are_deleted() {
    with_collector(|client| async move {
        let nodes = Api::<ClusterNode>::all(client.clone());
        let leases = Api::<Lease>::namespaced(client.clone(), "default");
        let node = create(&nodes, "n", &[], &[]).await;
        create(&leases, "of-node", &[owner("v1", "Node", "n", &node)], &[]).await;
        create(&leases, "of-namesake", &[owner("v1", "Node", "n", "u")], &[]).await;
        create(&leases, "of-unknown", &[owner("v1", "Node", "unknown", "u")], &[]).await;
        create(
            &leases,
            "of-other",
            &[owner("apps/v1", "StatefulSet", "s", "u")],
            &[],
        )
        .await;
        assert!(!remains(&leases, "of-namesake").await);
        assert!(!remains(&leases, "of-unknown").await);
        assert!(remains(&leases, "of-node").await);
        nodes.delete("n", &DeleteParams::default()).await.unwrap();
        assert!(!remains(&leases, "of-node").await);
        assert!(remains(&leases, "of-other").await, "the kind is not served");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn absent_owners_are_removed_if_another_exists() {
    with_collector(|client| async move {
        let nodes = Api::<ClusterNode>::all(client.clone());
        let secrets = secrets(&client);
        let node = create(&nodes, "n", &[], &[]).await;
        let owners = [owner("v1", "Node", "n", &node), owner("v1", "Node", "gone", "u")];
        create(&secrets, "s", &owners, &[]).await;
        // A cluster-scoped object with a namespaced owner.
        create(&nodes, "m", &[owner("v1", "Secret", "gone", "u")], &[]).await;
        assert!(remains(&nodes, "m").await);
        let left = secrets.get("s").await.unwrap().metadata.owner_references.unwrap();
        assert_eq!(
            left.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>(),
            [node]
        );
    })
    .await;
}
