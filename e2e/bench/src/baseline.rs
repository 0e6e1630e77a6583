//! Compares a run with an earlier one by the ratios to the Go attacher, which do not depend on the speed of
//! the machine.

use std::fmt::Write as _;

use anyhow::{Result, bail, ensure};

use super::quantity::{Better, Quantity};
use super::report::{Report, RowReport};

/// Change of a ratio above which it is reported as worse. Rounds on a busy machine differ by about as much.
const TOLERANCE: f64 = 0.15;
/// Change of a ratio above which the run fails: no noise of one ratio among dozens reaches it.
const REGRESSION: f64 = 0.5;

/// Ratio to the best Go implementation of the same row, in the baseline and in this run.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The row's name.
    pub row: String,
    /// Name of the implementation.
    pub implementation: String,
    /// The quantity.
    pub quantity: Quantity,
    /// In the baseline.
    pub then: f64,
    /// In this run.
    pub now: f64,
}

// === impl Change ===

impl Change {
    /// Factor by which it got worse; below 1 is an improvement.
    pub fn factor(&self) -> f64 {
        match self.quantity.better() {
            Better::Less => self.now / self.then,
            Better::More => self.then / self.now,
        }
    }

    /// Whether it got worse by more than the noise between rounds.
    pub fn is_worse(&self) -> bool {
        self.factor() > 1.0 + TOLERANCE
    }
}

/// Every ratio that both reports have. Rows with different sizes are skipped.
pub fn compare(report: &Report, baseline: &Report) -> Vec<Change> {
    let mut changes = Vec::new();
    for row in &report.rows {
        let Some(earlier) = baseline
            .row(&row.row)
            .filter(|earlier| earlier.title == row.title)
        else {
            continue;
        };
        for (implementation, quantity, now) in ratios(row) {
            let then = ratios(earlier).find(|(who, what, _)| *who == implementation && *what == quantity);
            if let Some((.., then)) = then {
                changes.push(Change {
                    row: row.row.clone(),
                    implementation: implementation.to_owned(),
                    quantity,
                    then,
                    now,
                });
            }
        }
    }
    changes
}

fn ratios(row: &RowReport) -> impl Iterator<Item = (&str, Quantity, f64)> {
    let ours = row
        .implementations
        .iter()
        .filter(|implementation| implementation.implementation.starts_with("ours"));
    ours.flat_map(|implementation| {
        implementation
            .figures
            .iter()
            .map(move |figure| (implementation, figure))
    })
    .filter_map(|(implementation, (quantity, found))| {
        let (best, _) = quantity.better().ends(row.medians(*quantity, "go"))?;
        let ratio = found.median / best;
        // 0/0 has no meaning.
        (ratio.is_finite() && ratio > 0.0).then_some((
            implementation.implementation.as_str(),
            *quantity,
            ratio,
        ))
    })
}

/// Checks a comparison.
///
/// # Errors
///
/// If a ratio got much worse, or nothing could be compared.
pub fn verify(changes: &[Change]) -> Result<()> {
    ensure!(
        !changes.is_empty(),
        "no ratio of the baseline could be compared: measure a new one (--json)"
    );
    let worse = changes.iter().filter(|change| change.factor() > 1.0 + REGRESSION);
    let worse: Vec<_> = worse
        .map(|change| {
            format!(
                "{} of {} in {} ({:.2} times as bad)",
                change.quantity.title(),
                change.implementation,
                change.row,
                change.factor()
            )
        })
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    bail!(
        "worse than the baseline by more than {:.0} %: {}",
        REGRESSION * 100.0,
        worse.join(", ")
    )
}

/// The comparison as Markdown: regressions, and the number of compared ratios.
pub fn markdown(changes: &[Change]) -> String {
    let worse: Vec<_> = changes.iter().filter(|change| change.is_worse()).collect();
    let mut text = format!(
        "### Against the baseline\n\n{} ratios to the Go attacher compared, {} worse by more than {:.0} %.\n\n",
        changes.len(),
        worse.len(),
        TOLERANCE * 100.0
    );
    if worse.is_empty() {
        return text;
    }
    text.push_str("| | | | then | now | times as bad |\n|---|---|---|---|---|---|\n");
    for change in worse {
        writeln!(
            text,
            "| {} | {} | {} | {:.3} | {:.3} | {:.2} |",
            change.row,
            change.implementation,
            change.quantity.title(),
            change.then,
            change.now,
            change.factor()
        )
        .expect("writing to a string must not fail");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::mk_report;
    use super::*;

    fn change(quantity: Quantity, then: (f64, f64), now: (f64, f64)) -> Change {
        let report = |(ours, go)| {
            mk_report(
                "burst",
                quantity,
                &[("ours-10", ours), ("go-10", go), ("limit-1", 1.0)],
            )
        };
        let mut changes = compare(&report(now), &report(then));
        assert_eq!(changes.len(), 1);
        changes.remove(0)
    }

    #[test]
    fn a_slower_machine_is_no_change() {
        let same = change(Quantity::Cpu, (1.0, 4.0), (3.0, 12.0));
        assert_eq!(same.factor(), 1.0);
        assert!(!same.is_worse());
    }

    #[test]
    fn worse_is_up_for_costs_and_down_for_rates() {
        for (quantity, now, worse) in [
            (Quantity::Cpu, (1.2, 4.0), true),
            (Quantity::Cpu, (1.1, 4.0), false),
            (Quantity::Cpu, (0.5, 4.0), false),
            (Quantity::AttachRate, (0.8, 4.0), true),
            (Quantity::AttachRate, (1.2, 4.0), false),
        ] {
            let change = change(quantity, (1.0, 4.0), now);
            assert_eq!(change.is_worse(), worse, "{change:?}");
            assert_eq!(markdown(&[change]).contains("| burst | ours-10 |"), worse);
        }
    }

    #[test]
    fn only_a_large_regression_fails_the_run() {
        let verdict = |now| verify(&[change(Quantity::Cpu, (1.0, 4.0), now)]);
        for now in [(1.0, 4.0), (1.4, 4.0), (0.2, 4.0)] {
            assert!(verdict(now).is_ok(), "{now:?}");
        }
        let error = verdict((1.6, 4.0)).expect_err("a regression").to_string();
        assert!(error.contains("ours-10 in burst (1.60 times as bad)"), "{error}");
        assert!(verify(&[]).is_err());
    }

    #[test]
    fn rows_of_another_size_are_not_compared() {
        let implementations = [("ours-10", 1.0), ("go-10", 2.0)];
        let now = mk_report("burst", Quantity::Cpu, &implementations);
        let mut then = now.clone();
        then.rows[0].title = "another size".to_owned();
        assert_eq!(compare(&now, &then), []);
        assert!(markdown(&[]).contains("0 ratios"));
    }
}
