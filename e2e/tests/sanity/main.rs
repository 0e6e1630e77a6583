//! Runs csi-sanity, the conformance suite of CSI drivers, against the mock driver: all specs must pass in
//! every set-up, with a new array and again after a restart with the state of the first round.
//!
//! `cargo test -p csi-e2e --test sanity`; a filter selects set-ups. Set-ups with loop devices need root:
//! without it they report that they were skipped, or fail if `CSI_MOCK_REQUIRE_ROOT_TESTS` is set.

mod report;
mod setup;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::toolchain::{Settings, Toolchain};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use crate::setup::{ALL, Devices, PLAIN, SetUp};

/// Shared state of all set-ups.
struct Bench {
    runtime: Runtime,
    toolchain: Toolchain,
    run: Arc<Run>,
}

fn main() -> Result<ExitCode> {
    reaper_main_if_requested();
    let arguments = Arguments::from_args();
    let run = Run::start()?;
    let bench = Arc::new(Bench {
        runtime: Runtime::new()?,
        toolchain: Toolchain::new(&run, Settings::from_env()),
        run,
    });
    let mut trials = Vec::new();
    for devices in [Devices::Emulated, Devices::Loop] {
        trials.extend(ALL.iter().map(|setup| trial(&bench, setup, devices)));
    }
    trials.push(trial(&bench, &PLAIN, Devices::Emulated));
    let conclusion = libtest_mimic::run(&arguments, trials);
    bench.runtime.block_on(bench.run.finish())?;
    Ok(conclusion.exit_code())
}

#[expect(clippy::print_stderr, reason = "an ignored test says nothing of its own")]
fn trial(bench: &Arc<Bench>, setup: &'static SetUp, devices: Devices) -> Trial {
    let bench = Arc::clone(bench);
    let name = format!("{}::{}", devices.name(), setup.name);
    let missing = devices.missing();
    let ignored = missing.is_some() && !bench.toolchain.settings().need_privileges;
    if ignored && let Some(missing) = &missing {
        eprintln!("csi-e2e: {name} is left out: {missing}");
    }
    Trial::test(name, move || {
        if let Some(missing) = missing {
            return Err(Failed::from(missing));
        }
        bench
            .runtime
            .block_on(passes_twice(&bench, setup, devices))
            .map_err(|error| Failed::from(format!("{error:#}")))
    })
    .with_ignored_flag(ignored)
}

/// With a new array, and with its state after a restart.
async fn passes_twice(bench: &Bench, setup: &SetUp, devices: Devices) -> Result<()> {
    let dir = bench.run.subdir(&format!("{}-{}", devices.name(), setup.name))?;
    for round in ["fresh", "restarted"] {
        let driver = setup
            .start(bench, devices, &dir)
            .await
            .with_context(|| format!("{round}: start the driver"))?;
        let judged = setup.verify(bench, &dir).await;
        let stopped = driver.stop().await;
        judged.with_context(|| format!("{round}: the driver's log ends with\n{}", driver.log_tail()))?;
        stopped.with_context(|| format!("{round}: stop the driver"))?;
    }
    setup::nothing_is_left(&dir)
}
