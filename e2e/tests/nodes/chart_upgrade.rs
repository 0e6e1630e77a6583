//! Upgrade of csi-attacher's chart, with the driver in another pod, by the command of its README while volumes are attached.

use anyhow::{Context, Result};
use csi_e2e::document::{Shell, block};
use csi_e2e::nodes::{DRIVER, NODES};
use csi_e2e::toolchain::{Settings, Toolchain};
use serde_json::{Value, json};

use crate::attached::{AttachedVolumes, DriverAlone, Journal, SHARED_SOCKET_DIR};
use crate::env::{Env, PodSpec, XFS};
use crate::recipes::{ATTACHER_CHART, assert_nothing_left, shell};
use crate::shared_nodes::Scenario;

const PODS: &str = "kubectl -n csi-attacher get pods -o jsonpath='{.items[*].metadata.name}'";
const ROLLED_OUT: &str = "kubectl -n csi-attacher rollout status deployment/csi-attacher --timeout=3m";

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "attachers_chart_upgraded_with_volumes_attached",
    run: |env| Box::pin(upgrade_with_volumes_attached(env)),
}];

async fn upgrade_with_volumes_attached(env: &Env<'_>) -> Result<()> {
    let toolchain = Toolchain::new(env.nodes.run(), Settings::of_test());
    let shell = shell(env.nodes, &toolchain).await?;
    let shell = shell.replacing("my-driver.yaml", "~/values.yaml");
    // The cluster has roles of the same names for other tests.
    shell
        .run("kubectl delete -k deploy/base --ignore-not-found")
        .await?;
    let driver = DriverAlone::deploy(env, &shell).await?;
    let upgraded = upgrade(env, &shell).await;
    let deleted = shell
        .run("kubectl delete namespace csi-attacher --ignore-not-found")
        .await;
    let restored = driver.restore(env, &shell).await;
    upgraded.and(deleted.map(drop)).and(restored)
}

async fn upgrade(env: &Env<'_>, shell: &Shell) -> Result<()> {
    let mut values = json!({
        // The driver's socket belongs to root.
        "podSecurityContext": {"runAsNonRoot": false, "runAsUser": 0, "runAsGroup": 0},
        "socket": {"volume": {
            "emptyDir": null,
            "hostPath": {"path": SHARED_SOCKET_DIR, "type": "Directory"},
        }},
    });
    let write = |values: &Value| {
        let file = shell.home().join("values.yaml");
        std::fs::write(&file, values.to_string()).context("write the values")
    };
    write(&values)?;
    shell.run(&block(ATTACHER_CHART, "helm install")?).await?;
    shell.run(ROLLED_OUT).await?;
    let kept = AttachedVolumes::start(env, DRIVER, XFS, NODES, Journal::Deployed).await?;
    let old = shell.run(PODS).await?;
    values["verbosity"] = 2.into();
    write(&values)?;
    shell.run(&block(ATTACHER_CHART, "helm upgrade")?).await?;
    shell.run(ROLLED_OUT).await?;
    shell
        .run(&format!(
            "kubectl -n csi-attacher wait --for=delete --timeout=2m pod {old}"
        ))
        .await?;
    // The new pods attach and detach.
    env.claim("new", XFS, "Filesystem").await?;
    env.run_pod(&PodSpec::new("new", "true").claim("new")).await?;
    env.delete_pod("new").await?;
    env.wait_until_detached("new").await?;
    kept.end(env, shell).await?;
    env.wait_until_detached("kept-0").await?;
    env.wait_until_detached("kept-1").await?;
    shell
        .run("helm -n csi-attacher get manifest csi-attacher >~/objects.yaml")
        .await?;
    shell.run(&block(ATTACHER_CHART, "helm uninstall")?).await?;
    assert_nothing_left(shell, "-f ~/objects.yaml").await?;
    shell
        .run("kubectl -n csi-attacher wait --for=delete pods --all --timeout=2m")
        .await?;
    shell.ensure_all_replaced()
}
