//! The ServiceAccount controller of kube-controller-manager: each active namespace has a ServiceAccount `default`.
//!
//! The API server creates it together with the namespace, so that pods can be created at once; the controller restores it when
//! it is deleted.

use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::informer::{Change, Resync};
use crate::informers::Informers;

const NAME: &str = "default";
/// Period of retrying ServiceAccounts that could not be created.
const RESYNC_PERIOD: Duration = Duration::from_secs(5);

/// The ServiceAccount controller.
pub(crate) struct ServiceAccountController {
    pub client: Client,
    pub informers: Informers,
}

// === impl ServiceAccountController ===

impl ServiceAccountController {
    /// Runs until the future is dropped. The call subscribes, so that the controller misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let accounts = self.informers.service_accounts.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let mut accounts = Resync::new(accounts, RESYNC_PERIOD);
            loop {
                match accounts.next().await {
                    Some(Change::Deleted(account)) => {
                        let namespace = account.metadata.namespace.as_deref();
                        self.sync(namespace.unwrap_or_default()).await;
                    }
                    Some(Change::Applied { .. }) => {}
                    None => {
                        for namespace in self.informers.namespaces.list() {
                            self.sync(namespace.metadata.name.as_deref().unwrap_or_default())
                                .await;
                        }
                    }
                }
            }
        }
    }

    async fn sync(&self, namespace: &str) {
        let known = self.informers.namespaces.get("", namespace);
        let status = known.as_ref().and_then(|namespace| namespace.status.as_ref());
        let is_active = status.is_some_and(|status| status.phase.as_deref() == Some("Active"));
        if !is_active || self.informers.service_accounts.get(namespace, NAME).is_some() {
            return;
        }
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        match accounts.create(&PostParams::default(), &account).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            Err(error) => tracing::debug!(namespace, %error, "default ServiceAccount was not created"),
        }
    }
}
