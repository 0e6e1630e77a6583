//! The report of a run as Markdown and JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::quantity::Quantity;
use super::statistic::Summary;

/// All rows of one run. Its JSON is also the form of a baseline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In measuring order.
    pub rows: Vec<RowReport>,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowReport {
    /// Name on the command line.
    pub row: String,
    /// Title with the sizes. Rows with different titles cannot be compared.
    pub title: String,
    /// In the order of the table.
    pub implementations: Vec<ImplementationReport>,
}

/// One implementation in one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImplementationReport {
    /// Its name.
    pub implementation: String,
    /// The measurements.
    pub figures: BTreeMap<Quantity, Summary>,
    /// The errors of failed rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

// === impl Report ===

impl Report {
    /// The row of this name.
    pub fn row(&self, name: &str) -> Option<&RowReport> {
        self.rows.iter().find(|row| row.row == name)
    }

    /// Whether every measurement succeeded.
    pub fn is_complete(&self) -> bool {
        let mut implementations = self.rows.iter().flat_map(|row| &row.implementations);
        implementations.all(|implementation| implementation.failures.is_empty())
    }

    /// The rows as Markdown, one table each.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            row.write(&mut text).expect("writing to a string must not fail");
        }
        text
    }
}

// === impl RowReport ===

impl RowReport {
    /// All measured quantities, in the order of columns.
    pub fn quantities(&self) -> BTreeSet<Quantity> {
        let figures = self
            .implementations
            .iter()
            .flat_map(|implementation| implementation.figures.keys());
        figures.copied().collect()
    }

    /// The medians of this quantity of the implementations whose name has this prefix.
    pub fn medians(&self, quantity: Quantity, who: &str) -> Vec<f64> {
        let theirs = self
            .implementations
            .iter()
            .filter(|implementation| implementation.implementation.starts_with(who));
        theirs
            .filter_map(|implementation| Some(implementation.figures.get(&quantity)?.median))
            .collect()
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let quantities = self.quantities();
        writeln!(text, "### {} (`{}`)\n", self.title, self.row)?;
        write!(text, "| |")?;
        for quantity in &quantities {
            write!(text, " {} |", quantity.title())?;
        }
        writeln!(text, "\n|---|{}", "---|".repeat(quantities.len()))?;
        for implementation in &self.implementations {
            write!(text, "| {} |", implementation.implementation)?;
            for quantity in &quantities {
                let found = implementation.figures.get(quantity);
                let cell = found.map_or_else(|| "-".to_owned(), |found| quantity.text(found.median));
                write!(text, " {cell} |")?;
            }
            writeln!(text)?;
        }
        for implementation in &self.implementations {
            for failure in &implementation.failures {
                // Only the first line of the error: the tail of a log would break the table.
                let line = failure.lines().next().unwrap_or_default();
                writeln!(text, "\n{} failed: {line}", implementation.implementation)?;
            }
        }
        writeln!(text)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report of one row, with one quantity of some implementations.
    pub(crate) fn mk_report(row: &str, quantity: Quantity, implementations: &[(&str, f64)]) -> Report {
        let implementation = |(name, value): &(&str, f64)| ImplementationReport {
            implementation: (*name).to_owned(),
            figures: [(quantity, Summary::of(vec![*value]).expect("there is a round"))].into(),
            failures: Vec::new(),
        };
        Report {
            rows: vec![RowReport {
                row: row.to_owned(),
                title: "T".to_owned(),
                implementations: implementations.iter().map(implementation).collect(),
            }],
        }
    }

    #[test]
    fn a_table_has_what_anybody_was_measured_for() {
        let mut report = mk_report("burst", Quantity::Cpu, &[("ours-10", 0.5), ("go-10", 2.0)]);
        let ours = &mut report.rows[0].implementations[0];
        ours.figures.insert(
            Quantity::AttachRate,
            Summary::of(vec![300.0, 100.0, 200.4]).expect("rounds"),
        );
        ours.failures.push("no luck\nlog".to_owned());
        assert_eq!(
            report.markdown(),
            "### T (`burst`)\n\n\
             | | attaches/s | CPU s per 1,000 |\n\
             |---|---|---|\n\
             | ours-10 | 200 | 0.50 |\n\
             | go-10 | - | 2.00 |\n\
             \nours-10 failed: no luck\n\n"
        );
        assert!(!report.is_complete());
    }

    #[test]
    fn a_report_survives_its_json() {
        let mut report = mk_report("burst", Quantity::Cpu, &[("ours-10", 0.5)]);
        report.rows[0].implementations[0].failures.push("f".to_owned());
        let text = serde_json::to_string(&report).expect("a report is plain data");
        assert!(text.contains(r#""figures":{"cpu":{"median":0.5"#), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).expect("the same"), report);
    }
}
