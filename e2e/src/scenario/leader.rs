//! Failover between two replicas; at most one holds the Lease.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::attacher::{Kind, LEASE_DURATION};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::Call;
use crate::fixture::{Access, leader_lease_name};
use crate::wait::{self, Progress};

const CONFIG: ScenarioConfig = ScenarioConfig::DEFAULT;

pub(super) const STOPS: Scenario = Scenario {
    name: "leader-stops",
    about: "The leader gets SIGTERM and releases the lease; the standby continues attaching.",
    config: CONFIG,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(stops(env)),
};

pub(super) const CUT_OFF: Scenario = Scenario {
    name: "leader-cut-off",
    about: "The leader gets SIGTERM and a running call outlasts the grace period: the standby waits until the lease expires.",
    config: ScenarioConfig {
        timeout: Duration::from_secs(60),
        own_flags: &["--shutdown-grace=500ms"],
        ..CONFIG
    },
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(cut_off(env)),
};

pub(super) const KILLED: Scenario = Scenario {
    name: "leader-killed",
    about: "The leader is killed: the standby takes over when the lease has expired.",
    config: CONFIG,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(killed(env)),
};

pub(super) const LOSES_DRIVER: Scenario = Scenario {
    name: "leader-loses-driver",
    about: "The leader loses the connection to its driver and the standby takes over; our attacher does not exit.",
    config: CONFIG,
    // The Go attacher exits when the connection is lost; the scenario restarts it.
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(loses_driver(env)),
};

pub(super) const SUSPENDED: Scenario = Scenario {
    name: "leader-suspended",
    about: "A leader suspended until another replica leads makes no write and no call when it resumes.",
    config: CONFIG,
    // A resumed Go leader processes its queue until its next renewal fails, and repeats the unpublishes of its successor.
    go: ExpectedOutcome::Fails {
        issue: KnownIssue(24),
        expected_error: "a replica called the driver or wrote when the suspended leader resumed",
        always: false,
    },
    run: |env| Box::pin(suspended(env)),
};

async fn stops(env: &mut TestEnv<'_>) -> Result<()> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let mut first = env.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = env.replica(kind, "two").await?;
    attach(env, "before", A).await?;

    first.stop().await?;
    history.wait_for_holder("two").await?;
    let holders = history.holders();
    // The Go attacher does not release the Lease, so the other replica waits for its expiry.
    ensure!(
        kind == Kind::Go || holders == ["one", "", "two"],
        "the leader did not release the lease after SIGTERM, or its successor did not take it: {holders:?}"
    );
    attach(env, "after", B).await?;
    history.ensure_one_at_a_time(2)?;
    second.stop().await?;
    env.attacher.revive().await
}

async fn cut_off(env: &mut TestEnv<'_>) -> Result<()> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let mut first = env.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = env.replica(kind, "two").await?;

    let hangs = FaultRule::hang_after_effect("hangs", Method::ControllerPublishVolume);
    env.driver.set_faults(&[hangs]).await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_published(&volume, A, true).await?;
    first.stop().await?;
    env.driver.clear_faults().await?;
    history.wait_for_holder("two").await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    ensure!(
        !history.holders().contains(&String::new()),
        "the lease was given back although the driver was at a call: {:?}",
        history.holders()
    );
    history.ensure_one_at_a_time(2)?;
    second.stop().await?;
    env.attacher.revive().await
}

async fn killed(env: &mut TestEnv<'_>) -> Result<()> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let mut first = env.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = env.replica(kind, "two").await?;
    attach(env, "before", A).await?;

    first.crash().await?;
    let volume = env.volume("after", Access::OneNode).await?;
    env.pod("after", B, &[&volume]).await?;
    history.wait_for_holder("two").await?;
    env.wait_until_running("after", STEP_TIMEOUT).await?;
    history.ensure_one_at_a_time(2)?;
    second.stop().await?;
    env.attacher.revive().await
}

async fn loses_driver(env: &mut TestEnv<'_>) -> Result<()> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let socket_proxy = env.socket_proxy()?;
    let mut first = env.replica_over(&socket_proxy, kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = env.replica(kind, "two").await?;
    attach(env, "before", A).await?;

    drop(socket_proxy);
    let volume = env.volume("during", Access::OneNode).await?;
    env.pod("during", B, &[&volume]).await?;
    history.wait_for_holder("two").await?;
    env.wait_until_running("during", STEP_TIMEOUT).await?;

    // The Go attacher does not release the Lease, so the other replica waits for its expiry.
    ensure!(
        kind == Kind::Go || history.was_released(),
        "the leader without a driver did not give the lease back"
    );

    // The first replica reaches the driver again.
    let _socket_proxy = env.socket_proxy()?;
    second.stop().await?;
    history.wait_for_holder("one").await?;
    attach(env, "after", B).await?;
    history.ensure_one_at_a_time(3)?;
    first.stop().await?;
    env.attacher.revive().await
}

async fn suspended(env: &mut TestEnv<'_>) -> Result<()> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let mut first = env.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = env.replica(kind, "two").await?;
    attach(env, "before", A).await?;

    first.suspend()?;
    // Changes that it receives after it is resumed and must leave to the leader.
    let volume = env.volume("during", Access::OneNode).await?;
    env.pod("during", B, &[&volume]).await?;
    env.delete_pod("before").await?;
    history.wait_for_holder("two").await?;
    env.wait_until_running("during", STEP_TIMEOUT).await?;
    // An attachment also counts as settled before the attach/detach controller deletes it.
    let before = env.volume_named("before")?;
    env.wait_until_detached(&before, A, STEP_TIMEOUT).await?;
    env.settle().await?;

    let done = activity(env).await?;
    first.resume()?;
    first.wait_for_unexpected_exits(1, STEP_TIMEOUT).await?;
    ensure!(
        activity(env).await? == done,
        "a replica called the driver or wrote when the suspended leader resumed"
    );
    history.ensure_one_at_a_time(2)?;
    first.stop().await?;
    second.stop().await?;
    env.attacher.revive().await
}

pub(crate) async fn attach(env: &mut TestEnv<'_>, name: &str, node: usize) -> Result<()> {
    let volume = env.volume(name, Access::OneNode).await?;
    env.pod(name, node, &[&volume]).await?;
    env.wait_until_running(name, STEP_TIMEOUT).await
}

/// All publishes and unpublishes so far, and the version of each attachment.
async fn activity(env: &TestEnv<'_>) -> Result<(Vec<Call>, Vec<(String, Option<String>)>)> {
    let calls = env.driver.calls()?.into_iter();
    let calls =
        calls.filter(|call| call.method.ends_with("publishVolume") || call.method.ends_with("PublishVolume"));
    let versions = env.attachments().await?.into_iter();
    let versions = versions.map(|attachment| (attachment.name_any(), attachment.resource_version()));
    Ok((calls.collect(), versions.collect()))
}

/// All states of the test environment's Lease.
pub struct History {
    states: watch::Receiver<Vec<Lease>>,
    api: Api<Lease>,
    name: String,
    _watching: JoinSet<()>,
}

// === impl History ===

impl History {
    /// Stops the test environment's own attacher, which runs without leader election, and starts to record the Lease.
    pub async fn begin(env: &mut TestEnv<'_>) -> Result<Self> {
        env.attacher.crash().await?;
        let name = leader_lease_name(env.driver.name());
        let api = Api::<Lease>::namespaced(env.client(), env.prefix());
        let (states_tx, states) = watch::channel(Vec::new());
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let events = watcher(api.clone(), config);
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            let mut events = std::pin::pin!(events);
            loop {
                match events.try_next().await {
                    Ok(Some(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => {
                        states_tx.send_modify(|states| states.push(lease));
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

    /// Waits until this replica holds the lease.
    pub async fn wait_for_holder(&mut self, holder: &str) -> Result<()> {
        let what = format!("{holder} to hold the lease");
        wait::for_object(&self.api, &self.name, STEP_TIMEOUT, &what, |lease| {
            let held_by = lease.map(holder_of).unwrap_or_default();
            Progress::of(held_by == holder, || format!("{held_by:?} holds it"))
        })
        .await?;
        // Wait until the history includes it.
        let seen = |states: &Vec<Lease>| states.last().is_some_and(|lease| holder_of(lease) == holder);
        tokio::time::timeout(STEP_TIMEOUT, self.states.wait_for(seen)).await??;
        Ok(())
    }

    /// The holders of the lease, in order; a released lease has an empty one.
    fn holders(&self) -> Vec<String> {
        let mut holders: Vec<_> = self.states.borrow().iter().map(holder_of).collect();
        holders.dedup();
        holders
    }

    /// How many replicas have led so far, one after the other.
    pub fn terms(&self) -> i32 {
        let terms = self.holders().iter().filter(|holder| !holder.is_empty()).count();
        i32::try_from(terms).unwrap_or(i32::MAX)
    }

    /// Whether a holder released it.
    fn was_released(&self) -> bool {
        let states = self.states.borrow();
        states.iter().any(|lease| holder_of(lease).is_empty())
    }

    /// Fails if the Lease was acquired before it expired, or leaseTransitions did not increase.
    pub fn ensure_one_at_a_time(&self, terms: i32) -> Result<()> {
        let states = self.states.borrow();
        for (earlier, later) in states.iter().zip(states.iter().skip(1)) {
            let (before, holder) = (holder_of(earlier), holder_of(later));
            if before.is_empty() || holder.is_empty() || holder == before {
                continue;
            }
            // A replica measures the time from its observation of a renewal, which is later than `renewTime`.
            let renewed = earlier.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
            let acquired = later.spec.as_ref().and_then(|spec| spec.acquire_time.as_ref());
            let (renewed, acquired) = renewed
                .zip(acquired)
                .context("the Lease lacks renewTime or acquireTime")?;
            let silence = acquired.0.duration_since(renewed.0);
            ensure!(
                silence >= SignedDuration::try_from(LEASE_DURATION)?,
                "{holder} took the lease {silence:?} after {before} had renewed it"
            );
        }
        let last = states.last().context("there never was a lease")?;
        let transitions = last.spec.as_ref().and_then(|spec| spec.lease_transitions);
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
