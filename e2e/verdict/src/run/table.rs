//! The table at the end.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::binary::Finished;
use crate::skip::{Extent, Skip};

/// Names of skipped tests per reason in the table.
const EXAMPLES: usize = 2;

/// Seconds per binary, the reasons of skips, the failures, and the counts in the last line.
pub(super) fn of(finished: &[Finished], build_seconds: f64) -> String {
    let mut table = format!("\n=== seconds per test binary\n{build_seconds:8.1}  (build)\n");
    let mut slowest: Vec<_> = finished.iter().collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    for binary in slowest {
        let outcome = &binary.outcome;
        let counts = format!("{} passed, {} skipped", outcome.passed, outcome.skipped());
        writeln!(table, "{:8.1}  {:<34} {counts}", binary.seconds, binary.name).ok();
    }
    skips(&mut table, finished);
    let failures: Vec<_> = finished
        .iter()
        .flat_map(|binary| {
            binary
                .outcome
                .failures
                .iter()
                .map(move |failure| format!("{}: {failure}", binary.name))
        })
        .collect();
    if !failures.is_empty() {
        write!(
            table,
            "\n=== failed; the output is above\n{}\n",
            failures.join("\n")
        )
        .ok();
    }
    let sum = |count: fn(&Finished) -> usize| finished.iter().map(count).sum::<usize>();
    let (passed, failed) = (
        sum(|binary| binary.outcome.passed),
        sum(|binary| binary.outcome.failed),
    );
    let skipped = sum(|binary| binary.outcome.skipped());
    write!(table, "\n{passed} passed, {failed} failed, {skipped} skipped").ok();
    table
}

/// One line for each reason.
fn skips(table: &mut String, finished: &[Finished]) {
    let mut reasons: BTreeMap<(&str, &str), Vec<&Skip>> = BTreeMap::new();
    for skip in finished.iter().flat_map(|binary| &binary.outcome.skips) {
        reasons.entry((&skip.reason, &skip.cure)).or_default().push(skip);
    }
    let ignored: usize = finished.iter().map(|binary| binary.outcome.ignored).sum();
    if reasons.is_empty() && ignored == 0 {
        return;
    }
    table.push_str("\n=== skipped\n");
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, skips)| std::cmp::Reverse(skips.len()));
    for ((reason, cure), skips) in reasons {
        let parts = skips.iter().filter(|skip| skip.extent == Extent::Part).count();
        let parts = if parts == 0 {
            String::new()
        } else {
            format!(" ({parts} of them ran in part)")
        };
        let cure = if cure.is_empty() {
            String::new()
        } else {
            format!(". To run them: {cure}")
        };
        let names: Vec<_> = skips
            .iter()
            .map(|skip| skip.test.as_str())
            .take(EXAMPLES)
            .collect();
        let more = if skips.len() > EXAMPLES { ", ..." } else { "" };
        writeln!(
            table,
            "{:5}  {reason}{parts}{cure} [{}{more}]",
            skips.len(),
            names.join(", ")
        )
        .ok();
    }
    if ignored > 0 {
        writeln!(table, "{ignored:5}  without a recorded reason").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Outcome;
    use super::*;

    fn mk_finished(name: &str, passed: usize, failures: &[&str], skips: Vec<Skip>) -> Finished {
        Finished {
            name: name.to_owned(),
            outcome: Outcome {
                passed,
                failed: failures.len(),
                failures: failures.iter().map(|&failure| failure.to_owned()).collect(),
                skips,
                ignored: 0,
            },
            seconds: 1.0,
        }
    }

    fn mk_skip(test: &str, extent: Extent) -> Skip {
        Skip {
            test: test.to_owned(),
            extent,
            reason: "mkfs.xfs is not on PATH".to_owned(),
            cure: "apt-get install xfsprogs".to_owned(),
        }
    }

    #[test]
    fn each_reason_is_one_line_and_the_counts_are_the_last() {
        let finished = [
            mk_finished(
                "a",
                3,
                &[],
                vec![mk_skip("a::t", Extent::Returned), mk_skip("a::u", Extent::Part)],
            ),
            mk_finished("b", 2, &["b::x"], vec![mk_skip("b::t", Extent::Ignored)]),
        ];
        let table = of(&finished, 2.0);
        let line = "    3  mkfs.xfs is not on PATH (1 of them ran in part). To run them: apt-get install xfsprogs \
            [a::t, a::u, ...]";
        assert_eq!(table.matches(line).count(), 1, "{table}");
        assert!(table.contains("\nb: b::x\n"), "{table}");
        assert_eq!(table.lines().last(), Some("5 passed, 1 failed, 2 skipped"));
    }
}
