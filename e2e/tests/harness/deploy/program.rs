//! The programs of `deploy/` with their flags and probes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::Cluster;
use csi_e2e::driver::{Driver, DriverSpec};
use csi_e2e::process::{Process, Spec, free_address, stdout_of};
use csi_e2e::toolchain::{Peer, workspace_root};
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Container;
use kube::Api;
use kube::runtime::watcher;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::shape::{Shape, Workload};
use super::{DEADLINE, image_name};
use crate::Harness;

/// Image name of csi-attacher and of the Go attacher.
pub(super) const ATTACHER: &str = "csi-attacher";
/// Node name of a pod.
pub(super) const NODE: &str = "worker-1";
/// Timeout of a probe on a busy machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Names of the driver's images.
const DRIVERS: [&str; 2] = ["csi-mock-driver", "csi-mock-driver-node"];
/// Registry of third-party sidecars.
pub(super) const FOREIGN: &str = "registry.k8s.io/sig-storage/";

trials! { "deploy":
    programs_accept_their_flags,
    probes_succeed_with_the_given_flags,
    images_have_the_versions_of_the_tree,
}

/// Flags for one attacher must work with the other, so that users can switch in both directions. The Go sidecar must refuse
/// authentication rather than serve without it.
async fn programs_accept_their_flags(harness: Arc<Harness>) -> Result<()> {
    let attachers = [
        harness.toolchain.csi_attacher().await?,
        harness.toolchain.peer(Peer::ExternalAttacher).await?,
    ];
    let driver = harness.toolchain.csi_mock_driver().await?;
    let mut tried = BTreeMap::new();
    for shape in Shape::all()? {
        for workload in shape.workloads(&harness).await? {
            let what = || format!("{shape}: {}", workload.name);
            for image in DRIVERS {
                if let Some(container) = workload.container_of_image(image) {
                    accepts_flags(&driver, container).await.with_context(what)?;
                    *tried.entry(image).or_insert(0) += 1;
                }
            }
            if let Some(container) = workload.container_of_image(ATTACHER) {
                let authenticates = container.args.iter().flatten().any(|arg| arg == "--http-auth");
                for (attacher, is_ours) in attachers.iter().zip([true, false]) {
                    let accepted = accepts_flags(attacher, container).await.with_context(what);
                    if authenticates && !is_ours {
                        ensure!(accepted.is_err(), "{shape}: the Go sidecar accepts --http-auth");
                        continue;
                    }
                    accepted?;
                    *tried.entry(ATTACHER).or_insert(0) += 1;
                }
            }
        }
    }
    let all = [DRIVERS[0], DRIVERS[1], ATTACHER];
    ensure!(
        all.iter().all(|image| tried.contains_key(image)),
        "only {tried:?} were tried"
    );
    Ok(())
}

/// With a trailing `--version` the program parses its flags and exits.
async fn accepts_flags(program: &Path, container: &Container) -> Result<()> {
    let args = expanded(container)?;
    let printed = stdout_of(Command::new(program).args(&args).arg("--version")).await?;
    ensure!(
        !printed.is_empty(),
        "{} {args:?} printed nothing",
        program.display()
    );
    Ok(())
}

/// The arguments with expanded variables, as by kubelet.
pub(super) fn expanded(container: &Container) -> Result<Vec<String>> {
    let mut args = container.args.clone().unwrap_or_default();
    for variable in container.env.iter().flatten() {
        let of_pod = variable
            .value_from
            .as_ref()
            .and_then(|from| from.field_ref.as_ref());
        let value = match of_pod.map(|field| field.field_path.as_str()) {
            Some("spec.nodeName") => Some(NODE.to_owned()),
            Some(_) | None => variable.value.clone(),
        };
        let value = value.with_context(|| format!("{} must have a value", variable.name))?;
        for arg in &mut args {
            *arg = arg.replace(&format!("$({})", variable.name), &value);
        }
    }
    let open = args.iter().find(|arg| arg.contains("$("));
    ensure!(open.is_none(), "{open:?} names an undefined variable");
    Ok(args)
}

/// Runs csi-attacher, and the Go attacher of the component, with the flags of the base, except for paths and addresses of this
/// machine.
async fn probes_succeed_with_the_given_flags(harness: Arc<Harness>) -> Result<()> {
    let ours = harness.toolchain.csi_attacher().await?;
    let go = harness.toolchain.peer(Peer::ExternalAttacher).await?;
    start_and_probe(&harness, "probed-ours", &[], ours).await?;
    start_and_probe(&harness, "probed-go", &["go-sidecar"], go).await
}

async fn start_and_probe(
    harness: &Harness,
    namespace: &str,
    components: &[&str],
    program: PathBuf,
) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    cluster.create_namespace(namespace).await?;
    cluster
        .create_attacher_account(namespace, "attacher", false)
        .await?;
    let dir = harness.run.subdir(namespace)?;
    let kubeconfig = cluster
        .service_account_kubeconfig(namespace, "attacher", &dir)
        .await?;
    let spec = DriverSpec {
        name: format!("{namespace}.csi.local"),
        nodes: 1,
        latency: Duration::ZERO,
        capabilities: String::new(),
        flags: Vec::new(),
    };
    let driver = harness.toolchain.csi_mock_driver().await?;
    let driver = Driver::start(Arc::clone(&harness.run), &driver, &dir, spec).await?;

    let shape = Shape::base_with(components)?;
    let workloads = shape.workloads(harness).await?;
    let mut containers = workloads.iter().flat_map(Workload::containers);
    let container =
        containers.find(|container| image_name(container.image.as_deref().unwrap_or_default()).0 == ATTACHER);
    let container = container.context("the base must run the attacher")?;
    let address = free_address()?;
    let mut command = Spec::new("attacher", program)
        .dir(&dir)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--leader-election-namespace={namespace}"));
    for arg in expanded(container)? {
        command = command.arg(match arg.split_once('=') {
            Some(("--csi-address", _)) => format!("--csi-address={}", driver.socket().display()),
            Some(("--http-endpoint", written)) => {
                let port = container
                    .ports
                    .iter()
                    .flatten()
                    .map(|port| format!(":{}", port.container_port));
                ensure!(
                    port.eq([written]),
                    "{shape}: the declared port is not the one of --http-endpoint={written}"
                );
                format!("--http-endpoint={address}")
            }
            _ => arg,
        });
    }
    let attacher = Process::spawn(&harness.run, command)?;
    let mut paths = vec!["/metrics".to_owned()];
    for probe in [
        &container.startup_probe,
        &container.liveness_probe,
        &container.readiness_probe,
    ] {
        let request = probe.as_ref().and_then(|probe| probe.http_get.as_ref());
        paths.extend(request.and_then(|request| request.path.clone()));
    }
    ensure!(paths.len() > 1, "{shape}: the attacher has no probe");
    for path in paths {
        let succeeds = attacher.while_alive(probe_succeeds(address, &path));
        succeeds
            .await
            .with_context(|| format!("{shape}: the attacher logged {}", attacher.log_tail(10)))?;
    }
    // The probes of a standby succeed, too; only the lease shows that the attacher uses its permissions.
    attacher.while_alive(takes_the_lease(cluster, namespace)).await?;
    attacher.stop(DEADLINE).await?;
    driver.stop().await?;
    no_request_was_forbidden(cluster, namespace)
}

async fn takes_the_lease(cluster: &Cluster, namespace: &str) -> Result<()> {
    let leases = Api::<Lease>::namespaced(cluster.client(), namespace);
    let what = format!("a lease of {namespace} that is held");
    let held = |lease: &Lease| {
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref());
        holder.is_some_and(|holder| !holder.is_empty())
    };
    wait::for_objects(&leases, watcher::Config::default(), DEADLINE, &what, |seen| {
        Progress::of(seen.values().any(held), || format!("{seen:?}"))
    })
    .await
}

/// Reads the audit log. The lease shows that requests were sent.
fn no_request_was_forbidden(cluster: &Cluster, namespace: &str) -> Result<()> {
    let requests = cluster
        .audited_requests()?
        .context("the API server must have an audit log")?;
    let mut lease_taken = false;
    for request in requests.iter().filter(|request| request.namespace == namespace) {
        ensure!(!request.forbidden, "{request:?}");
        lease_taken |= request.resource == "leases" && request.verb == "create";
    }
    ensure!(
        lease_taken,
        "the audit log of {namespace} has no creation of a lease"
    );
    Ok(())
}

/// Probes as kubelet does until the response is 200; retries after a missing or partial response.
pub(super) async fn probe_succeeds(address: SocketAddr, path: &str) -> Result<()> {
    wait::poll(DEADLINE, &format!("{path} to respond with 200"), || async {
        let response = tokio::time::timeout(PROBE_TIMEOUT, get(address, path)).await;
        Ok(match response {
            Ok(Ok(response)) => Progress::of(response.starts_with(b"HTTP/1.1 200 "), || {
                format!("its response is {}", String::from_utf8_lossy(&response))
            }),
            Ok(Err(error)) => Progress::Pending(error.to_string()),
            Err(_) => Progress::Pending(format!("no response in {PROBE_TIMEOUT:?}")),
        })
    })
    .await
}

async fn get(address: SocketAddr, path: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    Ok(response)
}

async fn images_have_the_versions_of_the_tree(harness: Arc<Harness>) -> Result<()> {
    let manifest = std::fs::read_to_string(workspace_root().join("e2e/peers/go.mod"))?;
    let go = manifest
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("github.com/kubernetes-csi/external-attacher/v4 ")
        })
        .find_map(|rest| rest.split_whitespace().next())
        .context("go.mod must require the Go attacher")?;
    for shape in Shape::all()? {
        for workload in shape.workloads(&harness).await? {
            for container in workload.containers() {
                let image = container
                    .image
                    .as_deref()
                    .context("a container must have an image")?;
                let (name, version) = image_name(image);
                if !DRIVERS.contains(&name) && name != ATTACHER {
                    let foreign =
                        image.starts_with(FOREIGN) && version.is_some_and(|version| version.starts_with('v'));
                    ensure!(
                        foreign || shape.to_string().ends_with("existing-driver"),
                        "{shape}: {image} should be a released sidecar"
                    );
                    continue;
                }
                // Only the Go attacher's image has a registry in its name.
                let expected = if image.contains('/') {
                    go
                } else {
                    env!("CARGO_PKG_VERSION")
                };
                ensure!(
                    version == Some(expected),
                    "{shape}: {image} should be version {expected}"
                );
            }
        }
    }
    Ok(())
}
