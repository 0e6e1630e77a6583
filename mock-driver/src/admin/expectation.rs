//! Compares the calls of the journal with expected calls. Pure.
//!
//! As in Kubernetes' tests of its CSI client: consecutive calls with the same method and code count as
//! one, and calls of untracked methods are ignored.

use crate::admin_api::resource::{ExpectationResult, ExpectationStatus, Expected, Squashed};
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

pub(super) fn compare(expected: &[Expected], calls: &[Squashed]) -> ExpectationResult {
    let same = |(expected, call): &(&Expected, &Squashed)| {
        short(&expected.method) == call.method && expected.code == call.code
    };
    // Expected calls are squashed, too: two alike cannot be distinguished from one.
    let mut wanted: Vec<&Expected> = Vec::new();
    for next in expected {
        if wanted.last().is_none_or(|last| *last != next) {
            wanted.push(next);
        }
    }
    let alike = wanted.iter().copied().zip(calls).take_while(same).count();
    let name = |expected: &Expected| format!("{} {}", short(&expected.method), expected.code);
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
    ExpectationResult {
        status,
        matched: alike,
        message,
        // While calls are missing, the other calls are a prefix of the expected ones.
        calls: calls.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let result = compare(&mk_expected(expected), &squashed);
            assert_eq!((result.status, result.matched), (kind, matched), "{expected}");
            assert!(result.message.contains(words), "{expected}: {}", result.message);
            assert_eq!(result.calls[0].calls, 2);
            assert_eq!(result.calls[0].sequence, 4, "the last of them");
        }
        assert_eq!(compare(&[], &[]).status, ExpectationStatus::Complete);
    }
}
