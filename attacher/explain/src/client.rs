//! The API server's address and credentials, as kubectl finds them.

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::args::ExplainArgs;
use crate::error::Error;

/// A client, and the namespace of the kubeconfig's context.
pub(crate) async fn connect(args: &ExplainArgs) -> Result<(Client, String), Error> {
    let config = load_config(args).await?;
    let namespace = config.default_namespace.clone();
    Ok((Client::try_from(config).map_err(Error::Client)?, namespace))
}

/// `--kubeconfig`, then `$KUBECONFIG` and `~/.kube/config`, then the pod's service account.
async fn load_config(args: &ExplainArgs) -> Result<Config, Error> {
    let loaded = match &args.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match loaded {
        Ok(kubeconfig) => kubeconfig,
        Err(error) if args.kubeconfig.is_none() && is_missing(&error) => {
            return Config::incluster().map(without_proxy).map_err(Error::InCluster);
        }
        Err(error) => return Err(Error::Kubeconfig(error)),
    };
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    let names_proxy = kubeconfig.clusters.iter().any(|named| {
        let cluster = named.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.proxy_url.is_some())
    });
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(Error::Kubeconfig)?;
    Ok(if names_proxy {
        config
    } else {
        without_proxy(config)
    })
}

/// Ignores HTTPS_PROXY of the environment, which may be set for other hosts: kube is built without its proxy features
/// and would fail. A `proxy-url` in the kubeconfig fails the plugin with an error that names it.
fn without_proxy(mut config: Config) -> Config {
    config.proxy_url = None;
    config
}

fn is_missing(error: &KubeconfigError) -> bool {
    let no_file = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    matches!(error, KubeconfigError::FindPath)
        || matches!(error, KubeconfigError::ReadConfig(error, _) if no_file(error))
}
