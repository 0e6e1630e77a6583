//! Why there is no explanation.

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

/// The error and its causes on one line. Libraries often repeat the cause in their own text.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let own = error.to_string();
        if !text.ends_with(&own) {
            text = format!("{text}: {own}");
        }
        next = error.source();
    }
    text
}
