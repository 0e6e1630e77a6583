//! Builds the test binaries of all packages.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::binary::Binary;
use super::caller::Caller;
use super::say;
use crate::CALLERS_PACKAGE_VARIABLES;
use crate::requirement::variable;

/// The package of the runner itself.
const RUNNER: &str = "all-tests";

pub(super) struct Built {
    pub(super) binaries: Vec<Binary>,
    pub(super) seconds: f64,
}

/// A message of cargo; those that are no artifact lack most fields.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all test binaries as the caller was built. A binary for the documentation's examples is the last one.
pub(super) fn test_binaries(caller: &Caller) -> Result<Built> {
    let options = caller.build_options()?;
    let since = Instant::now();
    say("building the tests of all packages");
    let mut cargo = cargo();
    cargo.args([
        "test",
        "--workspace",
        "--exclude",
        RUNNER,
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let mut child = cargo
        .args(&options)
        .stdout(Stdio::piped())
        .spawn()
        .context("run cargo")?;
    let stdout = child.stdout.take().context("cargo's stdout must be piped")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("read the messages of cargo")?;
        // Other lines are from programs that cargo runs.
        if let Ok(message) = serde_json::from_str(&line) {
            binaries.extend(test_binary(message)?);
        }
    }
    let status = child.wait().context("wait for cargo")?;
    if !status.success() {
        bail!("the tests do not compile");
    }
    ensure!(!binaries.is_empty(), "cargo built no test binary");
    binaries.sort_by(|a, b| a.name.cmp(&b.name));
    let mut examples = self::cargo();
    examples
        .args(["test", "--workspace", "--exclude", RUNNER, "--doc"])
        .args(&options);
    binaries.push(Binary::of_command("documentation", examples));
    Ok(Built {
        binaries,
        seconds: since.elapsed().as_secs_f64(),
    })
}

fn cargo() -> Command {
    let mut cargo = Command::new(variable("CARGO").unwrap_or_else(|| "cargo".into()));
    for name in CALLERS_PACKAGE_VARIABLES {
        cargo.env_remove(name);
    }
    cargo.stdin(Stdio::null());
    cargo
}

fn test_binary(message: Message) -> Result<Option<Binary>> {
    let Message {
        reason,
        manifest_path,
        target,
        profile,
        executable,
    } = message;
    let (Some(target), Some(executable), Some(true)) =
        (target, executable, profile.map(|profile| profile.test))
    else {
        return Ok(None);
    };
    ensure!(
        reason == "compiler-artifact",
        "an executable in a message about {reason}"
    );
    let manifest = manifest_path.context("an artifact must have a manifest")?;
    let dir = manifest.parent().context("a manifest is in a directory")?;
    let package = dir.file_name().unwrap_or_default().to_string_lossy();
    let kind = target.kind.first().map(String::as_str).unwrap_or_default();
    let name = match kind {
        "test" => format!("{package}::{}", target.name),
        "lib" => format!("{package} (unit tests)"),
        kind => format!("{package} ({kind} {})", target.name),
    };
    Ok(Some(Binary::of_executable(&name, executable, dir)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(json: &str) -> Option<String> {
        let message = serde_json::from_str(json).unwrap();
        test_binary(message).unwrap().map(|binary| binary.name)
    }

    #[test]
    fn only_executables_with_tests_are_run() {
        let artifact = |kind: &str, name: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"p","manifest_path":"/w/attacher/Cargo.toml",
                "target":{{"kind":["{kind}"],"crate_types":["bin"],"name":"{name}","src_path":"x","edition":"2024"}},
                "profile":{{"opt_level":"0","test":{test}}},"filenames":[],"executable":{executable},"fresh":true}}"#
            )
        };
        for (json, expected) in [
            (artifact("test", "it", true, "\"/t/it\""), Some("attacher::it")),
            (
                artifact("lib", "csi_attacher", true, "\"/t/l\""),
                Some("attacher (unit tests)"),
            ),
            (
                artifact("bin", "csi-attacher", true, "\"/t/b\""),
                Some("attacher (bin csi-attacher)"),
            ),
            (artifact("bin", "csi-attacher", false, "\"/t/b\""), None),
            (artifact("lib", "csi_attacher", false, "null"), None),
            (r#"{"reason":"build-finished","success":true}"#.to_owned(), None),
        ] {
            assert_eq!(name(&json).as_deref(), expected, "{json}");
        }
    }
}
