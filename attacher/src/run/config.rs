//! Where the API server is, and who we are to it.

use kube::config::{KubeConfigOptions, Kubeconfig};

use super::Error;
use crate::args::Args;

/// The client configuration of `--kubeconfig`, or else that of the pod we run in.
pub(super) async fn read(args: &Args) -> Result<kube::Config, Error> {
    let Some(path) = &args.kubeconfig else {
        return kube::Config::incluster()
            .map(without_proxy)
            .map_err(Error::NoCluster);
    };
    let broken = |source| Error::Kubeconfig {
        path: path.clone(),
        source,
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(broken)?;
    let names_proxy = kubeconfig.clusters.iter().any(|named| {
        named
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.proxy_url.is_some())
    });
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(broken)?;
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
