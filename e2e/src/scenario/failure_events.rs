//! The driver refuses to attach for a while; Events on the attachment and its volume report it, and the recovery.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;
use crate::wait::{self, Progress};

const REASON: &str = "the array is being painted";
/// Number of failed attempts before the driver recovers.
const FAILURES: i32 = 5;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "failure-events",
    "Repeated failures become one Event with a count on VolumeAttachment and PersistentVolume; so does the recovery.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE)
.with_go(ExpectedOutcome::fails(KnownIssue(18), "Event AttachFailed about"));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let broken = FaultRule::fail("paint", Method::ControllerPublishVolume, "INTERNAL", REASON);
    env.driver.set_faults(&[broken]).await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    let attachment = env.wait_until_attachment_exists(&volume, A).await?.name_any();
    let objects = [
        ("VolumeAttachment", &attachment),
        ("PersistentVolume", &volume.pv),
    ];
    for (kind, name) in objects {
        let event = wait_for_event(env, kind, name, "AttachFailed", FAILURES).await?;
        let message = event.message.context("an Event must have a message")?;
        ensure!(
            message.contains(REASON),
            "{kind}: the Event has the message \"{message}\""
        );
        ensure!(
            event.type_.as_deref() == Some("Warning"),
            "{kind}: it is no warning"
        );
    }
    env.driver.clear_faults().await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    for (kind, name) in objects {
        let event = wait_for_event(env, kind, name, "AttachRecovered", 1).await?;
        ensure!(
            event.type_.as_deref() == Some("Normal"),
            "{kind}: it is a warning"
        );
    }
    Ok(())
}

/// Waits until the only Event with this reason about an object has this count.
pub(super) async fn wait_for_event(
    env: &TestEnv<'_>,
    kind: &str,
    name: &str,
    reason: &str,
    count: i32,
) -> Result<Event> {
    let events = Api::<Event>::namespaced(env.client(), "default");
    let config = watcher::Config::default().fields(&format!(
        "involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
    ));
    let what = format!("the Event {reason} about {kind} {name} to count {count}");
    let found = wait::for_objects(&events, config, STEP_TIMEOUT, &what, |seen| {
        let counts: Vec<_> = seen.values().map(occurrences).collect();
        match seen.values().find(|event| occurrences(event) >= count) {
            Some(event) => Progress::Reached((event.clone(), seen.len())),
            None => Progress::Pending(format!("the counts so far: {counts:?}")),
        }
    });
    let (event, events) = found
        .await
        .with_context(|| format!("Event {reason} about {kind} {name}"))?;
    ensure!(
        events == 1,
        "there are {events} Events {reason} about {kind} {name}"
    );
    Ok(event)
}

/// Number of occurrences. events.k8s.io counts repetitions in a series, which the first Event lacks.
fn occurrences(event: &Event) -> i32 {
    let series = event.series.as_ref().and_then(|series| series.count);
    series.or(event.count).unwrap_or(1)
}
