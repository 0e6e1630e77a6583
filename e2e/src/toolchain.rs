//! The programs of a run: Go builds, this workspace's binaries, and programs from settings.
//!
//! Owns the builds in `target/csi-e2e/` and the harness's environment variables ([`Settings`]).
//!
//! Invariants: a build gets its final name only when it is complete; the name contains a hash of all inputs, so an
//! existing build is never outdated; two processes never build the same program concurrently.

mod cargo;
mod go;
mod node_programs;
mod peer;
mod progress;
mod validator;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use verdict::Requirement;

pub use validator::Validator;

use crate::process::Run;
use cargo::named_program;
use go::GoProgram;
pub use node_programs::{NodePrograms, SuitePrograms};
pub use peer::Peer;
use peer::SNAPSHOTTER;

/// Settings from environment variables.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `CSI_ATTACHER_BIN`: the attacher's executable, instead of one built from this tree.
    pub attacher: Option<PathBuf>,
    /// `CSI_ATTACHER_PREVIOUS_BIN`: an earlier build of our attacher, for the scenario that updates it.
    pub previous_attacher: Option<PathBuf>,
    /// `CSI_MOCK_DRIVER_BIN`: the driver's executable, instead of one built from this tree.
    pub mock_driver: Option<PathBuf>,
    /// `KUBECTL_CSI_ATTACH_BIN`: the plugin's executable, instead of one built from this tree.
    pub explain_plugin: Option<PathBuf>,
    /// `CARGO_TARGET_DIR`: directory of builds, instead of `target/` in the workspace.
    pub target_dir: Option<PathBuf>,
    /// `CSI_E2E_KUBECONFIG`: kubeconfig of an existing cluster for the scenarios, instead of starting a control
    /// plane.
    pub kubeconfig: Option<PathBuf>,
    /// `CSI_E2E_BACKENDS`: backends of the scenarios, `embedded`, `control-plane`, or both separated by a comma. Default: the
    /// first, and with real components both.
    pub backends: Option<OsString>,
    /// `CSI_E2E_KEEP` is set: the run's files are kept.
    pub keep_files: bool,
    /// `CSI_E2E_SEED`: seed of randomized scenarios, to repeat a run; a number.
    pub seed: Option<OsString>,
    /// `CSI_E2E_ATTACHMENTS`: number of attachments in a randomized scenario.
    pub attachments: Option<OsString>,
    /// `PATH`, to find `go` and `cargo`.
    pub path: Option<OsString>,
    /// `CSI_E2E_PYTHON`: a Python interpreter with grpcio, instead of `python3`.
    pub python: Option<PathBuf>,
    /// `CSI_E2E_NODES_SHORT` is set: only some tests on real kubelets run.
    pub nodes_short: bool,
    /// The caller is a test: it runs Go programs only if the user asked for real components, and builds this workspace's
    /// programs with the features of `cargo test`.
    pub is_test: bool,
}

/// Finds and builds the programs of one run.
#[derive(Clone, Debug)]
pub struct Toolchain {
    run: Option<Arc<Run>>,
    settings: Settings,
}

const CONTROL_PLANE: GoProgram = GoProgram {
    module: "e2e/control-plane",
    package: ".",
    name: "control-plane",
    stamps: &[
        ("k8s.io/component-base/version.gitVersion", "k8s.io/kubernetes"),
        ("k8s.io/client-go/pkg/version.gitVersion", "k8s.io/kubernetes"),
    ],
    what: "etcd and the Kubernetes control plane",
    expectation: "about 7 minutes on two cores from cold caches",
};

/// Serialised `google.protobuf.FileDescriptorProto` of the official csi.proto, from its Go module.
pub fn csi_descriptors() -> Result<Vec<u8>> {
    output_of(Peer::CsiDescriptors, &[])
}

/// The results of Kubernetes' translation library for requests about in-tree volumes: a line of JSON for each line
/// of JSON. `e2e/peers/csi-translation` describes the requests.
pub fn csi_translations(questions: &[u8]) -> Result<Vec<u8>> {
    output_of(Peer::CsiTranslation, questions)
}

/// The peer's output on stdout for `input` on stdin.
fn output_of(peer: Peer, input: &[u8]) -> Result<Vec<u8>> {
    without_run(async |toolchain| {
        let program = toolchain.peer(peer).await?;
        let run = async {
            let mut child = Command::new(&program)
                .kill_on_drop(true)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut stdin = child.stdin.take().expect("stdin must be piped");
            // Write and read concurrently: otherwise a peer that writes while it reads would fill the pipe and
            // block.
            let write = async move { stdin.write_all(input).await };
            let (_, output) = tokio::try_join!(write, child.wait_with_output())?;
            std::io::Result::Ok(output)
        };
        let output = run.await.with_context(|| format!("run {}", program.display()))?;
        ensure!(
            output.status.success(),
            "{} ended with {}",
            program.display(),
            output.status
        );
        Ok(output.stdout)
    })
}

/// Runs `work` with a toolchain for a test without a [`Run`]. If the test is killed, a running build ends by
/// itself.
pub fn without_run<T>(work: impl AsyncFnOnce(&Toolchain) -> Result<T>) -> Result<T> {
    let toolchain = Toolchain {
        run: None,
        settings: Settings::of_test(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start a runtime for the build")?;
    runtime.block_on(work(&toolchain))
}

// === impl Settings ===

impl Settings {
    /// Reads the environment; an empty variable counts as unset.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads settings from the environment"
    )]
    pub fn from_env() -> Self {
        let read = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            attacher: read("CSI_ATTACHER_BIN").map(PathBuf::from),
            previous_attacher: read("CSI_ATTACHER_PREVIOUS_BIN").map(PathBuf::from),
            mock_driver: read("CSI_MOCK_DRIVER_BIN").map(PathBuf::from),
            explain_plugin: read("KUBECTL_CSI_ATTACH_BIN").map(PathBuf::from),
            target_dir: read("CARGO_TARGET_DIR").map(PathBuf::from),
            kubeconfig: read("CSI_E2E_KUBECONFIG").map(PathBuf::from),
            backends: read("CSI_E2E_BACKENDS"),
            keep_files: read("CSI_E2E_KEEP").is_some(),
            python: read("CSI_E2E_PYTHON").map(PathBuf::from),
            nodes_short: read("CSI_E2E_NODES_SHORT").is_some(),
            is_test: false,
            seed: read("CSI_E2E_SEED"),
            attachments: read("CSI_E2E_ATTACHMENTS"),
            path: read("PATH"),
        }
    }

    /// [`Settings::from_env`] for a test.
    pub fn of_test() -> Self {
        Self {
            is_test: true,
            ..Self::from_env()
        }
    }

    /// The seed, if one is set.
    pub fn seed(&self) -> Result<Option<u64>> {
        number("CSI_E2E_SEED", self.seed.as_deref())
    }

    /// Whether the scenarios run on the embedded cluster, and whether on the control plane.
    ///
    /// # Errors
    /// A name is not a backend.
    pub fn backends(&self) -> Result<(bool, bool)> {
        let default = match Requirement::RealComponents.missing() {
            Some(_) => "embedded",
            None => "embedded,control-plane",
        };
        let names = self.backends.clone().unwrap_or(default.into());
        let names = names.to_string_lossy();
        let names: Vec<_> = names.split(',').collect();
        let known = ["embedded", "control-plane"];
        if let Some(name) = names.iter().find(|name| !known.contains(name)) {
            bail!("CSI_E2E_BACKENDS: {name:?} is neither embedded nor control-plane");
        }
        Ok((names.contains(&"embedded"), names.contains(&"control-plane")))
    }

    /// The number of attachments, if one is set.
    pub fn attachments(&self) -> Result<Option<usize>> {
        number("CSI_E2E_ATTACHMENTS", self.attachments.as_deref())
    }
}

// === impl Toolchain ===

impl Toolchain {
    /// A toolchain whose builds are processes of `run`.
    pub fn new(run: &Arc<Run>, settings: Settings) -> Self {
        if settings.keep_files {
            match run.keep_files() {
                Ok(()) => progress::say(&format!("the files of this run stay in {}", run.dir().display())),
                Err(error) => progress::say(&format!("the files of this run cannot be kept: {error:#}")),
            }
        }
        Self {
            run: Some(Arc::clone(run)),
            settings,
        }
    }

    /// The toolchain's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The executable with etcd and the Kubernetes control plane, built on first use.
    pub async fn control_plane(&self) -> Result<PathBuf> {
        self.go_program(&CONTROL_PLANE).await
    }

    /// A Go peer, built on first use.
    pub async fn peer(&self, peer: Peer) -> Result<PathBuf> {
        self.go_program(&peer.program()).await
    }

    /// The CustomResourceDefinitions of VolumeSnapshots and VolumeGroupSnapshots, as a YAML stream.
    pub async fn snapshot_definitions(&self) -> Result<String> {
        let client = "github.com/kubernetes-csi/external-snapshotter/client/v8";
        let dir = self.go_module(SNAPSHOTTER, client).await?.join("config/crd");
        let mut definitions = String::new();
        for kind in [
            "snapshot.storage.k8s.io_volumesnapshotclasses",
            "snapshot.storage.k8s.io_volumesnapshotcontents",
            "snapshot.storage.k8s.io_volumesnapshots",
            "groupsnapshot.storage.k8s.io_volumegroupsnapshotclasses",
            "groupsnapshot.storage.k8s.io_volumegroupsnapshotcontents",
            "groupsnapshot.storage.k8s.io_volumegroupsnapshots",
        ] {
            let file = dir.join(format!("{kind}.yaml"));
            let definition = std::fs::read_to_string(&file);
            definitions += &definition.with_context(|| format!("read {}", file.display()))?;
            definitions += "\n---\n";
        }
        Ok(definitions)
    }

    /// csi-attacher: the executable in the settings, otherwise built from this tree in the caller's profile
    /// (`--release` for a benchmark).
    pub async fn csi_attacher(&self) -> Result<PathBuf> {
        match &self.settings.attacher {
            Some(path) => named_program("CSI_ATTACHER_BIN", path),
            None => self.own_binary("csi-attacher").await,
        }
    }

    /// An earlier build of csi-attacher, from the settings.
    pub(crate) fn previous_attacher(&self) -> Result<PathBuf> {
        match &self.settings.previous_attacher {
            Some(path) => named_program("CSI_ATTACHER_PREVIOUS_BIN", path),
            None => bail!("CSI_ATTACHER_PREVIOUS_BIN names no earlier build of our attacher"),
        }
    }

    /// The mock driver, like [`Toolchain::csi_attacher`].
    pub async fn csi_mock_driver(&self) -> Result<PathBuf> {
        match &self.settings.mock_driver {
            Some(path) => named_program("CSI_MOCK_DRIVER_BIN", path),
            None => self.own_binary("csi-mock-driver").await,
        }
    }

    /// The playground, built from this tree.
    pub async fn playground(&self) -> Result<PathBuf> {
        self.own_binary("playground").await
    }

    /// The kubectl plugin that explains stuck volumes, like [`Toolchain::csi_attacher`].
    pub async fn explain_plugin(&self) -> Result<PathBuf> {
        match &self.settings.explain_plugin {
            Some(path) => named_program("KUBECTL_CSI_ATTACH_BIN", path),
            None => self.own_binary("kubectl-csi_attach").await,
        }
    }

    /// A command that is killed when it is dropped; if the harness is killed, the run's reaper kills it.
    pub(crate) fn command(&self, program: &Path, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
        if let Some(run) = &self.run {
            let (marker, value) = run.marker();
            command.env(marker, value);
        }
        command
    }

    /// Directory of builds: from the settings, otherwise the target directory of this executable (which cargo's
    /// configuration can change), otherwise `target/` in the workspace.
    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.settings.target_dir {
            return std::path::absolute(dir).context("resolve CARGO_TARGET_DIR");
        }
        let exe = std::env::current_exe().context("find this executable")?;
        let built_into = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
        Ok(built_into.map_or_else(|| workspace_root().join("target"), Path::to_owned))
    }
}

/// Parses a variable as a number.
fn number<N: FromStr>(variable: &str, value: Option<&OsStr>) -> Result<Option<N>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let number = value.to_str().and_then(|text| text.parse().ok());
    number
        .map(Some)
        .with_context(|| format!("{variable} must be a whole number, not {value:?}"))
}

/// Root of the workspace in which this harness was compiled.
pub fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate must lie in the workspace")
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Takes the lock at `path`, which is held until the returned file is dropped. Prints a message if another process
/// holds it.
async fn lock(path: PathBuf, what: &str) -> Result<File> {
    let file = File::create(&path).with_context(|| format!("open the lock {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {}
        Err(std::fs::TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("lock {}", path.display()));
        }
    }
    progress::say(&format!("waiting for another process that builds {what}"));
    let locked = move || file.lock().map(|()| file);
    tokio::task::spawn_blocking(locked)
        .await
        .context("wait for a lock")?
        .with_context(|| format!("lock {}", path.display()))
}
