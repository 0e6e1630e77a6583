//! Failover between two replicas; at most one holds the Lease.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use tokio::sync::watch;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::attacher::{AttacherProcess, Kind, LEASE_DURATION};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::Call;
use crate::fixture::Access;
use crate::invariant::observations::WatchEvent;

pub(super) const STOPS: Scenario = Scenario::new(
    "leader-stops",
    "The leader gets SIGTERM and releases the lease; the standby continues attaching.",
    |env| Box::pin(stops(env)),
);

pub(super) const CUT_OFF: Scenario = Scenario::new(
    "leader-cut-off",
    "The leader gets SIGTERM and a running call outlasts the grace period: the standby waits until the lease expires.",
    |env| Box::pin(cut_off(env)),
)
.with_config(ScenarioConfig {
    timeout: Duration::from_secs(60),
    own_flags: &["--shutdown-grace=500ms"],
    ..ScenarioConfig::DEFAULT
});

pub(super) const KILLED: Scenario = Scenario::new(
    "leader-killed",
    "The leader is killed: the standby takes over when the lease has expired.",
    |env| Box::pin(killed(env)),
);

// The Go attacher exits when the connection is lost; the scenario restarts it.
pub(super) const LOSES_DRIVER: Scenario = Scenario::new(
    "leader-loses-driver",
    "The leader loses the connection to its driver and the standby takes over; our attacher does not exit.",
    |env| Box::pin(loses_driver(env)),
);

pub(super) const SUSPENDED: Scenario = Scenario::new(
    "leader-suspended",
    "A leader suspended until another replica leads makes no write and no call when it resumes.",
    |env| Box::pin(suspended(env)),
)
// A resumed Go leader processes its queue until its next renewal fails, and repeats the unpublishes of its successor.
.with_go(ExpectedOutcome::may_fail(
    KnownIssue(24),
    "a replica called the driver or wrote when the suspended leader resumed",
));

/// Two replicas; `one` is the leader.
async fn leader_and_standby(env: &mut TestEnv<'_>) -> Result<(History, AttacherProcess, AttacherProcess)> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let first = env.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let second = env.replica(kind, "two").await?;
    Ok((history, first, second))
}

async fn stops(env: &mut TestEnv<'_>) -> Result<()> {
    let (mut history, mut first, mut second) = leader_and_standby(env).await?;
    env.running_pod("before", A, "before").await?;

    first.stop().await?;
    history.wait_for_holder("two").await?;
    let holders = history.holders();
    // The Go attacher does not release the Lease, so the other replica waits for its expiry.
    ensure!(
        env.attacher.kind() == Kind::Go || holders == ["one", "", "two"],
        "the leader did not release the lease after SIGTERM, or its successor did not take it: {holders:?}"
    );
    env.running_pod("after", B, "after").await?;
    history.ensure_one_at_a_time(2)?;
    second.stop().await?;
    env.attacher.revive().await
}

async fn cut_off(env: &mut TestEnv<'_>) -> Result<()> {
    let (mut history, mut first, mut second) = leader_and_standby(env).await?;

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
    let (mut history, mut first, mut second) = leader_and_standby(env).await?;
    env.running_pod("before", A, "before").await?;

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
    env.running_pod("before", A, "before").await?;

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
    env.running_pod("after", B, "after").await?;
    history.ensure_one_at_a_time(3)?;
    first.stop().await?;
    env.attacher.revive().await
}

async fn suspended(env: &mut TestEnv<'_>) -> Result<()> {
    let (mut history, mut first, mut second) = leader_and_standby(env).await?;
    env.running_pod("before", A, "before").await?;

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

/// All publishes, unpublishes and writes of replicas so far, and the version of each attachment.
async fn activity(env: &TestEnv<'_>) -> Result<(Vec<Call>, usize, Vec<(String, Option<String>)>)> {
    let calls = env.driver.calls()?.into_iter();
    let calls =
        calls.filter(|call| call.method.ends_with("publishVolume") || call.method.ends_with("PublishVolume"));
    let versions = env.attachments().await?.into_iter();
    let versions = versions.map(|attachment| (attachment.name_any(), attachment.resource_version()));
    Ok((calls.collect(), env.writes_of_replicas(), versions.collect()))
}

/// All states of the test environment's Lease.
pub struct History(watch::Receiver<Vec<WatchEvent<Lease>>>);

// === impl History ===

impl History {
    /// Stops the test environment's own attacher, which runs without leader election.
    pub async fn begin(env: &mut TestEnv<'_>) -> Result<Self> {
        env.attacher.crash().await?;
        Ok(Self(env.recorder().leases()))
    }

    /// Waits until this replica holds the lease.
    pub async fn wait_for_holder(&mut self, holder: &str) -> Result<()> {
        let holds =
            |events: &Vec<WatchEvent<Lease>>| events.last().is_some_and(|seen| holder_of(seen) == holder);
        let held = tokio::time::timeout(STEP_TIMEOUT, self.0.wait_for(holds)).await;
        let held = held.map(|held| held.map(drop));
        held.with_context(|| {
            let holders = self.holders();
            format!("waited {STEP_TIMEOUT:?} for {holder} to hold the lease: its holders were {holders:?}")
        })??;
        Ok(())
    }

    /// The holders of the lease, in order; a released lease has an empty one.
    fn holders(&self) -> Vec<String> {
        let mut holders: Vec<_> = self.0.borrow().iter().map(holder_of).collect();
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
        self.0.borrow().iter().any(|seen| holder_of(seen).is_empty())
    }

    /// Fails if the Lease was acquired before it expired, or leaseTransitions did not increase.
    pub fn ensure_one_at_a_time(&self, terms: i32) -> Result<()> {
        let states = self.0.borrow();
        for (earlier, later) in states.iter().zip(states.iter().skip(1)) {
            let (before, holder) = (holder_of(earlier), holder_of(later));
            if before.is_empty() || holder.is_empty() || holder == before {
                continue;
            }
            // A replica measures the time from its observation of a renewal, which is later than `renewTime`.
            let (earlier, later) = (earlier.object.spec.as_ref(), later.object.spec.as_ref());
            let renewed = earlier.and_then(|spec| spec.renew_time.as_ref());
            let acquired = later.and_then(|spec| spec.acquire_time.as_ref());
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
        let transitions = last.object.spec.as_ref().and_then(|spec| spec.lease_transitions);
        ensure!(
            transitions == Some(terms - 1),
            "{terms} replicas led one after the other, and the lease counts {transitions:?} transitions"
        );
        Ok(())
    }
}

fn holder_of(seen: &WatchEvent<Lease>) -> String {
    let spec = seen.object.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.clone())
        .unwrap_or_default()
}
