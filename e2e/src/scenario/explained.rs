//! A pod's volume gets stuck in one way after the other, and `csi-attacher explain` names who must act, and why.
//!
//! The attacher that is stuck is the subject, ours or the Go one; the one that explains is always ours, with no
//! more rights than `deploy/components/explain` gives.

mod asker;
mod losses;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use self::asker::{Asker, Expected, Reader};
pub(super) use self::losses::SCENARIO as LOSSES;
use super::stage::{A, B, PATIENCE, SECRET, Setting, Stage, StageVolume};
use super::{Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::{Access, SCENARIO_LABEL, attacher_finalizer};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "explained",
    about: "Whatever a volume waits for, an explanation names who must act and why, and says so when nothing is wrong.",
    setting: Setting::DEFAULT,
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

/// A finalizer that no attacher knows.
const FOREIGN: &str = "example.com/hold";

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let asker = Asker::new(stage).await?;
    no_attacher(stage, &asker).await?;
    driver_fails(stage, &asker).await?;
    second_node(stage, &asker).await?;
    before_the_call(stage, &asker).await?;
    without_volume(stage, &asker).await?;
    without_rights(stage, &asker).await?;
    asker.leave(stage).await
}

/// Nobody serves the driver; then a lease tells who did.
async fn no_attacher(stage: &mut Stage<'_>, asker: &Asker) -> Result<()> {
    stage.subject.crash().await?;
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;
    let silent = Expected::stuck("attacher-silent", "attacher");
    asker
        .wait(stage, "pod/web", silent.saying("external-attacher-leader-"))
        .await?;

    let name = lease_name(stage.driver.name());
    let renewed = Timestamp::now() - SignedDuration::from_mins(10);
    let lease = format!(
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: {name}, namespace: {}}}\n\
         spec: {{holderIdentity: gone-0, leaseDurationSeconds: 15, renewTime: \"{renewed:.6}\"}}\n",
        stage.prefix()
    );
    stage.site().cluster().apply(&lease).await?;
    let attachment = format!("va/{}", stage.attachment_name(&volume, A));
    let stale = Expected::stuck("attacher-lease-stale", "attacher");
    asker
        .wait(stage, &attachment, stale.saying("is held by gone-0"))
        .await?;
    let released = json!({"spec": {"holderIdentity": ""}});
    let leases = Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(stage.client(), stage.prefix());
    leases
        .patch(&name, &PatchParams::default(), &Patch::Merge(released))
        .await
        .context("give the lease back")?;
    asker
        .wait(stage, &attachment, Expected::stuck("nobody-leads", "attacher"))
        .await?;
    leases.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

/// The driver refuses, in two ways, and then does as asked.
async fn driver_fails(stage: &mut Stage<'_>, asker: &Asker) -> Result<()> {
    let fail = |code, message| FaultRule::fail("fails", Method::ControllerPublishVolume, code, message);
    stage
        .driver
        .set_faults(&[fail("RESOURCE_EXHAUSTED", "no free slot")])
        .await?;
    stage.subject.revive().await?;
    let limit = Expected::stuck("attach-limit", "person");
    asker.wait(stage, "pod/web", limit.saying("no free slot")).await?;
    stage
        .driver
        .set_faults(&[fail("INTERNAL", "the shelf is on fire")])
        .await?;
    let fails = Expected::stuck("attach-fails", "driver");
    asker
        .wait(stage, "pv/data", fails.saying("the shelf is on fire"))
        .await?;
    stage.driver.clear_faults().await?;
    stage.wait_until_running("web", PATIENCE).await?;
    asker.wait(stage, "pod/web", Expected::fine()).await?;
    let node = format!("node/{}", stage.node(A).name());
    asker.wait(stage, &node, Expected::fine()).await
}

/// A second node wants the volume, while it is used on the first and then while it does not get off it.
async fn second_node(stage: &mut Stage<'_>, asker: &Asker) -> Result<()> {
    let volume = stage.volume_named("data")?;
    stage.pod("other", B, &[&volume]).await?;
    let taken = Expected::stuck("multi-attach", "person");
    asker
        .wait(stage, "pod/other", taken.saying("/web uses it"))
        .await?;

    let unplugged = FaultRule::fail(
        "unplugged",
        Method::ControllerUnpublishVolume,
        "UNAVAILABLE",
        "the shelf is unplugged",
    );
    stage.driver.set_faults(&[unplugged]).await?;
    // Whoever holds the attachment beside the attacher must let go of it in the end.
    hold(
        stage,
        &volume,
        json!([attacher_finalizer(stage.driver.name()), FOREIGN]),
    )
    .await?;
    stage.delete_pod("web").await?;
    let attachment = format!("va/{}", stage.attachment_name(&volume, A));
    let fails = Expected::stuck("detach-fails", "driver").saying("the shelf is unplugged");
    asker.wait(stage, &attachment, fails.clone()).await?;
    asker
        .wait(
            stage,
            "pod/other",
            Expected::stuck("multi-attach", "driver").saying("the shelf is unplugged"),
        )
        .await?;

    stage.driver.clear_faults().await?;
    let held = Expected::stuck("foreign-finalizer", "person").saying(FOREIGN);
    asker.wait(stage, &attachment, held).await?;
    hold(stage, &volume, Value::Null).await?;
    stage.wait_until_running("other", PATIENCE).await?;
    asker.wait(stage, "pvc/data", Expected::fine()).await
}

/// What keeps the attacher from calling the driver at all.
async fn before_the_call(stage: &mut Stage<'_>, asker: &Asker) -> Result<()> {
    let csi_nodes = Api::<CSINode>::all(stage.client());
    let node = stage.node(A).name().to_owned();
    let registered = csi_nodes.get(&node).await?.spec.drivers;
    let register = async |drivers: Value| {
        let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
        let patched = csi_nodes.patch(&node, &PatchParams::default(), &patch).await;
        patched.map(drop).context("change the node's drivers")
    };
    register(json!([])).await?;
    let volume = stage.volume("third", Access::OneNode).await?;
    stage.pod("third", A, &[&volume]).await?;
    let lacking = Expected::stuck("driver-not-on-node", "person");
    asker
        .wait(stage, "pod/third", lacking.saying("does not contain driver"))
        .await?;

    let secrets = Api::<Secret>::namespaced(stage.client(), stage.prefix());
    let mut secret = secrets.get(SECRET).await?;
    secrets.delete(SECRET, &DeleteParams::default()).await?;
    register(serde_json::to_value(registered)?).await?;
    let unreadable = Expected::stuck("secret-unreadable", "person");
    asker
        .wait(stage, "pod/third", unreadable.saying("get secret publish-secret"))
        .await?;
    secret.metadata.resource_version = None;
    secret.metadata.uid = None;
    secrets.create(&PostParams::default(), &secret).await?;
    stage.wait_until_running("third", PATIENCE).await
}

/// A claim for which there is no volume.
async fn without_volume(stage: &mut Stage<'_>, asker: &Asker) -> Result<()> {
    let prefix = stage.prefix();
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\n\
         metadata: {{name: lonely, namespace: {prefix}, labels: {{{SCENARIO_LABEL}: {prefix}}}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: \"\", resources: {{requests: {{storage: 1Gi}}}}}}\n"
    );
    stage.site().cluster().apply(&claim).await?;
    let lonely = StageVolume {
        pv: String::new(),
        claim: "lonely".to_owned(),
        handle: String::new(),
        access: Access::OneNode,
    };
    stage.pod("lonely", A, &[&lonely]).await?;
    let pending = Expected::stuck("claim-pending", "person");
    asker
        .wait(stage, "pod/lonely", pending.saying("no StorageClass"))
        .await
}

/// Whoever may see a part only is told that part, and what is missing.
async fn without_rights(stage: &mut Stage<'_>, asker: &Asker) -> Result<()> {
    let volume = stage.volume_named("third")?;
    let attachment = format!("va/{}", stage.attachment_name(&volume, A));
    let told = asker.ask(Reader::Stranger, stage, &attachment).await?;
    let gaps = told.answer["gaps"].to_string();
    for part in [
        "leases in all namespaces: forbidden",
        "persistentvolumeclaims: forbidden",
        "nodes: forbidden",
    ] {
        ensure!(gaps.contains(part), "no {part:?} among the gaps: {told:?}");
    }
    ensure!(
        told.code == 0,
        "what is attached as far as can be seen is not stuck: {told:?}"
    );
    let refused = asker.ask(Reader::Stranger, stage, "pod/third").await?;
    ensure!(
        refused.code == 2 && refused.stderr.contains("forbidden"),
        "a pod that may not be read cannot be explained: {refused:?}"
    );
    for nowhere in ["pod/nowhere", "node/nowhere"] {
        let absent = asker.ask(Reader::Explain, stage, nowhere).await?;
        ensure!(
            absent.code == 2 && absent.stderr.contains("there is no such object"),
            "what is not there cannot be explained: {absent:?}"
        );
    }
    Ok(())
}

/// Sets all finalizers of the attachment to node A.
async fn hold(stage: &Stage<'_>, volume: &StageVolume, finalizers: Value) -> Result<()> {
    let attachments = Api::<VolumeAttachment>::all(stage.client());
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let name = stage.attachment_name(volume, A);
    let patched = attachments.patch(&name, &PatchParams::default(), &patch).await;
    patched.map(drop).context("change the attachment's finalizers")
}

/// The name by which attachers of a driver find their lease.
fn lease_name(driver: &str) -> String {
    let finalizer = attacher_finalizer(driver);
    finalizer.replace("external-attacher/", "external-attacher-leader-")
}
