//! Compares csi-attacher's metrics with the Go attacher's and with the actual events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use csi_e2e::driver::fault::{FaultRule, Method};
use csi_e2e::driver::{Driver, DriverSpec};
use csi_e2e::fixture::{self, Access};
use csi_e2e::objects;
use csi_e2e::process::{Process, Spec, free_address};
use csi_e2e::toolchain::Peer;
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Harness;

/// Timeout for a process to start, or for the API server to be ready.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Metrics of the Go sidecar that csi-attacher omits, and the reason.
const ABSENT: &[(&str, &str)] = &[
    ("go_", "there is no Go runtime"),
    ("registered_metrics_total", "bookkeeping of its metrics library"),
    ("disabled_metrics_total", "bookkeeping of its metrics library"),
    ("hidden_metrics_total", "bookkeeping of its metrics library"),
    ("cardinality_enforcement_", "bookkeeping of its metrics library"),
    ("apiserver_", "an import that the sidecar does not use"),
    ("aggregator_", "an import that the sidecar does not use"),
];

/// One metric family as parsed by Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    /// The sets of label names of its samples, without `le`.
    labels: BTreeSet<BTreeSet<String>>,
    /// The bounds of its buckets, in their original spelling.
    bounds: BTreeSet<String>,
}

trials! { "metrics":
    match_the_go_sidecars,
    report_attaches_and_running_calls,
}

async fn match_the_go_sidecars(harness: Arc<Harness>) -> Result<()> {
    let dir = harness.run.subdir("metrics-match")?;
    // Without a driver both attachers still serve their metrics.
    let kubeconfig = dir.join("kubeconfig");
    std::fs::write(&kubeconfig, NOWHERE).context("write a kubeconfig")?;
    // With a migration driver, the metrics have one more label.
    let driver = mk_driver(&harness, &dir, "ebs.csi.aws.com").await?;
    let mut exposed = Vec::new();
    for (name, binary) in [
        ("go", harness.toolchain.peer(Peer::ExternalAttacher).await?),
        ("ours", harness.toolchain.csi_attacher().await?),
    ] {
        let (attacher, address) = mk_attacher(&harness, name, &binary, &dir, &kubeconfig, &driver)?;
        let ready = |text: &str| text.contains("/csi.v1.Controller/ControllerGetCapabilities");
        let text = attacher.while_alive(until(address, "/metrics", ready)).await?;
        exposed.push(families(&text)?);
        attacher.kill().await?;
    }
    let (ours, go) = (
        exposed.pop().context("ours must be read")?,
        exposed.pop().context("the Go sidecar's must be read")?,
    );
    let mut differences = Vec::new();
    let mut compared = 0;
    for (name, family) in &go {
        if ABSENT.iter().any(|(prefix, _)| name.starts_with(prefix)) {
            if ours.contains_key(name) {
                differences.push(format!("{name} exists, but ABSENT lists it"));
            }
            continue;
        }
        compared += 1;
        match ours.get(name) {
            None => differences.push(format!("{name} is missing")),
            Some(ours) if ours.kind != family.kind || ours.bounds != family.bounds => {
                differences.push(format!("{name}: {ours:?}, in the Go sidecar {family:?}"));
            }
            Some(ours) => {
                let unknown: Vec<_> = family.labels.difference(&ours.labels).collect();
                if !unknown.is_empty() {
                    differences.push(format!("{name}: no sample is labelled {unknown:?}"));
                }
            }
        }
    }
    for name in ours.keys() {
        if !go.contains_key(name) && !name.starts_with("csi_attacher_") {
            differences.push(format!(
                "{name} is neither a metric of the Go sidecar nor prefixed with csi_attacher_"
            ));
        }
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    ensure!(compared >= 17, "only {compared} families were compared");
    Ok(())
}

async fn report_attaches_and_running_calls(harness: Arc<Harness>) -> Result<()> {
    const NAME: &str = "metrics";
    const ATTACHED: usize = 3;
    let cluster = harness.cluster().await?;
    let _shared = harness.control_plane_lock.read().await;
    let dir = harness.run.subdir(NAME)?;
    let mut driver = mk_driver(&harness, &dir, "metrics.csi.example").await?;
    let binary = harness.toolchain.csi_attacher().await?;
    let kubeconfig = cluster.admin_kubeconfig();
    let (attacher, address) = mk_attacher(&harness, NAME, &binary, &dir, kubeconfig, &driver)?;
    attacher
        .while_alive(until(address, "/readyz", |text| text == "ok\n"))
        .await?;

    let client = cluster.client();
    let create = PostParams::default();
    let handles = mk_volumes(client.clone(), &driver, ATTACHED + 1).await?;
    let attachments: Api<VolumeAttachment> = Api::all(client);
    let attach = async |name: &str| {
        let attachment = fixture::mk_attachment(NAME, name, driver_name(), name, "metrics-node");
        attachments.create(&create, &attachment).await
    };
    for (name, _) in &handles[..ATTACHED] {
        attach(name).await?;
    }
    for (name, _) in &handles[..ATTACHED] {
        wait::for_object(&attachments, name, STEP_TIMEOUT, "to be attached", |va| {
            let status = va.and_then(|va| va.status.as_ref());
            Progress::of(status.is_some_and(|status| status.attached), || {
                format!("{status:?}")
            })
        })
        .await?;
    }
    let attached = format!("csi_attacher_attach_duration_seconds_count {ATTACHED}\n");
    let text = until(address, "/metrics", |text| text.contains(&attached)).await?;
    for (series, count) in [
        (PUBLISHED, ATTACHED),
        ("csi_attacher_objects{resource=\"volumeattachments\"}", ATTACHED),
        ("csi_attacher_backlog{lane=\"attach\",state=\"running\"}", 0),
        ("csi_attacher_driver_connected", 1),
        (
            "csi_attacher_api_requests_total{code=\"200\",resource=\"volumeattachments\",verb=\"patch\"}",
            ATTACHED,
        ),
        (
            "csi_attacher_api_requests_total{code=\"200\",resource=\"volumeattachments/status\",verb=\"patch\"}",
            ATTACHED,
        ),
        (
            "csi_attacher_api_requests_total{code=\"200\",resource=\"persistentvolumes\",verb=\"patch\"}",
            ATTACHED,
        ),
    ] {
        let line = format!("{series} {count}");
        ensure!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }

    // One more volume, whose call never ends.
    let (stuck, handle) = &handles[ATTACHED];
    let rule = FaultRule::hang_after_effect("stuck", Method::ControllerPublishVolume).for_volume(handle);
    driver.set_faults(&[rule]).await?;
    attach(stuck).await?;
    until(address, "/statusz?format=json", |text| {
        let status: Value = serde_json::from_str(text).unwrap_or_default();
        let (work, lane) = (&status["running"][0], &status["lanes"][0]);
        work["name"] == stuck.as_str()
            && work["node"] == "metrics-node"
            && work["elapsed"].is_number()
            && (&work["lane"], &lane["running"]) == (&lane["lane"], &1.into())
    })
    .await?;
    let name = format!("name: {stuck}\n");
    until(address, "/statusz", |text| text.contains(&name)).await?;
    let running = "csi_attacher_backlog{lane=\"attach\",state=\"running\"} 1\n";
    until(address, "/metrics", |text| text.contains(running)).await?;

    driver.clear_faults().await?;
    attacher.stop(STEP_TIMEOUT).await?;
    driver.stop().await
}

/// Creates the node and this many PersistentVolumes; returns the volumes' names and handles.
async fn mk_volumes(client: Client, driver: &Driver, count: usize) -> Result<Vec<(String, String)>> {
    let nodes: Api<CSINode> = Api::all(client.clone());
    let node = json!({
        "metadata": {"name": "metrics-node"},
        "spec": {"drivers": [{"name": driver.name(), "nodeID": driver.node_id(0)?}]},
    });
    objects::create(&nodes, &serde_json::from_value(node)?).await?;
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut handles = Vec::new();
    for number in 0..count {
        let name = format!("metrics-{number}");
        let handle = driver.create_volume(&name, Access::OneNode).await?.volume_id;
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "csi": {"driver": driver.name(), "volumeHandle": handle},
            },
        });
        objects::create(&volumes, &serde_json::from_value(volume)?).await?;
        handles.push((name, handle));
    }
    Ok(handles)
}

/// The ControllerPublishVolume calls in the Go sidecar's series.
const PUBLISHED: &str = "csi_sidecar_operations_seconds_count{driver_name=\"metrics.csi.example\",grpc_status_code=\"OK\",method_name=\"/csi.v1.Controller/ControllerPublishVolume\"}";

fn driver_name() -> &'static str {
    "metrics.csi.example"
}

const NOWHERE: &str = r#"{
  "apiVersion": "v1", "kind": "Config", "current-context": "c",
  "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
  "users": [{"name": "u", "user": {}}]
}"#;

async fn mk_driver(harness: &Harness, dir: &Path, name: &str) -> Result<Driver> {
    let binary = harness.toolchain.csi_mock_driver().await?;
    let spec = DriverSpec {
        name: name.to_owned(),
        nodes: 1,
        latency: Duration::ZERO,
        capabilities: String::new(),
        flags: Vec::new(),
    };
    Driver::start(Arc::clone(&harness.run), &binary, dir, spec).await
}

/// Starts an attacher that serves HTTP at the returned address.
fn mk_attacher(
    harness: &Harness,
    name: &str,
    binary: &Path,
    dir: &Path,
    kubeconfig: &Path,
    driver: &Driver,
) -> Result<(Process, SocketAddr)> {
    let address = free_address()?;
    let spec = Spec::new(name, binary)
        .dir(dir)
        .arg(format!("--csi-address={}", driver.socket().display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--http-endpoint={address}"));
    Ok((Process::spawn(&harness.run, spec)?, address))
}

/// Requests `path` until the response satisfies the condition.
pub(crate) async fn until(address: SocketAddr, path: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
    wait::poll(
        STEP_TIMEOUT,
        &format!("the expected content of {path}"),
        || async {
            Ok(match timeout(STEP_TIMEOUT, get(address, path)).await? {
                Ok(text) if wanted(&text) => Progress::Reached(text),
                other => Progress::Pending(format!("{other:?}")),
            })
        },
    )
    .await
}

/// The response body.
async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // HTTP/1.0, so that the response is not chunked and ends with the connection.
    let head = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (_, body) = response
        .split_once("\r\n\r\n")
        .context("the response has no body")?;
    Ok(body.to_owned())
}

fn families(text: &str) -> Result<BTreeMap<String, Family>> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed
                .split_once(' ')
                .with_context(|| format!("understand {line:?}"))?;
            name.clone_into(&mut current);
            families.entry(current.clone()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') {
            let family = families
                .get_mut(&current)
                .with_context(|| format!("{line:?} belongs to no family"))?;
            let labels = line
                .split_once('{')
                .and_then(|(_, rest)| rest.rsplit_once('}'))
                .map_or("", |(labels, _)| labels);
            let mut names = BTreeSet::new();
            // No label value contains a comma.
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                match label
                    .split_once('=')
                    .with_context(|| format!("understand {line:?}"))?
                {
                    ("le", bound) => {
                        family.bounds.insert(bound.to_owned());
                    }
                    (name, _) => {
                        names.insert(name.to_owned());
                    }
                }
            }
            family.labels.insert(names);
        }
    }
    Ok(families)
}
