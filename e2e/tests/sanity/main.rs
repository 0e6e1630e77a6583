//! Runs csi-sanity, the conformance suite of CSI drivers, against the mock driver: all specs must pass in
//! every set-up, with a new array and again after a restart with the state of the first round.
//!
//! `CSI_E2E_REAL=1 cargo test -p csi-e2e --test sanity`; a filter selects set-ups. Set-ups with loop devices need root.

mod report;
mod setup;

use std::process::ExitCode;

use anyhow::{Context, Result};
use csi_e2e::process::stop_in_reverse;
use csi_e2e::test_binary::{self, TestBinary};

use crate::setup::{ALL, DEADLINE, Devices, PLAIN, SetUp};

fn main() -> Result<ExitCode> {
    test_binary::main(|binary| {
        let trial = |setup: &'static SetUp, devices: Devices| {
            let name = format!("{}::{}", devices.name(), setup.name);
            let test = async move |binary: &TestBinary| passes_twice(binary, setup, devices).await;
            binary.trial(name, devices.requirements(), test)
        };
        let devices = [Devices::Emulated, Devices::Loop].into_iter();
        let all = devices.flat_map(|devices| ALL.iter().map(move |setup| (setup, devices)));
        let all = all.chain([(&PLAIN, Devices::Emulated)]);
        all.map(|(setup, devices)| trial(setup, devices)).collect()
    })
}

/// With a new array, and with its state after a restart.
async fn passes_twice(harness: &TestBinary, setup: &SetUp, devices: Devices) -> Result<()> {
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
