//! Go programs, built on first use and cached under a name that contains a hash of their sources.

mod recipe;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::Instant;
use verdict::{Missing, Requirement};

use super::{Settings, Toolchain, is_executable, lock, progress, workspace_root};
use crate::process;
use recipe::{BUILD_ENV, Go, Recipe, needed_version, release};

/// Number of log lines in the error of a failed build.
const TAIL_LINES: usize = 30;

// === impl Settings ===

impl Settings {
    /// Go, unless the caller is a test and the user did not ask for real components.
    ///
    /// # Errors
    /// [`Missing`], which skips a test.
    pub fn go(&self) -> Result<PathBuf, Missing> {
        if self.is_test {
            Requirement::RealComponents.check()?;
        }
        let missing = || Missing::new("go", "`go` is not on PATH", "https://go.dev/dl/");
        self.on_path("go").ok_or_else(missing)
    }

    /// The program of this name on `PATH`.
    pub(crate) fn on_path(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(self.path.as_ref()?)
            .map(|dir| dir.join(name))
            .find(|file| is_executable(file))
    }
}

/// A program of one of the harness's Go modules.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoProgram {
    /// Folder of the module, relative to the workspace's root.
    pub(super) module: &'static str,
    /// The main package.
    pub(super) package: &'static str,
    /// Name of the executable.
    pub(super) name: &'static str,
    /// Variables to set to the version of a module in go.mod at link time: variable and module. Without them,
    /// programs that are not built by their project's scripts do not know their version.
    pub(super) stamps: &'static [(&'static str, &'static str)],
    /// Description for progress lines.
    pub(super) what: &'static str,
    /// Duration of the first build, for progress lines.
    pub(super) expectation: &'static str,
}

impl Toolchain {
    /// The executable of `program`, built if there is none for the current sources.
    pub(super) async fn go_program(&self, program: &GoProgram) -> Result<PathBuf> {
        let (recipe, finished) = self.go_recipe(program).await?;
        let executable = finished.join(program.name);
        if executable.is_file() {
            return Ok(executable);
        }
        let builds = self.target_dir()?.join("csi-e2e");
        fs::create_dir_all(&builds).with_context(|| format!("make {}", builds.display()))?;
        let _lock = lock(builds.join(format!("{}.lock", program.name)), program.what).await?;
        if executable.is_file() {
            return Ok(executable);
        }
        // Only the holder of the lock uses this name; an existing directory is from a killed build.
        let unfinished = builds.join(format!("{}-unfinished", program.name));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).with_context(|| format!("remove {}", unfinished.display()))?;
        }
        fs::create_dir(&unfinished).with_context(|| format!("make {}", unfinished.display()))?;
        self.go_build(&recipe, &unfinished).await?;
        fs::rename(&unfinished, &finished).with_context(|| format!("put {} in place", finished.display()))?;
        Ok(executable)
    }

    /// The executable of `program`, if it is built for the current sources.
    pub(super) async fn built_go_program(&self, program: &GoProgram) -> Result<Option<PathBuf>> {
        let (_, finished) = self.go_recipe(program).await?;
        let executable = finished.join(program.name);
        Ok(executable.is_file().then_some(executable))
    }

    /// The recipe of `program`, and the folder of the finished build.
    async fn go_recipe<'a>(&self, program: &'a GoProgram) -> Result<(Recipe<'a>, PathBuf)> {
        let module = workspace_root().join(program.module);
        let go = self.go(&module).await?;
        let recipe = Recipe::new(program, module, go)?;
        let finished = format!("{}-{}", program.name, recipe.key()?);
        Ok((recipe, self.target_dir()?.join("csi-e2e").join(finished)))
    }

    /// Finds Go and checks that it is new enough for `module`.
    async fn go(&self, module: &Path) -> Result<Go> {
        let needed = needed_version(module)?;
        let cure = format!(
            "Go {needed} or newer is needed to build the real control plane and the Go peers: install it from \
             https://go.dev/dl/ (or `apt-get install golang`, if that is new enough) and have `go` on PATH"
        );
        let executable = self.settings.go().with_context(|| cure.clone())?;
        let mut env = self.go_command(&executable, module);
        let variables = process::stdout_of(env.args(["env", "GOVERSION", "GOOS", "GOARCH"])).await;
        let identity = variables
            .with_context(|| format!("{} cannot be used. {cure}", executable.display()))?
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

    /// Builds into the folder `into`, with the log next to the executable.
    async fn go_build(&self, recipe: &Recipe<'_>, into: &Path) -> Result<()> {
        let program = recipe.program;
        progress::say(&format!(
            "building {} (once; {})",
            program.what, program.expectation
        ));
        let since = Instant::now();
        let packages = self.outdated_packages(recipe).await?;
        let log = into.join("build.log");
        let mut child = self
            .go_command(&recipe.go.executable, &recipe.module)
            .args(["build", "-v", "-o"])
            .arg(into.join(program.name))
            .args(&recipe.flags)
            .arg(program.package)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).with_context(|| format!("open {}", log.display()))?)
            .spawn()
            .with_context(|| format!("run {}", recipe.go.executable.display()))?;
        let built = || fs::read_to_string(&log).map_or(0, |log| log.lines().count());
        let progress = || format!("{} of {packages} packages", built().min(packages));
        let status = progress::watch(&mut child, program.what, since, progress).await?;
        if !status.success() {
            let tail = process::tail(&log, TAIL_LINES).unwrap_or_default();
            bail!(
                "`go build` of {} in {} ended with {status}:\n{tail}",
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

    /// Downloads the modules and counts the packages without a cached build.
    async fn outdated_packages(&self, recipe: &Recipe<'_>) -> Result<usize> {
        let program = recipe.program;
        let mut child = self
            .go_command(&recipe.go.executable, &recipe.module)
            .args(["list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"])
            .args(&recipe.flags)
            .arg(program.package)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {}", recipe.go.executable.display()))?;
        let mut stdout = child.stdout.take().expect("stdout must be piped");
        let mut stderr = child.stderr.take().expect("stderr must be piped");
        let (mut listed, mut errors) = (String::new(), String::new());
        let downloading = || "its Go modules are downloaded and looked through".to_owned();
        let (status, ..) = tokio::try_join!(
            progress::watch(&mut child, program.what, Instant::now(), downloading),
            async {
                stdout
                    .read_to_string(&mut listed)
                    .await
                    .context("read the output of `go list`")
            },
            async {
                stderr
                    .read_to_string(&mut errors)
                    .await
                    .context("read the output of `go list`")
            },
        )?;
        ensure!(
            status.success(),
            "`go list` in {} failed (is the Go module proxy reachable? GOPROXY names it):\n{}",
            program.module,
            errors.trim()
        );
        Ok(listed.lines().count())
    }

    /// The sources of a module, in the version that the module in `folder` requires, in Go's module cache.
    ///
    /// # Errors
    /// The sources cannot be fetched, or their checksum differs.
    pub async fn go_module(&self, folder: &str, required: &str) -> Result<PathBuf> {
        self.downloaded(&workspace_root().join(folder), required).await
    }

    /// The sources of a released module, such as `k8s.io/api@v0.36.3`, in Go's module cache.
    ///
    /// # Errors
    /// The release does not exist, its sources cannot be fetched, or their checksum differs.
    pub async fn go_sources(&self, release: &str) -> Result<PathBuf> {
        self.downloaded(Path::new("/"), release).await
    }

    async fn downloaded(&self, folder: &Path, module: &str) -> Result<PathBuf> {
        let go = self.settings.go()?;
        let output = self
            .go_command(&go, folder)
            .args(["mod", "download", "-json", module])
            .output()
            .await
            .with_context(|| format!("run {}", go.display()))?;
        let downloaded: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("understand go mod download")?;
        let dir = downloaded["Dir"].as_str();
        dir.map(PathBuf::from)
            .with_context(|| format!("go mod download {module}: {downloaded}"))
    }

    fn go_command(&self, executable: &Path, module: &Path) -> Command {
        let mut command = self.command(executable, module);
        command.envs(BUILD_ENV.iter().copied());
        command
    }
}
