//! Differential test of the embedded attach/detach controller: random schedules of pods run on it, then on the real
//! kube-controller-manager, and after each step both must have written the same.
//!
//! The test compares all states of the VolumeAttachments, the nodes' `volumesAttached` and its changes, and the controller's
//! events. It simulates users, kubelets and attacher. `POD_SCHEDULES` sets the number of schedules, `POD_SCHEDULES_SEED` the
//! first seed. See e2e/README.md.

mod actor;
mod observer;
mod recording;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use csi_e2e::control_plane::{Component, ControlPlane, Options, Timers};
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::toolchain::{Settings, Toolchain};
use csi_e2e::wait::{self, Progress};
use embedded_cluster::injected_bug::InjectedBug;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Runtime;
use tokio::time::Instant;
use verdict::Requirement::RealComponents;

use actor::Actor;
use observer::{Observed, Observer};
use recording::{LOOP_PERIOD, MAX_WAIT_FOR_UNMOUNT, Recording};
use schedule::{Step, unique_name};

/// Schedules of a run without `POD_SCHEDULES`.
const SCHEDULES: u64 = 24;
/// Seeds of the schedules that run with the injected bug; at least one must show a difference.
const INJECTED_BUG_SEEDS: std::ops::Range<u64> = 0..8;
/// Number of schedules that are replayed concurrently. On two cores 80 delay the real controller so much that some of its waits
/// for an attacher time out.
const AT_ONCE: usize = 10;
/// Timeout until the real controller has the recorded state: much longer than its longest backoff, 122 s, which begins only
/// after the step.
const LIMIT: Duration = Duration::from_secs(240);
/// The same where a difference is expected, for which the test waits.
const LIMIT_WITH_BUG: Duration = Duration::from_secs(130);
/// Interval of the nodes' heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);

fn main() -> Result<ExitCode> {
    reaper_main_if_requested();
    let arguments = Arguments::from_args();
    let run = Run::start()?;
    let runtime = Arc::new(Runtime::new()?);
    let toolchain = Arc::new(Toolchain::new(&run, Settings::of_test()));
    let trial = |name: &str, bug: Option<InjectedBug>| {
        let (run, runtime, toolchain) = (Arc::clone(&run), Arc::clone(&runtime), Arc::clone(&toolchain));
        let trial = name.to_owned();
        Trial::ignorable_test(name, move || {
            let skipped = verdict::ran(&trial, &[RealComponents], || {
                runtime.block_on(compare(&run, &toolchain, bug))
            })?;
            Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
        })
    };
    let trials = vec![
        trial("attach/detach controllers act alike", None),
        trial(
            "injected bug is detected",
            Some(InjectedBug::AttachedAfterFailedDetach),
        ),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(run.finish())?;
    Ok(conclusion.exit_code())
}

/// Compares the schedules. With a bug injected into the embedded controller, at least one of [`INJECTED_BUG_SEEDS`] must differ.
async fn compare(run: &Arc<Run>, toolchain: &Toolchain, bug: Option<InjectedBug>) -> Result<()> {
    let seeds = if bug.is_some() {
        INJECTED_BUG_SEEDS
    } else {
        let first = setting("POD_SCHEDULES_SEED")?.unwrap_or(0);
        first..first + setting("POD_SCHEDULES")?.unwrap_or(SCHEDULES)
    };
    let seconds = LOOP_PERIOD.as_secs();
    let flags = vec![
        format!("--attach-detach-reconcile-sync-period={seconds}s"),
        // No kubelet renews the leases of the nodes.
        "--node-monitor-grace-period=24h".to_owned(),
    ];
    let options = Options {
        timers: Timers {
            populator_period: Some(LOOP_PERIOD),
            max_wait_for_unmount: Some(MAX_WAIT_FOR_UNMOUNT),
        },
        extra_flags: BTreeMap::from([(Component::ControllerManager, flags)]),
        ..Options::default()
    };
    let plane = ControlPlane::start(run, toolchain, &options).await?;
    let differences = plane.while_alive(replay_all(&plane, seeds, bug)).await?;
    plane.stop().await?;
    if bug.is_some() {
        ensure!(!differences.is_empty(), "no schedule shows the injected bug");
        return Ok(());
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

/// Records and replays the schedules of `seeds`. Returns a description of each that differs.
async fn replay_all(
    plane: &ControlPlane,
    seeds: std::ops::Range<u64>,
    bug: Option<InjectedBug>,
) -> Result<Vec<String>> {
    let client = csi_e2e::kubeconfig::client(plane.kubeconfig()).await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    let exists = |account: Option<&ServiceAccount>| Progress::of(account.is_some(), || "absent".to_owned());
    wait::for_object(&accounts, "default", LIMIT, "the default service account", exists).await?;
    let limit = if bug.is_some() { LIMIT_WITH_BUG } else { LIMIT };
    let actor = Actor::new(client.clone());
    let observer = Observer::start(&client);
    actor.register_driver().await?;
    let mut replayed = stream::iter(seeds)
        // One at a time: a recording takes seconds of CPU time, which the control plane under test needs, too.
        .then(|seed| tokio::task::spawn_blocking(move || Recording::new(seed, bug)))
        .map(|recorded| {
            let (actor, observer) = (&actor, &observer);
            async move {
                let recording = recorded.context("a recording panicked")??;
                let steps = recording.steps.len();
                anyhow::Ok((steps, replay(&recording, actor, observer, limit).await?))
            }
        })
        .buffer_unordered(AT_ONCE);
    let (mut differences, mut schedules, mut steps) = (Vec::new(), 0, 0);
    while let Some(result) = replayed.next().await {
        let (played, difference) = result?;
        schedules += 1;
        steps += played;
        differences.extend(difference);
        if bug.is_some() && !differences.is_empty() {
            break;
        }
    }
    ensure!(observer.watches() > 0, "the watches must not end");
    show(&format!(
        "{schedules} schedules, {steps} steps, {} differences",
        differences.len()
    ));
    Ok(differences)
}

/// Plays a recorded schedule on the real controller. Returns the first difference.
async fn replay(
    recording: &Recording,
    actor: &Actor,
    observer: &Observer,
    limit: Duration,
) -> Result<Option<String>> {
    let Recording { schedule, steps } = recording;
    actor.prepare(schedule).await?;
    let prefix = &schedule.prefix;
    let bound = |observed: &Observed| observed.bound.len() == schedule::VOLUMES.len() - 1;
    let prepared = observer.wait(prefix, limit, bound).await?;
    prepared.map_err(|observed| anyhow!("seed {}: only {:?} are bound", schedule.seed, observed.bound))?;
    let mut heartbeats = 0;
    let mut not_ready = BTreeSet::new();
    let mut brief = BTreeSet::new();
    for (number, (step, expected)) in steps.iter().enumerate() {
        if let Err(error) = actor.act(step).await {
            // The next step requires the recorded state.
            return Ok(Some(describe(recording, number, &format!("{error:#}"))));
        }
        if let Step::SetReady(node, is_ready) = step {
            if *is_ready {
                not_ready.remove(node);
            } else {
                not_ready.insert(node.clone());
            }
        }
        brief.extend(detached_immediately(step, expected));
        let deadline = Instant::now() + limit;
        let expected = expected.without_reports(&brief);
        let equal = |observed: &Observed| observed.without_reports(&brief) == expected;
        while let Err(observed) = observer.wait(prefix, HEARTBEAT, equal).await? {
            if Instant::now() > deadline {
                let difference = format!("embedded: {expected:#?}\nreal: {observed:#?}");
                return Ok(Some(describe(recording, number, &difference)));
            }
            heartbeats += 1;
            actor.heartbeat(schedule, &not_ready, heartbeats).await?;
        }
    }
    Ok(None)
}

/// Node and volume of an attach after which the controller detaches immediately. Whether it lists the volume in
/// `volumesAttached` in between depends on the part of the reconciler's loop in which the attach ends.
fn detached_immediately(step: &Step, expected: &Observed) -> Option<(String, String)> {
    let Step::Attach(name) = step else {
        return None;
    };
    let states = expected.attachments.get(name)?;
    let stays = states.last()?.as_ref().is_some_and(|state| !state.is_deleting);
    let state = states.iter().flatten().next_back()?;
    (!stays).then(|| (state.node.clone(), unique_name(&state.volume)))
}

fn describe(recording: &Recording, last: usize, difference: &str) -> String {
    let mut text = format!("seed {} differs after:\n", recording.schedule.seed);
    for (number, (step, _)) in recording.steps.iter().enumerate().take(last + 1) {
        // Writing to a String cannot fail.
        let _written = writeln!(text, "{number:4}. {step}");
    }
    text + difference
}

#[expect(clippy::print_stdout, reason = "the counts are the test's result")]
fn show(text: &str) {
    println!("{text}");
}

/// A number from the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]
fn setting(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = text.parse();
    ensure!(number.is_ok(), "{variable} must be a number, but is {text:?}");
    Ok(number.ok())
}
