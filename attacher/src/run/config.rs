//! Where the API server is, and who we are to it.

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::Error;
use crate::args::Args;

/// The client configuration of `--kubeconfig`, or else that of the pod we run in.
pub(super) async fn read(args: &Args) -> Result<kube::Config, Error> {
    let Some(path) = &args.kubeconfig else {
        return in_cluster().map_err(Error::NoCluster);
    };
    let broken = |source| Error::Kubeconfig {
        path: path.clone(),
        source,
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(broken)?;
    of_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(broken)
}

/// The client configuration of the pod we run in.
pub(crate) fn in_cluster() -> Result<kube::Config, InClusterError> {
    kube::Config::incluster().map(without_proxy)
}

/// The client configuration of a kubeconfig. A proxy counts only if the kubeconfig names one.
pub(crate) async fn of_kubeconfig(
    kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<kube::Config, KubeconfigError> {
    let names_proxy = kubeconfig.clusters.iter().any(|named| {
        named
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.proxy_url.is_some())
    });
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, options).await?;
    Ok(if names_proxy {
        config
    } else {
        without_proxy(config)
    })
}

/// POD_NAMESPACE, by which a pod is told its namespace.
#[expect(
    clippy::disallowed_methods,
    reason = "the Go sidecar has no flag for it either"
)]
pub(super) fn pod_namespace() -> Option<String> {
    std::env::var("POD_NAMESPACE").ok()
}

/// kube takes HTTPS_PROXY from the environment without regard to NO_PROXY. The API server is inside.
fn without_proxy(mut config: kube::Config) -> kube::Config {
    config.proxy_url = None;
    config
}
