//! All scenarios, with our attacher and with the Go one as the attacher, on one real control plane.
//!
//! `cargo test -p csi-e2e --test scenarios` runs them all; a filter chooses, as always: `ours::` for our
//! attacher only, `go::` for the Go one, `pod-moves` for one scenario with both. `kubeconfig::` trials reach the
//! same control plane through the backend for clusters that are there already; with `CSI_E2E_KUBECONFIG` all of
//! them are run on the cluster it names. `attacher::` trials need no cluster.
//!
//! A randomized scenario that fails prints its seed; `CSI_E2E_SEED` repeats it, and `CSI_E2E_ATTACHMENTS` makes
//! it longer: `CSI_E2E_ATTACHMENTS=10000 cargo test -p csi-e2e --test scenarios ours::flaky`.

mod attacher_process;
mod rights;
mod secrets;
mod shared_cluster;

use std::process::ExitCode;
use std::sync::Arc;

use csi_e2e::attacher::Kind;
use csi_e2e::process::reaper_main_if_requested;
use csi_e2e::scenario::{self, Scenario};
use csi_e2e::toolchain::Settings;
use libtest_mimic::{Arguments, Failed, Trial};
use tracing_subscriber::EnvFilter;

use crate::shared_cluster::{Access, SharedCluster};

/// Trials at a time unless `--test-threads` says otherwise: they mostly wait, but each has processes of its
/// own, and the control plane shares the cores with them.
const TRIALS_AT_A_TIME: usize = 4;

/// Scenarios that are run through the `kubeconfig` backend too: enough to use all of it.
const THROUGH_KUBECONFIG: [&str; 2] = ["pod-attaches", "pod-moves"];

/// What is logged unless `RUST_LOG` says otherwise. The client logs every failed request as an error, also those
/// of a component that is being waited for; the caller of the request reports it.
const LOG_FILTER: &str = "warn,kube_client=off";

fn main() -> ExitCode {
    reaper_main_if_requested();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();

    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TRIALS_AT_A_TIME);
    let shared = match SharedCluster::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => return shared_cluster::fail(&format!("the harness cannot start: {error:#}")),
    };
    let conclusion = libtest_mimic::run(&arguments, trials(&shared));
    let shared = Arc::into_inner(shared).expect("the trials are over, so nothing else may hold it");
    match shared.close() {
        Ok(()) => conclusion.exit_code(),
        Err(error) => shared_cluster::fail(&format!("after the scenarios: {error:#}")),
    }
}

fn trials(shared: &Arc<SharedCluster>) -> Vec<Trial> {
    let mut trials = attacher_process::trials(shared);
    trials.extend(secrets::trials(shared));
    for kind in [Kind::Ours, Kind::Go] {
        trials.extend(
            scenario::ALL
                .iter()
                .map(|scenario| trial(shared, scenario, kind, Access::Own)),
        );
    }
    trials.extend(
        scenario::RANDOMIZED
            .iter()
            .map(|scenario| trial(shared, scenario, Kind::Ours, Access::Own)),
    );
    for name in THROUGH_KUBECONFIG {
        let scenario = Scenario::named(name).expect("the scenario must exist");
        trials.push(trial(shared, scenario, Kind::Ours, Access::Kubeconfig));
    }
    trials
}

fn trial(shared: &Arc<SharedCluster>, scenario: &'static Scenario, kind: Kind, access: Access) -> Trial {
    let shared = Arc::clone(shared);
    let access_name = match access {
        Access::Own => "",
        Access::Kubeconfig => "kubeconfig::",
    };
    let skipped = scenario.config.own_cluster.is_some() && Settings::from_env().kubeconfig.is_some();
    let trial = Trial::test(format!("{access_name}{kind}::{}", scenario.name), move || {
        shared
            .run(scenario, kind, access)
            .map_err(|error| Failed::from(format!("{error:#}")))
    });
    // A cluster that the harness did not start keeps its control plane.
    trial.with_ignored_flag(skipped)
}
