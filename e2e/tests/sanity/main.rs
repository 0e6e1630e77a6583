//! Runs csi-sanity, the conformance suite of CSI drivers, against the mock driver: all specs must pass in
//! every set-up, with a new array and again after a restart with the state of the first round.
//!
//! `CSI_E2E_REAL=1 cargo test -p csi-e2e --test sanity`; a filter selects set-ups. Set-ups with loop devices need root.

mod report;
mod setup;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use csi_e2e::process::{Run, reaper_main_if_requested, stop_in_reverse};
use csi_e2e::toolchain::{Settings, Toolchain};
use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Runtime;

use crate::setup::{ALL, DEADLINE, Devices, PLAIN, SetUp};

/// Shared state of all set-ups.
struct Harness {
    runtime: Runtime,
    toolchain: Toolchain,
    run: Arc<Run>,
}

fn main() -> Result<ExitCode> {
    reaper_main_if_requested();
    let arguments = Arguments::from_args();
    let run = Run::start()?;
    let harness = Arc::new(Harness {
        runtime: Runtime::new()?,
        toolchain: Toolchain::new(&run, Settings::of_test()),
        run,
    });
    let mut trials = Vec::new();
    for devices in [Devices::Emulated, Devices::Loop] {
        trials.extend(ALL.iter().map(|setup| trial(&harness, setup, devices)));
    }
    trials.push(trial(&harness, &PLAIN, Devices::Emulated));
    let conclusion = libtest_mimic::run(&arguments, trials);
    harness.runtime.block_on(harness.run.finish())?;
    Ok(conclusion.exit_code())
}

fn trial(harness: &Arc<Harness>, setup: &'static SetUp, devices: Devices) -> Trial {
    let harness = Arc::clone(harness);
    let name = format!("{}::{}", devices.name(), setup.name);
    let trial = name.clone();
    Trial::ignorable_test(name, move || {
        let skipped = verdict::ran(&trial, devices.requirements(), || {
            harness.runtime.block_on(passes_twice(&harness, setup, devices))
        })?;
        Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
    })
}

/// With a new array, and with its state after a restart.
async fn passes_twice(harness: &Harness, setup: &SetUp, devices: Devices) -> Result<()> {
    let dir = harness
        .run
        .subdir(&format!("{}-{}", devices.name(), setup.name))?;
    for round in ["fresh", "restarted"] {
        let driver = setup
            .start(harness, devices, &dir)
            .await
            .with_context(|| format!("{round}: start the driver"))?;
        let verified = match setup.verify(harness, &dir).await {
            Ok(()) => setup::wait_until_no_leftovers(&dir).await,
            Err(error) => Err(error),
        };
        let stopped = stop_in_reverse(&driver.processes, DEADLINE).await;
        verified.with_context(|| format!("{round}: the driver's log ends with\n{}", driver.log_tail()))?;
        stopped.with_context(|| format!("{round}: stop the driver"))?;
    }
    setup::ensure_no_leftovers(&dir)
}
