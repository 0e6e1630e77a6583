//! All scenarios on the embedded cluster, and on the real control plane if `CSI_E2E_BACKENDS` contains it.
//!
//! `cargo test -p csi-e2e --test scenarios` runs them on the embedded cluster with our attacher, and a few with the Go one. With
//! `CSI_E2E_BACKENDS=embedded,control-plane` they run on the control plane, too, with our attacher and with the Go one. A
//! filter selects trials: `embedded::`, `control-plane::`, `ours::`, `go::`, `pod-moves`. `kubeconfig::` trials access the
//! control plane through the backend for existing clusters; with `CSI_E2E_KUBECONFIG` all scenarios run on that cluster.
//! `attacher_process::` trials need no cluster.
//!
//! A randomized scenario that fails prints its seed; `CSI_E2E_SEED` repeats it, and `CSI_E2E_ATTACHMENTS` sets its length:
//! `CSI_E2E_ATTACHMENTS=10000 cargo test -p csi-e2e --test scenarios ours::flaky`.

mod attacher_process;
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
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tracing_subscriber::EnvFilter;

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
        let settings = Settings::from_env();
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
            trials.extend(Scenario::all(kind).map(|scenario| {
                let skipped = missing_setting(scenario, settings);
                trial(shared, scenario, kind, Access::Kubeconfig, skipped)
            }));
        }
        trials.push(secrets::trial(shared, Access::Kubeconfig, None));
        return Ok(trials);
    }
    let (embedded, control_plane) = settings.backends()?;
    let not_chosen = |chosen: bool, why| (!chosen).then_some(why);
    let no_embedded = not_chosen(embedded, "CSI_E2E_BACKENDS has no embedded");
    let no_go = settings.require_go().err().map(|_| "`go` is not on PATH");
    let no_control_plane = not_chosen(control_plane, "CSI_E2E_BACKENDS has no control-plane").or(no_go);
    let mut own_control_plane = Vec::new();
    for (access, skipped) in [
        (Access::Embedded, no_embedded),
        (Access::ControlPlane, no_control_plane),
    ] {
        trials.push(secrets::trial(shared, access, skipped));
        for kind in [Kind::Ours, Kind::Go] {
            let scenarios = Scenario::all(kind);
            let chosen =
                scenarios.filter(|scenario| access != Access::Embedded || scenario.is_for_embedded(kind));
            for scenario in chosen {
                let skipped = skipped
                    .or(no_go.filter(|_| scenario.starts_go(kind)))
                    .or_else(|| missing_setting(scenario, settings));
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
    for name in THROUGH_KUBECONFIG {
        let scenario = Scenario::named(name).expect("the scenario must exist");
        let access = Access::Kubeconfig;
        trials.push(trial(shared, scenario, Kind::Ours, access, no_control_plane));
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

/// Missing setting that the scenario needs.
fn missing_setting(scenario: &Scenario, settings: &Settings) -> Option<&'static str> {
    let is_upgrade = scenario::UPGRADES
        .iter()
        .any(|upgrade| upgrade.name == scenario.name);
    (is_upgrade && settings.previous_attacher.is_none())
        .then_some("CSI_ATTACHER_PREVIOUS_BIN names no earlier build of our attacher")
}

fn trial(
    shared: &Arc<SharedCluster>,
    scenario: &'static Scenario,
    kind: Kind,
    access: Access,
    skipped: Option<&'static str>,
) -> Trial {
    // A cluster that the harness did not start keeps its components.
    let untouchable = access == Access::Kubeconfig && scenario.needs_own_control_plane();
    let name = format!("{kind}::{}", scenario.name);
    let not_embedded = match access {
        Access::Embedded => scenario.not_embedded(),
        Access::ControlPlane | Access::Kubeconfig => None,
    };
    let skipped = skipped
        .or(untouchable.then_some("it needs a cluster of its own"))
        .or(not_embedded);
    let shared = Arc::clone(shared);
    unless(skipped, format!("{access}::{name}"), move || {
        shared.run(scenario, kind, access)
    })
}

/// A trial. It is skipped for the reason `skipped`, or the one that `run` returns.
fn unless(
    skipped: Option<&'static str>,
    name: String,
    run: impl FnOnce() -> Result<Option<String>> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = skipped {
            return Ok(Completion::ignored_with(reason));
        }
        let skipped = run().map_err(|error| Failed::from(format!("{error:#}")))?;
        Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
    })
}
