//! The Lease of the leader election.

use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};

use super::{Access, Requests};
use crate::leader_election::{LeaseError, LeaseMeta, LeaseServer};
use crate::report::chain;

/// The API server over a connection of its own, so that no other request delays a renewal.
pub(crate) struct ApiLease {
    access: Access,
    lease_meta: LeaseMeta,
    counts: Requests,
    api: Api<Lease>,
}

// === impl ApiLease ===

impl ApiLease {
    /// The Lease at `lease_meta`; `counts` counts the requests. Connects with the first request.
    pub(crate) fn new(access: Access, lease_meta: LeaseMeta, counts: Requests) -> Self {
        let client = access.connect(None, counts.clone());
        let api = Api::namespaced(client, &lease_meta.namespace);
        Self {
            access,
            lease_meta,
            counts,
            api,
        }
    }
}

impl LeaseServer for ApiLease {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        match self.api.get(&self.lease_meta.name).await {
            Ok(lease) => Ok(Some(lease)),
            // A load balancer may return 404, too.
            Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
            Err(error) => Err(failure(&error)),
        }
    }

    async fn write(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        let params = PostParams::default();
        let written = match &lease.metadata.resource_version {
            Some(_) => self.api.replace(&self.lease_meta.name, &params, lease).await,
            // A POST fails with AlreadyExists if another candidate has created the Lease meanwhile.
            None => self.api.create(&params, lease).await,
        };
        written.map_err(|error| failure(&error))
    }

    fn changes(&self, version: &str) -> BoxStream<'static, Option<Lease>> {
        let (api, version) = (self.api.clone(), version.to_owned());
        let params = WatchParams::default().fields(&format!("metadata.name={}", self.lease_meta.name));
        let events = async move {
            match api.watch(&params, &version).await {
                Ok(events) => events.left_stream(),
                Err(error) => {
                    tracing::debug!(
                        error = chain(&error),
                        "cannot watch the lease; it is read periodically"
                    );
                    stream::empty().right_stream()
                }
            }
        };
        stream::once(events)
            .flatten()
            .scan((), |(), event| {
                std::future::ready(match event {
                    Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => Some(Some(Some(lease))),
                    Ok(WatchEvent::Deleted(_)) => Some(Some(None)),
                    Ok(WatchEvent::Bookmark(_)) => Some(None),
                    Ok(WatchEvent::Error(_)) | Err(_) => None,
                })
            })
            .filter_map(std::future::ready)
            .boxed()
    }

    fn address(&self) -> &str {
        self.access.server()
    }

    fn reconnect(&mut self) {
        let client = self.access.connect(None, self.counts.clone());
        self.api = Api::namespaced(client, &self.lease_meta.namespace);
    }
}

fn failure(error: &kube::Error) -> LeaseError {
    let code = if let kube::Error::Api(status) = error {
        status.code
    } else {
        0
    };
    match code {
        409 => LeaseError::Conflict,
        400..=499 => LeaseError::Rejected(chain(error)),
        // A server error does not tell whether the write was executed.
        _ => LeaseError::Unanswered(chain(error)),
    }
}
