//! A live tour of the attach/detach path: `cargo run --bin playground`.
//!
//! Starts a cluster, our CSI driver and our attacher, and shows on the terminal what each component does while pods with
//! volumes move and the user injects failures with keys. Without a terminal, it plays a tour in rounds until Ctrl-C and prints
//! it line by line. With `--once` or `--story`, it plays one round, checks every step and exits with a code.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use csi_e2e::attacher::Kind;
use csi_e2e::cluster::{Backend, Cluster, ClusterSettings};
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::scenario::test_env::force_cleanup;
use csi_e2e::scenario::{TestContext, TestEnv};
use csi_e2e::toolchain::{Settings, Toolchain};
use playground_core::narrate::Narrator;
use playground_core::story::{self, Story};
use playground_core::{error_text, terminal, web};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Runs a cluster, the mock CSI driver and the attacher, and narrates what each does for pods with volumes.
#[derive(Parser)]
struct Args {
    /// Run the tour once, check every step, and exit non-zero on failure.
    #[arg(long)]
    once: bool,
    /// Play a story instead of the tour, check its conditions and its end state, and exit. NAME is the name of a story or the
    /// path of a file (docs/stories.md says how to write one). Without it: list the stories.
    #[arg(long, value_name = "NAME", value_parser = story::open)]
    story: Option<Option<Arc<Story>>>,
    /// Print only the result of the story, for CI.
    #[arg(long, requires = "story", conflicts_with_all = ["once", "web"])]
    check: bool,
    /// Pace at which the story's paragraphs are shown: 2 is twice as fast as most people read. Default with the terminal
    /// view: 1. Default without it: no pauses.
    #[arg(long, requires = "story", conflicts_with = "check", value_name = "FACTOR", value_parser = speed)]
    speed: Option<f64>,
    /// Print lines instead of the terminal view. Without a terminal, and with --once, this is the default.
    #[arg(long)]
    plain: bool,
    /// Serve the web page on this loopback address. Default with the terminal view: a free port. Without a terminal, pods
    /// are rescheduled until Ctrl-C, and the page has the actions.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, default_missing_value = FREE_PORT,
        value_parser = web::loopback_address, conflicts_with = "once")]
    web: Option<SocketAddr>,
    /// Do not serve the web page.
    #[arg(long, conflicts_with = "web")]
    no_web: bool,
    /// Implementation of the cluster.
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

/// Programs that are the same with every backend.
const NODES: &str = "\
The driver and the attacher are the real programs, started with each round; the driver emulates disks and mounts.
Kubelets are simulated in this process; no containers run.";
/// Default address of the web page.
const FREE_PORT: &str = "127.0.0.1:0";
/// Time to read between two rounds.
const PAUSE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let started = Instant::now();
    reaper_main_if_requested();
    let args = Args::parse();
    if matches!(args.story, Some(None)) {
        say(&story::list());
        return ExitCode::SUCCESS;
    }
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error,kube_client=off"));
    // Log lines would disturb the view on the same terminal.
    let hidden = args.has_view() && std::io::stderr().is_terminal();
    let log = move || -> Box<dyn Write> {
        match hidden {
            true => Box::new(std::io::sink()),
            false => Box::new(std::io::stderr()),
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log)
        .init();
    let toured = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(tour(&args, started)));
    match toured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // stderr may be closed.
            drop(writeln!(
                std::io::stderr(),
                "\nplayground: {}",
                error_text(&error)
            ));
            ExitCode::FAILURE
        }
    }
}

// === impl Args ===

impl Args {
    /// Whether the playground exits without Ctrl-C.
    fn ends(&self) -> bool {
        self.once || self.story.is_some()
    }

    fn story(&self) -> Option<&Arc<Story>> {
        self.story.as_ref()?.as_ref()
    }

    fn has_view(&self) -> bool {
        !self.once && !self.plain && !self.check && std::io::stdout().is_terminal()
    }

    fn narrator(&self) -> Narrator {
        match (self.check, self.speed) {
            (true, _) => Narrator::to(Box::new(std::io::sink())),
            (false, Some(speed)) => Narrator::on_stdout().with_speed(speed),
            (false, None) => Narrator::on_stdout(),
        }
    }

    /// Binds the web page, if there is one.
    async fn page(&self) -> Result<Option<web::Page>> {
        let has_view = self.has_view();
        if self.web.is_some() && self.story.is_some() && !has_view {
            bail!(
                "--web: a story has a page only with the terminal view; omit --plain, and run it on a terminal"
            );
        }
        let address = match self.web {
            None if has_view && !self.no_web => {
                web::loopback_address(FREE_PORT).map_err(|error| anyhow!(error))?
            }
            None => return Ok(None),
            Some(address) => address,
        };
        web::Page::bind(address).await.map(Some)
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

/// Parses a factor of `--speed`.
fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.1..=100.0).contains(&factor) => Ok(factor),
        _ => Err("give a number from 0.1 to 100, such as 2".to_owned()),
    }
}

/// Runs the playground. Objects are deleted and all started processes are stopped at the end, also after an error or the first
/// interrupt.
async fn tour(args: &Args, started: Instant) -> Result<()> {
    let mut interrupts = Interrupts::new()?;
    let settings = Settings::from_env();
    let run = Run::start()?;
    let stop = CancellationToken::new();
    let toured = {
        let mut playing = pin!(in_run(&run, &settings, args, started, &stop));
        tokio::select! {
            toured = &mut playing => toured,
            () = interrupts.next() => {
                say("\nStopping; interrupt again to stop immediately.");
                stop.cancel();
                tokio::select! {
                    toured = playing => toured,
                    () = interrupts.next() => bail!("stopped immediately"),
                }
            }
        }
    };
    let toured = match toured {
        Ok(()) if args.ends() && stop.is_cancelled() => Err(anyhow!("interrupted before the end")),
        toured => toured,
    };
    tokio::select! {
        finished = run.finish() => finished?,
        () = interrupts.next() => bail!("stopped immediately"),
    }
    if !settings.keep_files && !args.check {
        say("Stopped; processes and files are removed.");
    }
    toured
}

/// Plays until the end or until `stop`, then deletes all objects.
async fn in_run(
    run: &Arc<Run>,
    settings: &Settings,
    args: &Args,
    started: Instant,
    stop: &CancellationToken,
) -> Result<()> {
    let page = args.page().await?;
    let toolchain = Toolchain::new(run, settings.clone());
    let starting = Cluster::start(run, &toolchain, args.cluster.backend());
    let Some(cluster) = stop.run_until_cancelled(starting).await else {
        return Ok(());
    };
    let cluster = Arc::new(cluster?);
    if !args.check {
        say(&format!(
            "{} Ready after {:.2} s.\n{NODES}\nTo look at the objects with kubectl in another terminal:\n  \
             kubectl --kubeconfig {kubeconfig} get pods -A --watch\n  \
             kubectl --kubeconfig {kubeconfig} get volumeattachments --watch",
            args.cluster.about(),
            started.elapsed().as_secs_f64(),
            kubeconfig = cluster.admin_kubeconfig().display()
        ));
    }
    let played = play(run, &toolchain, &cluster, args, page, stop).await;
    let played = played.and(cluster.stop().await);
    if args.check
        && played.is_ok()
        && let Some(story) = args.story()
    {
        say(&format!(
            "ok {} {:.1} s",
            story.name,
            started.elapsed().as_secs_f64()
        ));
    }
    played
}

async fn play(
    run: &Arc<Run>,
    toolchain: &Toolchain,
    cluster: &Arc<Cluster>,
    args: &Args,
    page: Option<web::Page>,
    stop: &CancellationToken,
) -> Result<()> {
    let building = async {
        let ctx = TestContext::on(run, toolchain, Arc::clone(cluster)).await?;
        ctx.attacher(Kind::Ours).await?;
        anyhow::Ok(ctx)
    };
    let Some(ctx) = stop.run_until_cancelled(building).await else {
        return Ok(());
    };
    let ctx = ctx?;
    // The page responds from here on.
    if let Some(page) = &page {
        say(&format!("Web page: {}", page.url()));
    }
    let has_view = args.has_view();
    match args.story() {
        Some(story) if has_view => terminal::play(&ctx, story, args.speed.unwrap_or(1.0), page, stop).await,
        None if has_view || page.is_some() => terminal::explore(&ctx, has_view, page, stop).await,
        Some(_) | None => print_rounds(&ctx, args, stop).await,
    }
}

/// Prints the narration line by line.
async fn print_rounds(ctx: &TestContext, args: &Args, stop: &CancellationToken) -> Result<()> {
    let narrator = args.narrator();
    let story = args.story().map_or_else(story::tour, Arc::clone);
    let mut round = 1;
    loop {
        let prefix = format!("round-{round}");
        play_round(ctx, &narrator, &prefix, &story, stop).await?;
        if args.ends() || stop.is_cancelled() {
            return Ok(());
        }
        round += 1;
        say("\nAll objects are deleted. The next round starts soon; Ctrl-C ends the tour.");
        stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
    }
}

async fn play_round(
    ctx: &TestContext,
    narrator: &Narrator,
    prefix: &str,
    story: &Story,
    stop: &CancellationToken,
) -> Result<()> {
    let played = ctx.cluster().while_alive(async {
        let mut env = TestEnv::set_up(ctx, prefix, Kind::Ours, story.config).await?;
        let following = narrator.follow(&env)?;
        story.play(&mut env, narrator).await?;
        following.end().await;
        env.teardown().await
    });
    match stop.run_until_cancelled(played).await {
        Some(Ok(())) => Ok(()),
        Some(failed) => failed.and(force_cleanup(ctx, prefix).await),
        None => force_cleanup(ctx, prefix).await,
    }
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

/// Prints to the terminal, which may be closed.
fn say(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}
