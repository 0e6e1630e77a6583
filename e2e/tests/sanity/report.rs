//! What csi-sanity reports of its specs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The specs of csi-sanity that are to pass, and the one that it keeps pending: paging of ListVolumes.
const PASSED: usize = 102;
const PENDING: usize = 1;
/// Those that pass without options: all but the one that looks for the attach limit.
const PASSED_PLAIN: usize = PASSED - 1;

/// How the specs of one run ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    passed: usize,
    pending: usize,
    skipped: Vec<String>,
    failed: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    /// Absent of specs that stand in no container.
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    #[serde(default)]
    leaf_node_text: String,
    leaf_node_type: String,
    state: String,
    #[serde(default)]
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

// === impl Report ===

impl Report {
    /// Reads the JSON report that Ginkgo wrote.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(text).context("understand the report")?;
        let mut report = Self::default();
        for spec in suites.into_iter().flat_map(|suite| suite.spec_reports) {
            // Set-up and cleaning up around the specs count only when they fail.
            let is_spec = spec.leaf_node_type == "It";
            match spec.state.as_str() {
                "passed" => report.passed += usize::from(is_spec),
                "pending" => report.pending += usize::from(is_spec),
                "skipped" => report.skipped.push(spec.told()),
                _ => report.failed.push(spec.told()),
            }
        }
        Ok(report)
    }

    /// Fails unless all passed that were not skipped, and those of the driver's services were not.
    pub(crate) fn ensure_none_failed(&self) -> Result<()> {
        let (passed, failed) = (self.passed, &self.failed);
        ensure!(
            failed.is_empty() && passed >= PASSED_PLAIN,
            "{passed} passed (at least {PASSED_PLAIN} expected), {} failed\n{}",
            failed.len(),
            failed.join("\n")
        );
        Ok(())
    }

    /// Fails unless all passed.
    pub(crate) fn ensure_all_passed(&self) -> Result<()> {
        let Self {
            passed,
            pending,
            skipped,
            failed,
        } = self;
        ensure!(
            failed.is_empty() && skipped.is_empty() && (*passed, *pending) == (PASSED, PENDING),
            "{passed} passed (of {PASSED}), {} failed, {} skipped, {pending} pending (of {PENDING})\n{}",
            failed.len(),
            skipped.len(),
            [&failed[..], &skipped[..]].concat().join("\n")
        );
        Ok(())
    }
}

// === impl Spec ===

impl Spec {
    fn told(&self) -> String {
        let mut words = self.container_hierarchy_texts.clone().unwrap_or_default();
        words.push(self.leaf_node_text.clone());
        let why = self.failure.as_ref().map_or("", |failure| failure.message.trim());
        format!("{}: {}: {why}", self.state, words.join(" "))
    }
}
