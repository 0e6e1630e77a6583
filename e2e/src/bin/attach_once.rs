//! One uneventful attach on the embedded cluster, for `attacher/scripts/count-path`: the attacher is started, attaches one
//! volume (with `--idle` none), and is stopped by SIGTERM, so that an instrumented one writes its profile.

use std::process::ExitCode;

use anyhow::{Context, Result};
use csi_e2e::attacher::Kind;
use csi_e2e::cluster::{Backend, ClusterSettings};
use csi_e2e::fixture::Access;
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::scenario::test_env::{A, STEP_TIMEOUT, ScenarioConfig, force_cleanup};
use csi_e2e::scenario::{TestContext, TestEnv};
use csi_e2e::toolchain::{Settings, Toolchain};

fn main() -> ExitCode {
    reaper_main_if_requested();
    let idle = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--idle") => true,
        Some(_) => return ExitCode::from(2),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let attached = runtime
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(in_run(idle)));
    match attached {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing_subscriber::fmt().with_writer(std::io::stderr).init();
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn in_run(idle: bool) -> Result<()> {
    let run = Run::start()?;
    let toolchain = Toolchain::new(&run, Settings::from_env());
    let ctx = TestContext::open(&run, &toolchain, Backend::Embedded(ClusterSettings::DEFAULT)).await?;
    let attached = ctx.cluster().while_alive(attach(&ctx, idle)).await;
    // The attacher has exited, so the remaining objects are force-deleted.
    let cleaned_up = force_cleanup(&ctx, PREFIX).await;
    let closed = ctx.close().await;
    let finished = run.finish().await;
    attached.and(cleaned_up).and(closed).and(finished)
}

/// Namespace and prefix of all names.
const PREFIX: &str = "attach-once";

async fn attach(ctx: &TestContext, idle: bool) -> Result<()> {
    let config = ScenarioConfig {
        nodes: 1,
        ..ScenarioConfig::DEFAULT
    };
    let mut env = TestEnv::set_up(ctx, PREFIX, Kind::Ours, config).await?;
    // The idle run has a pod, too: the attacher then also handles the events of the node.
    env.pod("idle", A, &[]).await?;
    env.wait_until_running("idle", STEP_TIMEOUT).await?;
    if !idle {
        let volume = env.volume("data", Access::OneNode).await?;
        env.pod("web", A, &[&volume]).await?;
        env.wait_until_running("web", STEP_TIMEOUT).await?;
    }
    env.attacher.stop().await
}
