//! All scenarios on the embedded cluster, and on the real control plane if real components are requested.
//!
//! `cargo test -p csi-e2e --test scenarios` runs them on the embedded cluster with our attacher. With `CSI_E2E_REAL=1` they run
//! on the control plane, too, with our attacher and with the Go one, and a few on the embedded cluster with the Go one. A
//! filter selects trials: `embedded::`, `control-plane::`, `ours::`, `go::`, `pod-moves`. `kubeconfig::` trials access the
//! control plane through the backend for existing clusters; with `CSI_E2E_KUBECONFIG` all scenarios run on that cluster.
//! `attacher_process::` trials need no cluster.
//!
//! A randomized scenario that fails prints its seed; `CSI_E2E_SEED` repeats it, and `CSI_E2E_ATTACHMENTS` sets its length:
//! `CSI_E2E_ATTACHMENTS=10000 cargo test -p csi-e2e --test scenarios ours::flaky`.

mod attacher_process;
mod lease;
mod permissions;
mod secrets;
mod shared_cluster;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use csi_e2e::attacher::Kind;
use csi_e2e::process::reaper_main_if_requested;
use csi_e2e::scenario::{self, Scenario};
use csi_e2e::toolchain::Settings;
use libtest_mimic::{Arguments, Trial};
use tracing_subscriber::EnvFilter;
use verdict::Missing;
use verdict::Requirement::EarlierAttacher;

use crate::shared_cluster::{Access, SharedCluster};

/// Default of `--test-threads`: trials mostly wait, but each has its own processes, which share the cores with the cluster.
const TRIALS_AT_A_TIME: usize = 8;
/// As [`TRIALS_AT_A_TIME`], with a real control plane, whose processes need more CPU time.
const TRIALS_BESIDE_CONTROL_PLANE: usize = 4;

/// Scenarios that also run through the `kubeconfig` backend: enough to cover it.
const THROUGH_KUBECONFIG: [&str; 2] = ["pod-attaches", "pod-moves"];

/// Default of `RUST_LOG`. The client logs every failed request as an error, also while a component is starting; the caller
/// reports the relevant ones.
const LOG_FILTER: &str = "warn,kube_client=off";

fn main() -> ExitCode {
    reaper_main_if_requested();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();

    let mut arguments = Arguments::from_args();
    let prepared = SharedCluster::new().map(Arc::new).and_then(|shared| {
        let settings = Settings::of_test();
        let trials = trials(&shared, &settings)?;
        Ok((shared, trials, trials_at_a_time(&settings)?))
    });
    let (shared, trials, at_a_time) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return shared_cluster::fail(&format!("the harness cannot start: {error:#}")),
    };
    arguments.test_threads.get_or_insert(at_a_time);
    let conclusion = libtest_mimic::run(&arguments, trials);
    let shared = Arc::into_inner(shared).expect("no trial runs any more");
    match shared.close() {
        Ok(()) => conclusion.exit_code(),
        Err(error) => shared_cluster::fail(&format!("after the scenarios: {error:#}")),
    }
}

fn trials_at_a_time(settings: &Settings) -> Result<usize> {
    let (_, control_plane) = settings.backends()?;
    Ok(if control_plane || settings.kubeconfig.is_some() {
        TRIALS_BESIDE_CONTROL_PLANE
    } else {
        TRIALS_AT_A_TIME
    })
}

fn trials(shared: &Arc<SharedCluster>, settings: &Settings) -> Result<Vec<Trial>> {
    let mut trials = attacher_process::trials(shared);
    if settings.kubeconfig.is_some() {
        for kind in [Kind::Ours, Kind::Go] {
            // A cluster that the harness did not start keeps its components.
            let possible = Scenario::all(kind).filter(|scenario| !scenario.needs_own_control_plane());
            trials.extend(possible.map(|scenario| trial(shared, scenario, kind, Access::Kubeconfig, None)));
        }
        trials.push(secrets::trial(shared, Access::Kubeconfig, None));
        return Ok(trials);
    }
    let (embedded, control_plane) = settings.backends()?;
    if embedded {
        trials.push(lease::trial(shared));
    }
    let no_go = settings.go().err();
    let mut own_control_plane = Vec::new();
    let backends = [
        (Access::Embedded, embedded, None),
        // Listed without Go, too, to report them as skipped.
        (
            Access::ControlPlane,
            control_plane || no_go.is_some(),
            no_go.clone(),
        ),
    ];
    for (access, _, skipped) in backends.into_iter().filter(|(_, is_chosen, _)| *is_chosen) {
        trials.push(secrets::trial(shared, access, skipped.clone()));
        for kind in [Kind::Ours, Kind::Go] {
            let scenarios = Scenario::all(kind);
            let on_embedded =
                |scenario: &Scenario| scenario.is_for_embedded(kind) && scenario.not_embedded().is_none();
            for scenario in scenarios.filter(|scenario| access != Access::Embedded || on_embedded(scenario)) {
                let skipped = skipped
                    .clone()
                    .or(no_go.clone().filter(|_| scenario.starts_go(kind)));
                let trial = trial(shared, scenario, kind, access, skipped);
                let own_cluster = access.own_cluster(scenario);
                if own_cluster.is_some_and(|backend| backend.starts_processes()) {
                    own_control_plane.push(trial);
                } else {
                    trials.push(trial);
                }
            }
        }
    }
    let through_kubeconfig = THROUGH_KUBECONFIG
        .iter()
        .filter(|_| control_plane || no_go.is_some());
    for name in through_kubeconfig {
        let scenario = Scenario::named(name).expect("the scenario must exist");
        let access = Access::Kubeconfig;
        trials.push(trial(shared, scenario, Kind::Ours, access, no_go.clone()));
    }
    Ok(spread(trials, own_control_plane))
}

/// Spreads `few` evenly over `trials`. Trials with their own control plane wait for a permit ([`shared_cluster`]); side by side
/// they would block the threads of the others.
fn spread(trials: Vec<Trial>, few: Vec<Trial>) -> Vec<Trial> {
    let (total, gaps) = (trials.len(), few.len().max(1));
    let mut few = few.into_iter();
    let mut all = Vec::with_capacity(total + few.len());
    for (index, trial) in trials.into_iter().enumerate() {
        if index * gaps % total < gaps {
            all.extend(few.next());
        }
        all.push(trial);
    }
    all.extend(few);
    all
}

fn trial(
    shared: &Arc<SharedCluster>,
    scenario: &'static Scenario,
    kind: Kind,
    access: Access,
    missing: Option<Missing>,
) -> Trial {
    let is_upgrade = scenario::UPGRADES
        .iter()
        .any(|upgrade| upgrade.name == scenario.name);
    let missing = missing.or_else(|| is_upgrade.then(|| EarlierAttacher.missing()).flatten());
    let shared = Arc::clone(shared);
    unless(
        missing,
        format!("{access}::{kind}::{}", scenario.name),
        move || shared.run(scenario, kind, access),
    )
}

/// A trial. It is skipped if something is missing from the start, or if `run` fails with [`Missing`].
fn unless(
    missing: Option<Missing>,
    name: String,
    run: impl FnOnce() -> Result<()> + Send + 'static,
) -> Trial {
    verdict::trial(name, &[], move || match missing {
        Some(missing) => Err(missing.into()),
        None => run(),
    })
}
