//! All scenarios, with our attacher and with the Go one as the subject, on one real control plane.
//!
//! `cargo test -p csi-e2e --test scenarios` runs them all; a filter chooses, as always: `ours::` for our
//! attacher only, `go::` for the Go one, `pod-moves` for one scenario with both. `kubeconfig::` trials reach the
//! same control plane through the backend for clusters that are there already; with `CSI_E2E_KUBECONFIG` all of
//! them are played on the cluster it names. `subject::` trials need no cluster.
//!
//! What chance writes is told with its seed when it fails; `CSI_E2E_SEED` repeats it, and `CSI_E2E_ATTACHMENTS` makes
//! it longer: `CSI_E2E_ATTACHMENTS=10000 cargo test -p csi-e2e --test scenarios ours::flaky`.

mod house;
mod rights;
mod secrets;
mod subject;

use std::process::ExitCode;
use std::sync::Arc;

use csi_e2e::process::warden_main_if_asked;
use csi_e2e::scenario::{self, Scenario};
use csi_e2e::subject::Kind;
use libtest_mimic::{Arguments, Failed, Trial};
use tracing_subscriber::EnvFilter;

use crate::house::{House, Way};

/// Trials at a time unless `--test-threads` says otherwise: they mostly wait, but each has processes of its
/// own, and the control plane shares the cores with them.
const TRIALS_AT_A_TIME: usize = 4;

/// Scenarios that are played through the `kubeconfig` backend too: enough to use all of it.
const THROUGH_KUBECONFIG: [&str; 2] = ["pod-attaches", "pod-moves"];

/// What is logged unless `RUST_LOG` says otherwise. The client logs every failed request as an error, also those
/// of a component that is being waited for; whoever made the request knows better what it means.
const LOG_FILTER: &str = "warn,kube_client=off";

fn main() -> ExitCode {
    warden_main_if_asked();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();

    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TRIALS_AT_A_TIME);
    let house = match House::new() {
        Ok(house) => Arc::new(house),
        Err(error) => return house::fail(&format!("the harness cannot start: {error:#}")),
    };
    let conclusion = libtest_mimic::run(&arguments, trials(&house));
    let house = Arc::into_inner(house).expect("the trials are over, so nobody else may hold the house");
    match house.close() {
        Ok(()) => conclusion.exit_code(),
        Err(error) => house::fail(&format!("after the scenarios: {error:#}")),
    }
}

fn trials(house: &Arc<House>) -> Vec<Trial> {
    let mut trials = subject::trials(house);
    trials.extend(secrets::trials(house));
    for kind in [Kind::Ours, Kind::Go] {
        trials.extend(
            scenario::ALL
                .iter()
                .map(|scenario| trial(house, scenario, kind, Way::Own)),
        );
    }
    trials.extend(
        scenario::BY_CHANCE
            .iter()
            .map(|scenario| trial(house, scenario, Kind::Ours, Way::Own)),
    );
    for name in THROUGH_KUBECONFIG {
        let scenario = Scenario::named(name).expect("the scenario must exist");
        trials.push(trial(house, scenario, Kind::Ours, Way::Kubeconfig));
    }
    trials
}

fn trial(house: &Arc<House>, scenario: &'static Scenario, kind: Kind, way: Way) -> Trial {
    let house = Arc::clone(house);
    let way_name = match way {
        Way::Own => "",
        Way::Kubeconfig => "kubeconfig::",
    };
    Trial::test(format!("{way_name}{kind}::{}", scenario.name), move || {
        house
            .play(scenario, kind, way)
            .map_err(|error| Failed::from(format!("{error:#}")))
    })
}
