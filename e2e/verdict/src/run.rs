//! The program behind `cargo test` in the root of the workspace: builds all test binaries, runs all of them, and prints one table.
//!
//! Cargo stops at the first binary that fails and cannot report skips; a test target of its own can do both. Arguments of `cargo
//! test` (filters, and those after `--`) go to every binary. Interrupts need no code: all processes are in the terminal's process
//! group.
//!
//! | variable | effect |
//! |---|---|
//! | `ALL_TESTS=bare` | the tests' `PATH` has cargo, rustc, a C compiler, `sh` and coreutils only, so that no optional program is found |
//! | `ALL_TESTS=skipped` | runs only those tests that the last run skipped, wholly or in part |

mod bare;
mod binary;
mod build;
mod caller;
mod outcome;
mod schedule;
mod table;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::requirement::variable;
use caller::Caller;

/// Variable with the [`Mode`].
const MODE: &str = "ALL_TESTS";

/// Which tests run, and with which `PATH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    All,
    Bare,
    Skipped,
}

/// Runs all tests; see the module.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let passed = Caller::find().and_then(|caller| {
        if caller.runs_all_packages() {
            say("cargo itself runs the tests of all packages");
            return Ok(true);
        }
        if arguments.iter().any(|argument| argument == "--list") {
            // For programs that collect the tests of all packages.
            return Ok(true);
        }
        run(&caller, &arguments)
    });
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(101),
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::from(101)
        }
    }
}

fn run(caller: &Caller, arguments: &[OsString]) -> Result<bool> {
    let mode = mode()?;
    let built = build::test_binaries(caller)?;
    let (work, last) = (
        tempfile::tempdir().context("make a temporary directory")?,
        caller.target_dir()?.join("all-tests"),
    );
    let path = match mode {
        Mode::Bare => Some(bare::path(&work.path().join("bin"))?),
        Mode::All | Mode::Skipped => None,
    };
    let mut binaries = built.binaries;
    for binary in &mut binaries {
        binary.arguments = arguments.to_vec();
    }
    if mode == Mode::Skipped {
        binaries = binary::only_skipped(binaries, &last)?;
    }
    let shared = binary::Shared {
        records: work.path(),
        path,
        echo: arguments
            .iter()
            .any(|argument| argument == "--nocapture" || argument == "--no-capture"),
    };
    let finished = schedule::run(&binaries, &shared);
    if mode != Mode::Skipped {
        binary::store_skipped(&finished, &last)?;
    }
    say(&table::of(&finished, built.seconds));
    Ok(finished.iter().all(|finished| finished.outcome.is_success()))
}

fn mode() -> Result<Mode> {
    match variable(MODE).as_deref().and_then(|mode| mode.to_str()) {
        None => Ok(Mode::All),
        Some("bare") => Ok(Mode::Bare),
        Some("skipped") => Ok(Mode::Skipped),
        Some(other) => bail!("{MODE}={other}: must be bare or skipped, or unset"),
    }
}

/// Prints a line. A closed output is not an error.
fn say(line: &str) {
    drop(writeln!(io::stdout(), "{line}"));
}

/// The file name, for messages.
fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
