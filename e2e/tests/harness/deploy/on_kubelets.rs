//! Every directory of `deploy/` and every example: the test that applies it on real kubelets, or the reason why no test does.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::toolchain::workspace_root;

use super::shape::folders;
use crate::Harness;

const RECIPES: &str = "e2e/tests/nodes/recipes.rs";
const SUITE: &str = "e2e/suite/src/suite.rs";
/// Directories whose subdirectories are listed instead.
const PARENTS: [&str; 3] = ["charts", "components", "overlays"];

/// A path below `deploy/`.
struct Row(&'static str, On);

enum On {
    /// The test that applies the path: a file that names the path, and a text that the file must contain.
    Kubelets(&'static str, &'static str),
    /// The reason why no test applies it.
    NotRun(&'static str),
}

use On::{Kubelets, NotRun};

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // As a part of overlays/mock-driver-nodes.
    Row("base", Kubelets("e2e/src/nodes.rs", "deploy/overlays/mock-driver-nodes")),
    Row("charts/csi-attacher", Kubelets(RECIPES, "fn install_the_attachers_chart")),
    Row("charts/csi-mock-driver", Kubelets(RECIPES, "fn install_the_drivers_chart")),
    Row("components/authenticated-metrics", Kubelets("e2e/tests/nodes/monitoring.rs", "fn reads_authenticated_pages")),
    Row("components/explain", Kubelets("e2e/src/scenario/explain/explain_cli.rs", "rbac.yaml")),
    Row("components/finalizers-only", Kubelets(RECIPES, "fn run_controller_without_nodes")),
    Row("components/go-sidecar", Kubelets(RECIPES, "fn run_controller_without_nodes")),
    Row("components/kubelet-directory", Kubelets("e2e/tests/nodes/kubelet_directory.rs", "fn driver_uses_another_kubelet_directory")),
    Row("components/monitoring", Kubelets("e2e/tests/nodes/monitoring.rs", "fn monitoring_service_returns_metrics")),
    Row("components/openshift", NotRun("without OpenShift's admission kubelet refuses an image without a user (runAsNonRoot); `deploy::` has the API server admit the pods")),
    Row("components/publish-secrets", Kubelets(RECIPES, "fn run_controller_without_nodes")),
    Row("e2e-suite", Kubelets(SUITE, "testdriver.yaml")),
    Row("examples/block.yaml", Kubelets(RECIPES, "fn install_with_kustomize")),
    Row("examples/clone.yaml", Kubelets(RECIPES, "fn install_with_kustomize")),
    Row("examples/filesystem.yaml", Kubelets(RECIPES, "fn explain_a_stuck_volume")),
    Row("examples/group-snapshot.yaml", Kubelets(RECIPES, "fn restore_a_snapshot")),
    Row("examples/group.yaml", Kubelets(RECIPES, "fn install_with_kustomize")),
    Row("examples/inline.yaml", Kubelets(RECIPES, "fn install_with_kustomize")),
    Row("examples/snapshot.yaml", Kubelets(RECIPES, "fn restore_a_snapshot")),
    Row("examples/tiers.yaml", Kubelets(RECIPES, "fn install_with_kustomize")),
    Row("images", NotRun("no container engine is needed there: the harness makes the images from the built programs")),
    Row("kind", NotRun("needs a container engine; the workflow `kind` creates the cluster")),
    Row("release", NotRun("scripts of the release; e2e/validators/release rehearses them")),
    // With the manifests of csi-driver-host-path in place of its driver.yaml, whose driver has no image.
    Row("overlays/existing-driver", Kubelets("e2e/tests/nodes/image_swap.rs", "deploy/overlays/existing-driver")),
    Row("overlays/mock-driver", Kubelets(RECIPES, "fn run_controller_without_nodes")),
    Row("overlays/mock-driver-group-snapshots", Kubelets(SUITE, "const SUITE_OVERLAY")),
    Row("overlays/mock-driver-nodes", Kubelets("e2e/src/nodes.rs", "pub const OVERLAY")),
    Row("overlays/mock-driver-snapshot-metadata", NotRun("external-snapshot-metadata 1.1.0 needs its nested module `client` v0.2.0, which the Go module proxy does not have")),
    Row("overlays/mock-driver-snapshots", Kubelets(RECIPES, "fn restore_a_snapshot")),
];

trials! { "deploy":
    each_directory_is_applied_on_kubelets_or_listed_with_a_reason,
}

async fn each_directory_is_applied_on_kubelets_or_listed_with_a_reason(_harness: Arc<Harness>) -> Result<()> {
    let mut expected = BTreeSet::new();
    for folder in folders("")? {
        match folder.as_str() {
            "examples" => expected.extend(examples()?),
            parent if PARENTS.contains(&parent) => {
                let names = folders(parent)?;
                expected.extend(names.iter().map(|name| format!("{parent}/{name}")));
            }
            _ => drop(expected.insert(folder)),
        }
    }
    let listed: BTreeSet<_> = ROWS.iter().map(|Row(path, _)| (*path).to_owned()).collect();
    ensure!(listed.len() == ROWS.len(), "a path has two rows");
    let differences: Vec<_> = expected.symmetric_difference(&listed).collect();
    ensure!(
        differences.is_empty(),
        "only the table or only deploy/ has {differences:?}"
    );
    for Row(path, on) in ROWS {
        match on {
            Kubelets(file, test) => {
                let text = std::fs::read_to_string(workspace_root().join(file));
                let text = text.with_context(|| format!("read {file}"))?;
                let name = path.rsplit('/').next().unwrap_or_default();
                ensure!(text.contains(test), "{path}: {file} has no {test}");
                ensure!(
                    *path == "base" || text.contains(name),
                    "{path}: {file} does not name it"
                );
            }
            NotRun(reason) => ensure!(!reason.is_empty(), "{path}: no reason"),
        }
    }
    Ok(())
}

fn examples() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(workspace_root().join("deploy/examples")).context("list the examples")? {
        found.push(format!("examples/{}", entry?.file_name().to_string_lossy()));
    }
    Ok(found)
}
