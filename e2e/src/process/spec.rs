//! Specifications of child processes.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The specification of a child process.
#[derive(Clone, Debug)]
pub struct Spec {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) arg0: Option<OsString>,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) dir: Option<PathBuf>,
}

// === impl Spec ===

impl Spec {
    /// A program with the name `name`, which is used for its log and in messages.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            arg0: None,
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
        }
    }

    /// Sets `argv[0]`.
    #[must_use]
    pub fn arg0(mut self, arg0: impl AsRef<OsStr>) -> Self {
        self.arg0 = Some(arg0.as_ref().to_owned());
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable in addition to the harness's environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory, which also contains the logs; default: the run's directory.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
}
