//! One test binary: its command, its run, its result.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use super::outcome::Outcome;
use super::{name_of, say};
use crate::CALLERS_PACKAGE_VARIABLES;
use crate::skip::{Extent, SKIPS_FILE, Skip};

/// File of the tests that the last run skipped, by binary.
const SKIPPED: &str = "skipped.json";

pub(super) struct Binary {
    pub(super) name: String,
    program: PathBuf,
    /// Arguments before those of the caller.
    fixed: Vec<OsString>,
    pub(super) arguments: Vec<OsString>,
    dir: Option<PathBuf>,
}

/// What all binaries have in common.
pub(super) struct Shared<'a> {
    /// Directory for the outputs, and the records of skips.
    pub(super) records: &'a Path,
    /// `PATH`, instead of the caller's.
    pub(super) path: Option<PathBuf>,
    /// The output appears at once, also that of tests that pass.
    pub(super) echo: bool,
}

pub(super) struct Finished {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
}

// === impl Binary ===

impl Binary {
    /// An executable, and the directory of its package, in which cargo would run it.
    pub(super) fn of_executable(name: &str, program: PathBuf, dir: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program,
            fixed: Vec::new(),
            arguments: Vec::new(),
            dir: Some(dir.to_owned()),
        }
    }

    /// A command that runs tests.
    pub(super) fn of_command(name: &str, command: Command) -> Self {
        Self {
            name: name.to_owned(),
            program: command.get_program().into(),
            fixed: command
                .get_args()
                .map(OsString::from)
                .chain(["--".into()])
                .collect(),
            arguments: Vec::new(),
            dir: None,
        }
    }

    /// Runs the binary, prints one line about it, and all its output if a test fails.
    pub(super) fn run(&self, shared: &Shared<'_>, is_low_priority: bool) -> Finished {
        let file = shared
            .records
            .join(self.name.replace(|c: char| !c.is_alphanumeric(), "-"));
        let mut command = self.command(shared, &file, is_low_priority);
        let since = Instant::now();
        let ran = match shared.echo {
            true => run_and_show(&mut command),
            false => run(&mut command, &file.with_extension("log")),
        };
        let failed = |error| (format!("{}: {error}", self.program.display()), None);
        let (output, status) = ran.unwrap_or_else(failed);
        let outcome = Outcome::of(&output, status, recorded(&file));
        let finished = Finished {
            name: self.name.clone(),
            outcome,
            seconds: since.elapsed().as_secs_f64(),
        };
        let line = finished.line();
        say(&if finished.outcome.is_success() || shared.echo {
            line
        } else {
            format!(
                "\n=== output of {}\n{output}\n=== end of the output\n{line}",
                self.name
            )
        });
        finished
    }

    fn command(&self, shared: &Shared<'_>, skips: &Path, is_low_priority: bool) -> Command {
        let mut command = if is_low_priority {
            let mut nice = Command::new("nice");
            nice.arg("--adjustment=10").arg(&self.program);
            nice
        } else {
            Command::new(&self.program)
        };
        for name in CALLERS_PACKAGE_VARIABLES {
            command.env_remove(name);
        }
        command
            .args(&self.fixed)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .env(SKIPS_FILE, skips);
        if let Some(dir) = &self.dir {
            command.current_dir(dir).env("CARGO_MANIFEST_DIR", dir);
        }
        if let Some(path) = &shared.path {
            command.env("PATH", path);
        }
        command
    }
}

/// Runs a command with both its streams in a file: a process that outlives it does not delay its end, as it would with a pipe.
fn run(command: &mut Command, log: &Path) -> io::Result<(String, Option<ExitStatus>)> {
    let file = File::create(log)?;
    let status = command.stdout(file.try_clone()?).stderr(file).status()?;
    Ok((
        String::from_utf8_lossy(&fs::read(log)?).into_owned(),
        Some(status),
    ))
}

/// As [`run`], and shows the output at once.
fn run_and_show(command: &mut Command) -> io::Result<(String, Option<ExitStatus>)> {
    let (mut reader, writer) = io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // It has copies of the writer, without whose end the pipe never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (mut output, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let length = reader.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        output.extend_from_slice(&buffer[..length]);
        io::stdout().write_all(&buffer[..length])?;
    }
    let status = child.wait()?;
    Ok((String::from_utf8_lossy(&output).into_owned(), Some(status)))
}

fn recorded(file: &Path) -> Vec<Skip> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let skips = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    // A test can lack several parts, or the same part several times.
    let mut known = BTreeSet::new();
    skips
        .filter(|skip: &Skip| known.insert((skip.test.clone(), skip.reason.clone())))
        .collect()
}

/// Stores which tests were skipped, for [`only_skipped`].
pub(super) fn store_skipped(finished: &[Finished], dir: &Path) -> Result<()> {
    let with_skips = finished
        .iter()
        .filter(|finished| !finished.outcome.skips.is_empty());
    let skipped: BTreeMap<_, _> = with_skips
        .map(|finished| (&finished.name, &finished.outcome.skips))
        .collect();
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let file = dir.join(SKIPPED);
    let text = serde_json::to_string_pretty(&skipped).context("encode the skipped tests")?;
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))
}

/// The binaries with skipped tests in the last run, restricted to these tests. Binaries without libtest take one filter only, so
/// they run whole.
pub(super) fn only_skipped(binaries: Vec<Binary>, dir: &Path) -> Result<Vec<Binary>> {
    let file = dir.join(SKIPPED);
    let text = fs::read_to_string(&file)
        .with_context(|| format!("read {}: run `cargo test` first", name_of(&file)))?;
    let skipped: BTreeMap<String, Vec<Skip>> =
        serde_json::from_str(&text).context("decode the skipped tests")?;
    Ok(binaries
        .into_iter()
        .filter_map(|binary| restricted(binary, &skipped))
        .collect())
}

fn restricted(mut binary: Binary, skipped: &BTreeMap<String, Vec<Skip>>) -> Option<Binary> {
    let skips = skipped.get(&binary.name)?;
    if skips.iter().all(|skip| skip.extent != Extent::Ignored) {
        binary.arguments.push("--exact".into());
        let names: BTreeSet<_> = skips.iter().map(|skip| skip.test.as_str()).collect();
        binary.arguments.extend(names.into_iter().map(OsString::from));
    }
    Some(binary)
}

// === impl Finished ===

impl Finished {
    fn line(&self) -> String {
        let Outcome { passed, failed, .. } = self.outcome;
        let skipped = self.outcome.skipped();
        let verdict = if self.outcome.is_success() { "ok" } else { "FAILED" };
        let skipped = if skipped == 0 {
            String::new()
        } else {
            format!(", {skipped} skipped")
        };
        let failed = if failed == 0 {
            String::new()
        } else {
            format!(", {failed} FAILED")
        };
        format!(
            "{verdict:<6} {:6.1} s  {}: {passed} passed{failed}{skipped}",
            self.seconds, self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_shell(script: &str) -> Binary {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        Binary {
            fixed: shell.get_args().map(OsString::from).collect(),
            ..Binary::of_command("shell", shell)
        }
    }

    fn mk_shared(records: &Path) -> Shared<'_> {
        Shared {
            records,
            path: None,
            echo: false,
        }
    }

    #[test]
    fn run_ends_with_the_output_of_both_streams_and_the_recorded_skips() {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"echo "test result: ok. 2 passed; 0 failed; 0 ignored"; echo noise >&2
            echo '{"test":"t","extent":"returned","reason":"r","cure":"c"}' >"$TEST_SKIPS_FILE""#;
        for is_low_priority in [false, true] {
            let outcome = mk_shell(script)
                .run(&mk_shared(dir.path()), is_low_priority)
                .outcome;
            assert_eq!((outcome.passed, outcome.skipped(), outcome.failed), (1, 1, 0));
        }
    }

    #[test]
    fn killed_and_missing_programs_are_failures() {
        let dir = tempfile::tempdir().unwrap();
        let killed = mk_shell("kill -KILL $$").run(&mk_shared(dir.path()), false);
        assert!(
            killed.outcome.failures[0].contains("signal: 9"),
            "{:?}",
            killed.outcome
        );
        let missing = Binary::of_executable("missing", "/no/such/program".into(), dir.path());
        assert_eq!(missing.run(&mk_shared(dir.path()), false).outcome.failed, 1);
    }

    #[test]
    fn skipped_tests_of_libtest_are_selected_and_other_binaries_run_whole() {
        let skip = |test: &str, extent| Skip {
            test: test.to_owned(),
            extent,
            reason: String::new(),
            cure: String::new(),
        };
        let skipped = BTreeMap::from([
            (
                "a".to_owned(),
                vec![
                    skip("x::y", Extent::Part),
                    skip("z", Extent::Returned),
                    skip("z", Extent::Part),
                ],
            ),
            ("b".to_owned(), vec![skip("t", Extent::Ignored)]),
        ]);
        let arguments = |name: &str| {
            let binary = Binary::of_executable(name, PathBuf::new(), Path::new(""));
            restricted(binary, &skipped).map(|binary| binary.arguments)
        };
        assert_eq!(arguments("a").unwrap(), ["--exact", "x::y", "z"]);
        assert!(arguments("b").unwrap().is_empty());
        assert!(arguments("c").is_none());
    }
}
