//! Runs the commands of the documents with kubectl and Helm. Each scenario removes the shared overlay first, and deploys it
//! again at the end.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use csi_e2e::document::{Shell, block};
use csi_e2e::nodes::{GO_ATTACHER, OVERLAY, RealNodes};
use csi_e2e::toolchain::{Settings, Toolchain, workspace_root};
use csi_mock_driver::admin_api::resource::Pool;
use futures::future::LocalBoxFuture;
use serde_json::json;

use crate::env::Env;
use crate::shared_nodes::Scenario;
use crate::snapshotter::{REPOSITORY, Snapshotter};

pub(crate) const DEPLOY: &str = "deploy/README.md";
const INSTALL: &str = "docs/install.md";
const ALERTS: &str = "docs/alerts.md";
pub(crate) const TROUBLESHOOTING: &str = "docs/troubleshooting.md";
pub(crate) const ATTACHER_CHART: &str = "deploy/charts/csi-attacher/README.md";
const DRIVER_CHART: &str = "deploy/charts/csi-mock-driver/README.md";
/// Read-only commands of the guides, by the beginnings of their blocks.
const DIAGNOSES: [(&str, &str); 9] = [
    (ALERTS, "kubectl -n csi-attacher get lease\n"),
    (ALERTS, "kubectl csi-attach explain"),
    (ALERTS, "kubectl get events"),
    (ALERTS, "kubectl -n csi-attacher get lease -o yaml"),
    (ALERTS, "kubectl -n csi-attacher get pods"),
    (TROUBLESHOOTING, "kubectl csi-attach explain"),
    (TROUBLESHOOTING, "kubectl describe volumeattachment"),
    (TROUBLESHOOTING, "kubectl -n csi-attacher describe"),
    (TROUBLESHOOTING, "kubectl get volumeattachments"),
];
/// Pages of the attacher, by a port that another terminal forwards.
const PAGES: [(&str, &str); 2] = [
    (ALERTS, "kubectl -n csi-attacher port-forward"),
    (TROUBLESHOOTING, "kubectl -n csi-attacher port-forward"),
];
/// Logs of the attacher's container before its restart.
const LOGS: [(&str, &str); 2] = [
    (ALERTS, "kubectl -n csi-attacher logs"),
    (TROUBLESHOOTING, "kubectl -n csi-attacher logs"),
];
/// The documents' check for remaining volumes.
const WAIT_FOR_DELETION: &str =
    "kubectl wait --for=delete persistentvolumes,volumeattachments --all --timeout=2m";

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "install_with_kustomize",
        run: |env| Box::pin(alone(env, |shell, _| Box::pin(install_with_kustomize(shell)))),
    },
    Scenario {
        name: "explain_a_stuck_volume",
        run: |env| Box::pin(explain_a_stuck_volume(env)),
    },
    Scenario {
        name: "restore_a_snapshot",
        run: |env| {
            Box::pin(alone(env, |shell, toolchain| {
                Box::pin(restore_a_snapshot(shell, toolchain))
            }))
        },
    },
    Scenario {
        name: "install_the_drivers_chart",
        run: |env| Box::pin(alone(env, |shell, _| Box::pin(install_the_drivers_chart(shell)))),
    },
    Scenario {
        name: "install_the_attachers_chart",
        run: |env| {
            Box::pin(alone(env, |shell, _| {
                Box::pin(install_the_attachers_chart(shell))
            }))
        },
    },
];

pub(crate) type Recipe = for<'a> fn(Shell, &'a Toolchain) -> LocalBoxFuture<'a, Result<()>>;

/// Runs a recipe on nodes without the driver.
pub(crate) async fn alone(env: &Env<'_>, recipe: Recipe) -> Result<()> {
    let toolchain = Toolchain::new(env.nodes.run(), Settings::of_test());
    let shell = shell(env.nodes, &toolchain).await?;
    shell.run(&format!("kubectl delete -k {OVERLAY}")).await?;
    recipe(shell, &toolchain).await?;
    env.nodes.redeploy().await
}

pub(crate) async fn shell(nodes: &RealNodes, toolchain: &Toolchain) -> Result<Shell> {
    let kubeconfig = nodes.cluster().admin_kubeconfig().display().to_string();
    let shell = Shell::new(nodes.run(), "recipe")?
        .program("kubectl", &toolchain.kubectl().await?)?
        .program("helm", &toolchain.helm().await?)?
        .program("kubectl-csi_attach", &toolchain.explain_plugin().await?)?;
    Ok(shell.env("KUBECONFIG", &kubeconfig))
}

/// The driver with kustomize: a pod with a volume, the `ctl` commands, the other examples, and the clean-up.
async fn install_with_kustomize(shell: Shell) -> Result<()> {
    // The directory that kind would mount for the array. The nodes have their own.
    let array = shell.home().join("array");
    let shell = shell.replacing("/tmp/csi-mock-driver", &array.display().to_string());
    shell.run(&block(DEPLOY, "sudo install")?).await?;
    ensure!(array.is_dir(), "the array's directory must exist");
    control_the_driver(&shell).await?;
    shell
        .run(
            "kubectl apply -f deploy/examples/block.yaml -f deploy/examples/clone.yaml -f deploy/examples/group.yaml \
                 -f deploy/examples/inline.yaml -f deploy/examples/tiers.yaml
             kubectl wait --for=condition=Ready pod/mock-block pod/mock-clone pod/mock-group pod/mock-inline --timeout=2m
             kubectl patch pvc mock-tier --type=merge --patch='{\"spec\": {\"volumeAttributesClassName\": \"csi-mock-gold\"}}'
             kubectl wait --for=jsonpath='{.status.currentVolumeAttributesClassName}'=csi-mock-gold pvc/mock-tier --timeout=2m
             test \"$(kubectl exec mock-clone -- cat /data/starts)\" = \"$(kubectl exec mock-filesystem -- cat /data/starts)\"
             test \"$(kubectl exec mock-group -- cat /data/starts)\" = \"$(kubectl exec mock-group -- cat /log/starts)\"
             kubectl delete -f deploy/examples/block.yaml -f deploy/examples/clone.yaml -f deploy/examples/group.yaml \
                 -f deploy/examples/inline.yaml -f deploy/examples/tiers.yaml",
        )
        .await?;
    pods_have_priority_classes(&shell).await?;
    shell.run(&block(DEPLOY, "kubectl delete")?).await?;
    ensure!(!array.exists(), "the array's directory must be removed");
    shell.ensure_all_replaced()?;
    assert_nothing_left(&shell, &format!("-k {OVERLAY}")).await?;
    run_controller_without_nodes(&shell).await
}

/// Runs the commands in the driver's pod, and undoes their effects.
async fn control_the_driver(shell: &Shell) -> Result<()> {
    const CTL: &str = "kubectl -n csi-mock-driver exec deploy/csi-attacher -c driver -- /csi-mock-driver ctl";
    let inspect =
        "kubectl -n csi-mock-driver exec deploy/csi-attacher -c driver -- /csi-mock-driver ctl attachments";
    let printed = shell.run(&block(DEPLOY, inspect)?).await?;
    ensure!(
        printed.contains("node-"),
        "no node has a volume attached: {printed}"
    );
    shell.run(&format!("{CTL} scenarios stop detach-slow")).await?;
    let pools = async || {
        let printed = shell.run(&format!("{CTL} pools --output=json")).await?;
        let pools: Vec<Pool> = serde_json::from_str(&printed).context("understand the pools")?;
        let pool = pools.into_iter().find(|pool| pool.name == "pool-0");
        anyhow::Ok(pool.context("there must be pool-0")?.capacity_bytes)
    };
    let before = pools().await?;
    let shrink =
        "kubectl -n csi-mock-driver exec deploy/csi-attacher -c driver -- /csi-mock-driver ctl pools";
    shell.run(&block(DEPLOY, shrink)?).await?;
    let shrunk = pools().await?;
    ensure!(shrunk == 1 << 30, "the pool has {shrunk} bytes");
    let grow = format!("{CTL} pools resize pool-0 {before}");
    shell.run(&grow).await.map(drop)
}

/// The system's priority classes are admitted, and kubelets have the pods with them.
async fn pods_have_priority_classes(shell: &Shell) -> Result<()> {
    for (component, expected) in [
        ("controller", "system-cluster-critical"),
        ("node", "system-node-critical system-node-critical"),
    ] {
        let printed = shell
            .run(&format!(
                "kubectl -n csi-mock-driver get pods -l app.kubernetes.io/component={component} \
                     -o jsonpath='{{.items[*].spec.priorityClassName}}'"
            ))
            .await?;
        ensure!(
            printed == expected,
            "the priority classes of {component}: {printed}"
        );
    }
    Ok(())
}

/// Works on any cluster: alone, with components, and with the Go attacher instead of csi-attacher.
async fn run_controller_without_nodes(shell: &Shell) -> Result<()> {
    const COMPONENTS: [&str; 2] = ["finalizers-only", "publish-secrets"];
    let home = shell.home();
    write_overlay(&home.join("components"), "mock-driver", &COMPONENTS)?;
    write_overlay(&home.join("rollback"), "mock-driver", &["go-sidecar"])?;
    let image = "kubectl -n csi-mock-driver get deployment csi-attacher \
         -o jsonpath='{.spec.template.spec.containers[?(@.name==\"csi-attacher\")].image}'";
    // The ClusterRole of publish-secrets stays: the scenarios with their own accounts need it.
    shell
        .run(&format!(
            "rollout='kubectl -n csi-mock-driver rollout status deployment/csi-attacher --timeout=2m'
             kubectl apply -k deploy/overlays/mock-driver
             $rollout
             kubectl apply -k ~/components
             $rollout
             kubectl -n csi-mock-driver get networkpolicy csi-attacher
             kubectl -n csi-mock-driver auth can-i get secrets --as=system:serviceaccount:csi-mock-driver:csi-attacher
             kubectl delete validatingadmissionpolicybindings,validatingadmissionpolicies csi-attacher-finalizers-only
             kubectl apply -k ~/rollback
             $rollout
             test \"$({image})\" = {GO_ATTACHER}
             kubectl apply -k deploy/overlays/mock-driver
             $rollout
             kubectl delete -k deploy/overlays/mock-driver",
        ))
        .await
        .map(drop)
}

/// Writes an overlay with components to a new directory.
pub(crate) fn write_overlay(dir: &Path, overlay: &str, components: &[&str]) -> Result<()> {
    std::fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
    let dir = dir.canonicalize()?;
    // kustomize accepts only relative paths.
    let mut deploy: PathBuf = std::iter::repeat_n("..", dir.components().count() - 1).collect();
    deploy.push(workspace_root().canonicalize()?.strip_prefix("/")?);
    deploy.push("deploy");
    let deploy = deploy.display();
    let mut text =
        format!("namespace: csi-mock-driver\nresources:\n  - {deploy}/overlays/{overlay}\ncomponents:\n");
    for component in components {
        text.push_str(&format!("  - {deploy}/components/{component}\n"));
    }
    let file = dir.join("kustomization.yaml");
    std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))
}

/// The plugin's findings while the array refuses the attach, and once the pod runs.
async fn explain_a_stuck_volume(env: &Env<'_>) -> Result<()> {
    let toolchain = Toolchain::new(env.nodes.run(), Settings::of_test());
    let shell = shell(env.nodes, &toolchain).await?;
    let array = env.nodes.array()?;
    let rule = json!({
        "id": "rebooting",
        "match": {"method": "ControllerPublishVolume"},
        "action": {"code": "UNAVAILABLE", "message": "array rebooting"},
    });
    array.put_fault(&rule).await.context("refuse attaches")?;
    let example = "sed 's/mock-filesystem/db-0/' deploy/examples/filesystem.yaml";
    shell
        .run(&format!(
            "kubectl create namespace shop\n{example} | kubectl -n shop apply -f -"
        ))
        .await?;
    let sample = block("attacher/explain/README.md", "$ kubectl csi-attach explain")?;
    let (command, report) = sample.split_once('\n').context("the sample must have a report")?;
    let command = command.trim_start_matches("$ ");
    // Exit code 1: a volume is stuck.
    let explained = shell
        .run(&format!(
            "until report=$({command} || test $? = 1); grep -q 'array rebooting' <<<\"$report\"; do test $SECONDS -lt 120; sleep 1; done\n\
             cat <<<\"$report\""
        ))
        .await?;
    let (expected, found) = (outline(report), outline(&explained));
    ensure!(
        found.starts_with(&expected),
        "the document shows {expected:?}, the plugin prints {found:?}"
    );
    array.remove_fault("rebooting").await.context("accept attaches")?;
    shell
        .run("kubectl -n shop wait --for=condition=Ready pod/db-0 --timeout=2m")
        .await?;
    let explained = shell
        .run(&block("README.md", "cargo install --path attacher/explain")?)
        .await?;
    ensure!(
        explained.contains("[x] mounted by kubelet"),
        "the pod runs: {explained}"
    );
    let volume_attachment = "$(kubectl get volumeattachments -o jsonpath='{.items[0].metadata.name}')";
    let shell = shell
        .replacing("<volumeattachment>", volume_attachment)
        .replacing("<name>", "db-0")
        .replacing("<namespace>", "shop")
        .replacing("-n csi-attacher", "-n csi-mock-driver");
    for (document, begins) in DIAGNOSES {
        let printed = shell.run(&block(document, begins)?).await?;
        // Events depend on the attacher's rate limit.
        let is_empty = printed.is_empty() && !begins.contains("events");
        ensure!(!is_empty, "{document}: {begins} prints nothing");
    }
    let shell = attachers_pages_and_logs(env, shell).await?;
    shell.ensure_all_replaced()?;
    shell
        .run(&format!("kubectl delete namespace shop\n{WAIT_FOR_DELETION}"))
        .await
        .map(drop)
}

/// Pages of the attacher's port, and its logs after its container was restarted.
async fn attachers_pages_and_logs(env: &Env<'_>, shell: Shell) -> Result<Shell> {
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let pod = "$(kubectl -n csi-mock-driver get pods -l app.kubernetes.io/component=controller -o name)";
    let shell = shell
        .replacing("<pod> 8080", &format!("<pod> {port}:8080"))
        .replacing("localhost:8080", &format!("localhost:{port}"))
        .replacing("<pod>", pod);
    for (document, begins) in PAGES {
        let commands = block(document, begins)?;
        let (forward, request) = commands
            .split_once('\n')
            .context("the block must have a request")?;
        let (forward, request) = (forward.split('#').next().unwrap_or_default(), request.trim());
        let page = shell
            .run(&format!(
                "command -v curl >&2\n{forward} >&2 &\nuntil {request}; do test $SECONDS -lt 120; sleep 1; done\nkill $!"
            ))
            .await?;
        ensure!(!page.is_empty(), "{document}: {request} prints nothing");
    }
    let restarts = format!(
        "kubectl -n csi-mock-driver get {pod} \
         -o jsonpath='{{.status.containerStatuses[?(@.name==\"csi-attacher\")].restartCount}}'"
    );
    let before = shell.run(&restarts).await?;
    ensure!(!before.is_empty(), "the attacher's container must have a status");
    let end = "for process in /proc/[0-9]*; do
        if [ \"$(cat $process/comm 2>/dev/null)\" = csi-attacher ]; then kill ${process#/proc/}; fi
    done";
    for node in env.nodes.nodes() {
        node.command(&["sh", "-c", end]).await?;
    }
    shell
        .run(&format!(
            "until now=$({restarts}) && test \"${{now:-{before}}}\" != {before}; do test $SECONDS -lt 120; sleep 1; done"
        ))
        .await?;
    for (document, begins) in LOGS {
        let printed = shell.run(&block(document, begins)?).await?;
        ensure!(!printed.is_empty(), "{document}: {begins} prints nothing");
    }
    env.nodes.wait_until_deployed().await?;
    Ok(shell)
}

/// The beginnings of a report's lines, without continuation lines: the mark and the first letters of a step, or the name of a
/// finding.
fn outline(report: &str) -> Vec<String> {
    let lines = report
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   ") && *line != "  ...");
    lines.map(|line| line.trim().chars().take(6).collect()).collect()
}

/// A restored snapshot with `overlays/mock-driver-snapshots`, then a group snapshot with the overlay for groups. Definitions and snapshot controller are those of the release that the document names, from its Go modules.
async fn restore_a_snapshot(shell: Shell, toolchain: &Toolchain) -> Result<()> {
    let Snapshotter {
        commands,
        version,
        client,
        root,
    } = Snapshotter::read(toolchain).await?;
    let shell = shell
        .replacing(&format!("{REPOSITORY}client/"), &format!("{}/", client.display()))
        .replacing(REPOSITORY, &format!("{}/", root.display()))
        .replacing(&format!("?ref={version}"), "");
    shell.run(&commands).await?;
    shell
        .run(
            "kubectl wait --for=condition=Ready pod/mock-restored --timeout=2m
             test \"$(kubectl exec mock-restored -- cat /data/starts)\" = \"$(kubectl exec mock-filesystem -- cat /data/starts)\"
             kubectl delete -f deploy/examples/snapshot.yaml -f deploy/examples/filesystem.yaml
             kubectl wait --for=delete volumesnapshotcontents --all --timeout=2m",
        )
        .await?;
    shell
        .run(&block(DEPLOY, "kubectl -n kube-system set image")?)
        .await?;
    shell
        .run(
            "kubectl wait --for=jsonpath='{.status.readyToUse}'=true volumegroupsnapshot/mock-group --timeout=2m
             test \"$(kubectl get volumesnapshots -o name | wc -l)\" = 2
             kubectl delete -f deploy/examples/group-snapshot.yaml -f deploy/examples/group.yaml
             kubectl wait --for=delete volumegroupsnapshotcontents,volumesnapshotcontents --all --timeout=2m",
        )
        .await?;
    shell.ensure_all_replaced()?;
    let remove = "kubectl delete -k deploy/overlays/mock-driver-group-snapshots";
    let applied = commands.lines().filter(|line| line.contains(REPOSITORY));
    let cluster: Vec<_> = applied.map(|line| line.replace("apply", "delete")).collect();
    let remove = format!("{WAIT_FOR_DELETION}\n{remove}\n{}\n{}", cluster[1], cluster[0]);
    shell.run(&remove).await.map(drop)
}

async fn install_the_drivers_chart(shell: Shell) -> Result<()> {
    shell
        .run(&block(DRIVER_CHART, "kubectl create namespace")?)
        .await?;
    shell
        .run("helm -n csi-mock-driver get manifest csi-mock-driver >~/objects.yaml")
        .await?;
    shell.run(&block(DRIVER_CHART, "kubectl delete")?).await?;
    assert_nothing_left(&shell, "-f ~/objects.yaml").await
}

/// With a driver in the values. The cluster has roles with the same names for other tests.
async fn install_the_attachers_chart(shell: Shell) -> Result<()> {
    let shell = shell.replacing(
        "my-driver.yaml",
        "deploy/charts/csi-attacher/ci/mock-driver-values.yaml",
    );
    shell
        .run("kubectl delete -k deploy/base --ignore-not-found")
        .await?;
    shell.run(&block(ATTACHER_CHART, "helm install")?).await?;
    let checked = shell
        .run(&block(INSTALL, "kubectl -n csi-attacher rollout")?)
        .await?;
    ensure!(
        checked.contains("external-attacher-leader-example-csi-local"),
        "there is no lease: {checked}"
    );
    shell
        .run("helm -n csi-attacher get manifest csi-attacher >~/objects.yaml")
        .await?;
    shell.run(&block(ATTACHER_CHART, "helm uninstall")?).await?;
    assert_nothing_left(&shell, "-f ~/objects.yaml").await?;
    shell.run("kubectl delete namespace csi-attacher").await.map(drop)
}

/// None of these objects is left.
pub(crate) async fn assert_nothing_left(shell: &Shell, objects: &str) -> Result<()> {
    let left = shell
        .run(&format!("kubectl get {objects} --ignore-not-found -o name"))
        .await?;
    ensure!(left.is_empty(), "left behind: {left}");
    Ok(())
}
