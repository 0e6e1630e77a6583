//! Compares the calls of the journal with expected calls. Pure.
//!
//! As in Kubernetes' tests of its CSI client: consecutive calls with the same method and code count as
//! one if they fit the same expected calls, and calls of untracked methods are ignored.

use crate::admin_api::resource::{
    Comparison, Expectation, ExpectationResult, ExpectationStatus, Expected, ExpectedCount, Squashed,
};
use crate::rpc::method::short;

/// Consecutive calls that cannot be distinguished.
#[derive(Clone, Debug)]
pub(super) struct Came {
    call: Squashed,
    /// The expected calls that want another volume, node or request, by their index.
    unfit: Vec<usize>,
}

/// The calls that a count is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) ended: u64,
    /// In-flight calls, which count towards upper bounds.
    pub(super) running: u64,
}

/// Adds a call, with its method without service.
pub(super) fn squash(came: &mut Vec<Came>, sequence: u64, method: &str, code: &str, unfit: Vec<usize>) {
    match came.last_mut() {
        Some(last) if last.call.method == method && last.call.code == code && last.unfit == unfit => {
            last.call.calls += 1;
            last.call.sequence = sequence;
        }
        Some(_) | None => came.push(Came {
            call: Squashed {
                method: method.to_owned(),
                code: code.to_owned(),
                calls: 1,
                sequence,
            },
            unfit,
        }),
    }
}

/// Compares calls with an expectation, and the numbers of calls with its counts. The worst status decides.
pub(super) fn compare(expectation: &Expectation, calls: &[Came], counted: &[Counted]) -> ExpectationResult {
    let expected = &expectation.expected;
    let mut result = match expectation.any_order {
        false => in_order(expected, calls),
        true => in_any_order(expected, calls),
    };
    for (expected, came) in expectation.counts.iter().zip(counted) {
        let (status, message, row) = count(expected, *came);
        if status > result.status || (result.comparison.is_empty() && status == result.status) {
            (result.status, result.message) = (status, message);
        }
        result.comparison.push(row);
    }
    result
}

fn result(
    calls: &[Came],
    matched: usize,
    (status, message): (ExpectationStatus, String),
    comparison: Vec<Comparison>,
) -> ExpectationResult {
    ExpectationResult {
        status,
        matched,
        message,
        calls: calls.iter().map(|came| came.call.clone()).collect(),
        comparison,
    }
}

fn row(expected: Option<&Expected>, call: Option<&Came>, agrees: bool) -> Comparison {
    Comparison {
        expected: expected.map(name),
        came: call.map(came),
        agrees,
    }
}

fn is_same((index, expected): (usize, &Expected), came: &Came) -> bool {
    let call = &came.call;
    short(&expected.method) == call.method && expected.code == call.code && !came.unfit.contains(&index)
}

fn name(expected: &Expected) -> String {
    let Expected {
        method,
        code,
        volume,
        node,
        request,
    } = expected;
    let mut name = format!("{} {code}", short(method));
    for (field, pattern) in [("volume", volume), ("node", node)] {
        if let Some(pattern) = pattern {
            name.push_str(&format!(" {field}={pattern}"));
        }
    }
    if let Some(request) = request {
        name.push_str(&format!(" request={request}"));
    }
    name
}

/// A call, and whether an expected one differs in more than method and code.
fn what(Came { call, unfit }: &Came) -> String {
    let other = if unfit.is_empty() {
        ""
    } else {
        " of another object"
    };
    format!("{} {}{other}", call.method, call.code)
}

fn came(came: &Came) -> String {
    match came.call.calls {
        1 => what(came),
        calls => format!("{} ({calls} times)", what(came)),
    }
}

fn in_order(expected: &[Expected], calls: &[Came]) -> ExpectationResult {
    // Expected calls are squashed, too: two alike cannot be distinguished from one.
    let mut wanted: Vec<(usize, &Expected)> = Vec::new();
    for next in expected.iter().enumerate() {
        if wanted.last().is_none_or(|(_, last)| *last != next.1) {
            wanted.push(next);
        }
    }
    let pairs = wanted.iter().zip(calls);
    let alike = pairs
        .take_while(|(expected, call)| is_same(**expected, call))
        .count();
    let verdict = match (wanted.get(alike), calls.get(alike)) {
        (None, None) => (
            ExpectationStatus::Complete,
            "all expected calls came, and no others".to_owned(),
        ),
        (Some((_, missing)), None) => (
            ExpectationStatus::Incomplete,
            format!("call {} did not come: {}", alike + 1, name(missing)),
        ),
        (missing, Some(call)) => (
            ExpectationStatus::Mismatch,
            format!(
                "call {} is {}, expected was {}",
                alike + 1,
                what(call),
                missing.map_or_else(|| "no more".to_owned(), |(_, missing)| name(missing)),
            ),
        ),
    };
    let rows = (0..wanted.len().max(calls.len())).map(|index| {
        let expected = wanted.get(index).map(|(_, expected)| *expected);
        row(expected, calls.get(index), index < alike)
    });
    result(calls, alike, verdict, rows.collect())
}

fn in_any_order(expected: &[Expected], calls: &[Came]) -> ExpectationResult {
    let found = |expected: (usize, &Expected)| calls.iter().find(|call| is_same(expected, call));
    let wanted = || expected.iter().enumerate();
    let missing = wanted().find(|expected| found(*expected).is_none());
    let mut others = calls
        .iter()
        .filter(|call| !wanted().any(|expected| is_same(expected, call)))
        .peekable();
    let verdict = match (others.peek(), missing) {
        (Some(call), _) => (
            ExpectationStatus::Mismatch,
            format!("{} was not expected", what(call)),
        ),
        (None, Some((_, missing))) => (
            ExpectationStatus::Incomplete,
            format!("{} did not come", name(missing)),
        ),
        (None, None) => (
            ExpectationStatus::Complete,
            "all expected calls came, and no others".to_owned(),
        ),
    };
    let rows = wanted().map(|expected| row(Some(expected.1), found(expected), found(expected).is_some()));
    let others = others.map(|call| row(None, Some(call), false));
    let matched = wanted().filter(|expected| found(*expected).is_some()).count();
    result(calls, matched, verdict, rows.chain(others).collect())
}

fn count(expected: &ExpectedCount, counted: Counted) -> (ExpectationStatus, String, Comparison) {
    let came = counted.ended;
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
        Some(most) if came + counted.running > most => ExpectationStatus::Mismatch,
        Some(_) | None if came < least => ExpectationStatus::Incomplete,
        Some(_) | None => ExpectationStatus::Complete,
    };
    let only = match status {
        ExpectationStatus::Incomplete => "only ",
        ExpectationStatus::Complete | ExpectationStatus::Mismatch => "",
    };
    let shown = match counted.running {
        0 => format!("{came} calls"),
        running => format!("{came} calls, and {running} in flight"),
    };
    let message = format!("{only}{shown} came, expected were {what}");
    let row = Comparison {
        expected: Some(what),
        came: Some(shown),
        agrees: status == ExpectationStatus::Complete,
    };
    (status, message, row)
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
                volume: None,
                node: None,
                request: None,
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
            for (sequence, method, code) in calls {
                squash(&mut squashed, sequence, method, code, Vec::new());
            }
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
        for (sequence, method) in [(1, "Stage"), (2, "Publish"), (3, "Stage")] {
            squash(&mut calls, sequence, method, "OK", Vec::new());
        }
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
            let counted = Counted {
                ended: came,
                running: 0,
            };
            let result = compare(&expectation, &[], &[counted]);
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
