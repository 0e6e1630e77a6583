//! The client configuration: address and credentials of the API server.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::Error;
use crate::args::Args;
use crate::report::chain;

/// Directory in which Kubernetes mounts the pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The client configuration of `--kubeconfig`, by default that of the pod.
pub(super) async fn read(args: &Args) -> Result<kube::Config, Error> {
    let Some(path) = &args.kubeconfig else {
        return in_cluster().map_err(Error::NoCluster);
    };
    let broken = |error| Error::Kubeconfig(path.clone(), without_content(&error));
    let kubeconfig = Kubeconfig::read_from(path).map_err(broken)?;
    of_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(broken)
}

/// The error without the content of the kubeconfig, which has credentials.
fn without_content(error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(error) = error else {
        return chain(error);
    };
    match error.location() {
        Some(at) => format!(
            "it is not a kubeconfig: see line {}, column {}",
            at.line(),
            at.column()
        ),
        None => "it is not a kubeconfig".to_owned(),
    }
}

/// The client configuration of the pod, from the variables that Kubernetes sets in each container.
#[expect(clippy::disallowed_methods, reason = "client-go has no flag for them either")]
fn in_cluster() -> Result<kube::Config, InClusterError> {
    let variable = |name| std::env::var(name).map_err(InClusterError::ReadEnvironmentVariable);
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?
        .parse()
        .map_err(InClusterError::ParseClusterPort)?;
    of_service_account(Path::new(SERVICE_ACCOUNT), &host, port)
}

/// The client configuration of a mounted service account. As for client-go, token and ca.crt suffice; kube's own function
/// also requires the file `namespace`.
pub(crate) fn of_service_account(
    folder: &Path,
    host: &str,
    port: u16,
) -> Result<kube::Config, InClusterError> {
    let authority = match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    };
    let url = format!("https://{authority}").parse();
    let mut config = kube::Config::new(url.map_err(InClusterError::ParseClusterUrl)?);
    // The client rereads both files. Unless there is a list here, kube also reads the system's certificates, which may be missing.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = Some(folder.join("ca.crt"));
    config.auth_info.token_file = Some(folder.join("token").display().to_string());
    Ok(config)
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
    if !names_proxy {
        // kube reads HTTPS_PROXY but not NO_PROXY, and the API server is inside the cluster.
        config.proxy_url = None;
    }
    Ok(config)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn error_of_a_broken_kubeconfig_names_the_line_and_quotes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let flag = format!("--kubeconfig={}", file.path().display());
        let args = ["csi-attacher", &flag].map(std::ffi::OsString::from);
        let args = Args::read(args).unwrap();
        for (content, place) in [
            ("users:\n- name: u\n  user: {token: hunter2\n", "line 3"),
            ("users:\n- name: u\n  user: hunter2\n", "line 3"),
            ("hunter2", "line 1"),
            (
                "clusters: [{name: c, cluster: {server: 'http://hunter2:\\'}}]\n",
                "",
            ),
        ] {
            fs::write(file.path(), content).unwrap();
            let text = chain(&read(&args).await.unwrap_err());
            assert!(text.contains(place) && text.contains("--kubeconfig"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
