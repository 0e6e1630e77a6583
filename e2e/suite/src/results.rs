//! The results of the suite, from ginkgo's report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::selection::{Family, LeftOut, Selection};

/// Error of a test of a complete family that neither ran nor has a reason to be skipped.
const UNACCOUNTED: &str =
    "unaccounted: the test did not run, and neither ginkgo nor the harness has a reason";

/// Results of a run, by family.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<Family, FamilyResults>);

/// Results of a family of tests.
#[derive(Debug, Default)]
struct FamilyResults {
    groups: BTreeMap<String, Counts>,
    /// Names of the tests that did not pass, by state and reason.
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

/// State of a test that did not pass.
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
    /// Reads ginkgo's report of a run that excluded the tests in `left_out`.
    ///
    /// # Errors
    /// No selected test ran, or no test with a required name, or no test of a family of which all or required tests are
    /// selected.
    pub(crate) fn read(file: &Path, selection: &Selection, left_out: &[LeftOut]) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let reports: Vec<Report> = serde_json::from_str(&text).context("understand ginkgo's report")?;
        let specs = reports
            .into_iter()
            .flat_map(|report| report.spec_reports.unwrap_or_default());
        let mut results = Self::default();
        let mut missing = selection.required.to_vec();
        for spec in specs {
            let name = spec.name();
            if spec.has_run() {
                missing.retain(|required| !name.contains(required));
            }
            if let Some(family) = Family::of(&name).filter(|family| selection.families.contains(family)) {
                let family = results.0.entry(family).or_default();
                family.add(&spec, name, selection, left_out);
            }
        }
        let has_run = |family: &Family| results.0.get(family).is_some_and(FamilyResults::has_run);
        ensure!(
            selection.families.iter().any(has_run),
            "no test ran: check the focus {:?} against the names of tests in Kubernetes",
            selection.focus
        );
        let without_tests: Vec<_> = selection
            .families
            .iter()
            .filter(|family| !has_run(family))
            .map(|family| family.title())
            .collect();
        ensure!(
            without_tests.is_empty() || (!selection.focus.is_empty() && selection.required.is_empty()),
            "no test of these families ran: {without_tests:?}"
        );
        ensure!(missing.is_empty(), "no test with these names ran: {missing:?}");
        Ok(results)
    }

    /// The number of tests that failed.
    pub(crate) fn failed(&self) -> usize {
        let groups = self.0.values().flat_map(|family| family.groups.values());
        groups.map(|counts| counts.failed).sum()
    }

    /// A Markdown section for each family: its title and its text.
    pub(crate) fn sections(&self) -> impl Iterator<Item = (&'static str, String)> {
        let sections = self.0.iter();
        sections.map(|(family, results)| (family.title(), results.section()))
    }
}

// === impl FamilyResults ===

impl FamilyResults {
    /// Whether a test of the family has passed or failed.
    fn has_run(&self) -> bool {
        self.groups
            .values()
            .any(|counts| counts.passed + counts.failed > 0)
    }

    fn add(&mut self, spec: &TestSpec, name: String, selection: &Selection, left_out: &[LeftOut]) {
        let message = spec.failure.message.lines().next().unwrap_or_default();
        let left_out = left_out.iter().find(|left_out| left_out.matches(&name));
        let (state, reason) = match spec.state.as_str() {
            "passed" => {
                self.groups.entry(spec.group()).or_default().passed += 1;
                return;
            }
            // A test that was not selected has no message.
            "skipped" | "pending" if message.is_empty() => match left_out {
                Some(left_out) => (State::LeftOut, left_out.reason),
                None if selection.focus.is_empty() => (State::Failed, UNACCOUNTED),
                None => return,
            },
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
    /// The full name.
    fn name(&self) -> String {
        let containers = self.container_hierarchy_texts.iter().flatten();
        let texts: Vec<_> = containers
            .chain([&self.leaf_node_text])
            .map(String::as_str)
            .collect();
        texts.join(" ")
    }

    /// Whether the test has passed or failed.
    fn has_run(&self) -> bool {
        !["skipped", "pending"].contains(&self.state.as_str())
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

    const CASES: [(&str, &str, &str); 4] = [
        ("should store data", "passed", ""),
        ("should break", "failed", "it broke\nhere"),
        ("should take snapshots", "skipped", "no snapshots"),
        ("should mount volumes [Feature:Windows]", "skipped", ""),
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
        let specs: Vec<_> = specs.into_iter().chain([mock]).collect();
        let selection = Selection::new(&[Family::External, Family::Mock], "");
        let results = results(&selection, &specs).unwrap();
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
                "Left out: needs Windows nodes",
                "",
                &format!("- {prefix} should mount volumes [Feature:Windows]"),
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

    #[test]
    fn a_run_without_the_expected_tests_is_an_error() {
        let spec = |state: &str| {
            let containers = ["External Storage [Driver: mock.csi.local]"];
            serde_json::json!({
                "ContainerHierarchyTexts": containers, "LeafNodeText": "should attach", "State": state,
            })
        };
        let selection = |families, focus, required| Selection {
            required,
            ..Selection::new(families, focus)
        };
        let external = &[Family::External][..];
        let missing = "no test with these names ran";
        let lacking = "[\"CSI Volumes\", \"CSI Mock\"]";
        let cases: [(Selection, &str, Option<&str>); 8] = [
            (selection(external, "", &[]), "passed", None),
            (selection(external, "", &["should attach"]), "timedout", None),
            (
                selection(external, "mistyped", &[]),
                "skipped",
                Some("check the focus \"mistyped\""),
            ),
            (
                selection(external, "", &["should detach"]),
                "passed",
                Some(missing),
            ),
            (selection(&Family::ALL, "", &[]), "passed", Some(lacking)),
            (selection(&Family::ALL, "attach", &[]), "passed", None),
            (
                selection(&Family::ALL, "attach", &["should attach"]),
                "passed",
                Some(lacking),
            ),
            (selection(&[Family::Mock], "", &[]), "passed", Some("no test ran")),
        ];
        for (selection, state, expected) in cases {
            let error = results(&selection, &[spec(state)])
                .err()
                .map(|error| error.to_string());
            let as_expected = match (&error, expected) {
                (None, None) => true,
                (Some(error), Some(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(
                as_expected,
                "{selection:?}, {state}: {error:?} instead of {expected:?}"
            );
        }
    }

    #[test]
    fn tests_without_outcome_fail_a_run_of_whole_families() {
        let spec = |leaf: &str, state: &str| {
            let containers = ["External Storage [Driver: mock.csi.local]"];
            serde_json::json!({
                "ContainerHierarchyTexts": containers, "LeafNodeText": leaf, "State": state,
            })
        };
        let specs = [
            spec("should attach", "passed"),
            spec("should get lost", "skipped"),
            spec("should be postponed", "pending"),
            spec("should mount volumes [Feature:Windows]", "skipped"),
        ];
        for (focus, failed, row) in [
            ("", 2, "| **total** | 1 | 2 | 0 | 1 |"),
            ("should attach", 0, "| **total** | 1 | 0 | 0 | 1 |"),
        ] {
            let selection = Selection::new(&[Family::External], focus);
            let results = results(&selection, &specs).unwrap();
            assert_eq!(results.failed(), failed, "focus {focus:?}");
            let (_, text) = results.sections().next().unwrap();
            assert!(text.contains(row), "focus {focus:?}: {text}");
            assert_eq!(text.contains(UNACCOUNTED), failed > 0, "focus {focus:?}: {text}");
        }
    }

    fn results(selection: &Selection, specs: &[serde_json::Value]) -> Result<Results> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report.json");
        std::fs::write(&file, serde_json::json!([{"SpecReports": specs}]).to_string()).unwrap();
        Results::read(&file, selection, &LeftOut::all().unwrap())
    }
}
