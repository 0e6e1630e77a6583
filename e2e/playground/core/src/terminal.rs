//! The view on a terminal: draws snapshots, and turns keys into actions.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::Client;
use ratatui::DefaultTerminal;
use ratatui::backend::Backend;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::action::{Action, Command, command_of};
use super::observer::Observer;
use super::pod_mover::{self, ActionStatus, PodMover};
use super::story::Story;
use super::view::{Choice, Overlay, draw};
use super::web::{Page, ServedPage};
use crate::explain;
use crate::narrate::Narrator;
use csi_e2e::attacher::Kind;
use csi_e2e::mutex::lock;
use csi_e2e::scenario::test_env::force_cleanup;
use csi_e2e::scenario::{ScenarioConfig, TestContext, TestEnv};

/// Pause between two snapshots.
const REFRESH: Duration = Duration::from_millis(200);
/// Pause between two explanations.
const EXPLAIN_AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of queued actions while one is performed.
const WAITING_ACTIONS: usize = 16;

/// The terminal in raw mode on its alternate screen. Dropping it restores the terminal; so does a panic.
struct Screen(DefaultTerminal);

/// A story's output, which is printed after the view is closed.
#[derive(Clone, Default)]
struct Transcript(Arc<Mutex<Vec<u8>>>);

// === impl Screen ===

impl Screen {
    fn open() -> Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => {
                let mut screen = Self(terminal);
                // Not every terminal supports an alternate screen.
                screen.0.backend_mut().clear().context("clear the terminal")?;
                Ok(screen)
            }
            Err(error) => {
                ratatui::restore();
                Err(error).context("open the terminal; use --plain to run without a terminal view")
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

// === impl Transcript ===

impl Write for Transcript {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// === functions ===

/// Reschedules pods and performs the user's actions until the user quits or `stop`, then removes all objects. Without the
/// terminal view it prints the timeline, and only the web page has the actions.
///
/// # Errors
/// The terminal cannot be used, or the test environment cannot be set up or removed.
pub async fn explore(
    ctx: &TestContext,
    has_view: bool,
    page: Option<Page>,
    stop: &CancellationToken,
) -> Result<()> {
    const PREFIX: &str = "playground";
    let narrator = match has_view {
        true => Narrator::to(Box::new(std::io::sink())),
        false => Narrator::on_stdout(),
    };
    let explored = ctx.cluster().while_alive(async {
        let (config, attacher) = with_pages(pod_mover::CONFIG)?;
        let setting_up = TestEnv::set_up(ctx, PREFIX, Kind::Ours, config);
        let Some(env) = stop.run_until_cancelled(setting_up).await else {
            return Ok(());
        };
        let mut env = env?;
        let class = env.offer_storage_class().await?;
        let following = narrator.follow(&env)?;
        if let Some(class) = class
            && !has_view
        {
            let said = format!("StorageClass {class}: your own claims of this class get volumes, and your pods run with them.");
            // stdout may be closed.
            drop(writeln!(std::io::stdout(), "{said}"));
        }
        let (status_tx, status) = watch::channel(ActionStatus::default());
        let observer = Observer::new(&env, &narrator, Some(attacher), status)?;
        let (actions_tx, actions) = mpsc::channel(WAITING_ACTIONS);
        let page = page.map(|page| page.serve(Some(actions_tx.clone()), narrator.pace().clone(), env.client()));
        let shown = async {
            match has_view {
                true => show(&observer, ctx, Some(&actions_tx), page.as_ref()).await,
                false => publish(&observer, ctx, page.as_ref()).await,
            }
        };
        let mut pod_mover = PodMover::new(&mut env, &narrator, &status_tx);
        let explored = tokio::select! {
            ended = pod_mover.run(actions) => ended,
            shown = shown => shown,
            () = stop.cancelled() => Ok(()),
        };
        let ended = pod_mover.end().await;
        following.end().await;
        explored.and(ended)
    });
    let explored = explored.await;
    explored.and(force_cleanup(ctx, PREFIX).await)
}

/// Plays a story once in the terminal view, then prints its output. `speed` is that of the reader.
///
/// # Errors
/// The story failed, or the user quit before its end.
pub async fn play(
    ctx: &TestContext,
    story: &Story,
    speed: f64,
    page: Option<Page>,
    stop: &CancellationToken,
) -> Result<()> {
    let transcript = Transcript::default();
    let narrator = Narrator::to(Box::new(transcript.clone())).with_speed(speed);
    let played = ctx.cluster().while_alive(async {
        // Replicas of one attacher cannot share a port.
        let (config, attacher) = match story.has_replicas {
            true => (story.config, None),
            false => {
                let (config, attacher) = with_pages(story.config)?;
                (config, Some(attacher))
            }
        };
        let mut env = TestEnv::set_up(ctx, &story.name, Kind::Ours, config).await?;
        let following = narrator.follow(&env)?;
        let (_, status) = watch::channel(ActionStatus::default());
        let observer = Observer::new(&env, &narrator, attacher, status)?;
        let page = page.map(|page| page.serve(None, narrator.pace().clone(), env.client()));
        tokio::select! {
            played = story.play(&mut env, &narrator) => played?,
            shown = show(&observer, ctx, None, page.as_ref()) => {
                shown?;
                bail!("interrupted before the end of the story");
            }
        }
        following.end().await;
        env.teardown().await
    });
    let played = stop.run_until_cancelled(played).await;
    let text = std::mem::take(&mut *lock(&transcript.0));
    let written = std::io::stdout()
        .write_all(&text)
        .context("write to the terminal");
    match played {
        Some(Ok(())) => written,
        Some(failed) => failed.and(force_cleanup(ctx, &story.name).await),
        None => force_cleanup(ctx, &story.name).await,
    }
}

/// Makes the attacher serve HTTP on a free port.
fn with_pages(config: ScenarioConfig) -> Result<(ScenarioConfig, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    let address = listener.local_addr().context("find a free port")?;
    // Flags of a scenario are static, so this one is leaked.
    let flag: &'static str = format!("--http-endpoint={address}").leak();
    let config = ScenarioConfig {
        own_flags: vec![flag].leak(),
        ..config
    };
    Ok((config, address))
}

/// Draws snapshots until the user quits. Without `actions` the user cannot inject faults.
async fn show(
    observer: &Observer,
    ctx: &TestContext,
    actions: Option<&mpsc::Sender<Action>>,
    page: Option<&ServedPage>,
) -> Result<()> {
    let mut screen = Screen::open()?;
    let mut keys = keys()?;
    let mut choice = Choice {
        can_break: actions.is_some(),
        page: page.map(ServedPage::url).unwrap_or_default(),
        ..Choice::default()
    };
    let mut snapshot = observer.snapshot(ctx.cluster());
    let (explanation_tx, explanation) = watch::channel(String::new());
    let mut explaining = JoinSet::new();
    let mut ticks = interval(REFRESH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => {
                snapshot = observer.snapshot(ctx.cluster());
                if let Some(page) = page {
                    page.publish(&snapshot);
                }
            }
            event = keys.recv() => {
                let event = event.context("the terminal cannot be read")?;
                let key = event.as_key_press_event();
                match key.and_then(command_of) {
                    Some(Command::Quit) => return Ok(()),
                    Some(Command::Toggle(action)) => {
                        if let Some(actions) = actions && actions.try_send(action).is_err() {
                            tracing::debug!("action dropped: queue is full");
                        }
                    }
                    Some(Command::Step) => observer.narrator().pace().pause_or_step(),
                    Some(Command::Resume) => observer.narrator().pace().resume(),
                    Some(command) => choice.apply(command, snapshot.volumes.len()),
                    None => {}
                }
            }
        }
        match (
            choice.overlay == Some(Overlay::Explanation),
            explaining.is_empty(),
        ) {
            (true, true) => {
                explanation_tx.send_replace("Reading the cluster.".to_owned());
                explaining.spawn(keep_explaining(observer.client(), explanation_tx.clone()));
            }
            (false, false) => explaining.shutdown().await,
            (true, false) | (false, true) => {}
        }
        choice.explanation.clone_from(&explanation.borrow());
        screen
            .0
            .draw(|frame| draw(frame, &snapshot, &choice))
            .context("draw on the terminal")?;
    }
}

/// Explains the cluster again and again.
async fn keep_explaining(client: Client, explanation_tx: watch::Sender<String>) {
    let mut ticks = interval(EXPLAIN_AGAIN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        explanation_tx.send_replace(explain(client.clone()).await);
    }
}

/// Publishes snapshots to the page until it is dropped.
async fn publish(observer: &Observer, ctx: &TestContext, page: Option<&ServedPage>) -> Result<()> {
    let page = page.context("without a terminal, the actions need the web page (--web)")?;
    let mut ticks = interval(REFRESH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        page.publish(&observer.snapshot(ctx.cluster()));
    }
}

/// Reads the terminal's events in a thread, which blocks until the next one and ends with the process.
fn keys() -> Result<mpsc::Receiver<Event>> {
    let (events, keys) = mpsc::channel(WAITING_ACTIONS);
    std::thread::Builder::new()
        .name("keys".to_owned())
        .spawn(move || {
            while let Ok(event) = event::read() {
                if events.blocking_send(event).is_err() {
                    return;
                }
            }
        })
        .context("start the thread that reads keys")?;
    Ok(keys)
}
