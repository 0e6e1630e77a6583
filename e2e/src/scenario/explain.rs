//! A pod's volume gets stuck by several causes in turn, and `kubectl csi-attach explain` names the component that must act
//! and the reason.
//!
//! The attacher is ours or the Go one; the plugin runs with no more permissions than `deploy/components/explain` gives.

mod explain_cli;
mod lost_objects;
mod warnings;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use self::explain_cli::{Account, CLUSTER, Expected, ExplainCli};
pub(super) use self::lost_objects::SCENARIO as LOSSES;
pub(super) use self::warnings::{SHARED_NODE_ID, UNATTACHED};
use super::Scenario;
use super::test_env::{A, B, SECRET, STEP_TIMEOUT, TestEnv, TestVolume};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::{Access, SCENARIO_LABEL, attacher_finalizer, leader_lease_name};
use crate::objects;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "explain",
    "kubectl csi-attach explain names the component that must act next and the reason, or reports that no volume is stuck.",
    |env| Box::pin(run(env)),
);

/// A finalizer that no attacher knows.
const FOREIGN: &str = "example.com/hold";

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let cli = ExplainCli::new(env).await?;
    no_attacher(env, &cli).await?;
    driver_fails(env, &cli).await?;
    second_node(env, &cli).await?;
    before_the_call(env, &cli).await?;
    without_volume(env, &cli).await?;
    if env.ctx().cluster().has_authorization() {
        without_permissions(env, &cli).await?;
    }
    without_object(env, &cli).await?;
    cli.teardown(env).await
}

/// No attacher serves the driver; then a stale lease names the last one.
async fn no_attacher(env: &mut TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    env.attacher.crash().await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    let silent = Expected::stuck("attacher-silent", "attacher");
    cli.wait(env, "pod/web", silent.saying("external-attacher-leader-"))
        .await?;

    let name = leader_lease_name(env.driver.name());
    let renewed = Timestamp::now() - SignedDuration::from_mins(10);
    let lease = format!(
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: {name}, namespace: {}}}\n\
         spec: {{holderIdentity: gone-0, leaseDurationSeconds: 15, renewTime: \"{renewed:.6}\"}}\n",
        env.prefix()
    );
    env.ctx().cluster().apply(&lease).await?;
    let attachment = format!("va/{}", env.attachment_name(&volume, A));
    let stale = Expected::stuck("attacher-lease-expired", "attacher");
    cli.wait(env, &attachment, stale.saying("is held by gone-0"))
        .await?;
    let released = json!({"spec": {"holderIdentity": ""}});
    let leases = Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(env.client(), env.prefix());
    objects::patch(&leases, &name, &Patch::Merge(released)).await?;
    cli.wait(env, &attachment, Expected::stuck("no-leader", "attacher"))
        .await?;
    objects::delete(&leases, &name).await
}

/// The driver fails calls in two ways, and then succeeds.
async fn driver_fails(env: &mut TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    let fail = |code, message| FaultRule::fail("fails", Method::ControllerPublishVolume, code, message);
    env.driver
        .set_faults(&[fail("RESOURCE_EXHAUSTED", "no free slot")])
        .await?;
    env.attacher.revive().await?;
    let limit = Expected::stuck("attach-limit", "administrator");
    cli.wait(env, "pod/web", limit.saying("no free slot")).await?;
    env.driver
        .set_faults(&[fail("INTERNAL", "the shelf is on fire")])
        .await?;
    let fails = Expected::stuck("attach-fails", "driver");
    let fails = fails.saying("the shelf is on fire");
    cli.wait(env, "pv/data", fails.clone()).await?;
    cli.wait(env, CLUSTER, fails).await?;
    env.driver.clear_faults().await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    cli.wait(env, "pod/web", Expected::fine()).await?;
    let node = format!("node/{}", env.node(A).name());
    cli.wait(env, &node, Expected::fine()).await
}

/// A pod on a second node needs the volume while the first node uses it, and then while the detach from the first node fails.
async fn second_node(env: &mut TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    let volume = env.volume_named("data")?;
    env.pod("other", B, &[&volume]).await?;
    let taken = Expected::stuck("multi-attach", "administrator");
    cli.wait(env, "pod/other", taken.saying("/web uses it")).await?;

    let unplugged = FaultRule::fail(
        "unplugged",
        Method::ControllerUnpublishVolume,
        "UNAVAILABLE",
        "the shelf is unplugged",
    );
    env.driver.set_faults(&[unplugged]).await?;
    // The other finalizer's owner must remove it in the end.
    hold(
        env,
        &volume,
        json!([attacher_finalizer(env.driver.name()), FOREIGN]),
    )
    .await?;
    env.delete_pod("web").await?;
    let attachment = format!("va/{}", env.attachment_name(&volume, A));
    let fails = Expected::stuck("detach-fails", "driver").saying("the shelf is unplugged");
    cli.wait(env, &attachment, fails.clone()).await?;
    cli.wait(
        env,
        "pod/other",
        Expected::stuck("multi-attach", "driver").saying("the shelf is unplugged"),
    )
    .await?;

    env.driver.clear_faults().await?;
    let held = Expected::stuck("foreign-finalizer", "administrator").saying(FOREIGN);
    cli.wait(env, &attachment, held).await?;
    hold(env, &volume, Value::Null).await?;
    env.wait_until_running("other", STEP_TIMEOUT).await?;
    cli.wait(env, "pvc/data", Expected::fine()).await
}

/// Causes for which the attacher does not call the driver.
async fn before_the_call(env: &mut TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    let csi_nodes = Api::<CSINode>::all(env.client());
    let node = env.node(A).name().to_owned();
    let registered = csi_nodes.get(&node).await?.spec.drivers;
    let register = async |drivers: Value| {
        let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
        let patched = csi_nodes.patch(&node, &PatchParams::default(), &patch).await;
        patched.map(drop).context("change the node's drivers")
    };
    register(json!([])).await?;
    let volume = env.volume("third", Access::OneNode).await?;
    env.pod("third", A, &[&volume]).await?;
    let lacking = Expected::stuck("driver-not-on-node", "administrator");
    cli.wait(env, "pod/third", lacking.saying("does not contain driver"))
        .await?;

    let secrets = Api::<Secret>::namespaced(env.client(), env.prefix());
    let mut secret = secrets.get(SECRET).await?;
    objects::delete(&secrets, SECRET).await?;
    register(serde_json::to_value(registered)?).await?;
    let unreadable = Expected::stuck("secret-unreadable", "administrator");
    cli.wait(env, "pod/third", unreadable.saying("get secret publish-secret"))
        .await?;
    secret.metadata.resource_version = None;
    secret.metadata.uid = None;
    objects::create(&secrets, &secret).await?;
    env.wait_until_running("third", STEP_TIMEOUT).await
}

/// A claim without a volume.
async fn without_volume(env: &mut TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    let prefix = env.prefix();
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\n\
         metadata: {{name: lonely, namespace: {prefix}, labels: {{{SCENARIO_LABEL}: {prefix}}}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: \"\", resources: {{requests: {{storage: 1Gi}}}}}}\n"
    );
    env.ctx().cluster().apply(&claim).await?;
    let lonely = TestVolume {
        pv: String::new(),
        claim: "lonely".to_owned(),
        handle: String::new(),
        access: Access::OneNode,
    };
    env.pod("lonely", A, &[&lonely]).await?;
    let pending = Expected::stuck("claim-pending", "administrator");
    cli.wait(env, "pod/lonely", pending.saying("no StorageClass"))
        .await
}

/// A ServiceAccount that may read only some of the objects gets an explanation from those, and a list of the others.
async fn without_permissions(env: &mut TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    let volume = env.volume_named("third")?;
    let attachment = format!("va/{}", env.attachment_name(&volume, A));
    let output = cli.run_json(Account::Unprivileged, env, &attachment).await?;
    let gaps = output.json["gaps"].to_string();
    for part in [
        "leases in all namespaces: forbidden",
        "persistentvolumeclaims: forbidden",
        "nodes: forbidden",
    ] {
        ensure!(gaps.contains(part), "no {part:?} among the gaps: {output:?}");
    }
    ensure!(
        output.code == 0,
        "a volume that is attached according to the readable objects must not be stuck: {output:?}"
    );
    let refused = cli.run_json(Account::Unprivileged, env, "pod/third").await?;
    ensure!(
        refused.code == 2 && refused.stderr.contains("forbidden"),
        "a pod that may not be read cannot be explained: {refused:?}"
    );
    Ok(())
}

async fn without_object(env: &mut TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    for nowhere in ["pod/nowhere", "node/nowhere"] {
        let absent = cli.run_json(Account::Explain, env, nowhere).await?;
        ensure!(
            absent.code == 2 && absent.stderr.contains("there is no such object"),
            "an absent object must end with code 2: {absent:?}"
        );
    }
    Ok(())
}

/// Sets all finalizers of the attachment to node A.
async fn hold(env: &TestEnv<'_>, volume: &TestVolume, finalizers: Value) -> Result<()> {
    let attachments = Api::<VolumeAttachment>::all(env.client());
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let name = env.attachment_name(volume, A);
    let patched = attachments.patch(&name, &PatchParams::default(), &patch).await;
    patched.map(drop).context("change the attachment's finalizers")
}
