//! The cargo that started the runner.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Options of `cargo test` that also hold for the build of all test binaries.
const PASSED_ON: [&str; 4] = ["--locked", "--offline", "--frozen", "--ignore-rust-version"];

#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The runner's executable, `TARGET/[TRIPLE/]PROFILE/deps/NAME`.
    executable: PathBuf,
    /// The command line of the process that started the runner.
    command_line: Vec<String>,
}

// === impl Caller ===

impl Caller {
    pub(super) fn find() -> Result<Self> {
        let executable = std::env::current_exe().context("find this executable")?;
        let parent = std::os::unix::process::parent_id();
        // Another process may start the runner; then there is nothing to pass on.
        let command_line = fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
        let command_line = command_line.split(|byte| *byte == 0);
        Ok(Self {
            executable,
            command_line: command_line
                .map(|part| String::from_utf8_lossy(part).into_owned())
                .collect(),
        })
    }

    /// cargo's own options: those before `--`.
    fn options(&self) -> impl Iterator<Item = &str> {
        self.command_line
            .iter()
            .map(String::as_str)
            .take_while(|option| *option != "--")
    }

    /// Whether cargo runs the test binaries of all packages itself, with the runner as one of them.
    pub(super) fn runs_all_packages(&self) -> bool {
        self.options()
            .any(|option| ["--workspace", "--all"].contains(&option))
    }

    /// Options for another cargo: the same profile, target directory, and access to the network and the lock file.
    pub(super) fn build_options(&self) -> Result<Vec<String>> {
        let target = self.target_dir()?;
        let built = self
            .executable
            .strip_prefix(&target)
            .context("the runner must be in the target directory")?;
        let folders: Vec<_> = built
            .iter()
            .map(|folder| folder.to_string_lossy().into_owned())
            .collect();
        let (triple, profile) = match folders.as_slice() {
            [profile, deps, _] if deps == "deps" => (None, profile),
            [triple, profile, deps, _] if deps == "deps" => (Some(triple), profile),
            _ => anyhow::bail!("{} is in no directory of cargo", self.executable.display()),
        };
        let mut options = vec!["--target-dir".to_owned(), target.to_string_lossy().into_owned()];
        options.extend([
            "--profile".to_owned(),
            if profile == "debug" {
                "test".to_owned()
            } else {
                profile.clone()
            },
        ]);
        if let Some(triple) = triple {
            options.extend(["--target".to_owned(), triple.clone()]);
        }
        options.extend(
            self.options()
                .filter(|option| PASSED_ON.contains(option))
                .map(str::to_owned),
        );
        Ok(options)
    }

    /// The target directory, which cargo marks.
    pub(super) fn target_dir(&self) -> Result<PathBuf> {
        let marked = self
            .executable
            .ancestors()
            .find(|dir| dir.join("CACHEDIR.TAG").is_file());
        marked
            .map(Path::to_owned)
            .with_context(|| format!("{} is in no target directory", self.executable.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_caller(dir: &Path, executable: &str, command_line: &[&str]) -> Caller {
        fs::write(dir.join("CACHEDIR.TAG"), "").unwrap();
        Caller {
            executable: dir.join(executable),
            command_line: command_line.iter().map(|&part| part.to_owned()).collect(),
        }
    }

    #[test]
    fn build_has_the_callers_profile_and_target_directory() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().to_str().unwrap();
        for (executable, command_line, expected) in [
            (
                "debug/deps/a",
                &["cargo", "test", "--locked", "x", "--", "--offline"][..],
                &["--profile", "test", "--locked"][..],
            ),
            (
                "release/deps/a",
                &["cargo", "test", "--release"],
                &["--profile", "release"],
            ),
            (
                "x86_64/dist/deps/a",
                &["cargo", "test"],
                &["--profile", "dist", "--target", "x86_64"],
            ),
        ] {
            let caller = mk_caller(dir.path(), executable, command_line);
            let options = caller.build_options().unwrap();
            assert_eq!(
                options,
                [&["--target-dir", target], expected].concat(),
                "{executable}"
            );
        }
        assert!(mk_caller(dir.path(), "a", &[]).build_options().is_err());
    }

    #[test]
    fn runner_does_nothing_if_cargo_runs_all_packages() {
        let dir = tempfile::tempdir().unwrap();
        for (command_line, expected) in [
            (&["cargo", "test", "--workspace"][..], true),
            (&["cargo", "test", "--all", "filter"], true),
            (&["cargo", "test", "-p", "all-tests"], false),
            (&["cargo", "test", "--", "--workspace"], false),
        ] {
            let caller = mk_caller(dir.path(), "debug/deps/a", command_line);
            assert_eq!(caller.runs_all_packages(), expected, "{command_line:?}");
        }
    }
}
