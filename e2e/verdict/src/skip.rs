//! Skips a test, and records it for the runner, because libtest knows no skip at run time.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use libtest_mimic::{Completion, Trial};
use serde::{Deserialize, Serialize};

use crate::requirement::{Missing, Requirement, variable};

/// Names the file to which each skip is appended as a line of JSON.
pub(crate) const SKIPS_FILE: &str = "TEST_SKIPS_FILE";
/// Turns each skip into a failure.
const REQUIRE_ALL: &str = "REQUIRE_ALL";
/// The [`Missing::id`]s, separated by spaces, that `REQUIRE_ALL` accepts.
const ACCEPTED_SKIPS: &str = "ACCEPTED_SKIPS";

/// How much of a test did not run, and how its binary reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Extent {
    /// A `#[test]` returned early; libtest reports that it passed.
    Returned,
    /// A trial reports that it is ignored.
    Ignored,
    /// A part of a `#[test]` did not run, such as one kind of device.
    Part,
}

/// A line of the file of skips.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) extent: Extent,
    pub(crate) reason: String,
    pub(crate) cure: String,
}

/// Whether a `#[test]` can run. Otherwise it is recorded as skipped, and must return; use [`require!`](crate::require).
///
/// # Panics
/// `REQUIRE_ALL` is set and a requirement is not met.
pub fn are_met(requirements: &[Requirement]) -> bool {
    let missing = requirements.iter().find_map(|requirement| requirement.missing());
    missing.is_none_or(|missing| {
        skip(&current_test(), Extent::Returned, &missing).unwrap_or_else(|error| panic!("{error}"));
        false
    })
}

/// Whether a part of a `#[test]` can run. Otherwise it is recorded that the part was skipped.
///
/// # Panics
/// `REQUIRE_ALL` is set and the requirement is not met.
pub fn is_met(requirement: Requirement) -> bool {
    requirement.missing().is_none_or(|missing| {
        skip(&current_test(), Extent::Part, &missing).unwrap_or_else(|error| panic!("{error}"));
        false
    })
}

/// A trial, which is skipped unless its requirements are met, and if `run` fails with [`Missing`]. With `REQUIRE_ALL` a skip is a
/// failure.
pub fn trial(
    name: impl Into<String>,
    requirements: &'static [Requirement],
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let name = name.into();
    Trial::ignorable_test(name.clone(), move || {
        let Some(missing) = missing_of(requirements, run)? else {
            return Ok(Completion::Completed);
        };
        skip(&name, Extent::Ignored, &missing)?;
        Ok(Completion::ignored_with(missing.to_string()))
    })
}

fn missing_of(
    requirements: &[Requirement],
    run: impl FnOnce() -> anyhow::Result<()>,
) -> Result<Option<Missing>, String> {
    let missing = requirements.iter().find_map(|requirement| requirement.missing());
    if missing.is_some() {
        return Ok(missing);
    }
    let Err(error) = run() else {
        return Ok(None);
    };
    error.downcast().map(Some).map_err(|error| format!("{error:#}"))
}

fn skip(test: &str, extent: Extent, missing: &Missing) -> Result<(), String> {
    let accepted = variable(ACCEPTED_SKIPS).unwrap_or_default();
    if !may_skip(
        variable(REQUIRE_ALL).is_some(),
        &accepted.to_string_lossy(),
        missing.id(),
    ) {
        return Err(format!(
            "{REQUIRE_ALL} is set, and {} is missing: {missing}",
            missing.id()
        ));
    }
    let skip = Skip {
        test: test.to_owned(),
        extent,
        reason: missing.reason().to_owned(),
        cure: missing.cure().to_owned(),
    };
    match variable(SKIPS_FILE) {
        Some(file) => append(file.as_ref(), &skip).map_err(|error| format!("record a skip: {error}"))?,
        // Bypasses libtest's capture.
        None => drop(writeln!(io::stderr(), "SKIPPED: {test}: {missing}")),
    }
    Ok(())
}

fn may_skip(require_all: bool, accepted: &str, id: &str) -> bool {
    !require_all || accepted.split_whitespace().any(|accepted| accepted == id)
}

/// One write, because several threads and processes append.
fn append(file: &Path, skip: &Skip) -> io::Result<()> {
    let line = serde_json::to_string(skip)? + "\n";
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)?
        .write_all(line.as_bytes())
}

/// libtest names the thread of a test after it. With one thread for all tests it does not.
fn current_test() -> String {
    let thread = std::thread::current();
    thread
        .name()
        .filter(|name| *name != "main")
        .unwrap_or("a test")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn trial_that_fails_for_a_missing_program_is_skipped() {
        let missing = || Missing::new("x", "x is not on PATH", "get x");
        let skipped = missing_of(&[], || Err(missing()).context("start x"));
        assert_eq!(skipped, Ok(Some(missing())));
        let failed = missing_of(&[], || Err(anyhow::anyhow!("cause")).context("act"));
        assert_eq!(failed, Err("act: cause".to_owned()));
        assert_eq!(missing_of(&[], || Ok(())), Ok(None));
    }

    #[test]
    fn only_accepted_skips_are_allowed_if_all_is_required() {
        // (all is required, accepted, the missing requirement, may skip)
        let table = [
            (false, "", "xfs", true),
            (false, "real-kubelets", "xfs", true),
            (true, "", "xfs", false),
            (true, "xfs", "xfs", true),
            (true, "real-kubelets\nxfs\n", "xfs", true),
            (true, "real-kubelets real-components", "xfs", false),
            (true, "mkfs.xfs xfs-tools", "xfs", false),
            (true, "xfs", "mkfs.xfs", false),
        ];
        for (require_all, accepted, id, expected) in table {
            assert_eq!(
                may_skip(require_all, accepted, id),
                expected,
                "{require_all} {accepted:?} {id}"
            );
        }
    }

    #[test]
    fn recorded_skips_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("skips");
        let skip = Skip {
            test: "a::b".to_owned(),
            extent: Extent::Part,
            reason: "a \"quoted\"\nreason".to_owned(),
            cure: "cure".to_owned(),
        };
        append(&file, &skip).unwrap();
        append(&file, &skip).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let read: Vec<Skip> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read, [skip.clone(), skip]);
    }
}
