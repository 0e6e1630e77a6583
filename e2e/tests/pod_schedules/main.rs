//! Differential test of the embedded attach/detach controller: random schedules of pods run on it, then on the real
//! kube-controller-manager, and after each burst of steps both must have written the same.
//!
//! The test compares all states of the VolumeAttachments, of single-node volumes in their order over all nodes, the nodes'
//! `volumesAttached` and its changes, and the controller's events. It simulates users, kubelets and attacher. `POD_SCHEDULES` sets the number of schedules, `POD_SCHEDULES_SEED` the
//! first seed. See e2e/README.md.

mod actor;
mod observer;
mod recording;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use csi_e2e::control_plane::{Component, ControlPlane, Options, Timers};
use csi_e2e::process::Run;
use csi_e2e::test_binary::{self, TestBinary, setting};
use csi_e2e::toolchain::Toolchain;
use csi_e2e::wait::{self, Progress};
use embedded_cluster::injected_bug::InjectedBug;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use tokio::time::Instant;
use verdict::Requirement::RealComponents;

use actor::Actor;
use observer::{Observed, Observer};
use recording::{LOOP_PERIOD, MAX_WAIT_FOR_UNMOUNT, Recording};
use schedule::{Step, unique_name};

/// Schedules of a run without `POD_SCHEDULES`.
const SCHEDULES: u64 = 24;
/// Seeds of the schedules that run with the injected bug; the first difference must be the bug's.
const INJECTED_BUG_SEEDS: std::ops::Range<u64> = 0..8;
/// Number of schedules that are replayed concurrently. On two cores 80 delay the real controller so much that some of its waits
/// for an attacher time out.
const AT_ONCE: usize = 10;
/// Timeout until the real controller has the recorded state: much longer than its longest backoff, 122 s, which begins only
/// after the burst.
const LIMIT: Duration = Duration::from_secs(240);
/// Interval of the nodes' heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);

fn main() -> Result<ExitCode> {
    test_binary::main(|binary| {
        let trial = |name: &str, bug: Option<InjectedBug>| {
            let test = async move |binary: &TestBinary| compare(&binary.run, &binary.toolchain, bug).await;
            binary.trial(name, &[RealComponents], test)
        };
        vec![
            trial("attach/detach controllers act alike", None),
            trial(
                "injected bug is detected",
                Some(InjectedBug::AttachedAfterFailedDetach),
            ),
        ]
    })
}

/// A burst after which the controllers differ.
struct Difference {
    recording: Recording,
    /// Number of the burst.
    number: usize,
    embedded: Observed,
    /// The state of the real cluster, or why it refused a step.
    real: Result<Observed, String>,
    shows_bug: bool,
}

/// Compares the schedules. With the bug injected into the embedded controller, the first difference must be the bug's.
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
        let first = differences
            .first()
            .context("no schedule shows the injected bug")?;
        ensure!(first.shows_bug, "this is not the injected bug: {first}");
        return Ok(());
    }
    let shown: Vec<_> = differences.iter().map(ToString::to_string).collect();
    ensure!(shown.is_empty(), "{}", shown.join("\n"));
    Ok(())
}

/// Records and replays the schedules of `seeds`. Returns the first difference of each that differs.
async fn replay_all(
    plane: &ControlPlane,
    seeds: std::ops::Range<u64>,
    bug: Option<InjectedBug>,
) -> Result<Vec<Difference>> {
    let client = csi_e2e::kubeconfig::client(plane.kubeconfig()).await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    let exists = |account: Option<&ServiceAccount>| Progress::of(account.is_some(), || "absent".to_owned());
    wait::for_object(&accounts, "default", LIMIT, "the default service account", exists).await?;
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
                let steps = recording
                    .bursts
                    .iter()
                    .map(|(burst, _)| burst.len())
                    .sum::<usize>();
                anyhow::Ok((steps, replay(recording, actor, observer).await?))
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
async fn replay(recording: Recording, actor: &Actor, observer: &Observer) -> Result<Option<Difference>> {
    let Recording { schedule, bursts } = &recording;
    actor.prepare(schedule).await?;
    let prefix = &schedule.prefix;
    let bound = |observed: &Observed| observed.bound.len() == schedule::VOLUMES.len() - 1;
    let prepared = observer.wait(prefix, LIMIT, bound).await?;
    prepared.map_err(|observed| anyhow!("seed {}: only {:?} are bound", schedule.seed, observed.bound))?;
    let mut heartbeats = 0;
    let mut not_ready = BTreeSet::new();
    let mut brief = BTreeSet::new();
    for (number, (burst, expected)) in bursts.iter().enumerate() {
        if let Err(error) = actor.act(burst).await {
            // The next burst requires the recorded state.
            let (embedded, real) = (expected.clone(), Err(format!("{error:#}")));
            return Ok(Some(Difference {
                recording,
                number,
                embedded,
                real,
                shows_bug: false,
            }));
        }
        for step in burst {
            if let Step::SetReady(node, ready) = step {
                not_ready.remove(node);
                not_ready.extend((!ready).then(|| node.clone()));
            }
            brief.extend(detached_immediately(step, expected));
        }
        let deadline = Instant::now() + LIMIT;
        let expected = expected.without_reports(&brief);
        let equal = |observed: &Observed| observed.without_reports(&brief) == expected;
        while let Err(observed) = observer.wait(prefix, HEARTBEAT, equal).await? {
            let real = observed.without_reports(&brief);
            let shows_bug = shows_bug(burst, &expected, &real);
            if shows_bug || Instant::now() > deadline {
                return Ok(Some(Difference {
                    recording,
                    number,
                    embedded: expected,
                    real: Ok(real),
                    shows_bug,
                }));
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

// === impl Difference ===

impl Display for Difference {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let bursts = &self.recording.bursts;
        writeln!(formatter, "seed {} differs after:", self.recording.schedule.seed)?;
        for (number, (burst, _)) in bursts.iter().enumerate().take(self.number + 1) {
            let steps: Vec<_> = burst.iter().map(ToString::to_string).collect();
            writeln!(formatter, "{number:4}. {}", steps.join("; "))?;
        }
        match &self.real {
            Ok(real) => write!(formatter, "embedded: {:#?}\nreal: {real:#?}", self.embedded),
            Err(error) => formatter.write_str(error),
        }
    }
}

/// Whether the embedded controller, and not the real one, lists the volume of a detach that failed in this burst in
/// `volumesAttached` again, and nothing else differs: [`InjectedBug::AttachedAfterFailedDetach`]. The real one never lists it again,
/// so this is no state on the way to the recorded one.
fn shows_bug(burst: &[Step], embedded: &Observed, real: &Observed) -> bool {
    let failed = burst.iter().filter_map(|step| {
        let Step::FailDetach(name) = step else {
            return None;
        };
        embedded.attachments.get(name)?.last()?.as_ref()
    });
    let mut targets = failed.map(|state| (state.node.clone(), unique_name(&state.volume)));
    targets.any(|target| {
        embedded.lists(&target) && !real.lists(&target) && embedded.without(&target) == real.without(&target)
    })
}

#[expect(clippy::print_stdout, reason = "the counts are the test's result")]
fn show(text: &str) {
    println!("{text}");
}
