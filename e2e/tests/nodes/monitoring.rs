//! `deploy/components/monitoring` with the definitions of the Prometheus operator.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use csi_e2e::document::{Shell, block};
use csi_e2e::toolchain::Toolchain;
use serde_json::Value;

use crate::recipes::{DEPLOY, alone, write_overlay};
use crate::shared_nodes::Scenario;

/// Module with the CRDs of the Prometheus operator.
const OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator@v0.85.0";
const MONITOR: &str =
    "kubectl -n csi-mock-driver get servicemonitors -l release=kube-prometheus-stack -o json";
const PODS: &str = "kubectl -n csi-mock-driver get pods -l app.kubernetes.io/name=csi-attacher -o jsonpath='{.items[*].status.podIP}'";
/// Series of an attacher that is the leader and connected to its driver.
const SERIES: [(&str, &str); 3] = [
    ("csi_attacher_build_info{", " 1"),
    ("csi_attacher_driver_connected", " 1"),
    ("leader_election_master_status{", " 1"),
];

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "monitoring_service_returns_metrics",
    run: |env| {
        Box::pin(alone(env, |shell, toolchain| {
            Box::pin(monitoring_service_returns_metrics(shell, toolchain))
        }))
    },
}];

/// The operator's CRDs reject unknown fields. Neither operator nor Prometheus runs: the test reads port and path from the
/// ServiceMonitor, and reads the page through the API server's Service proxy.
async fn monitoring_service_returns_metrics(shell: Shell, toolchain: &Toolchain) -> Result<()> {
    let definitions = toolchain.go_sources(OPERATOR).await?;
    let definitions = definitions
        .join("example/prometheus-operator-crd")
        .display()
        .to_string();
    let definitions = ["servicemonitors", "prometheusrules"]
        .map(|kind| format!("-f {definitions}/monitoring.coreos.com_{kind}.yaml"))
        .join(" ");
    let overlay = shell.home().join("monitoring");
    write_overlay(&overlay, "mock-driver-nodes", &["monitoring"])?;
    let file = overlay.join("kustomization.yaml");
    let text = std::fs::read_to_string(&file).context("read the overlay")?;
    let patched = text + &block(DEPLOY, "patches:\n  - target: {kind: ServiceMonitor")?;
    std::fs::write(&file, patched).context("write the overlay")?;
    shell
        .run(&format!(
            "kubectl apply --server-side {definitions}
             kubectl wait --for=condition=Established {definitions} --timeout=1m
             kubectl apply -k ~/monitoring
             kubectl -n csi-mock-driver rollout status deployment/csi-attacher --timeout=3m
             kubectl -n csi-mock-driver get prometheusrule/csi-attacher configmap/csi-attacher-dashboard
             kubectl -n csi-mock-driver wait endpointslices -l kubernetes.io/service-name=csi-attacher \
                 --for=jsonpath='{{.endpoints[*].addresses[*]}}'=$({PODS}) --timeout=1m"
        ))
        .await?;
    let monitors: Value =
        serde_json::from_str(&shell.run(MONITOR).await?).context("decode the ServiceMonitors")?;
    let endpoint = &monitors["items"][0]["spec"]["endpoints"][0];
    let (Some(port), Some(path)) = (endpoint["port"].as_str(), endpoint["path"].as_str()) else {
        anyhow::bail!("the ServiceMonitor must have a port and a path: {monitors}");
    };
    let service = format!("/api/v1/namespaces/csi-mock-driver/services/csi-attacher:{port}");
    let page = shell
        .run(&format!("kubectl get --raw {service}/proxy{path}"))
        .await?;
    for (begin, end) in SERIES {
        let mut lines = page.lines();
        ensure!(
            lines.any(|line| line.starts_with(begin) && line.ends_with(end)),
            "no line is {begin}...{end}:\n{page}"
        );
    }
    let shell = reads_authenticated_pages(shell).await?;
    shell
        .run(&format!(
            "kubectl delete -k ~/authenticated\nkubectl delete {definitions}"
        ))
        .await
        .map(drop)
}

/// The commands of the document with `components/authenticated-metrics`, whose pods kubelet probes at another port.
async fn reads_authenticated_pages(shell: Shell) -> Result<Shell> {
    let components = ["monitoring", "authenticated-metrics"];
    write_overlay(
        &shell.home().join("authenticated"),
        "mock-driver-nodes",
        &components,
    )?;
    let commands = block(
        DEPLOY,
        "kubectl create clusterrolebinding csi-attacher-metrics-reader",
    )?;
    let commands: Vec<_> = commands.lines().collect();
    let [bind_metrics, bind_statusz, forward, request] = commands.as_slice() else {
        anyhow::bail!("the block must bind twice, forward and request: {commands:?}");
    };
    let forward = forward.split('#').next().unwrap_or_default();
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let shell = shell
        .replacing("-n csi-attacher", "-n csi-mock-driver")
        .replacing(
            "-n monitoring create token on-call",
            "-n csi-mock-driver create token default",
        )
        .replacing("monitoring:on-call", "csi-mock-driver:default")
        .replacing("csi-attacher 8080", &format!("csi-attacher {port}:8080"))
        .replacing("localhost:8080", &format!("localhost:{port}"));
    let code = "curl --insecure --silent --output /dev/null --write-out '%{http_code}' https://localhost:8080/statusz";
    let page = shell
        .run(&format!(
            "kubectl apply -k ~/authenticated >&2
             kubectl -n csi-mock-driver rollout status deployment/csi-attacher --timeout=3m >&2
             {forward} >&2 &
             until test \"$({code})\" = 401; do test $SECONDS -lt 300; sleep 1; done
             {bind_metrics} >&2
             {bind_statusz} >&2
             until {request}; do test $SECONDS -lt 400; sleep 1; done
             kill $!
             kubectl delete clusterrolebinding csi-attacher-metrics-reader csi-attacher-statusz-reader >&2"
        ))
        .await?;
    ensure!(page.contains("driver:"), "the page is {page}");
    Ok(shell)
}
