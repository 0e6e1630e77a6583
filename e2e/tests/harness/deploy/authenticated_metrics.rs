//! `components/authenticated-metrics` on the API server, which decides who gets which page.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::Cluster;
use csi_e2e::process::{Process, Spec, free_address};
use csi_e2e::wait::{self, Progress};
use http::Request;
use http::header::AUTHORIZATION;
use http_body_util::BodyExt as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client, Config};

use super::DEADLINE;
use super::program::{ATTACHER, expanded, probe_succeeds};
use super::shape::Shape;
use crate::Harness;

trials! { "deploy":
    api_server_decides_who_reads_metrics,
}

/// Runs csi-attacher with the flags and the account of the component. Its users are ServiceAccounts with and without the role.
async fn api_server_decides_who_reads_metrics(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    // No other test has this combination, and so its names.
    let shape = Shape::base_with(&["authenticated-metrics", "publish-secrets"])?;
    let namespace = shape.namespace();
    cluster.create_namespace(&namespace).await?;
    let own = shape.build_for_its_namespace(&harness).await?;
    cluster.apply(&own).await?;
    let users = users(&namespace);
    cluster.apply(&users).await?;
    let dir = harness.run.subdir("authenticated-metrics")?;
    let account = format!("csi-attacher-{namespace}");
    let kubeconfig = cluster
        .service_account_kubeconfig(&namespace, &account, &dir)
        .await?;

    let (pages, probes) = (free_address()?, free_address()?);
    let pair = rcgen::generate_simple_self_signed([pages.ip().to_string()])?;
    let (certificate, key) = (dir.join("tls.crt"), dir.join("tls.key"));
    std::fs::write(&certificate, pair.cert.pem()).context("write the certificate")?;
    std::fs::write(&key, pair.signing_key.serialize_pem()).context("write the key")?;
    let command = Spec::new("attacher", harness.toolchain.csi_attacher().await?)
        .dir(&dir)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--leader-election-namespace={namespace}"))
        .args(args(&harness, &shape, &dir, pages, probes).await?)
        .arg(format!("--http-tls-cert-file={}", certificate.display()))
        .arg(format!("--http-tls-key-file={}", key.display()))
        .arg("--v=10");
    let attacher = Process::spawn(&harness.run, command)?;
    attacher.while_alive(probe_succeeds(probes, "/healthz")).await?;

    let mut config = Config::new(format!("https://{pages}").parse()?);
    config.root_cert = Some(vec![pair.cert.der().to_vec()]);
    config.default_retry = false;
    let metrics = MetricsClient(Client::try_from(config)?);
    let (prometheus, person, other) = (
        token(cluster, &namespace, "metrics-reader").await?,
        token(cluster, &namespace, "statusz-reader").await?,
        token(cluster, &namespace, "default").await?,
    );
    for (path, token, status) in [
        ("/metrics", "", 401),
        ("/metrics", "not.a.token", 401),
        ("/metrics", other.as_str(), 403),
        ("/metrics", prometheus.as_str(), 200),
        ("/statusz", prometheus.as_str(), 403),
        ("/statusz", person.as_str(), 200),
        ("/metrics", person.as_str(), 403),
        ("/", person.as_str(), 403),
    ] {
        let reached = attacher.while_alive(metrics.reaches(path, token, status));
        reached
            .await
            .with_context(|| format!("the attacher logged {}", attacher.log_tail(10)))?;
    }
    attacher.stop(DEADLINE).await?;
    let log = std::fs::read_to_string(attacher.log()).context("read the log")?;
    ensure!(
        [prometheus, person, other]
            .iter()
            .all(|token| !log.contains(token.as_str())),
        "a token is in {}",
        attacher.log().display()
    );
    cluster.delete(&users).await?;
    cluster.delete(&own).await
}

/// An account for each role of the component. Each namespace has an account `default` without roles.
fn users(namespace: &str) -> String {
    let user = |role: &str| {
        format!(
            "apiVersion: v1
kind: ServiceAccount
metadata:
  name: {role}
  namespace: {namespace}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {role}-{namespace}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: csi-attacher-{role}-{namespace}
subjects:
  - kind: ServiceAccount
    name: {role}
    namespace: {namespace}
"
        )
    };
    ["metrics-reader", "statusz-reader"].map(user).join("---\n")
}

/// The flags of the component, with paths and addresses of this machine.
async fn args(
    harness: &Harness,
    shape: &Shape,
    dir: &Path,
    pages: SocketAddr,
    probes: SocketAddr,
) -> Result<Vec<String>> {
    let workloads = shape.workloads(harness).await?;
    let container = workloads
        .iter()
        .find_map(|workload| workload.container_of_image(ATTACHER))
        .context("the base must run the attacher")?;
    let mut args = expanded(container)?;
    for arg in &mut args {
        match arg.split_once('=').map(|(flag, _)| flag) {
            Some("--csi-address") => *arg = format!("--csi-address={}", dir.join("csi.sock").display()),
            Some("--http-endpoint") => *arg = format!("--http-endpoint={pages}"),
            Some("--health-endpoint") => *arg = format!("--health-endpoint={probes}"),
            Some(_) | None => {}
        }
    }
    Ok(args)
}

async fn token(cluster: &Cluster, namespace: &str, account: &str) -> Result<String> {
    let accounts = Api::<ServiceAccount>::namespaced(cluster.client(), namespace);
    let issued = accounts
        .create_token_request(account, &PostParams::default(), &TokenRequest::default())
        .await
        .with_context(|| format!("request a token for {namespace}/{account}"))?;
    let status = issued.status.and_then(|status| status.token);
    status.context("the TokenRequest must have a token")
}

struct MetricsClient(Client);

impl MetricsClient {
    /// Waits for this status: the API server reads bindings from a watch, and the attacher caches refusals for 10 s.
    async fn reaches(&self, path: &str, token: &str, status: u16) -> Result<()> {
        wait::poll(DEADLINE, &format!("{path} to respond with {status}"), || async {
            let mut request = Request::get(path);
            if !token.is_empty() {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = self.0.send(request.body(Body::empty())?).await?;
            let found = response.status().as_u16();
            let body = response.into_body().collect().await?.to_bytes();
            Ok(Progress::of(found == status, || {
                format!("it responded with {found}: {}", String::from_utf8_lossy(&body))
            }))
        })
        .await
    }
}
