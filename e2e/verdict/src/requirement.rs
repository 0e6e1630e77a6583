//! What a test can need, how it is found, and what provides it.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Optional programs of tests, and the command that provides each.
const PROGRAMS: &[(&str, &str)] = &[
    ("bash", "apt-get install bash"),
    ("busybox", "apt-get install busybox-static"),
    ("chromedriver", "apt-get install chromium-driver"),
    ("chromium", "apt-get install chromium"),
    ("debugfs", "apt-get install e2fsprogs"),
    ("e2fsck", "apt-get install e2fsprogs"),
    ("fsfreeze", "apt-get install util-linux"),
    ("git", "apt-get install git"),
    ("go", "install Go from https://go.dev/dl"),
    ("gofmt", "install Go from https://go.dev/dl"),
    ("hostname", "apt-get install hostname"),
    ("ip", "apt-get install iproute2"),
    (
        "kubectl",
        "install kubectl from https://kubernetes.io/docs/tasks/tools",
    ),
    ("losetup", "apt-get install mount"),
    ("mkfs.ext4", "apt-get install e2fsprogs"),
    ("mkfs.xfs", "apt-get install xfsprogs"),
    ("mount", "apt-get install mount"),
    ("nsenter", "apt-get install util-linux"),
    ("openssl", "apt-get install openssl"),
    ("prlimit", "apt-get install util-linux"),
    ("runc", "apt-get install runc"),
    ("setpriv", "apt-get install util-linux"),
    ("setsid", "apt-get install util-linux"),
    ("tar", "apt-get install tar"),
    ("umount", "apt-get install mount"),
    ("unshare", "apt-get install util-linux"),
];
/// Programs of a driver with loop devices, and of the tests that use it.
const LOOP_PROGRAMS: [&str; 4] = ["losetup", "mount", "umount", "mkfs.ext4"];
/// Set by `CSI_E2E_REAL=1`.
const REAL_COMPONENTS: &str = "CSI_E2E_REAL";

/// What a test needs from the machine or from the caller, beyond cargo, rustc, a C compiler, `sh` and coreutils.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The effective user is root.
    Root,
    /// Root may attach loop devices, make filesystems on them and mount them.
    LoopDevices,
    /// Root may serve FUSE filesystems on loop devices, and have mounts that no other process sees.
    Fuse,
    /// This program is on `PATH`.
    Program(&'static str),
    /// A process can have its own host name: root, or user namespaces.
    OwnHostName,
    /// A process can have its own network: root, or user namespaces.
    OwnNetwork,
    /// The clone's history and index: `git` and a working tree of it.
    Git,
    /// `python3`, or the interpreter that `CSI_E2E_PYTHON` names, has grpcio.
    Grpcio,
    /// The caller asked for tests with real components (`CSI_E2E_REAL=1`), and Go builds them.
    RealComponents,
    /// The caller named an earlier build of the attacher.
    EarlierAttacher,
}

/// A requirement that is not met, or anything else without which a test cannot run. As an error of a test it skips the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    id: String,
    reason: String,
    cure: String,
}

// === impl Requirement ===

impl Requirement {
    /// Fails with what is missing, for `?` in a trial.
    ///
    /// # Errors
    /// The requirement is not met.
    pub fn check(self) -> Result<(), Missing> {
        self.missing().map_or(Ok(()), Err)
    }

    /// What is missing, if anything.
    pub fn missing(self) -> Option<Missing> {
        match self {
            Self::Root => {
                (!is_root()).then(|| Missing::new("root", "the user is not root", "sudo, or a container"))
            }
            Self::LoopDevices => missing_loop_devices(),
            Self::Fuse => missing_loop_devices()
                .or_else(|| missing_program_of(&["unshare", "nsenter", "setpriv"]))
                .or_else(missing_fuse),
            Self::Program(name) => (!is_on_path(name)).then(|| missing_program(name)),
            Self::OwnHostName => {
                missing_program_of(&["unshare", "hostname"]).or_else(|| unshares("own-host-name", "--uts"))
            }
            Self::OwnNetwork => {
                missing_program_of(&["unshare", "ip"]).or_else(|| unshares("own-network", "--net"))
            }
            Self::Git => missing_program_of(&["git"]).or_else(missing_clone),
            Self::Grpcio => missing_grpcio(),
            Self::RealComponents => missing_real_components(),
            Self::EarlierAttacher => variable("CSI_ATTACHER_PREVIOUS_BIN").is_none().then(|| {
                Missing::new(
                    "earlier-attacher",
                    "no earlier build of the attacher is named",
                    "CSI_ATTACHER_PREVIOUS_BIN=/path/to/csi-attacher cargo test",
                )
            }),
        }
    }
}

// === impl Missing ===

impl Missing {
    /// `id` names it in `ACCEPTED_SKIPS`, `cure` is the command that provides it.
    pub fn new(id: impl Into<String>, reason: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            reason: reason.into(),
            cure: cure.into(),
        }
    }

    /// Its name in `ACCEPTED_SKIPS`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Why the test cannot run.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The command that provides what is missing.
    pub fn cure(&self) -> &str {
        &self.cure
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, cure, .. } = self;
        if cure.is_empty() {
            return f.write_str(reason);
        }
        write!(f, "{reason} (to have it: {cure})")
    }
}

impl std::error::Error for Missing {}

// === functions ===

/// A command of an optional program, in a test that [requires](crate::require) it.
///
/// # Panics
/// The program is not listed in this module, so no test can require it.
pub fn command(program: &str) -> Command {
    assert!(
        cure_of(program).is_some(),
        "list {program} and its package in {}",
        file!()
    );
    Command::new(program)
}

fn cure_of(program: &str) -> Option<&'static str> {
    PROGRAMS
        .iter()
        .find(|(name, _)| *name == program)
        .map(|(_, cure)| *cure)
}

fn missing_program(name: &str) -> Missing {
    let cure = cure_of(name).unwrap_or_else(|| panic!("list {name} and its package in {}", file!()));
    Missing::new(name, format!("{name} is not on PATH"), cure)
}

fn missing_program_of(names: &[&str]) -> Option<Missing> {
    names
        .iter()
        .find(|name| !is_on_path(name))
        .map(|name| missing_program(name))
}

fn missing_loop_devices() -> Option<Missing> {
    let missing = |reason: String, cure: &str| {
        Some(Missing::new(
            "loop-devices",
            format!("loop devices cannot be used: {reason}"),
            cure,
        ))
    };
    if let Some(program) = missing_program_of(&LOOP_PROGRAMS) {
        return missing(program.reason, &program.cure);
    }
    if !is_root() {
        return missing("the user is not root".to_owned(), "cargo test as root");
    }
    let control = File::options().read(true).write(true).open("/dev/loop-control");
    match control {
        Ok(_) => None,
        Err(error) => missing(
            format!("/dev/loop-control: {error}"),
            "modprobe loop; in a container: --privileged --volume /dev:/dev",
        ),
    }
}

fn missing_fuse() -> Option<Missing> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let error = device.err()?;
    Some(Missing::new(
        "fuse",
        format!("/dev/fuse: {error}"),
        "modprobe fuse; in a container: --privileged --device /dev/fuse",
    ))
}

fn missing_clone() -> Option<Missing> {
    let known = runs(Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"]));
    (!known).then(|| Missing::new("git", "this tree is no git clone", "git clone"))
}

fn missing_grpcio() -> Option<Missing> {
    let python = variable("CSI_E2E_PYTHON").unwrap_or_else(|| "python3".into());
    let imports = runs(Command::new(&python).args(["-c", "import grpc"]));
    (!imports).then(|| {
        let reason = format!("{} has no module grpc", Path::new(&python).display());
        Missing::new(
            "grpcio",
            reason,
            "python3 -m venv v && v/bin/pip install grpcio, and CSI_E2E_PYTHON=v/bin/python",
        )
    })
}

fn missing_real_components() -> Option<Missing> {
    if !matches!(variable(REAL_COMPONENTS), Some(value) if value != "0") {
        let reason =
            "tests with real components (control plane, Go sidecar, csi-sanity, ...) were not requested";
        return Some(Missing::new(
            "real-components",
            reason,
            format!("{REAL_COMPONENTS}=1 cargo test (needs Go)"),
        ));
    }
    missing_program_of(&["go"])
}

/// Whether `unshare` with this flag, or in a user namespace, is permitted.
fn unshares(id: &str, flag: &str) -> Option<Missing> {
    let mut unshare = Command::new("unshare");
    if !is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    if runs(unshare.args([flag, "true"])) {
        return None;
    }
    Some(Missing::new(
        id,
        format!("`unshare {flag}` is not permitted"),
        "cargo test as root, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ))
}

fn runs(command: &mut Command) -> bool {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Of the effective user, not the real one.
fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}

fn is_on_path(program: &str) -> bool {
    on_path(program.as_ref()).is_some()
}

/// The program of this name on `PATH`.
pub(crate) fn on_path(program: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(&variable("PATH")?)
        .map(|directory| directory.join(program))
        .find(|file| {
            file.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// A variable of the environment; an empty one counts as unset.
#[expect(clippy::disallowed_methods, reason = "tests have no flags")]
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_that_a_requirement_uses_has_a_cure() {
        for name in LOOP_PROGRAMS
            .iter()
            .chain(&["unshare", "hostname", "ip", "git", "go"])
        {
            assert!(!missing_program(name).cure().is_empty(), "{name}");
        }
    }

    #[test]
    fn programs_are_found_on_path_only() {
        assert!(is_on_path("sh"));
        assert!(!is_on_path("no-such-program-anywhere"));
        assert_eq!(
            Requirement::Program("bash").missing().is_none(),
            is_on_path("bash")
        );
    }

    #[test]
    fn skips_say_what_provides_the_missing_program() {
        let missing = missing_program("mkfs.xfs");
        assert_eq!(
            missing.to_string(),
            "mkfs.xfs is not on PATH (to have it: apt-get install xfsprogs)"
        );
    }
}
