//! Five typical incidents in clusters, each as a script that explains events and causes.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{LATENCY, Script};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::narrate::Narrator;
use crate::scenario::driver_restarts::{hold, kill_in_the_middle};
use crate::scenario::leader::{History, attach};
use crate::scenario::move_order;
use crate::scenario::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};

/// Number of volumes in the burst.
const BURST: usize = 12;
/// The array's error when it refuses to detach.
const LOCKED: &str = "the port is locked";
/// The scheduler's message about a node at its limit.
const FULL: &str = "node(s) exceed max volume count";

const CONFIG: ScenarioConfig = ScenarioConfig {
    latency: LATENCY,
    ..ScenarioConfig::DEFAULT
};

/// All stories.
pub const STORIES: &[Script] = &[
    Script {
        name: "multi-attach-after-node-loss",
        about: "A node with a mounted volume is lost. The replacement pod cannot use the volume until an \
                administrator adds the out-of-service taint to the node.",
        config: CONFIG,
        has_replicas: false,
        run: |env, narrator| Box::pin(multi_attach_after_node_loss(env, narrator)),
    },
    Script {
        name: "stuck-detach",
        about: "The array refuses to detach a volume that a pod on another node needs.",
        config: CONFIG,
        has_replicas: false,
        run: |env, narrator| Box::pin(stuck_detach(env, narrator)),
    },
    Script {
        name: "driver-restart-in-burst",
        about: "The driver is killed while it attaches many volumes, and again while it detaches them.",
        config: ScenarioConfig {
            latency: Duration::from_millis(100),
            ..CONFIG
        },
        has_replicas: false,
        run: |env, narrator| Box::pin(driver_restart_in_burst(env, narrator)),
    },
    Script {
        name: "leader-hand-over",
        about: "The leading attacher is killed, and a standby takes over when the lease has expired. The next leader \
                is stopped by SIGTERM and releases the lease, so that the standby takes over at once.",
        config: CONFIG,
        has_replicas: true,
        run: |env, narrator| Box::pin(leader_hand_over(env, narrator)),
    },
    Script {
        name: "attach-limit",
        about: "A node is at its attach limit, and a new pod needs another volume.",
        config: ScenarioConfig {
            driver_flags: &["--attach-limit=1"],
            nodes: 1,
            ..CONFIG
        },
        has_replicas: false,
        run: |env, narrator| Box::pin(attach_limit(env, narrator)),
    },
];

/// The story of this name.
///
/// # Errors
/// No story has this name; the error lists all stories.
pub fn named(name: &str) -> Result<&'static Script, String> {
    let story = STORIES.iter().find(|story| story.name == name);
    story.ok_or_else(list)
}

/// Name and description of all stories.
pub fn list() -> String {
    let story = |Script { name, about, .. }: &Script| format!("\n\n  {name}\n      {about}");
    let stories: String = STORIES.iter().map(story).collect();
    format!("the stories are:{stories}")
}

async fn multi_attach_after_node_loss(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator
        .heading("1. Pod db runs on node a. Its volume is ReadWriteOnce: it may be attached to one node at a time.")
        .await?;
    let data = running_pod(env, narrator, "data", "db", A).await?;

    narrator
        .heading(
            "2. Node a is lost. Its kubelet can no longer report that data is unmounted, so the attach/detach \
             controller must assume that node a still writes to it, and does not attach it to node b: two nodes \
             that write to one filesystem corrupt it.",
        )
        .await?;
    narrator.you("stop node a, and create pod db-2 with the same volume, for node b");
    env.lose_node(A).await?;
    env.pod("db-2", B, &[&data]).await?;
    env.wait_for_event("db-2", "FailedAttachVolume", "Volume is already", STEP_TIMEOUT)
        .await?;
    ensure!(
        env.driver.calls()?.iter().all(|call| call.method != UNPUBLISH),
        "the volume was detached from a node that may still write to it"
    );

    narrator
        .heading(
            "3. The administrator knows that node a is shut down, and adds the out-of-service taint: once pod db \
             is deleted, the attach/detach controller detaches data without waiting for the unmount.",
        )
        .await?;
    narrator.you("taint node a with node.kubernetes.io/out-of-service, and delete pod db");
    env.mark_out_of_service(A, "db", &data).await?;
    env.wait_until_running("db-2", STEP_TIMEOUT).await?;
    env.wait_until_detached(&data, A, STEP_TIMEOUT).await?;
    move_order::ensure_detached_before_attach(env, &data, A, B).map(drop)
}

async fn stuck_detach(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator
        .heading("1. Pod db runs on node a with volume data.")
        .await?;
    let data = running_pod(env, narrator, "data", "db", A).await?;

    narrator
        .heading(
            "2. The pod moves to node b, but the array fails to detach data from node a. The attacher keeps \
             its finalizer on the VolumeAttachment, reports the driver's error in status.detachError, and retries \
             with exponential backoff.",
        )
        .await?;
    narrator.you("set a fault rule: the driver fails every detach");
    let locked = FaultRule::fail("locked", Method::ControllerUnpublishVolume, "INTERNAL", LOCKED);
    env.driver.set_faults(&[locked]).await?;
    narrator.you("delete pod db, and create pod db-2 with the same volume, for node b");
    env.delete_pod("db").await?;
    env.pod("db-2", B, &[&data]).await?;
    env.wait_for_detach_error(&data, A, LOCKED).await?;

    narrator
        .heading(
            "3. Pod db-2 waits. Removing the finalizer manually would attach the volume to node b while the array \
             still has it attached to node a. The array must be repaired instead.",
        )
        .await?;
    env.ensure_not_running("db-2").await?;
    let node_id = env.node(B).node_id();
    ensure!(
        env.driver
            .calls()?
            .iter()
            .all(|call| call.method != PUBLISH || call.node != node_id),
        "the volume was attached to node b while it was on node a"
    );

    narrator
        .heading("4. The array is repaired. The attacher's next retry succeeds, and the volume moves.")
        .await?;
    narrator.you("remove the fault rule");
    env.driver.clear_faults().await?;
    env.wait_until_running("db-2", STEP_TIMEOUT).await?;
    move_order::ensure_detached_before_attach(env, &data, A, B).map(drop)
}

async fn driver_restart_in_burst(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator
        .heading(&format!(
            "1. {BURST} pods start at once. The driver is killed in the middle: running calls end without \
             a response, and the attacher cannot know whether the array has attached their volumes. It keeps running, \
             reconnects, and retries the calls, which are idempotent according to the CSI specification."
        ))
        .await?;
    let volumes = env.many_volumes(BURST).await?;
    hold(env, Method::ControllerPublishVolume, &volumes[0]).await?;
    narrator.you("create the pods, half of them for each node; kill -9 the driver and start it again");
    for (index, volume) in volumes.iter().enumerate() {
        env.pod(&format!("web-{index}"), [A, B][index % 2], &[volume])
            .await?;
    }
    kill_in_the_middle(env, PUBLISH, &volumes[0]).await?;
    env.wait_until_all_running(BURST, STEP_TIMEOUT).await?;
    let published = env.driver.published().await?.len();
    ensure!(published == BURST, "{published} of {BURST} volumes are published");

    narrator
        .heading(
            "2. All pods are deleted, and the driver is killed again. No VolumeAttachment is deleted before the driver has \
             confirmed the detach.",
        )
        .await?;
    hold(env, Method::ControllerUnpublishVolume, &volumes[0]).await?;
    narrator.you("delete the pods; kill -9 the driver and start it again");
    for index in 0..BURST {
        env.delete_pod(&format!("web-{index}")).await?;
    }
    kill_in_the_middle(env, UNPUBLISH, &volumes[0]).await?;
    for (index, volume) in volumes.iter().enumerate() {
        env.wait_until_detached(volume, [A, B][index % 2], STEP_TIMEOUT)
            .await?;
    }
    Ok(())
}

async fn leader_hand_over(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator
        .heading("1. Two attachers run. The one that holds the Lease is the leader; the other is on standby.")
        .await?;
    narrator.you("start attacher one, then attacher two, in place of the single one");
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let mut one = env.replica(kind, "one").await?;
    history.wait_for_holder("one").await?;
    let mut two = env.replica(kind, "two").await?;
    attach(env, "before", A).await?;

    narrator
        .heading(
            "2. The leader is killed. It does not release the Lease, and attacher two must not lead while attacher one may \
             still run: it waits until the Lease was not renewed for the whole lease duration. New volumes wait, too.",
        )
        .await?;
    narrator.you("kill -9 attacher one, and create pod after for node b");
    one.crash().await?;
    let volume = env.volume("after", Access::OneNode).await?;
    env.pod("after", B, &[&volume]).await?;
    history.wait_for_holder("two").await?;
    narrator.you("see that attacher two holds the Lease");
    env.wait_until_running("after", STEP_TIMEOUT).await?;

    narrator
        .heading(
            "3. The leader receives SIGTERM, as in a rolling update. It finishes its calls and releases the Lease, so \
             the standby becomes leader at once.",
        )
        .await?;
    narrator.you("start attacher three, and send SIGTERM to attacher two");
    let mut three = env.replica(kind, "three").await?;
    two.stop().await?;
    history.wait_for_holder("three").await?;
    narrator.you("see that attacher three holds the Lease");
    attach(env, "last", A).await?;
    history.ensure_one_at_a_time(3)?;
    three.stop().await?;
    env.attacher.revive().await
}

async fn attach_limit(env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
    narrator
        .heading(
            "1. The driver allows one volume per node. kubelet stores the limit in CSINode, and the scheduler enforces it.",
        )
        .await?;
    let first = running_pod(env, narrator, "first", "one", A).await?;

    narrator
        .heading(
            "2. Pod two needs a second volume. The scheduler leaves the pod pending instead of binding it to a node \
             where the attach would fail. Attacher and driver receive no request.",
        )
        .await?;
    let second = env.volume("second", Access::OneNode).await?;
    narrator.you("create claim and volume second, and pod two that mounts it");
    env.pod("two", A, &[&second]).await?;
    let message = env.wait_until_unschedulable("two", FULL).await?;
    narrator.you(&format!("read the condition PodScheduled of pod two: {message}"));
    ensure!(
        env.driver
            .calls()?
            .iter()
            .all(|call| call.method != PUBLISH || call.volume != second.handle),
        "the driver received an attach beyond its limit"
    );

    narrator
        .heading("3. Pod one is deleted, and the scheduler binds pod two. If the attach of its volume precedes the detach \
             of the other volume, the driver rejects it, and the attacher retries after the detach.")
        .await?;
    narrator.you("delete pod one");
    env.delete_pod("one").await?;
    env.wait_until_running("two", STEP_TIMEOUT).await?;
    env.wait_until_detached(&first, A, STEP_TIMEOUT).await
}

/// Creates a volume and a pod that mounts it, and waits until the pod runs.
async fn running_pod(
    env: &mut TestEnv<'_>,
    narrator: &Narrator,
    volume: &str,
    pod: &str,
    node: usize,
) -> Result<TestVolume> {
    let made = env.volume(volume, Access::OneNode).await?;
    let letter = ["a", "b"][node];
    narrator.you(&format!(
        "create claim and volume {volume}, and pod {pod} that mounts it, for node {letter}"
    ));
    env.pod(pod, node, &[&made]).await?;
    env.wait_until_running(pod, STEP_TIMEOUT).await?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_name_lists_every_story() {
        let Err(list) = named("") else {
            panic!("a story has no name");
        };
        assert_eq!(STORIES.len(), 5);
        for story in STORIES {
            assert!(list.contains(story.name) && list.contains(story.about), "{list}");
            assert!(named(story.name).is_ok());
        }
    }
}
