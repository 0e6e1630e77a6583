//! Scenarios on real kubelets: two nodes with containerd in separate namespaces, and driver, attacher and sidecars as pods
//! from `deploy/`. The trials `path::` are the scenarios of `--test scenarios` that support real nodes; each has its own
//! driver and attacher.
//!
//! Skipped, with the reason, without root, namespaces, cgroups or loop devices, and unless all programs are built, which
//! `cargo run -p csi-e2e --bin nodes -- --build` does, and real components are requested (`CSI_E2E_REAL=1`).

/// The scenarios with the names of these functions.
macro_rules! scenarios {
    [$($scenario:ident),+ $(,)?] => {
        &[$($crate::shared_nodes::Scenario {
            name: stringify!($scenario),
            run: |env| Box::pin($scenario(env)),
        }),+]
    };
}

mod attached;
mod chart_upgrade;
mod contents;
mod disturbances;
mod env;
mod image_swap;
mod killed;
mod kubelet_directory;
mod leftovers;
mod monitoring;
mod recipes;
mod restore;
mod shared_nodes;
mod snapshotter;
mod volumes;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use csi_e2e::nodes::init_main_if_requested;
use csi_e2e::process::reaper_main_if_requested;
use csi_e2e::scenario as path;
use csi_e2e::toolchain::Settings;
use libtest_mimic::{Arguments, Trial};
use tracing_subscriber::EnvFilter;
use verdict::Requirement::RealComponents;

use crate::shared_nodes::SharedNodes;

/// Trials that run if `CSI_E2E_NODES_SHORT` is set. `.ci/run` limits their time to ten minutes.
const SHORT: [&str; 9] = [
    "nothing_survives_a_killed_harness",
    "pod_moves_with_its_data",
    "block_volume_moves_with_its_data",
    "kubelet_is_killed_with_a_volume_mounted",
    "image_swapped_in_attachers_deployment",
    "install_the_attachers_chart",
    "path::pod-moves",
    "path::killed-after-publish",
    "path::pods-share-volume",
];
/// Needs no nodes.
const CONTENTS: &str = "readme_lists_the_trials";
/// See the trials of `scenarios`.
const LOG_FILTER: &str = "warn,kube_client=off";

fn main() -> ExitCode {
    reaper_main_if_requested();
    init_main_if_requested();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let mut arguments = Arguments::from_args();
    // One at a time: they kill programs of the shared nodes.
    arguments.test_threads = Some(1);
    let shared = match SharedNodes::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => return fail(&format!("the harness cannot start: {error:#}")),
    };
    let scenarios = volumes::SCENARIOS
        .iter()
        .chain(disturbances::SCENARIOS)
        .chain(image_swap::SCENARIOS)
        .chain(chart_upgrade::SCENARIOS)
        .chain(recipes::SCENARIOS)
        .chain(monitoring::SCENARIOS);
    let mut trials = vec![
        trial("nothing_survives_a_killed_harness", &shared, |shared| {
            shared.run_alone(killed::nothing_survives_a_killed_harness)
        }),
        trial(kubelet_directory::NAME, &shared, |shared| {
            shared.run_alone(kubelet_directory::driver_uses_another_kubelet_directory)
        }),
    ];
    trials.extend(scenarios.map(|scenario| trial(scenario.name, &shared, |shared| shared.run(scenario))));
    let names: Vec<_> = trials.iter().map(|trial| trial.name().to_owned()).collect();
    trials.push(Trial::test(CONTENTS, move || {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let listed = contents::readme_lists_the_trials(&names, &SHORT);
        listed.map_err(|error| format!("{error:#}").into())
    }));
    let on_real_nodes = path::ALL
        .iter()
        .filter(|scenario| scenario.needs_simulated_nodes().is_none());
    trials.extend(on_real_nodes.map(|scenario| {
        trial(&format!("path::{}", scenario.name), &shared, |shared| {
            shared.run_path(scenario)
        })
    }));
    if Settings::of_test().nodes_short {
        trials.retain(|trial| SHORT.contains(&trial.name()) || trial.name() == CONTENTS);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let shared = Arc::into_inner(shared).expect("no trial runs any more");
    match shared.close() {
        Ok(()) => conclusion.exit_code(),
        Err(error) => fail(&format!("after the scenarios: {error:#}")),
    }
}

fn trial(
    name: &str,
    shared: &Arc<SharedNodes>,
    run: impl FnOnce(&SharedNodes) -> Result<()> + Send + 'static,
) -> Trial {
    let shared = Arc::clone(shared);
    verdict::trial(name, &[RealComponents], move || run(&shared))
}

fn fail(line: &str) -> ExitCode {
    // A closed output is not an error.
    drop(writeln!(std::io::stderr(), "{line}"));
    ExitCode::FAILURE
}
