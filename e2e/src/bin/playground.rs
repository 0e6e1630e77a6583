//! A live tour of the attach/detach path: `cargo run --bin playground`.
//!
//! Starts a real Kubernetes control plane, our CSI driver and our attacher, lets pods with volumes come, move,
//! meet a fault and go, and prints line by line what each component does. Round after round until Ctrl-C; with
//! `--once` one round that checks every step and ends with an exit code.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use csi_e2e::attacher::Kind;
use csi_e2e::cluster::Backend;
use csi_e2e::control_plane::Options;
use csi_e2e::driver::fault::{FaultRule, Method};
use csi_e2e::fixture::Access;
use csi_e2e::invariant;
use csi_e2e::narrate::Narrator;
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::scenario::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, force_cleanup};
use csi_e2e::scenario::{TestContext, TestEnv};
use csi_e2e::toolchain::{Settings, Toolchain};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

const USAGE: &str = "\
Usage: cargo run --bin playground [-- --once]

Starts a real Kubernetes control plane, the mock CSI driver and the attacher, and narrates what each does for
pods with volumes, until Ctrl-C. Needs Rust and Go only; the first build of the control plane takes minutes.

  --once   run the story once, check every step, exit non-zero on failure
  --help   this text";

/// Slow enough to be watched.
const LATENCY: Duration = Duration::from_millis(300);
/// Time to read between two rounds.
const PAUSE: Duration = Duration::from_secs(5);
/// The driver's error while its fault rule is set.
const REASON: &str = "all slots of the node are taken";

fn main() -> ExitCode {
    reaper_main_if_requested();
    let once = match std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => false,
        [ref flag] if flag == "--once" => true,
        [ref flag] if flag == "--help" || flag == "-h" => {
            say(USAGE);
            return ExitCode::SUCCESS;
        }
        ref unknown => {
            say(&format!("unknown arguments {unknown:?}\n\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
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
        .and_then(|runtime| runtime.block_on(tour(once)));
    match toured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("\nplayground: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The whole life of the playground: everything that is started here is gone at the end, whatever happened.
async fn tour(once: bool) -> Result<()> {
    let mut interrupts = Interrupts::new()?;
    let settings = Settings::from_env();
    let run = Run::start()?;
    let toured = tokio::select! {
        toured = in_run(&run, &settings, once) => toured,
        () = interrupts.next() => {
            say("\nStopping; once more to stop at once.");
            if once { Err(anyhow!("interrupted before the story had ended")) } else { Ok(()) }
        }
    };
    tokio::select! {
        finished = run.finish() => finished?,
        () = interrupts.next() => bail!("stopped at once"),
    }
    if !settings.keep_files {
        say("Stopped: no process and no file is left.");
    }
    toured
}

async fn in_run(run: &Arc<Run>, settings: &Settings, once: bool) -> Result<()> {
    say("Getting a Kubernetes control plane, the driver and the attacher ready.");
    let toolchain = Toolchain::new(run, settings.clone());
    let options = Options {
        scheduler: true,
        ..Options::default()
    };
    let ctx = TestContext::open(run, &toolchain, Backend::ControlPlane(options)).await?;
    ctx.attacher(Kind::Ours).await?;
    say(&format!(
        "Up: etcd, kube-apiserver, kube-controller-manager, kube-scheduler; the driver and the attacher create_pods with \
         each round,\nthe attacher under the ServiceAccount and rights of deploy/. Kubelets are ran by this program.\n\
         Look in from another terminal, if you have kubectl:\n  kubectl --kubeconfig {} get volumeattachments -w",
        ctx.cluster().admin_kubeconfig().display()
    ));
    let narrator = Narrator::on_stdout();
    let mut round = 1;
    loop {
        let prefix = format!("round-{round}");
        play_round(&ctx, &narrator, &prefix).await?;
        if once {
            break;
        }
        round += 1;
        say("\nAll back where it was. The next round begins in a moment; Ctrl-C ends the tour.");
        tokio::time::sleep(PAUSE).await;
    }
    ctx.close().await
}

async fn play_round(ctx: &TestContext, narrator: &Narrator, prefix: &str) -> Result<()> {
    let config = ScenarioConfig {
        latency: LATENCY,
        ..ScenarioConfig::DEFAULT
    };
    let ran = ctx.cluster().while_alive(async {
        let mut env = TestEnv::set_up(ctx, prefix, Kind::Ours, config).await?;
        let following = narrator.follow(&env)?;
        story(&mut env, narrator).await?;
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
        .heading("2. The pod moves: the volume must leave node a before it can create_pods to node b.")
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
