//! The tour: an attach, a move, a failing driver, a killed attacher.

use anyhow::Result;

use super::{LATENCY, Script};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;
use crate::narrate::Narrator;
use crate::scenario::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};

/// The driver's error while its fault rule is set.
const REASON: &str = "all slots of the node are taken";

/// The playground's default script.
pub const TOUR: Script = Script {
    name: "tour",
    about: "A volume follows its pods through Kubernetes, the attacher and the driver.",
    config: ScenarioConfig {
        latency: LATENCY,
        ..ScenarioConfig::DEFAULT
    },
    has_replicas: false,
    run: |env, narrator| Box::pin(run(env, narrator)),
};

async fn run(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator
        .heading("1. A pod with a volume: the volume is attached to the pod's node before the pod runs.")
        .await?;
    let data = env.volume("data", Access::OneNode).await?;
    narrator.you("create claim and volume data, and pod web that mounts it, for node a");
    env.pod("web", A, &[&data]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;

    narrator
        .heading("2. The pod moves: the volume is detached from node a before it is attached to node b.")
        .await?;
    narrator.you("delete pod web and create pod web-2 with the same volume, for node b");
    env.delete_pod("web").await?;
    env.pod("web-2", B, &[&data]).await?;
    env.wait_until_running("web-2", STEP_TIMEOUT).await?;
    env.wait_until_detached(&data, A, STEP_TIMEOUT).await?;

    narrator
        .heading(
            "3. The driver fails, then recovers: its error appears in the VolumeAttachment and in an event of the pod.",
        )
        .await?;
    attach_despite_errors(env, narrator).await?;

    narrator
        .heading(
            "4. The attacher is killed during a driver call: the restarted attacher completes the attach.",
        )
        .await?;
    attach_despite_kill(env, narrator).await
}

async fn attach_despite_errors(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator.you("set a fault rule: the driver fails every attach");
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

async fn attach_despite_kill(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    let mute = FaultRule::delay_response("mute", Method::ControllerPublishVolume, STEP_TIMEOUT * 2);
    env.driver.set_faults(&[mute]).await?;
    let cache = env.volume("cache", Access::OneNode).await?;
    narrator.you("create claim and volume cache, and pod api that mounts it, for node b; the driver's response is delayed");
    env.pod("api", B, &[&cache]).await?;
    env.wait_until_published(&cache, B, true).await?;
    narrator.you("kill -9 the attacher: the array has attached the volume, but the response is lost");
    env.attacher.crash().await?;
    env.driver.clear_faults().await?;
    narrator.you("start the attacher again");
    env.attacher.revive().await?;
    env.wait_until_running("api", STEP_TIMEOUT).await
}
