//! Test binaries without libtest, whose trials share a run and a toolchain.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;
use verdict::Requirement;

use crate::process::{Run, reaper_main_if_requested};
use crate::toolchain::{Settings, Toolchain};

/// What all trials of a test binary share.
#[derive(Debug)]
pub struct TestBinary {
    /// The run of their processes.
    pub run: Arc<Run>,
    /// The toolchain of their programs.
    pub toolchain: Toolchain,
    runtime: Runtime,
}

/// Runs the trials, and ends the run.
///
/// # Errors
/// The run cannot be started, or a trial has leaked processes.
pub fn main(trials: impl FnOnce(&Arc<TestBinary>) -> Vec<Trial>) -> Result<ExitCode> {
    reaper_main_if_requested();
    let arguments = Arguments::from_args();
    let run = Run::start()?;
    let binary = Arc::new(TestBinary {
        toolchain: Toolchain::new(&run, Settings::of_test()),
        run,
        runtime: Runtime::new()?,
    });
    let conclusion = libtest_mimic::run(&arguments, trials(&binary));
    binary.runtime.block_on(binary.run.finish())?;
    Ok(conclusion.exit_code())
}

/// A number from the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]
pub fn setting(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = text.parse();
    ensure!(number.is_ok(), "{variable} must be a number, but is {text:?}");
    Ok(number.ok())
}

// === impl TestBinary ===

impl TestBinary {
    /// A trial of this binary.
    pub fn trial(
        self: &Arc<Self>,
        name: impl Into<String>,
        requirements: &'static [Requirement],
        test: impl AsyncFnOnce(&Self) -> Result<()> + Send + 'static,
    ) -> Trial {
        let binary = Arc::clone(self);
        verdict::trial(name, requirements, move || binary.runtime.block_on(test(&binary)))
    }
}
