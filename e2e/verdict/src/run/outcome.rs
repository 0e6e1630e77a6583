//! What a test binary reports, and what the tests recorded beside it.

use std::process::ExitStatus;

use crate::skip::{Extent, Skip};

/// The result of a test binary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// Skipped with a recorded reason.
    pub(super) skips: Vec<Skip>,
    /// Ignored without a recorded reason, such as by `#[ignore]`.
    pub(super) ignored: usize,
    pub(super) failures: Vec<String>,
}

// === impl Outcome ===

impl Outcome {
    /// Reads the output of a binary with libtest's format.
    pub(super) fn of(output: &str, status: Option<ExitStatus>, skips: Vec<Skip>) -> Self {
        let mut outcome = Self {
            skips,
            ..Self::default()
        };
        let (mut passed, mut ignored, mut summaries) = (0, 0, 0);
        for line in output.lines() {
            // Lines of tests that write to the output itself may begin in the middle.
            if let Some((_, counts)) = line.split_once("test result: ") {
                summaries += 1;
                passed += count(counts, "passed");
                outcome.failed += count(counts, "failed");
                ignored += count(counts, "ignored");
            } else if let Some(name) = failed_test(line) {
                outcome.failures.push(name.to_owned());
            }
        }
        let of = |extent: Extent| outcome.skips.iter().filter(|skip| skip.extent == extent).count();
        outcome.passed = passed.saturating_sub(of(Extent::Returned));
        outcome.ignored = ignored.saturating_sub(of(Extent::Ignored));
        let problem = match status {
            Some(status) if status.success() && summaries > 0 => None,
            Some(status) if status.success() => Some(format!("printed no result ({status})")),
            Some(status) => (outcome.failed == 0).then(|| format!("ended with {status}")),
            None => Some("could not be run".to_owned()),
        };
        if let Some(problem) = problem {
            outcome.failed += 1;
            outcome.failures.push(problem);
        }
        outcome
    }

    pub(super) fn is_success(&self) -> bool {
        self.failed == 0
    }

    /// Tests that did not run at all.
    pub(super) fn skipped(&self) -> usize {
        self.skips
            .iter()
            .filter(|skip| skip.extent != Extent::Part)
            .count()
            + self.ignored
    }
}

/// The number before a word, as in `12 passed; 0 failed`.
fn count(counts: &str, word: &str) -> usize {
    let numbers = counts
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word));
    numbers
        .filter_map(|number| number.trim().parse::<usize>().ok())
        .sum()
}

fn failed_test(line: &str) -> Option<&str> {
    let (_, name) = line.split_once("test ")?;
    let name = name.strip_suffix("FAILED")?.trim_end().strip_suffix("...")?;
    Some(name.trim_end())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const LIBTEST: &str = "\nrunning 3 tests\ntest a ... ok\nSKIPPED: noise\ntest b::c ... FAILED\n\nfailures:\n    b::c\n\n\
        test result: FAILED. 5 passed; 1 failed; 2 ignored; 0 measured; 9 filtered out; finished in 0.00s\n";

    fn mk_skip(extent: Extent) -> Skip {
        Skip {
            test: "a".to_owned(),
            extent,
            reason: String::new(),
            cure: String::new(),
        }
    }

    #[test]
    fn skipped_tests_did_not_pass() {
        let skips = [Extent::Returned, Extent::Returned, Extent::Ignored, Extent::Part]
            .map(mk_skip)
            .to_vec();
        let outcome = Outcome::of(LIBTEST, Some(ExitStatus::from_raw(101 << 8)), skips);
        assert_eq!(
            (outcome.passed, outcome.failed, outcome.skipped(), outcome.ignored),
            (3, 1, 4, 1)
        );
        assert_eq!(outcome.failures, ["b::c"]);
    }

    #[test]
    fn several_results_are_added() {
        let text = "test result: ok. 2 passed; 0 failed; 0 ignored\nx\ntest result: ok. 3 passed; 0 failed; 1 ignored\n";
        let outcome = Outcome::of(text, Some(ExitStatus::from_raw(0)), Vec::new());
        assert_eq!((outcome.passed, outcome.failed, outcome.ignored), (5, 0, 1));
    }

    #[test]
    fn binary_that_dies_or_says_nothing_has_failed() {
        let passed = "test result: ok. 2 passed; 0 failed; 0 ignored\n";
        for (output, status) in [
            ("", Some(0)),
            ("", Some(9)),
            (passed, Some(1 << 8)),
            (passed, None),
        ] {
            let outcome = Outcome::of(output, status.map(ExitStatus::from_raw), Vec::new());
            assert_eq!(outcome.failed, 1, "{output} {status:?}");
            assert_eq!(outcome.failures.len(), 1);
        }
    }

    #[test]
    fn trials_that_are_padded_are_found() {
        assert_eq!(failed_test("test some trial    ... FAILED"), Some("some trial"));
        assert_eq!(failed_test("test some trial    ... ok"), None);
        assert_eq!(failed_test("test result: FAILED"), None);
    }
}
