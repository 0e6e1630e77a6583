//! Kubernetes' External.Storage suite against the driver on real nodes, and the table of its results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::conditions;
use kube::runtime::wait::Condition;
use kube::{Api, ResourceExt};
use serde::Deserialize;

use super::RealNodes;
use crate::process::{Process, Spec};
use crate::toolchain::{SuitePrograms, Toolchain, workspace_root};
use crate::wait::{self, Progress};

/// What is deployed for the suite.
pub const SUITE_OVERLAY: &str = "deploy/overlays/mock-driver-snapshots";
/// Beside the overlay: the VolumeAttributesClass that the driver's definition names.
const TIERS: &str = "deploy/examples/tiers.yaml";
const DEFINITION: &str = "deploy/e2e-suite/testdriver.yaml";
/// Tests that are never chosen: they need other clusters, group snapshots, which the overlay has not, or the image of
/// hello-populator, whose Go module the proxy lacks.
const SKIP: &str = "Disruptive|VolumeGroupSnapshot|volumegroupsnapshottable|any volume data source";
/// Tests that grow a mounted ext4 filesystem, which needs CAP_SYS_RESOURCE; without it each waits ten minutes.
const GROWTH: [&str; 3] = [
    r"\(default fs\)\(allowExpansion\).*volume-expand.*while pod is using it",
    r"\(default fs\) \(immediate-binding\).*ephemeral should support expansion",
    r"\(default fs\) \(late-binding\).*ephemeral should support expansion",
];
/// Number of the capability (capabilities(7)).
const CAP_SYS_RESOURCE: u32 = 24;
/// How long the API server may take to serve a new kind.
const SERVED: Duration = Duration::from_secs(60);
/// Longer than the whole suite.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// Results of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// Passed, failed and skipped tests by their suite.
    suites: BTreeMap<String, [usize; 3]>,
    /// Whether the tests of [`GROWTH`] were left out.
    without_growth: bool,
    /// Names of failed tests, with the first line of the reason.
    pub failures: Vec<String>,
}

/// A part of ginkgo's JSON report.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    #[serde(default)]
    spec_reports: Option<Vec<TestSpec>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TestSpec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
}

impl RealNodes {
    /// Prepares the cluster for the suite and deploys the driver.
    ///
    /// Returns the snapshot controller, which ends when it is dropped.
    pub async fn deploy_for_suite(&self, toolchain: &Toolchain, suite: &SuitePrograms) -> Result<Process> {
        let definitions = Api::<CustomResourceDefinition>::all(self.client());
        for definition in self
            .cluster
            .apply(&toolchain.snapshot_definitions().await?)
            .await?
        {
            let name = definition.name_any();
            let what = format!("{name} to be served");
            wait::for_object(&definitions, &name, SERVED, &what, |definition| {
                let established = conditions::is_crd_established().matches_object(definition);
                Progress::of(established, || "it is not established".to_owned())
            })
            .await?;
        }
        let controller = Spec::new("snapshot-controller", &suite.snapshot_controller).arg(format!(
            "--kubeconfig={}",
            self.cluster.admin_kubeconfig().display()
        ));
        let controller = Process::spawn(&self.run, controller)?;
        self.deploy().await?;
        let tiers = std::fs::read_to_string(workspace_root().join(TIERS)).context("read the tiers")?;
        let is_class = |document: &&str| document.contains("\nkind: VolumeAttributesClass\n");
        let classes: Vec<_> = tiers.split("\n---\n").filter(is_class).collect();
        self.cluster.apply(&classes.join("\n---\n")).await?;
        Ok(controller)
    }

    /// Runs the tests whose names match `focus`, and returns the results and the log.
    pub async fn run_suite(
        &self,
        suite: &SuitePrograms,
        focus: &str,
        processes: u16,
    ) -> Result<(Results, PathBuf)> {
        let dir = self.run.subdir("suite")?;
        let kubeconfig = self.cluster.admin_kubeconfig().display();
        let definition = workspace_root().join(DEFINITION);
        let without_growth = !may_grow_mounted_ext4()?;
        let mut skip = vec![SKIP];
        if without_growth {
            skip.extend(GROWTH);
        }
        // ginkgo knows a test program by this suffix.
        let program = dir.join("e2e.test");
        std::os::unix::fs::symlink(&suite.suite, &program).context("link the suite")?;
        let ginkgo = Spec::new("suite", &suite.ginkgo)
            .args([
                format!("--procs={processes}"),
                format!("--timeout={}s", LIMIT.as_secs()),
            ])
            .args([
                "--no-color",
                "-v",
                "--output-interceptor-mode=none",
                "--json-report=report.json",
            ])
            .args([
                format!("--focus=External.Storage.*{focus}"),
                format!("--skip={}", skip.join("|")),
            ])
            .arg(program)
            .args(["--", "-provider=local", "-disable-log-dump=true"])
            .arg(format!("-kubeconfig={kubeconfig}"))
            .arg(format!("-storage.testdriver={}", definition.display()))
            .dir(&dir);
        let ginkgo = Process::spawn(&self.run, ginkgo)?;
        self.while_alive(async { ginkgo.exited_within(LIMIT).await.map(drop) })
            .await?;
        let results = Results::read(&dir.join("report.json"));
        let mut results = results.with_context(|| format!("ginkgo: {}", ginkgo.log_tail(20)))?;
        results.without_growth = without_growth;
        Ok((results, ginkgo.stdout().to_owned()))
    }
}

// === impl Results ===

impl Results {
    fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let reports: Vec<Report> = serde_json::from_str(&text).context("understand ginkgo's report")?;
        let specs = reports
            .into_iter()
            .flat_map(|report| report.spec_reports.unwrap_or_default());
        let mut results = Self::default();
        for spec in specs {
            results.add(spec);
        }
        ensure!(!results.suites.is_empty(), "no test was chosen");
        Ok(results)
    }

    fn add(&mut self, spec: TestSpec) {
        let containers = spec.container_hierarchy_texts.unwrap_or_default();
        let pattern = containers.iter().find(|text| text.contains("[Testpattern: "));
        let Some(suite) = pattern.and_then(|text| text.split_whitespace().last()) else {
            return;
        };
        let place = match spec.state.as_str() {
            "passed" => 0,
            // One that was not chosen has no message.
            "skipped" | "pending" if spec.failure.message.is_empty() => return,
            "skipped" | "pending" => 2,
            _ => {
                let reason = spec.failure.message.lines().next().unwrap_or_default();
                let name = format!(
                    "{} {}",
                    containers.last().map_or("", String::as_str),
                    spec.leaf_node_text
                );
                self.failures.push(format!("{name}: {reason}"));
                1
            }
        };
        self.suites.entry(suite.to_owned()).or_default()[place] += 1;
    }

    /// Results as a Markdown table, followed by failed and excluded tests.
    pub fn table(&self) -> String {
        let mut table = "| suite | passed | failed | skipped by itself |\n|---|---|---|---|\n".to_owned();
        let mut total = [0; 3];
        for (suite, counts) in &self.suites {
            row(&mut table, suite, *counts);
            for (sum, count) in total.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        row(&mut table, "total", total);
        for failure in &self.failures {
            writeln!(table, "\nFailed: {failure}").expect("writing to a String must succeed");
        }
        if self.without_growth {
            table += "\nNot run: three tests that grow a mounted ext4 filesystem, because the machine lacks CAP_SYS_RESOURCE.\n";
        }
        table
    }
}

/// Whether the nodes have CAP_SYS_RESOURCE, which they take over from this process.
fn may_grow_mounted_ext4() -> Result<bool> {
    let status = procfs::process::Process::myself()
        .and_then(|process| process.status())
        .context("read the capabilities of this process")?;
    Ok(status
        .capbnd
        .is_some_and(|set| set & (1 << CAP_SYS_RESOURCE) != 0))
}

fn row(table: &mut String, name: &str, [passed, failed, skipped]: [usize; 3]) {
    let written = writeln!(table, "| {name} | {passed} | {failed} | {skipped} |");
    written.expect("writing to a String must succeed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_a_table() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report.json");
        let spec = |state: &str, message: &str| {
            serde_json::json!({
                "ContainerHierarchyTexts": ["External Storage [Driver: x]", "[Testpattern: Dynamic PV (ext4)] volumes"],
                "LeafNodeText": "should store data",
                "State": state,
                "Failure": {"Message": message},
            })
        };
        let specs = [
            spec("passed", ""),
            spec("failed", "it broke\nhere"),
            spec("skipped", ""),
            spec("skipped", "no snapshots"),
        ];
        let report = serde_json::json!([{"SpecReports": specs}]);
        std::fs::write(&file, report.to_string()).unwrap();
        let results = Results::read(&file).unwrap();
        assert_eq!(
            results.table().lines().skip(2).collect::<Vec<_>>(),
            [
                "| volumes | 1 | 1 | 1 |",
                "| total | 1 | 1 | 1 |",
                "",
                "Failed: [Testpattern: Dynamic PV (ext4)] volumes should store data: it broke",
            ]
        );
    }
}
