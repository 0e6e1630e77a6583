//! The results of the suite, from ginkgo's report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::selection::{Family, LeftOut};

/// Results of a run, by family.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<Family, FamilyResults>);

/// Results of a family of tests.
#[derive(Debug, Default)]
struct FamilyResults {
    groups: BTreeMap<String, Counts>,
    /// Names of the tests that did not pass, by the reason.
    others: BTreeMap<(State, String), BTreeSet<String>>,
}

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    left_out: usize,
}

/// What became of a test that did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Failed,
    LeftOut,
    SkippedBySuite,
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

// === impl Results ===

impl Results {
    /// Reads ginkgo's report of a run without the tests in `left_out`.
    pub(super) fn read(file: &Path, families: &[Family], left_out: &[LeftOut]) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let reports: Vec<Report> = serde_json::from_str(&text).context("understand ginkgo's report")?;
        let specs = reports
            .into_iter()
            .flat_map(|report| report.spec_reports.unwrap_or_default());
        let mut results = Self::default();
        for spec in specs {
            let name = spec.name();
            if let Some(family) = Family::of(&name).filter(|family| families.contains(family)) {
                results.0.entry(family).or_default().add(&spec, name, left_out);
            }
        }
        ensure!(!results.0.is_empty(), "no test was chosen");
        Ok(results)
    }

    /// The number of tests that failed.
    pub fn failed(&self) -> usize {
        let groups = self.0.values().flat_map(|family| family.groups.values());
        groups.map(|counts| counts.failed).sum()
    }

    /// A Markdown section for each family: its title and its text.
    pub fn sections(&self) -> impl Iterator<Item = (&'static str, String)> {
        let sections = self.0.iter();
        sections.map(|(family, results)| (family.title(), results.section()))
    }
}

// === impl FamilyResults ===

impl FamilyResults {
    fn add(&mut self, spec: &TestSpec, name: String, left_out: &[LeftOut]) {
        let message = spec.failure.message.lines().next().unwrap_or_default();
        let (state, reason) = match spec.state.as_str() {
            "passed" => {
                self.groups.entry(spec.group()).or_default().passed += 1;
                return;
            }
            // One that was not chosen has no message.
            "skipped" | "pending" if message.is_empty() => {
                let Some(left_out) = left_out.iter().find(|left_out| left_out.matches(&name)) else {
                    return;
                };
                (State::LeftOut, left_out.reason)
            }
            "skipped" | "pending" => (State::SkippedBySuite, message),
            _ => (State::Failed, message),
        };
        let counts = self.groups.entry(spec.group()).or_default();
        match state {
            State::Failed => counts.failed += 1,
            State::LeftOut => counts.left_out += 1,
            State::SkippedBySuite => counts.skipped += 1,
        }
        let others = self.others.entry((state, reason.to_owned())).or_default();
        others.insert(name);
    }

    fn section(&self) -> String {
        let mut text =
            "| group | passed | failed | skipped by the suite | left out |\n|---|---|---|---|---|\n"
                .to_owned();
        let mut total = Counts::default();
        for (group, counts) in &self.groups {
            counts.write_row(&mut text, group);
            total.passed += counts.passed;
            total.failed += counts.failed;
            total.skipped += counts.skipped;
            total.left_out += counts.left_out;
        }
        total.write_row(&mut text, "**total**");
        for ((state, reason), names) in &self.others {
            let state = match state {
                State::Failed => "Failed",
                State::LeftOut => "Left out",
                State::SkippedBySuite => "Skipped by the suite",
            };
            line(&mut text, &format!("\n{state}: {reason}\n"));
            for name in names {
                line(&mut text, &format!("- {name}"));
            }
        }
        text
    }
}

// === impl Counts ===

impl Counts {
    fn write_row(self, table: &mut String, group: &str) {
        let Self {
            passed,
            failed,
            skipped,
            left_out,
        } = self;
        line(
            table,
            &format!("| {group} | {passed} | {failed} | {skipped} | {left_out} |"),
        );
    }
}

// === impl TestSpec ===

impl TestSpec {
    /// The whole name.
    fn name(&self) -> String {
        let containers = self.container_hierarchy_texts.iter().flatten();
        let texts: Vec<_> = containers
            .chain([&self.leaf_node_text])
            .map(String::as_str)
            .collect();
        texts.join(" ")
    }

    /// The test suite of a test pattern, or the first container.
    fn group(&self) -> String {
        let containers = self.container_hierarchy_texts.as_deref().unwrap_or_default();
        let pattern = containers
            .iter()
            .find_map(|text| text.split_once("[Testpattern: ")?.1.split_once(']'))
            .map(|(_, group)| group);
        let group = pattern.or_else(|| containers.first().map(String::as_str));
        let words = group.unwrap_or_default().split_whitespace();
        // Without labels.
        let words: Vec<_> = words.filter(|word| !word.starts_with('[')).collect();
        words.join(" ")
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a String must succeed");
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: [(&str, &str, &str); 5] = [
        ("should store data", "passed", ""),
        ("should break", "failed", "it broke\nhere"),
        ("should not be chosen", "skipped", ""),
        ("should take snapshots", "skipped", "no snapshots"),
        ("should restart kubelet [Disruptive]", "skipped", ""),
    ];

    #[test]
    fn a_report_becomes_a_table() {
        let specs = CASES.map(|(leaf, state, message)| {
            serde_json::json!({
                "ContainerHierarchyTexts": [
                    "External Storage [Driver: mock.csi.local]",
                    "[Testpattern: Dynamic PV (ext4)] volumes [Slow]",
                ],
                "LeafNodeText": leaf,
                "State": state,
                "Failure": {"Message": message},
            })
        });
        let mock = serde_json::json!({
            "ContainerHierarchyTexts": ["[sig-storage] CSI Mock volume attach", "with a driver"],
            "LeafNodeText": "should attach",
            "State": "passed",
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report.json");
        let specs: Vec<_> = specs.into_iter().chain([mock]).collect();
        std::fs::write(&file, serde_json::json!([{"SpecReports": specs}]).to_string()).unwrap();
        let results = Results::read(&file, &Family::ALL, &LeftOut::all().unwrap()).unwrap();
        let sections: Vec<_> = results.sections().collect();
        let prefix =
            "External Storage [Driver: mock.csi.local] [Testpattern: Dynamic PV (ext4)] volumes [Slow]";
        assert_eq!(sections.len(), 2);
        assert_eq!(
            sections[0].1.lines().skip(2).collect::<Vec<_>>(),
            [
                "| volumes | 1 | 1 | 1 | 1 |",
                "| **total** | 1 | 1 | 1 | 1 |",
                "",
                "Failed: it broke",
                "",
                &format!("- {prefix} should break"),
                "",
                "Left out: restarts kubelet by ssh and systemd",
                "",
                &format!("- {prefix} should restart kubelet [Disruptive]"),
                "",
                "Skipped by the suite: no snapshots",
                "",
                &format!("- {prefix} should take snapshots"),
            ]
        );
        assert_eq!(
            sections[1].1.lines().nth(2),
            Some("| CSI Mock volume attach | 1 | 0 | 0 | 0 |")
        );
        assert_eq!(results.failed(), 1);
    }
}
