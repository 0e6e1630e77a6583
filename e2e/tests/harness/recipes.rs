//! Every command block of the documents: the test that runs the text of the document, or the reason why no test does.

mod by_hand;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use csi_e2e::document::{NOT_RUN, blocks};
use csi_e2e::process::stdout_of_blocking;
use csi_e2e::toolchain::workspace_root;
use serde::Deserialize;
use verdict::Requirement;

use crate::Harness;
use crate::documents::documents;

/// Languages of blocks that are not commands or files of a recipe: drawings, and doctests, which rustdoc runs.
const OTHER_LANGUAGES: [&str; 2] = ["text", "rust,no_run"];
const NODES: &str = "e2e/tests/nodes/recipes.rs";
const NODES_DIR: &str = "e2e/tests/nodes";
const SWAP: &str = "e2e/tests/nodes/image_swap.rs";
const BY_HAND: &str = "e2e/tests/harness/recipes/by_hand.rs";
const VALIDATORS: &str = "e2e/validators/deploy/readme_test.go";

/// The blocks of a document that begin with a text.
struct Recipe(&'static str, &'static str, Runner);

enum Runner {
    /// A file, and the test in it that runs all commands of the block, or checks the block as a whole file.
    Test(&'static str, &'static str),
    /// As [`Runner::Test`], with the commands that it does not run and the reason. [`NOT_RUN`] names programs that do nothing.
    Partly(&'static str, &'static str, &'static str),
    /// The reason why no test runs the block.
    NotRun(&'static str),
}

use Runner::{NotRun, Partly, Test};

/// Reason for cargo commands.
const BUILT: &str = "cargo does nothing: the harness has built the program";
const SCHEDULED: &str = "takes long; the scheduled workflow and .ci/run nightly run it";

#[rustfmt::skip]
const RECIPES: &[Recipe] = &[
    Recipe("README.md", "cargo run --bin playground", Test(".ci/run", "readme_says \"cargo run --bin playground\"")),
    Recipe("README.md", "export KUBECONFIG=", Test("e2e/playground/core/tests/playground/kubectl.rs", "printed_commands_work")),
    Recipe("README.md", "cargo build --release -p csi-attacher", Partly(BY_HAND, "attacher_and_driver_run_by_hand", BUILT)),
    Recipe("README.md", "cargo install --path attacher/explain", Partly(NODES, "explain_a_stuck_volume", BUILT)),
    Recipe("README.md", "cargo run -p csi-mock-driver", Partly(BY_HAND, "attacher_and_driver_run_by_hand", "the program that the harness built runs with the same flags, and --devices=emulated")),
    Recipe("docs/benchmark.md", "deploy/images/binaries out", NotRun("takes 20 minutes; the scheduled workflow runs the benchmark")),
    Recipe("docs/benchmark.md", "cargo run --release -p csi-bench", NotRun("takes hours; the scheduled workflow runs it, and e2e/bench/tests its rows")),
    Recipe("attacher/explain/README.md", "$ kubectl csi-attach explain", Test(NODES, "explain_a_stuck_volume")),
    Recipe("attacher/explain/README.md", "cargo install", NotRun("compiles for minutes")),
    Recipe("attacher/explain/README.md", "source <(kubectl", Test(BY_HAND, "kubectl_completes_the_plugin")),
    Recipe("attacher/explain/README.md", "#!/bin/sh", Test(BY_HAND, "kubectl_completes_the_plugin")),
    Recipe("docs/operations.md", "cargo build --release -p csi-attacher --no-default-features", NotRun("needs cmake and minutes; `.ci/run nightly` builds it without optimization and runs scenarios with it")),
    Recipe("deploy/README.md", "docker buildx create", NotRun("needs a container engine and a registry; the workflows `kind` and `release`, which have not run yet, build the same Containerfile")),
    Recipe("deploy/README.md", "deploy/images/binaries", NotRun("cross-compiles for minutes, and skopeo needs a registry; `nodes -- --build` runs it for this machine, `deploy::layouts_*` run oci-layout")),
    Recipe("deploy/README.md", "apiVersion: kustomize.config.k8s.io", Test(VALIDATORS, "TestOverlaysOfTheReadmeBuild")),
    Recipe("deploy/README.md", "sudo install", Partly(NODES, "install_with_kustomize", "docker and kind do nothing: the harness makes images and nodes")),
    Recipe("deploy/README.md", "kubectl apply -k \"", Test(NODES, "restore_a_snapshot")),
    Recipe("deploy/README.md", "kubectl -n kube-system set image", Test(NODES, "restore_a_snapshot")),
    Recipe("deploy/README.md", "kubectl apply -f https://raw.githubusercontent.com", NotRun("external-snapshot-metadata 1.1.0 needs its nested module `client` v0.2.0, which the Go module proxy does not have; `deploy::` runs the script `certificate`")),
    Recipe("deploy/README.md", "kubectl -n csi-mock-driver exec deploy/csi-attacher -c driver -- /csi-mock-driver ctl pools", Test(NODES, "install_with_kustomize")),
    Recipe("deploy/README.md", "kubectl -n csi-mock-driver exec deploy/csi-attacher -c driver -- /csi-mock-driver ctl attachments", Test(NODES, "install_with_kustomize")),
    Recipe("deploy/README.md", "kubectl delete", Partly(NODES, "install_with_kustomize", "kind does nothing: the nodes remain for other tests")),
    Recipe("deploy/README.md", "kubectl -n my-driver set image deployment/my-driver-controller csi-attacher=your", Test(SWAP, "swap_in_attachers_deployment")),
    Recipe("deploy/README.md", "kubectl -n my-driver set image deployment/my-driver-controller csi-attacher=registry", Test(SWAP, "swap_in_attachers_deployment")),
    Recipe("deploy/README.md", "cp -r deploy/overlays/existing-driver", Test(SWAP, "swap_in_hostpaths_stateful_set")),
    Recipe("deploy/README.md", "kubectl apply -f ~/existing-driver", Test(SWAP, "swap_in_hostpaths_stateful_set")),
    Recipe("deploy/README.md", "# attacher/kustomization.yaml", Test(VALIDATORS, "TestSecondDriverOfTheReadmeBuilds")),
    Recipe("deploy/README.md", "# kustomization.yaml", Test(VALIDATORS, "TestSecondDriverOfTheReadmeBuilds")),
    Recipe("deploy/README.md", "patches:\n  - target: {kind: Role", Test(VALIDATORS, "TestOverlaysOfTheReadmeBuild")),
    Recipe("deploy/README.md", "patches:\n  - target: {kind: ServiceMonitor", Test(VALIDATORS, "TestOverlaysOfTheReadmeBuild")),
    Recipe("deploy/README.md", "kubectl create clusterrolebinding csi-attacher-metrics-reader", Test("e2e/tests/nodes/monitoring.rs", "fn reads_authenticated_pages")),
    Recipe("deploy/README.md", "# scraper.yaml", NotRun("needs the monitoring of OpenShift; `deploy::` runs the same reader role")),
    Recipe("deploy/README.md", "patches:\n  - target: {kind: Deployment", Test(VALIDATORS, "TestOverlaysOfTheReadmeBuild")),
    Recipe("deploy/README.md", "containers:", NotRun("no image of the all-in-one sidecar is released")),
    Recipe("deploy/charts/csi-attacher/README.md", "helm install", Test(NODES, "install_the_attachers_chart")),
    Recipe("deploy/charts/csi-attacher/README.md", "helm upgrade", Test("e2e/tests/nodes/chart_upgrade.rs", "upgrade_with_volumes_attached")),
    Recipe("deploy/charts/csi-attacher/README.md", "helm uninstall", Test(NODES, "install_the_attachers_chart")),
    Recipe("deploy/charts/csi-mock-driver/README.md", "kubectl create namespace", Test(NODES, "install_the_drivers_chart")),
    Recipe("deploy/charts/csi-mock-driver/README.md", "kubectl delete", Test(NODES, "install_the_drivers_chart")),
    Recipe("docs/alerts.md", "kubectl -n csi-attacher get lease\n", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/alerts.md", "kubectl -n csi-attacher port-forward", Test(NODES, "attachers_pages_and_logs")),
    Recipe("docs/alerts.md", "kubectl csi-attach explain", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/alerts.md", "kubectl get events", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/alerts.md", "kubectl -n csi-attacher get lease -o yaml", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/alerts.md", "kubectl -n csi-attacher get pods", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/alerts.md", "kubectl -n csi-attacher logs", Test(NODES, "attachers_pages_and_logs")),
    Recipe("docs/install.md", "helm install", NotRun("no release exists yet")),
    Recipe("docs/install.md", "apiVersion: kustomize.config.k8s.io", NotRun("no release exists yet")),
    Recipe("docs/install.md", "sha256sum", NotRun("no release exists yet")),
    Recipe("docs/install.md", "gh attestation verify oci", NotRun("no release exists yet")),
    Recipe("docs/install.md", "cargo install --locked --git", NotRun("needs the published repository")),
    Recipe("docs/install.md", "cargo install --locked --path", NotRun("compiles for minutes")),
    Recipe("docs/install.md", "cargo run -p csi-e2e --example manuals", Partly("e2e/examples/manuals.rs", "commands_of_the_document_show_the_files", BUILT)),
    Recipe("docs/install.md", "kubectl -n csi-attacher rollout", Test(NODES, "install_the_attachers_chart")),
    Recipe("docs/troubleshooting.md", "kubectl csi-attach explain", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/troubleshooting.md", "kubectl describe volumeattachment", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/troubleshooting.md", "kubectl taint node", Test("e2e/tests/nodes/disturbances.rs", "lost_node_is_taken_out_of_service")),
    Recipe("docs/troubleshooting.md", "kubectl -n csi-attacher port-forward", Test(NODES, "attachers_pages_and_logs")),
    Recipe("docs/troubleshooting.md", "kubectl -n csi-attacher logs", Test(NODES, "attachers_pages_and_logs")),
    Recipe("docs/troubleshooting.md", "kubectl -n csi-attacher describe", Test(NODES, "explain_a_stuck_volume")),
    Recipe("docs/troubleshooting.md", "kubectl get volumeattachments", Test(NODES, "explain_a_stuck_volume")),
    Recipe("e2e/README.md", "cargo test -p csi-e2e --test scenarios", NotRun(SCHEDULED)),
    Recipe("e2e/README.md", "cargo test -p csi-e2e --test whole_path", NotRun(SCHEDULED)),
    Recipe("e2e/README.md", "export CSI_E2E_REAL=1\ncargo test -p csi-e2e --test differential", NotRun(SCHEDULED)),
    Recipe("e2e/README.md", "export CSI_E2E_REAL=1\ncargo test -p csi-e2e --test pod_schedules", NotRun(SCHEDULED)),
    Recipe("e2e/README.md", "cargo run --release -p csi-bench", NotRun("takes hours; the scheduled workflow runs it, and e2e/bench/tests its rows")),
    Recipe("e2e/README.md", "cargo run -p csi-e2e --bin nodes", NotRun("takes hours, and one command runs until Ctrl-C; the scheduled workflow and .ci/run nightly run the others")),
    Recipe("mock-driver/README.md", "cargo run", Test("mock-driver/tests/it/readme.rs", "readme_command_lines_work_in_order")),
    Recipe("mock-driver/README.md", "csi-mock-driver ctl", Test("mock-driver/tests/it/readme.rs", "readme_command_lines_work_in_order")),
    Recipe("mock-driver/README.md", "export CSI_MOCK_ADMIN_ENDPOINT", Test("mock-driver/tests/it/readme.rs", "ci_script_passes_and_fails")),
    Recipe("mock-driver/README.md", "package sidecar", Test("e2e/tests/harness/guide.rs", "the_go_test_of_the_readme_passes_with_the_driver")),
    Recipe("mock-driver/clients/go/README.md", "go mod edit", Test(".ci/run", "bash -euc \"$(sh_of README.md)\"")),
    Recipe("mock-driver/clients/go/README.md", "func TestProbeIsRetried", Test("mock-driver/clients/go/types_test.go", "TestReadmeHasATestThatRuns")),
    Recipe("mock-driver/clients/go/README.md", "directory := t.TempDir()", NotRun("needs a container engine")),
    Recipe("mock-driver/clients/python/README.md", "@pytest.fixture", NotRun("needs a container engine")),
    Recipe("mock-driver/clients/python/README.md", "pip install", Test(".ci/run", "bash -euc \"$(sh_of README.md)\"")),
    Recipe("mock-driver/clients/python/README.md", "def test_probe_is_retried", Test("mock-driver/clients/python/tests/test_first.py", "def test_readme_has_a_test_that_runs")),
    Recipe("mock-driver/docs/faults.md", "csi-mock-driver", Test("mock-driver/tests/it/faults/scenarios.rs", "every_command_line_of_the_cookbook_works")),
    Recipe("mock-driver/docs/faults.md", "rules:", Test("mock-driver/src/fault/parse/tests.rs", "example_in_the_documentation_is_valid")),
    Recipe("mock-driver/docs/faults.md", "#", Test("mock-driver/src/fault/parse/tests.rs", "all_rules_and_fixtures_in_the_documentation_are_valid")),
    Recipe("mock-driver/docs/faults.md", "- id:", Test("mock-driver/src/fault/parse/tests.rs", "all_rules_and_fixtures_in_the_documentation_are_valid")),
    Recipe("mock-driver/docs/faults.md", "volumes:", Test("mock-driver/src/fault/parse/tests.rs", "all_rules_and_fixtures_in_the_documentation_are_valid")),
];

trials! { "recipes":
    each_is_run_or_listed_with_a_reason,
    cargo_commands_name_targets,
    ; by_hand
}

async fn each_is_run_or_listed_with_a_reason(_harness: Arc<Harness>) -> Result<()> {
    Requirement::Git.check()?;
    let nodes = node_sources()?;
    let mut unused: BTreeSet<_> = (0..RECIPES.len()).collect();
    for (document, text) in commands()? {
        let of_block: Vec<_> = (0..RECIPES.len())
            .filter(|index| RECIPES[*index].0 == document && text.starts_with(RECIPES[*index].1))
            .collect();
        ensure!(
            of_block.len() == 1,
            "{} rows of RECIPES are about this block of {document}:\n{text}",
            of_block.len()
        );
        unused.remove(&of_block[0]);
        let recipe = &RECIPES[of_block[0]];
        recipe
            .check(&text, &nodes)
            .with_context(|| format!("{document}: {}", recipe.1))?;
    }
    let unused: Vec<_> = unused
        .iter()
        .map(|index| (RECIPES[*index].0, RECIPES[*index].1))
        .collect();
    ensure!(unused.is_empty(), "no block begins with {unused:?}");
    Ok(())
}

// === impl Recipe ===

impl Recipe {
    /// Checks that the test exists and names the block, and that the row lists the omitted commands. `nodes` is the source of
    /// the tests on real nodes.
    fn check(&self, text: &str, nodes: &str) -> Result<()> {
        let Self(document, begins, runner) = self;
        let (file, test) = match runner {
            Test(file, test) => (file, test),
            Partly(file, test, reason) if !reason.is_empty() => (file, test),
            NotRun(reason) if !reason.is_empty() => return Ok(()),
            Partly(..) | NotRun(_) => bail!("a reason is missing"),
        };
        let source = read(Path::new(file))?;
        // A command of .ci/run is no function.
        let is_defined = match test.contains(' ') {
            true => source.contains(test),
            false => ["fn", "func"]
                .iter()
                .any(|keyword| source.contains(&format!("{keyword} {test}("))),
        };
        ensure!(is_defined, "{file} does not define {test}");
        if !file.starts_with(NODES_DIR) && *file != BY_HAND {
            let name = Path::new(document)
                .file_name()
                .context("a document must have a name")?;
            ensure!(
                source.contains(&*name.to_string_lossy()),
                "{file} does not read {document}"
            );
            return Ok(());
        }
        // These tests choose a block by its beginning.
        let literal = format!("{begins:?}");
        let beginning = &literal[..literal.len() - 1];
        ensure!(
            source.contains(beginning) || nodes.contains(beginning),
            "{file} does not choose the block by {literal}"
        );
        if let Test(..) = runner {
            let commands = text.lines().flat_map(|line| line.split("&&"));
            let programs: BTreeSet<_> = commands
                .filter_map(|command| command.split_whitespace().next())
                .collect();
            let idle = NOT_RUN.iter().find(|(program, _)| programs.contains(program));
            ensure!(
                idle.is_none(),
                "the test does not run {idle:?}: the row must be Partly"
            );
        }
        Ok(())
    }
}

/// The source of all tests on real nodes.
fn node_sources() -> Result<String> {
    let files = git(&["ls-files", "--cached", "--others", &format!("{NODES_DIR}/*.rs")])?;
    files.lines().map(|file| read(Path::new(file))).collect()
}

/// Packages, binaries, examples and tests, and the names by which tests are chosen.
async fn cargo_commands_name_targets(_harness: Arc<Harness>) -> Result<()> {
    Requirement::Git.check()?;
    let packages = packages()?;
    let mut checked = 0;
    for (document, text) in commands()?.into_iter().chain(inline_code()?) {
        for line in text.lines() {
            let (line, _) = line.split_once(" #").unwrap_or((line, ""));
            let words: Vec<_> = line
                .split_whitespace()
                .skip_while(|word| word.contains('='))
                .collect();
            if words.first() != Some(&"cargo") {
                continue;
            }
            check_cargo(&packages, &words).with_context(|| format!("{document}: {line}"))?;
            checked += 1;
        }
    }
    ensure!(checked >= 60, "only {checked} commands were found");
    Ok(())
}

fn check_cargo(packages: &[Package], words: &[&str]) -> Result<()> {
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let words = &words[..end];
    let after = |flag: &str| {
        words
            .iter()
            .position(|word| *word == flag)
            .map(|at| words[at + 1])
    };
    let named = |name: &str| packages.iter().find(|package| package.name == name);
    let package = match after("--git") {
        Some(_) => words.last().copied(),
        None => after("-p"),
    };
    if let Some(name) = package {
        named(name).with_context(|| format!("there is no package {name}"))?;
    }
    if let Some(path) = after("--path") {
        let manifest = workspace_root().join(path).join("Cargo.toml");
        ensure!(
            packages.iter().any(|package| package.manifest_path == manifest),
            "{path} has no package"
        );
    }
    for (flag, kind) in [("--bin", "bin"), ("--example", "example"), ("--test", "test")] {
        let Some(name) = after(flag) else { continue };
        let exists = packages
            .iter()
            .flat_map(|package| &package.targets)
            .any(|target| target.name == name && target.kind.iter().any(|found| found == kind));
        ensure!(exists, "there is no {kind} {name}");
        let last = words[words.len() - 1];
        let is_placeholder = last.starts_with('<');
        if kind == "test" && last != name && !is_placeholder {
            let filter = last.rsplit("::").next().unwrap_or(last);
            ensure!(
                tests_contain(name, filter)?,
                "no test of {name} has {filter} in its name"
            );
        }
    }
    Ok(())
}

/// Whether a source file of an integration test, or a scenario's name, contains `filter`.
fn tests_contain(test: &str, filter: &str) -> Result<bool> {
    let scenarios = csi_e2e::scenario::ALL.iter().map(|scenario| scenario.name);
    if test == "scenarios" && scenarios.into_iter().any(|name| name.contains(filter)) {
        return Ok(true);
    }
    let listed = git(&["ls-files", &format!("*/tests/{test}/*.rs")])?;
    for file in listed.lines() {
        if read(Path::new(file))?.contains(filter) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

fn packages() -> Result<Vec<Package>> {
    let output = stdout_of_blocking(
        Command::new("cargo")
            .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
            .current_dir(workspace_root()),
    )?;
    let metadata: Metadata = serde_json::from_str(&output).context("decode the output of cargo metadata")?;
    Ok(metadata.packages)
}

/// The blocks of all documents that are recipes or their files.
fn commands() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for document in documents()? {
        let path = document
            .strip_prefix(workspace_root())
            .context("a document must be in the tree")?;
        let path = path.to_string_lossy().into_owned();
        for block in blocks(&path)? {
            if !OTHER_LANGUAGES.contains(&block.language.as_str()) {
                found.push((path.clone(), block.text));
            }
        }
    }
    ensure!(found.len() >= 30, "only {} blocks were found", found.len());
    Ok(found)
}

/// The code in the text and the tables of documents.
fn inline_code() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for document in documents()? {
        let text = read(&document)?;
        let mut in_block = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            } else if !in_block {
                let code = line.split('`').skip(1).step_by(2);
                found.extend(code.map(|code| (document.display().to_string(), code.to_owned())));
            }
        }
    }
    Ok(found)
}

fn git(args: &[&str]) -> Result<String> {
    stdout_of_blocking(verdict::command("git").args(args).current_dir(workspace_root()))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(workspace_root().join(path)).with_context(|| format!("read {}", path.display()))
}
