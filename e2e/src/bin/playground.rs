//! A live tour of the attach/detach path: `cargo run --bin playground`.
//!
//! Starts a cluster, our CSI driver and our attacher, lets pods with volumes come, move, meet a fault and go, and prints
//! line by line what each component does. Round after round until Ctrl-C; with `--once` one round that checks every
//! step and ends with an exit code.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use csi_e2e::attacher::Kind;
use csi_e2e::cluster::{Backend, Cluster, ClusterSettings};
use csi_e2e::driver::fault::{FaultRule, Method};
use csi_e2e::fixture::Access;
use csi_e2e::invariant;
use csi_e2e::narrate::Narrator;
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::scenario::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, force_cleanup};
use csi_e2e::scenario::{Scenario, TestContext, TestEnv};
use csi_e2e::toolchain::{Settings, Toolchain};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Runs a cluster, the mock CSI driver and the attacher, and narrates what each does for pods with volumes.
#[derive(Parser)]
struct Args {
    /// Run the tour once, check every step, and exit non-zero on failure.
    #[arg(long)]
    once: bool,
    /// Play an incident instead of the tour.
    #[arg(long, value_enum)]
    story: Option<Story>,
    /// What runs the cluster.
    #[arg(long, value_enum, default_value_t = ClusterKind::Embedded)]
    cluster: ClusterKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClusterKind {
    /// API server, controllers and scheduler in Rust, in this process.
    Embedded,
    /// etcd, kube-apiserver, kube-controller-manager and kube-scheduler. Needs Go; the first build takes 10 minutes.
    ControlPlane,
    /// The cluster of your kubeconfig's current context.
    Kubeconfig,
}

/// What is real, whatever the cluster is made of.
const NODES: &str = "\
The driver and the attacher are the real programs, started with each round; the driver emulates disks and mounts.
Kubelets are simulated in this process: no container runs.";
/// Slow enough to be watched.
const LATENCY: Duration = Duration::from_millis(300);
/// Time to read between two rounds.
const PAUSE: Duration = Duration::from_secs(5);
/// The driver's error while its fault rule is set.
const REASON: &str = "all slots of the node are taken";

fn main() -> ExitCode {
    let started = Instant::now();
    reaper_main_if_requested();
    let args = Args::parse();
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let toured = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(tour(&args, started)));
    match toured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("\nplayground: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Incidents that have happened to others, each a scenario of the harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Story {
    /// A node dies with a volume mounted; its pod's successor waits until the node is given up.
    MultiAttachAfterNodeLoss,
    /// The array refuses to detach, and a new pod needs the volume meanwhile.
    StuckDetach,
    /// The driver dies while many volumes are being attached, and again while they are being detached.
    DriverRestartInBurst,
    /// The leading attacher is killed; the standby takes over when the lease has expired.
    LeaderHandOver,
    /// A node has as many volumes as it can take, and a pod brings one more.
    AttachLimit,
}

// === impl Story ===

impl Story {
    fn scenario(self) -> &'static Scenario {
        let name = match self {
            Self::MultiAttachAfterNodeLoss => "node-lost",
            Self::StuckDetach => "pod-returns",
            Self::DriverRestartInBurst => "driver-restarts",
            Self::LeaderHandOver => "leader-killed",
            Self::AttachLimit => "attach-limit",
        };
        Scenario::named(name).expect("every story must be a scenario")
    }
}

// === impl ClusterKind ===

impl ClusterKind {
    fn backend(self) -> Backend {
        match self {
            Self::Embedded => Backend::Embedded(ClusterSettings::DEFAULT),
            Self::ControlPlane => Backend::control_plane(ClusterSettings::DEFAULT),
            Self::Kubeconfig => Backend::Kubeconfig {
                path: None,
                context: None,
            },
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Embedded => {
                "An embedded cluster: API server, attach/detach controller and scheduler in this process."
            }
            Self::ControlPlane => {
                "A real control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler."
            }
            Self::Kubeconfig => "The cluster of your kubeconfig.",
        }
    }
}

/// The whole life of the playground: everything that is started here is gone at the end, whatever happened.
async fn tour(args: &Args, started: Instant) -> Result<()> {
    let mut interrupts = Interrupts::new()?;
    let settings = Settings::from_env();
    let run = Run::start()?;
    let toured = tokio::select! {
        toured = in_run(&run, &settings, args, started) => toured,
        () = interrupts.next() => {
            say("\nStopping; once more to stop at once.");
            if args.once { Err(anyhow!("interrupted before the story had ended")) } else { Ok(()) }
        }
    };
    tokio::select! {
        finished = run.finish() => finished?,
        () = interrupts.next() => bail!("stopped at once"),
    }
    if !settings.keep_files {
        say("Stopped; processes and files are removed.");
    }
    toured
}

async fn in_run(run: &Arc<Run>, settings: &Settings, args: &Args, started: Instant) -> Result<()> {
    let toolchain = Toolchain::new(run, settings.clone());
    let cluster = Cluster::start(run, &toolchain, args.cluster.backend()).await?;
    say(&format!(
        "{} Ready after {:.2} s.\n{NODES}\nkubectl, if you have it, looks in from another terminal:\n  \
         kubectl --kubeconfig {} get pods,volumeattachments -A -w",
        args.cluster.about(),
        started.elapsed().as_secs_f64(),
        cluster.admin_kubeconfig().display()
    ));
    let ctx = TestContext::on(run, &toolchain, cluster).await?;
    ctx.attacher(Kind::Ours).await?;
    let narrator = Narrator::on_stdout();
    let mut round = 1;
    loop {
        let prefix = format!("round-{round}");
        play_round(&ctx, &narrator, &prefix, args.story.map(Story::scenario)).await?;
        if args.once {
            break;
        }
        round += 1;
        say("\nAll back where it was. The next round begins in a moment; Ctrl-C ends the tour.");
        tokio::time::sleep(PAUSE).await;
    }
    ctx.close().await
}

async fn play_round(
    ctx: &TestContext,
    narrator: &Narrator,
    prefix: &str,
    scenario: Option<&Scenario>,
) -> Result<()> {
    let tour = ScenarioConfig {
        latency: LATENCY,
        ..ScenarioConfig::DEFAULT
    };
    let config = scenario.map_or(tour, |scenario| scenario.config);
    let ran = ctx.cluster().while_alive(async {
        let mut env = TestEnv::set_up(ctx, prefix, Kind::Ours, config).await?;
        let following = narrator.follow(&env)?;
        match scenario {
            Some(scenario) => {
                narrator.heading(scenario.about).await?;
                scenario.run_and_verify(&mut env).await?;
                narrator
                    .heading("Checked: that is what happened, and nothing is left.")
                    .await?;
            }
            None => story(&mut env, narrator).await?,
        }
        following.end().await;
        env.teardown().await
    });
    let ran = ran.await;
    if ran.is_err() {
        force_cleanup(ctx, prefix).await?;
    }
    ran
}

/// Every step waits for what it announces, so a step that does not come about fails the story.
async fn story(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator
        .heading("1. A pod with a volume: the volume is attached to the pod's node before the pod runs.")
        .await?;
    let data = env.volume("data", Access::OneNode).await?;
    narrator.you("create claim and volume data, and pod web that mounts it, for node a");
    env.pod("web", A, &[&data]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;

    narrator
        .heading("2. The pod moves: the volume must leave node a before it is attached to node b.")
        .await?;
    narrator.you("delete pod web and create pod web-2 with the same volume, for node b");
    env.delete_pod("web").await?;
    env.pod("web-2", B, &[&data]).await?;
    env.wait_until_running("web-2", STEP_TIMEOUT).await?;
    env.wait_until_detached(&data, A, STEP_TIMEOUT).await?;

    narrator
        .heading(
            "3. The driver fails: its error reaches the attachment and the pod's events, then it recovers.",
        )
        .await?;
    attach_in_spite_of_errors(env, narrator).await?;

    narrator
        .heading(
            "4. The attacher is killed while the driver works for it: the next one finishes what was begun.",
        )
        .await?;
    attach_in_spite_of_a_kill(env, narrator).await?;
    env.settle().await?;
    invariant::enforce(&invariant::check_running(&env.observations().await?))?;

    narrator
        .heading("5. Everything is deleted: volumes are unmounted, detached and released.")
        .await?;
    narrator.you("delete all pods, then all claims and volumes");
    env.clear().await?;
    narrator
        .heading(
            "Checked: nothing is attached, published or held by a finalizer any more, and no secret was written anywhere.",
        )
        .await
}

async fn attach_in_spite_of_errors(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator.you("set a fault rule: the driver refuses every attach");
    let full = FaultRule::fail(
        "full",
        Method::ControllerPublishVolume,
        "RESOURCE_EXHAUSTED",
        REASON,
    );
    env.driver.set_faults(&[full]).await?;
    let logs = env.volume("logs", Access::OneNode).await?;
    narrator.you("create claim and volume logs, and pod db that mounts it, for node a");
    env.pod("db", A, &[&logs]).await?;
    env.wait_for_event("db", "FailedAttachVolume", REASON, STEP_TIMEOUT)
        .await?;
    env.ensure_not_running("db").await?;
    narrator.you("remove the fault rule");
    env.driver.clear_faults().await?;
    env.wait_until_running("db", STEP_TIMEOUT).await
}

async fn attach_in_spite_of_a_kill(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    let mute = FaultRule::delay_answer("mute", Method::ControllerPublishVolume, STEP_TIMEOUT * 2);
    env.driver.set_faults(&[mute]).await?;
    let cache = env.volume("cache", Access::OneNode).await?;
    narrator.you("create claim and volume cache, and pod api that mounts it, for node b; the driver's answer will be late");
    env.pod("api", B, &[&cache]).await?;
    let node_id = env.node(B).node_id().to_owned();
    env.driver
        .wait_until_published(&cache.handle, &node_id, true, STEP_TIMEOUT)
        .await?;
    narrator.you("kill -9 the attacher: the array has attached, but the answer is lost");
    env.attacher.crash().await?;
    env.driver.clear_faults().await?;
    narrator.you("start the attacher again");
    env.attacher.revive().await?;
    env.wait_until_running("api", STEP_TIMEOUT).await
}

/// Ctrl-C and SIGTERM.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn new() -> Result<Self> {
        let on = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Speaks to the person at the terminal, who may have gone away.
fn say(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}
