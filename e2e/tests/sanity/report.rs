//! The JSON report of csi-sanity.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Number of specs that must pass; csi-sanity keeps one pending: pagination of ListVolumes.
const PASSED: usize = 102;
const PENDING: usize = 1;
/// Number of specs that pass without options: all except the one for the attach limit.
const PASSED_PLAIN: usize = PASSED - 1;

/// Results of the specs of one run.
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
    /// Absent for specs outside of a container.
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
    /// Parses Ginkgo's JSON report.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(text).context("parse the report")?;
        let mut report = Self::default();
        for spec in suites.into_iter().flat_map(|suite| suite.spec_reports) {
            // Set-up and clean-up nodes count only if they fail.
            let is_spec = spec.leaf_node_type == "It";
            match spec.state.as_str() {
                "passed" => report.passed += usize::from(is_spec),
                "pending" => report.pending += usize::from(is_spec),
                "skipped" => report.skipped.push(spec.describe()),
                _ => report.failed.push(spec.describe()),
            }
        }
        Ok(report)
    }

    /// Fails unless all specs that were not skipped passed, and none of the driver's services was skipped.
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
    fn describe(&self) -> String {
        let mut words = self.container_hierarchy_texts.clone().unwrap_or_default();
        words.push(self.leaf_node_text.clone());
        let why = self.failure.as_ref().map_or("", |failure| failure.message.trim());
        format!("{}: {}: {why}", self.state, words.join(" "))
    }
}
