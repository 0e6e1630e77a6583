//! Two attachers and one lease: it passes from one to the other, whatever becomes of the first, and never do
//! two hold it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::stage::{A, B, PATIENCE, Setting, Stage};
use super::{Oddity, Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::Call;
use crate::fixture::Access;
use crate::subject::{Kind, LEASE_DURATION};
use crate::wait::{self, Progress};

/// How much later than the attachers the harness may see a change of the lease on a busy machine.
const LAG: Duration = Duration::from_millis(700);

const SETTING: Setting = Setting::DEFAULT;

pub(super) const STOPS: Scenario = Scenario {
    name: "leader-stops",
    about: "The leader is asked to stop: the standby takes over and goes on attaching.",
    setting: SETTING,
    go: Verdict::Passes,
    play: |stage| Box::pin(stops(stage)),
};

pub(super) const CUT_OFF: Scenario = Scenario {
    name: "leader-cut-off",
    about: "The leader is asked to stop and has no time for a call that is under way: the standby waits for the lease to lapse.",
    setting: Setting {
        timeout: Duration::from_secs(60),
        own_flags: &["--shutdown-grace=500ms"],
        ..SETTING
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(cut_off(stage)),
};

pub(super) const KILLED: Scenario = Scenario {
    name: "leader-killed",
    about: "The leader is killed: the standby takes over when the lease has lapsed.",
    setting: SETTING,
    go: Verdict::Passes,
    play: |stage| Box::pin(killed(stage)),
};

pub(super) const LOSES_DRIVER: Scenario = Scenario {
    name: "leader-loses-driver",
    about: "The leader's driver is gone and the standby's is there: the standby takes over; ours never ends for it.",
    setting: SETTING,
    // It exits when the connection is lost and is started again, which the scenario allows it.
    go: Verdict::Passes,
    play: |stage| Box::pin(loses_driver(stage)),
};

pub(super) const SUSPENDED: Scenario = Scenario {
    name: "leader-suspended",
    about: "The leader stands still until another leads: back again, it does nothing more.",
    setting: SETTING,
    // A leader that comes back works off what it holds until its next renewal tells it that it leads no more: it
    // unpublishes what its successor has unpublished.
    go: Verdict::Fails {
        oddity: Oddity::FoundHere,
        sign: "somebody called the driver or wrote when the suspended leader came back",
        always: false,
    },
    play: |stage| Box::pin(suspended(stage)),
};

pub(super) const CHANGES_KIND: Scenario = Scenario {
    name: "leader-changes-kind",
    about: "From the other kind of attacher to this one and back, replica by replica, while pods come.",
    setting: SETTING,
    go: Verdict::Passes,
    play: |stage| Box::pin(changes_kind(stage)),
};

async fn stops(stage: &mut Stage<'_>) -> Result<()> {
    let kind = stage.subject.kind();
    let mut history = History::begin(stage).await?;
    let mut first = stage.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = stage.replica(kind, "two").await?;
    attach(stage, "before", A).await?;

    let asked = Instant::now();
    first.stop().await?;
    history.wait_for_holder("two").await?;
    let took = asked.elapsed();
    tracing::info!(%kind, ?took, "handed over");
    // The Go one does not give the lease back, so the other waits for its end.
    ensure!(
        kind == Kind::Go || took < LEASE_DURATION,
        "the lease changed hands only {took:?} after its holder was asked to stop"
    );
    attach(stage, "after", B).await?;
    history.ensure_one_at_a_time(2)?;
    second.stop().await?;
    stage.subject.revive().await
}

async fn cut_off(stage: &mut Stage<'_>) -> Result<()> {
    let kind = stage.subject.kind();
    let mut history = History::begin(stage).await?;
    let mut first = stage.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = stage.replica(kind, "two").await?;

    let hangs = FaultRule::hang_after_effect("hangs", Method::ControllerPublishVolume);
    stage.driver.set_faults(&[hangs]).await?;
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;
    let node_id = stage.node(A).node_id().to_owned();
    stage
        .driver
        .wait_until_published(&volume.handle, &node_id, true, PATIENCE)
        .await?;
    first.stop().await?;
    stage.driver.set_faults(&[]).await?;
    history.wait_for_holder("two").await?;
    stage.wait_until_running("web", PATIENCE).await?;
    ensure!(
        !history.holders().contains(&String::new()),
        "the lease was given back although the driver was at a call: {:?}",
        history.holders()
    );
    history.ensure_one_at_a_time(2)?;
    second.stop().await?;
    stage.subject.revive().await
}

async fn killed(stage: &mut Stage<'_>) -> Result<()> {
    let kind = stage.subject.kind();
    let mut history = History::begin(stage).await?;
    let mut first = stage.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = stage.replica(kind, "two").await?;
    attach(stage, "before", A).await?;

    first.crash().await?;
    let volume = stage.volume("after", Access::OneNode).await?;
    stage.pod("after", B, &[&volume]).await?;
    history.wait_for_holder("two").await?;
    stage.wait_until_running("after", PATIENCE).await?;
    history.ensure_one_at_a_time(2)?;
    second.stop().await?;
    stage.subject.revive().await
}

async fn loses_driver(stage: &mut Stage<'_>) -> Result<()> {
    let kind = stage.subject.kind();
    let mut history = History::begin(stage).await?;
    let detour = stage.detour()?;
    let mut first = stage.replica_over(&detour, kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = stage.replica(kind, "two").await?;
    attach(stage, "before", A).await?;

    drop(detour);
    let volume = stage.volume("during", Access::OneNode).await?;
    stage.pod("during", B, &[&volume]).await?;
    history.wait_for_holder("two").await?;
    stage.wait_until_running("during", PATIENCE).await?;

    // The Go one does not give the lease back, so the other waits for its end.
    ensure!(
        kind == Kind::Go || history.was_given_back(),
        "the leader without a driver did not give the lease back"
    );

    // It has its driver back, and is as good a successor as any.
    let _detour = stage.detour()?;
    second.stop().await?;
    history.wait_for_holder("one").await?;
    attach(stage, "after", B).await?;
    history.ensure_one_at_a_time(3)?;
    first.stop().await?;
    stage.subject.revive().await
}

async fn suspended(stage: &mut Stage<'_>) -> Result<()> {
    let kind = stage.subject.kind();
    let mut history = History::begin(stage).await?;
    let mut first = stage.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = stage.replica(kind, "two").await?;
    attach(stage, "before", A).await?;

    first.suspend()?;
    // What it hears of when it is back, and must leave to the other.
    let volume = stage.volume("during", Access::OneNode).await?;
    stage.pod("during", B, &[&volume]).await?;
    stage.delete_pod("before").await?;
    history.wait_for_holder("two").await?;
    stage.wait_until_running("during", PATIENCE).await?;
    stage.settle().await?;

    let done = deeds(stage).await?;
    first.resume()?;
    first.wait_for_surprise_ends(1, PATIENCE).await?;
    ensure!(
        deeds(stage).await? == done,
        "somebody called the driver or wrote when the suspended leader came back"
    );
    history.ensure_one_at_a_time(2)?;
    first.stop().await?;
    second.stop().await?;
    stage.subject.revive().await
}

async fn changes_kind(stage: &mut Stage<'_>) -> Result<()> {
    let kind = stage.subject.kind();
    let other = match kind {
        Kind::Ours => Kind::Go,
        Kind::Go => Kind::Ours,
    };
    let mut history = History::begin(stage).await?;
    let mut first = stage.replica(other, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = stage.replica(kind, "two").await?;
    attach(stage, "before", A).await?;

    let upgrade = come(stage, "up").await?;
    first.stop().await?;
    history.wait_for_holder("two").await?;
    for pod in &upgrade {
        stage.wait_until_running(pod, PATIENCE).await?;
    }
    let mut third = stage.replica(other, "three").await?;
    let downgrade = come(stage, "down").await?;
    second.stop().await?;
    history.wait_for_holder("three").await?;
    for pod in &downgrade {
        stage.wait_until_running(pod, PATIENCE).await?;
    }
    history.ensure_one_at_a_time(3)?;
    third.stop().await?;
    stage.subject.revive().await
}

/// Pods that come without anybody waiting for them.
async fn come(stage: &mut Stage<'_>, name: &str) -> Result<Vec<String>> {
    let mut pods = Vec::new();
    for (number, node) in [A, B, A, B].into_iter().enumerate() {
        let pod = format!("{name}-{number}");
        let volume = stage.volume(&pod, Access::OneNode).await?;
        stage.pod(&pod, node, &[&volume]).await?;
        pods.push(pod);
    }
    Ok(pods)
}

async fn attach(stage: &mut Stage<'_>, name: &str, node: usize) -> Result<()> {
    let volume = stage.volume(name, Access::OneNode).await?;
    stage.pod(name, node, &[&volume]).await?;
    stage.wait_until_running(name, PATIENCE).await
}

/// Every publish and unpublish so far, and the version of every attachment.
async fn deeds(stage: &Stage<'_>) -> Result<(Vec<Call>, Vec<(String, Option<String>)>)> {
    let calls = stage.driver.calls()?.into_iter();
    let calls =
        calls.filter(|call| call.method.ends_with("publishVolume") || call.method.ends_with("PublishVolume"));
    let versions = stage.attachments().await?.into_iter();
    let versions = versions.map(|attachment| (attachment.name_any(), attachment.resource_version()));
    Ok((calls.collect(), versions.collect()))
}

/// Every state of the stage's lease, and when it was seen.
struct History {
    states: watch::Receiver<Vec<(Instant, Lease)>>,
    api: Api<Lease>,
    name: String,
    _watching: JoinSet<()>,
}

// === impl History ===

impl History {
    /// Takes the stage's own attacher, which knows of no lease, out of the way, and looks at the lease from now on.
    async fn begin(stage: &mut Stage<'_>) -> Result<Self> {
        stage.subject.crash().await?;
        let finalizer = stage.finalizer();
        let driver = finalizer
            .strip_prefix("external-attacher/")
            .context("the finalizer has another form")?;
        let name = format!("external-attacher-leader-{driver}");
        let api = Api::<Lease>::namespaced(stage.client(), stage.prefix());
        let (states_tx, states) = watch::channel(Vec::new());
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let events = watcher(api.clone(), config);
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            let mut events = std::pin::pin!(events);
            loop {
                match events.try_next().await {
                    Ok(Some(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => {
                        states_tx.send_modify(|states| states.push((Instant::now(), lease)));
                    }
                    Ok(Some(watcher::Event::Init | watcher::Event::InitDone | watcher::Event::Delete(_)))
                    | Err(_) => {}
                    Ok(None) => return,
                }
            }
        });
        Ok(Self {
            states,
            api,
            name,
            _watching: watching,
        })
    }

    async fn wait_for_holder(&mut self, holder: &str) -> Result<()> {
        let what = format!("{holder} to hold the lease");
        wait::for_object(&self.api, &self.name, PATIENCE, &what, |lease| {
            let held_by = lease.map(holder_of).unwrap_or_default();
            Progress::of(held_by == holder, || format!("{held_by:?} holds it"))
        })
        .await?;
        // So that the history has it too.
        let seen = |states: &Vec<(Instant, Lease)>| {
            states.last().is_some_and(|(_, lease)| holder_of(lease) == holder)
        };
        tokio::time::timeout(PATIENCE, self.states.wait_for(seen)).await??;
        Ok(())
    }

    /// Who held the lease, in order; nobody is an empty name.
    fn holders(&self) -> Vec<String> {
        let mut holders: Vec<_> = self
            .states
            .borrow()
            .iter()
            .map(|(_, lease)| holder_of(lease))
            .collect();
        holders.dedup();
        holders
    }

    /// Whether nobody held it once somebody had.
    fn was_given_back(&self) -> bool {
        let states = self.states.borrow();
        states.iter().any(|(_, lease)| holder_of(lease).is_empty())
    }

    /// Fails if the lease was taken from a holder who may still have believed that it was his, or changed hands
    /// without its count saying so.
    fn ensure_one_at_a_time(&self, terms: i32) -> Result<()> {
        let states = self.states.borrow();
        let mut held = None::<(&Instant, String)>;
        for (at, lease) in states.iter() {
            let holder = holder_of(lease);
            if let Some((seen, before)) = &held
                && !before.is_empty()
                && !holder.is_empty()
                && holder != *before
            {
                let silence = at.duration_since(**seen);
                ensure!(
                    silence + LAG >= LEASE_DURATION,
                    "{holder} took the lease {silence:?} after {before} had renewed it"
                );
            }
            held = Some((at, holder));
        }
        let last = states.last().context("there never was a lease")?;
        let transitions = last.1.spec.as_ref().and_then(|spec| spec.lease_transitions);
        ensure!(
            transitions == Some(terms - 1),
            "{terms} replicas led one after the other, and the lease counts {transitions:?} transitions"
        );
        Ok(())
    }
}

fn holder_of(lease: &Lease) -> String {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.clone())
        .unwrap_or_default()
}
