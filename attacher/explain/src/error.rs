//! Errors of the plugin.

use kube::config::{InClusterError, KubeconfigError};

use crate::api::ReadError;
use crate::resource::Resource;

/// The plugin cannot explain anything; it exits with code 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot load the kubeconfig: give --kubeconfig and --context, or set KUBECONFIG")]
    Kubeconfig(#[source] KubeconfigError),
    #[error("found neither a kubeconfig nor a service account: give --kubeconfig")]
    InCluster(#[source] InClusterError),
    #[error("cannot build a client for the API server")]
    Client(#[source] kube::Error),
    #[error("cannot read {resource}")]
    Resource {
        resource: Resource,
        #[source]
        error: ReadError,
    },
    #[error("cannot encode the report as JSON")]
    Json(#[from] serde_json::Error),
    #[error("cannot write the report")]
    Write(#[from] std::io::Error),
}
