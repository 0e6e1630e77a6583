//! Builds this workspace's programs by a separate cargo process, so that a run never uses outdated ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use tokio::time::Instant;

use super::{Toolchain, is_executable, lock, progress, workspace_root};
use crate::process;

/// Number of log lines in the error of a failed build.
const TAIL_LINES: usize = 60;

/// A test target that is built in a moment. With one among its targets, cargo enables the features that tests need.
const SMALL_TEST: &str = "all_tests";

/// The caller's profile, and its subdirectory of the target directory. Debug assertions distinguish the two
/// profiles: only the release profile disables them.
const PROFILE: (&str, &str) = if cfg!(debug_assertions) {
    ("dev", "debug")
} else {
    ("release", "release")
};

impl Toolchain {
    /// Builds a program of the workspace, which takes a second if nothing has changed.
    ///
    /// In the dev profile cargo builds the program from the whole workspace, and for a test as if a test was built, too: so it
    /// selects the same features of dependencies as for the caller, and compiles none of them again. For benchmarks it builds
    /// only the program's package, as for a release.
    pub(super) async fn own_binary(&self, name: &str) -> Result<PathBuf> {
        let (profile, folder) = PROFILE;
        let selected: &[&str] = match (profile, self.settings.is_test) {
            ("dev", true) => &["--workspace", "--test", SMALL_TEST],
            ("dev", false) => &["--workspace"],
            _ => &["--package", name],
        };
        let target = self.target_dir()?;
        let Some(cargo) = self.settings.on_path("cargo") else {
            bail!("`cargo` is not on PATH, so {name} cannot be built: install Rust from https://rustup.rs")
        };
        let logs = target.join("csi-e2e");
        fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let _lock = lock(logs.join(format!("{name}.lock")), name).await?;
        let log = logs.join(format!("{name}.log"));
        let since = Instant::now();
        let mut command = self.command(&cargo, workspace_root());
        for name in verdict::CALLERS_PACKAGE_VARIABLES {
            command.env_remove(name);
        }
        let mut child = command
            .args(["build", "--color=never", "--bin", name, "--profile", profile])
            .args(selected)
            .arg("--target-dir")
            .arg(&target)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).with_context(|| format!("open {}", log.display()))?)
            .spawn()
            .with_context(|| format!("run {}", cargo.display()))?;
        let read = || fs::read_to_string(&log).unwrap_or_default();
        let compiled = || {
            read()
                .lines()
                .filter(|line| line.trim_start().starts_with("Compiling"))
                .count()
        };
        let progress = || format!("{} crates compiled", compiled());
        let status = progress::watch(&mut child, &format!("{name} ({profile})"), since, progress).await?;
        if !status.success() {
            let tail = process::tail(&log, TAIL_LINES).unwrap_or_default();
            bail!("`cargo build` of {name} ended with {status}:\n{tail}");
        }
        Ok(target.join(folder).join(name))
    }
}

/// A program from a variable, instead of a build.
pub(super) fn named_program(variable: &str, path: &Path) -> Result<PathBuf> {
    ensure!(
        is_executable(path),
        "{variable} names {}, which is no executable file: build it first, or unset the variable to have it built",
        path.display()
    );
    std::path::absolute(path).with_context(|| format!("resolve {variable}"))
}
