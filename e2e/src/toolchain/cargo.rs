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

/// The caller's profile, and its subdirectory of the target directory. Debug assertions distinguish the two
/// profiles: only the release profile disables them.
const PROFILE: (&str, &str) = if cfg!(debug_assertions) {
    ("dev", "debug")
} else {
    ("release", "release")
};

/// The variables that cargo sets for a test or `cargo run`. If another cargo inherited them, build scripts that
/// watch these variables (such as ring's) would run again, and cargo would recompile all dependents, here and again
/// in the caller's next build.
pub(super) const CALLERS_PACKAGE_VARIABLES: &[&str] = &[
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_MANIFEST_PATH",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
    "OUT_DIR",
];

impl Toolchain {
    /// Builds a program of the workspace, which takes a second if nothing has changed.
    ///
    /// For tests cargo builds the whole workspace, because it then selects the same features of dependencies as for
    /// the caller and rebuilds little. For benchmarks it builds only the program's package, as for a release.
    pub(super) async fn own_binary(&self, name: &str) -> Result<PathBuf> {
        let (profile, folder) = PROFILE;
        let selected: &[&str] = if profile == "dev" {
            &["--workspace"]
        } else {
            &["--package", name]
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
        for name in CALLERS_PACKAGE_VARIABLES {
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
