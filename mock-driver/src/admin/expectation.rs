//! Compares the calls of the journal with expected calls. Pure.
//!
//! As in Kubernetes' tests of its CSI client: consecutive calls with the same method and code count as
//! one, and calls of untracked methods are ignored.

use crate::admin_api::resource::{
    Comparison, Expectation, ExpectationResult, ExpectationStatus, Expected, ExpectedCount, Squashed,
};
use crate::rpc::method::short;

/// Adds calls, consecutive ones with the same method and code as one, with methods without service.
pub(super) fn squash<'a>(
    squashed: &mut Vec<Squashed>,
    calls: impl Iterator<Item = (u64, &'a str, &'static str)>,
) {
    for (sequence, method, code) in calls {
        match squashed.last_mut() {
            Some(last) if last.method == method && last.code == code => {
                last.calls += 1;
                last.sequence = sequence;
            }
            Some(_) | None => squashed.push(Squashed {
                method: method.to_owned(),
                code: code.to_owned(),
                calls: 1,
                sequence,
            }),
        }
    }
}

/// A part of the result. The worst status decides.
struct Part {
    status: ExpectationStatus,
    matched: usize,
    message: String,
    comparison: Vec<Comparison>,
}

/// Compares calls with an expectation, and the numbers of calls with its counts.
pub(super) fn compare(expectation: &Expectation, calls: &[Squashed], counted: &[u64]) -> ExpectationResult {
    let expected = &expectation.expected;
    let mut whole = match expectation.any_order {
        false => in_order(expected, calls),
        true => in_any_order(expected, calls),
    };
    for (expected, came) in expectation.counts.iter().zip(counted) {
        let part = count(expected, *came);
        if part.status > whole.status || (whole.comparison.is_empty() && part.status == whole.status) {
            (whole.status, whole.message) = (part.status, part.message);
        }
        whole.comparison.extend(part.comparison);
    }
    ExpectationResult {
        status: whole.status,
        matched: whole.matched,
        message: whole.message,
        calls: calls.to_vec(),
        comparison: whole.comparison,
    }
}

fn is_same(expected: &Expected, call: &Squashed) -> bool {
    short(&expected.method) == call.method && expected.code == call.code
}

fn name(expected: &Expected) -> String {
    format!("{} {}", short(&expected.method), expected.code)
}

fn came(call: &Squashed) -> String {
    match call.calls {
        1 => format!("{} {}", call.method, call.code),
        calls => format!("{} {} ({calls} times)", call.method, call.code),
    }
}

fn in_order(expected: &[Expected], calls: &[Squashed]) -> Part {
    // Expected calls are squashed, too: two alike cannot be distinguished from one.
    let mut wanted: Vec<&Expected> = Vec::new();
    for next in expected {
        if wanted.last().is_none_or(|last| *last != next) {
            wanted.push(next);
        }
    }
    let pairs = wanted.iter().zip(calls);
    let alike = pairs
        .take_while(|(expected, call)| is_same(expected, call))
        .count();
    let (status, message) = match (wanted.get(alike), calls.get(alike)) {
        (None, None) => (
            ExpectationStatus::Complete,
            "all expected calls came, and no others".to_owned(),
        ),
        (Some(missing), None) => (
            ExpectationStatus::Incomplete,
            format!("call {} did not come: {}", alike + 1, name(missing)),
        ),
        (missing, Some(call)) => (
            ExpectationStatus::Mismatch,
            format!(
                "call {} is {} {}, expected was {}",
                alike + 1,
                call.method,
                call.code,
                missing.map_or_else(|| "no more".to_owned(), |missing| name(missing)),
            ),
        ),
    };
    let rows = (0..wanted.len().max(calls.len())).map(|row| Comparison {
        expected: wanted.get(row).map(|expected| name(expected)),
        came: calls.get(row).map(came),
        agrees: row < alike,
    });
    Part {
        status,
        matched: alike,
        message,
        comparison: rows.collect(),
    }
}

fn in_any_order(expected: &[Expected], calls: &[Squashed]) -> Part {
    let found = |expected: &Expected| calls.iter().find(|call| is_same(expected, call));
    let missing = expected.iter().find(|expected| found(expected).is_none());
    let mut others = calls
        .iter()
        .filter(|call| !expected.iter().any(|expected| is_same(expected, call)))
        .peekable();
    let (status, message) = match (others.peek(), missing) {
        (Some(call), _) => (
            ExpectationStatus::Mismatch,
            format!("{} {} was not expected", call.method, call.code),
        ),
        (None, Some(missing)) => (
            ExpectationStatus::Incomplete,
            format!("{} did not come", name(missing)),
        ),
        (None, None) => (
            ExpectationStatus::Complete,
            "all expected calls came, and no others".to_owned(),
        ),
    };
    let rows = expected.iter().map(|expected| Comparison {
        expected: Some(name(expected)),
        came: found(expected).map(came),
        agrees: found(expected).is_some(),
    });
    let others = others.map(|call| Comparison {
        expected: None,
        came: Some(came(call)),
        agrees: false,
    });
    Part {
        status,
        matched: expected
            .iter()
            .filter(|expected| found(expected).is_some())
            .count(),
        message,
        comparison: rows.chain(others).collect(),
    }
}

fn count(expected: &ExpectedCount, came: u64) -> Part {
    let least = expected.at_least;
    let bounds = match expected.at_most {
        None => format!("at least {least}"),
        Some(0) => "no".to_owned(),
        Some(most) if most == least => format!("exactly {most}"),
        Some(most) if least == 0 => format!("at most {most}"),
        Some(most) => format!("{least} to {most}"),
    };
    let code = expected.code.as_deref().unwrap_or("with any code");
    let what = format!("{bounds} {} {code}", short(&expected.method));
    let status = match expected.at_most {
        Some(most) if came > most => ExpectationStatus::Mismatch,
        Some(_) | None if came < least => ExpectationStatus::Incomplete,
        Some(_) | None => ExpectationStatus::Complete,
    };
    let message = match status {
        ExpectationStatus::Complete => format!("{came} calls came, expected were {what}"),
        ExpectationStatus::Incomplete => format!("only {came} calls came, expected were {what}"),
        ExpectationStatus::Mismatch => format!("{came} calls came, expected were {what}"),
    };
    Part {
        status,
        matched: 0,
        message,
        comparison: vec![Comparison {
            expected: Some(what),
            came: Some(format!("{came} calls")),
            agrees: status == ExpectationStatus::Complete,
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_expectation(text: &str, any_order: bool) -> Expectation {
        Expectation {
            expected: mk_expected(text),
            any_order,
            ..Expectation::default()
        }
    }

    fn mk_expected(text: &str) -> Vec<Expected> {
        let one = |word: &str| {
            let (method, code) = word.split_once('=').unwrap_or((word, "OK"));
            Expected {
                method: method.to_owned(),
                code: code.to_owned(),
            }
        };
        text.split_whitespace().map(one).collect()
    }

    #[test]
    fn expectations_are_compared_with_finished_calls() {
        let calls = [
            (3, "Stage", "ABORTED"),
            (4, "Stage", "ABORTED"),
            (7, "Stage", "OK"),
            (8, "Publish", "OK"),
        ];
        // (expected, status, matched, words)
        let table = [
            (
                "Stage=ABORTED Stage Publish",
                ExpectationStatus::Complete,
                3,
                "all",
            ),
            (
                "/csi.v1.Node/Stage=ABORTED Stage Publish",
                ExpectationStatus::Complete,
                3,
                "all",
            ),
            (
                "Stage=ABORTED Stage=ABORTED Stage Publish",
                ExpectationStatus::Complete,
                3,
                "all",
            ),
            (
                "Stage=ABORTED Stage Publish Unpublish",
                ExpectationStatus::Incomplete,
                3,
                "call 4 did not come: Unpublish OK",
            ),
            (
                "Stage=ABORTED Publish",
                ExpectationStatus::Mismatch,
                1,
                "call 2 is Stage OK, expected was Publish OK",
            ),
            (
                "Stage=ABORTED Stage",
                ExpectationStatus::Mismatch,
                2,
                "call 3 is Publish OK, expected was no more",
            ),
            ("", ExpectationStatus::Mismatch, 0, "no more"),
        ];
        for (expected, kind, matched, words) in table {
            let mut squashed = Vec::new();
            let (first, rest) = calls.split_at(1);
            squash(&mut squashed, first.iter().copied());
            squash(&mut squashed, rest.iter().copied());
            let result = compare(&mk_expectation(expected, false), &squashed, &[]);
            assert_eq!((result.status, result.matched), (kind, matched), "{expected}");
            assert!(result.message.contains(words), "{expected}: {}", result.message);
            assert_eq!(result.calls[0].calls, 2);
            assert_eq!(result.calls[0].sequence, 4, "the last of them");
        }
        assert_eq!(
            compare(&Expectation::default(), &[], &[]).status,
            ExpectationStatus::Complete
        );
    }

    #[test]
    fn expectations_in_any_order_are_compared_as_sets() {
        let mut calls = Vec::new();
        squash(
            &mut calls,
            [(1, "Stage", "OK"), (2, "Publish", "OK"), (3, "Stage", "OK")].into_iter(),
        );
        // (expected, status, words)
        let table = [
            ("Publish Stage", ExpectationStatus::Complete, "all"),
            (
                "Publish Stage Unstage",
                ExpectationStatus::Incomplete,
                "Unstage OK did not come",
            ),
            (
                "Publish",
                ExpectationStatus::Mismatch,
                "Stage OK was not expected",
            ),
        ];
        for (expected, status, words) in table {
            let result = compare(&mk_expectation(expected, true), &calls, &[]);
            assert_eq!(result.status, status, "{expected}");
            assert!(result.message.contains(words), "{expected}: {}", result.message);
        }
    }

    #[test]
    fn counts_have_bounds_and_are_shown_beside_what_came() {
        // (at least, at most, how many came, status, what is shown as expected)
        let table = [
            (0, Some(0), 0, ExpectationStatus::Complete, "no Stage OK"),
            (0, Some(0), 1, ExpectationStatus::Mismatch, "no Stage OK"),
            (2, Some(2), 1, ExpectationStatus::Incomplete, "exactly 2 Stage OK"),
            (2, Some(2), 3, ExpectationStatus::Mismatch, "exactly 2 Stage OK"),
            (1, None, 9, ExpectationStatus::Complete, "at least 1 Stage OK"),
            (0, Some(3), 4, ExpectationStatus::Mismatch, "at most 3 Stage OK"),
        ];
        for (at_least, at_most, came, status, shown) in table {
            let counts = vec![ExpectedCount {
                method: "Stage".to_owned(),
                code: Some("OK".to_owned()),
                at_least,
                at_most,
                ..ExpectedCount::default()
            }];
            let expectation = Expectation {
                counts,
                ..Expectation::default()
            };
            let result = compare(&expectation, &[], &[came]);
            assert_eq!(result.status, status, "{shown}: {came}");
            let [row] = &result.comparison[..] else {
                panic!("{result:?}")
            };
            assert_eq!(row.expected.as_deref(), Some(shown));
            assert_eq!(row.agrees, status == ExpectationStatus::Complete);
            assert!(result.message.contains(shown), "{}", result.message);
        }
    }
}
