//! The client configuration: address and credentials of the API server.

use std::path::PathBuf;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::Error;
use crate::args::Args;

/// The client configuration of `--kubeconfig`, by default that of the pod.
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

/// The client configuration of the pod.
pub(crate) fn in_cluster() -> Result<kube::Config, InClusterError> {
    kube::Config::incluster().map(without_proxy)
}

/// The client configuration of a kubeconfig. A proxy is used only if the kubeconfig names one.
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
    let authority = authority_file(&kubeconfig, options);
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, options).await?;
    config.root_cert_file = config.root_cert_file.or(authority);
    Ok(if names_proxy {
        config
    } else {
        without_proxy(config)
    })
}

/// The file of the cluster's certificate authority, which may be rotated, unless the kubeconfig contains the certificate.
fn authority_file(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> Option<PathBuf> {
    let context = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context = kubeconfig
        .contexts
        .iter()
        .find(|named| Some(&named.name) == context);
    let of_context = context
        .and_then(|named| named.context.as_ref())
        .map(|context| &context.cluster);
    let name = options.cluster.as_ref().or(of_context)?;
    let named = kubeconfig.clusters.iter().find(|named| named.name == *name)?;
    let cluster = named.cluster.as_ref()?;
    let held = cluster.certificate_authority_data.as_ref();
    if held.is_some_and(|data| !data.is_empty()) {
        return None;
    }
    let path = cluster.certificate_authority.as_ref()?;
    (!path.is_empty()).then(|| path.into())
}

/// POD_NAMESPACE, the pod's namespace by the downward API.
#[expect(
    clippy::disallowed_methods,
    reason = "the Go sidecar has no flag for it either"
)]
pub(super) fn pod_namespace() -> Option<String> {
    std::env::var("POD_NAMESPACE").ok()
}

/// kube reads HTTPS_PROXY but not NO_PROXY, and the API server is inside the cluster.
fn without_proxy(mut config: kube::Config) -> kube::Config {
    config.proxy_url = None;
    config
}
