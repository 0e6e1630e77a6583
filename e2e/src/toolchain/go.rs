//! Go programs, built on first use and kept under a name that holds a hash of their sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use ring::digest::{SHA256, digest};
use tokio::process::Command;
use tokio::time::Instant;

use super::{Toolchain, lock, progress, workspace_root};

/// Flags of every build. Without paths and debug symbols the programs are half the size and do not depend on
/// where the tree lies; they are read-only towards go.mod and go.sum, which are committed.
const BUILD_FLAGS: &[&str] = &["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"];
/// Settings of every build: no C compiler is needed, and no go.work of a parent folder is looked at.
const BUILD_ENV: &[(&str, &str)] = &[("CGO_ENABLED", "0"), ("GOWORK", "off")];
/// How many lines of a failed build are shown.
const TAIL_LINES: usize = 30;

/// A program of one of the harness's Go modules.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoProgram {
    /// Folder of the module, from the workspace's root.
    pub(super) module: &'static str,
    /// The main package.
    pub(super) package: &'static str,
    /// Name of the executable.
    pub(super) name: &'static str,
    /// What it is, for the person who waits.
    pub(super) what: &'static str,
    /// How long the first build may take, for the person who waits.
    pub(super) expectation: &'static str,
}

/// A Go installation that can build a module.
struct Go {
    executable: PathBuf,
    /// Version, system and architecture, as part of the key.
    identity: String,
}

impl Toolchain {
    /// The executable of `program`, built if there is none for the sources as they are.
    pub(super) async fn go_program(&self, program: &GoProgram) -> Result<PathBuf> {
        let module = workspace_root().join(program.module);
        let go = self.go(&module).await?;
        let key = key(&module, &go.identity)?;
        let builds = self.target_dir()?.join("csi-e2e");
        let finished = builds.join(format!("{}-{key}", program.name));
        let executable = finished.join(program.name);
        if executable.is_file() {
            return Ok(executable);
        }
        fs::create_dir_all(&builds).with_context(|| format!("make {}", builds.display()))?;
        let _lock = lock(builds.join(format!("{}.lock", program.name)), program.what).await?;
        if executable.is_file() {
            return Ok(executable);
        }
        // Only the holder of the lock uses this name; what lies there is of a build that was killed.
        let unfinished = builds.join(format!("{}-unfinished", program.name));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).with_context(|| format!("remove {}", unfinished.display()))?;
        }
        fs::create_dir(&unfinished).with_context(|| format!("make {}", unfinished.display()))?;
        self.go_build(&go, &module, program, &unfinished).await?;
        fs::rename(&unfinished, &finished).with_context(|| format!("put {} in place", finished.display()))?;
        Ok(executable)
    }

    /// Finds Go and checks that it is new enough for `module`.
    async fn go(&self, module: &Path) -> Result<Go> {
        let needed = needed_version(module)?;
        let cure = format!(
            "Go {needed} or newer is needed to build the real control plane and the Go peers: install it from \
             https://go.dev/dl/ (or `apt-get install golang`, if that is new enough) and have `go` on PATH"
        );
        let Some(executable) = self.on_path("go") else {
            bail!("`go` is not on PATH. {cure}")
        };
        let output = self
            .go_command(&executable, module)
            .args(["env", "GOVERSION", "GOOS", "GOARCH"])
            .output()
            .await
            .with_context(|| format!("run {}", executable.display()))?;
        ensure!(
            output.status.success(),
            "{} cannot be used: {}. {cure}",
            executable.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let identity = String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join("-");
        let found = identity
            .split('-')
            .next()
            .unwrap_or_default()
            .trim_start_matches("go");
        ensure!(
            release(found) >= release(&needed),
            "{} is Go {found}, which is too old. {cure}",
            executable.display()
        );
        Ok(Go { executable, identity })
    }

    /// Builds `program` into the folder `into`, with its log beside it.
    async fn go_build(&self, go: &Go, module: &Path, program: &GoProgram, into: &Path) -> Result<()> {
        let what = format!("{} ({})", program.what, program.expectation);
        progress::say(&format!("building {what}; this happens once"));
        let since = Instant::now();
        let packages = self.outdated_packages(go, module, program).await?;
        let log = into.join("build.log");
        let mut child = self
            .go_command(&go.executable, module)
            .args(["build", "-v"])
            .args(BUILD_FLAGS)
            .arg("-o")
            .arg(into.join(program.name))
            .arg(program.package)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).with_context(|| format!("open {}", log.display()))?)
            .spawn()
            .with_context(|| format!("run {}", go.executable.display()))?;
        let built = || fs::read_to_string(&log).map_or(0, |log| log.lines().count());
        let progress = || format!("{} of {packages} packages", built().min(packages));
        let status = progress::watch(&mut child, program.what, since, progress).await?;
        if !status.success() {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    | ");
            bail!(
                "`go build` of {} in {} ended with {status}:\n    | {tail}",
                program.package,
                program.module
            );
        }
        progress::say(&format!(
            "built {} in {}",
            program.what,
            progress::elapsed(since.elapsed())
        ));
        Ok(())
    }

    /// Downloads the modules and counts the packages that Go has no cached build of.
    async fn outdated_packages(&self, go: &Go, module: &Path, program: &GoProgram) -> Result<usize> {
        let mut child = self
            .go_command(&go.executable, module)
            .args(["list", "-deps", "-f", "{{if .Stale}}x{{end}}"])
            .args(BUILD_FLAGS)
            .arg(program.package)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {}", go.executable.display()))?;
        let (mut listed, mut complaints) = (Vec::new(), Vec::new());
        let mut stdout = child.stdout.take().expect("stdout must be piped");
        let mut stderr = child.stderr.take().expect("stderr must be piped");
        let reading = async {
            tokio::try_join!(
                tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut listed),
                tokio::io::AsyncReadExt::read_to_end(&mut stderr, &mut complaints),
            )
        };
        let what = format!("{}'s list of packages", program.what);
        let waiting = progress::watch(&mut child, &what, Instant::now(), || {
            "downloading modules".to_owned()
        });
        let (status, read) = tokio::join!(waiting, reading);
        read.context("read what `go list` says")?;
        ensure!(
            status?.success(),
            "`go list` in {} failed (is the Go module proxy reachable? GOPROXY names it):\n{}",
            program.module,
            String::from_utf8_lossy(&complaints).trim()
        );
        Ok(String::from_utf8_lossy(&listed)
            .lines()
            .filter(|line| !line.is_empty())
            .count())
    }

    fn go_command(&self, executable: &Path, module: &Path) -> Command {
        let mut command = self.command(executable, module);
        command.envs(BUILD_ENV.iter().copied());
        command
    }
}

/// A hash of everything a build depends on: the sources, the versions they name, the compiler and the flags.
fn key(module: &Path, identity: &str) -> Result<String> {
    let mut files = Vec::new();
    source_files(module, &mut files)?;
    files.sort();
    let mut input = format!("{identity} {BUILD_FLAGS:?} {BUILD_ENV:?}\n").into_bytes();
    for file in files {
        let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        let name = file
            .strip_prefix(module)
            .context("a module's file must lie in the module")?;
        input.extend_from_slice(format!("{} {}\n", name.display(), content.len()).as_bytes());
        input.extend_from_slice(&content);
    }
    let hash = digest(&SHA256, &input);
    Ok(hash
        .as_ref()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn source_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        let matters = path
            .extension()
            .is_some_and(|extension| extension == "go" || extension == "mod" || extension == "sum");
        if path.is_dir() {
            source_files(&path, files)?;
        } else if matters {
            files.push(path);
        }
    }
    Ok(())
}

/// The version in the `go` line of the module's go.mod.
fn needed_version(module: &Path) -> Result<String> {
    let file = module.join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("go "));
    Ok(line
        .with_context(|| format!("{} must have a `go` line", file.display()))?
        .trim()
        .to_owned())
}

/// Major, minor and patch of a version, to be compared: `1.26rc1` and `1.26` are `(1, 26, 0)`.
fn release(version: &str) -> (u32, u32, u32) {
    let mut numbers = version.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    });
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        assert!(release("1.26.8") > release("1.26.0"));
        assert!(release("1.9.9") < release("1.26"));
        assert_eq!(release("1.26rc1"), (1, 26, 0));
        assert_eq!(release(""), (0, 0, 0));
    }

    #[test]
    fn the_key_follows_every_source_and_the_compiler() {
        let module = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(module.path().join(name), text).unwrap();
        fs::create_dir(module.path().join("sub")).unwrap();
        write("go.mod", "module m\n\ngo 1.26.0\n");
        write("sub/main.go", "package main\n");
        write("README", "not a source");
        let first = key(module.path(), "go1.26.8").unwrap();
        assert_eq!(first.len(), 16);
        assert_ne!(first, key(module.path(), "go1.26.9").unwrap());
        write("README", "still not a source");
        assert_eq!(first, key(module.path(), "go1.26.8").unwrap());
        write("sub/main.go", "package main // changed\n");
        assert_ne!(first, key(module.path(), "go1.26.8").unwrap());
        assert_eq!(needed_version(module.path()).unwrap(), "1.26.0");
    }
}
