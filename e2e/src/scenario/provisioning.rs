//! Volumes that an external-provisioner creates and deletes and an external-resizer expands, while the attacher attaches them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{
    EphemeralVolumeSource, PersistentVolume, PersistentVolumeClaimTemplate, TypedLocalObjectReference, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Patch;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::{ExpectedOutcome, Scenario};
use crate::cluster::ClusterSettings;
use crate::driver::journal::{Call, PUBLISH, UNPUBLISH};
use crate::fixture::{Access, mk_claim_of_class, mk_pod};
use crate::objects;
use crate::wait::{self, Progress};

/// The first of these scenarios waits for builds of the Go sidecars, which take minutes on two busy cores.
const WITHIN: Duration = Duration::from_secs(20 * 60);

pub(super) const PROVISIONED: Scenario = Scenario::new(
    "volumes-provisioned",
    "Volumes are provisioned at once, for their first pod and for a pod's ephemeral claim; a volume that is deleted with its claim is unpublished first, and one with reclaimPolicy Retain stays.",
    |env| Box::pin(provisioned(env)),
)
.with_config(ScenarioConfig {
    within: WITHIN,
    ..ScenarioConfig::DEFAULT
});

pub(super) const EXPANDED: Scenario = Scenario::new(
    "volume-expanded",
    "A volume is expanded while a pod uses it, without another publish, and attached elsewhere afterwards.",
    |env| Box::pin(expanded(env)),
)
.with_config(ScenarioConfig {
    within: WITHIN,
    // The simulated kubelet does not expand volumes.
    capabilities: "-NODE_EXPAND_VOLUME",
    ..ScenarioConfig::DEFAULT
})
.with_go(ExpectedOutcome::MAY_PUBLISH_TWICE);

pub(super) const RESTORED: Scenario = Scenario::new(
    "snapshot-restored",
    "A snapshot of an attached volume is taken and restored to another volume, which is attached to another node meanwhile.",
    |env| Box::pin(restored(env)),
)
.with_config(ScenarioConfig {
    within: WITHIN,
    // VolumeSnapshots' definitions are objects of the whole cluster.
    own_cluster: Some(ClusterSettings::DEFAULT),
    ..ScenarioConfig::DEFAULT
});

async fn provisioned(env: &mut TestEnv<'_>) -> Result<()> {
    env.start_provisioner().await?;
    let immediate = env.storage_class("immediate", "Immediate").await?;
    let late = env.storage_class("late", "WaitForFirstConsumer").await?;
    let retain = env.storage_class_with("retain", "Immediate", "Retain").await?;
    env.claim("late", &late).await?;
    env.claim("retained", &retain).await?;
    env.claim("now", &immediate).await?;
    let now = env.wait_until_provisioned("now").await?;
    let retained = env.wait_until_provisioned("retained").await?;
    let unbound = env.claims().get("late").await?;
    let volume = unbound.spec.and_then(|spec| spec.volume_name);
    ensure!(
        volume.is_none(),
        "volume {volume:?} was provisioned before the claim had a pod"
    );

    pod_with_ephemeral_volume(env, "web", &late).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    let late = env.wait_until_provisioned("late").await?;
    let ephemeral = env.wait_until_provisioned("web-scratch").await?;
    for volume in [&now, &late, &ephemeral] {
        ensure_held(env, volume).await?;
    }

    // Neither claim nor volume is deleted before the pod.
    env.delete_claim(&retained).await?;
    env.delete_claim(&now).await?;
    env.delete_pod("web").await?;
    env.wait_until_pod_gone("web", STEP_TIMEOUT).await?;
    for volume in [&now, &ephemeral] {
        env.wait_until_detached(volume, A, STEP_TIMEOUT).await?;
        wait::for_absence(
            &Api::<PersistentVolume>::all(env.client()),
            &volume.pv,
            STEP_TIMEOUT,
            &format!("the volume {} to be deleted", volume.pv),
        )
        .await?;
        ensure_deleted_last(&env.driver.calls()?, volume)?;
    }

    env.wait_until_detached(&retained, A, STEP_TIMEOUT).await?;
    env.wait_for_persistent_volume(&retained, STEP_TIMEOUT, "the volume to be released", |pv| {
        let phase = pv.and_then(|pv| pv.status.as_ref()?.phase.as_deref());
        Progress::of(phase == Some("Released"), || format!("its phase is {phase:?}"))
    })
    .await?;
    env.ensure_calls("DeleteVolume", &retained, 0)?;

    // The other claim keeps its volume, which can move.
    env.pod("again", B, &[&late]).await?;
    env.wait_until_running("again", STEP_TIMEOUT).await?;
    env.wait_until_detached(&late, A, STEP_TIMEOUT).await
}

async fn expanded(env: &mut TestEnv<'_>) -> Result<()> {
    env.start_provisioner().await?;
    env.start_resizer().await?;
    let class = env.storage_class("class", "WaitForFirstConsumer").await?;
    env.claim("data", &class).await?;
    env.claim_pod("web", A, "data").await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    let volume = env.wait_until_provisioned("data").await?;
    let publishes = env.driver.calls_to(PUBLISH, &volume.handle)?;

    let wanted = BTreeMap::from([("storage", EXPANDED_CAPACITY)]);
    let patch = Patch::Merge(json!({"spec": {"resources": {"requests": wanted}}}));
    objects::patch(&env.claims(), "data", &patch).await?;
    wait::for_object(
        &env.claims(),
        "data",
        STEP_TIMEOUT,
        "the claim to be expanded",
        |claim| {
            let capacity = claim
                .and_then(|claim| claim.status.as_ref()?.capacity.as_ref()?.get("storage"))
                .map(|quantity| quantity.0.as_str());
            Progress::of(capacity == Some(EXPANDED_CAPACITY), || {
                format!("its capacity is {capacity:?}")
            })
        },
    )
    .await?;
    let pv = env.persistent_volume(&volume).await?;
    let capacity = pv.spec.and_then(|spec| spec.capacity?.remove("storage"));
    ensure!(
        capacity == Some(Quantity(EXPANDED_CAPACITY.to_owned())),
        "the capacity of {} is {capacity:?}",
        volume.pv
    );
    ensure!(
        env.driver.calls_to("ControllerExpandVolume", &volume.handle)? > 0,
        "the driver got no call to expand the volume"
    );
    env.ensure_calls(PUBLISH, &volume, publishes)?;

    env.delete_pod("web").await?;
    env.pod("again", B, &[&volume]).await?;
    env.wait_until_running("again", STEP_TIMEOUT).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await
}

async fn restored(env: &mut TestEnv<'_>) -> Result<()> {
    env.start_snapshotter().await?;
    env.start_provisioner().await?;
    let class = env.storage_class("class", "WaitForFirstConsumer").await?;
    env.claim("data", &class).await?;
    env.claim_pod("web", A, "data").await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    let source = env.wait_until_provisioned("data").await?;

    let (namespace, driver) = (env.prefix(), env.driver.name());
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": SNAPSHOT, "namespace": namespace},
        "spec": {"volumeSnapshotClassName": namespace, "source": {"persistentVolumeClaimName": "data"}},
    });
    let snapshot_class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": namespace}, "driver": driver, "deletionPolicy": "Delete",
    });
    let objects = format!("{snapshot_class}\n---\n{snapshot}\n");
    env.ctx().cluster().apply(&objects).await?;
    let mut claim = mk_claim_of_class(namespace, "restored", &class, Access::OneNode);
    if let Some(spec) = &mut claim.spec {
        spec.data_source = Some(TypedLocalObjectReference {
            api_group: Some("snapshot.storage.k8s.io".to_owned()),
            kind: "VolumeSnapshot".to_owned(),
            name: SNAPSHOT.to_owned(),
        });
    }
    env.create_claim(&claim).await?;
    env.claim_pod("copy", B, "restored").await?;
    env.wait_until_running("copy", STEP_TIMEOUT).await?;
    let copy = env.wait_until_provisioned("restored").await?;
    ensure!(
        copy.handle != source.handle,
        "both claims have volume {}",
        copy.handle
    );
    env.wait_until_attachment_exists(&source, A).await?;
    ensure_restored(env, &source, &copy).await?;

    env.ctx().cluster().delete(&snapshot.to_string()).await?;
    env.driver
        .wait_for_calls(STEP_TIMEOUT, "the snapshot to be deleted", |calls| {
            let deleted = |call: &Call| call.method == "DeleteSnapshot" && call.succeeded();
            Progress::of(calls.iter().any(deleted), || "it is not".to_owned())
        })
        .await
}

/// Fails unless the driver created one snapshot, of `source`, and restored `copy` from it.
async fn ensure_restored(env: &TestEnv<'_>, source: &TestVolume, copy: &TestVolume) -> Result<()> {
    let calls = env.driver.calls()?;
    let taken = calls
        .iter()
        .any(|call| call.method == "CreateSnapshot" && call.succeeded());
    ensure!(taken, "no CreateSnapshot succeeded");
    let array = env.driver.admin()?;
    let snapshots = array
        .snapshots(&Default::default())
        .await
        .context("list the array's snapshots")?
        .items;
    let [snapshot] = &snapshots[..] else {
        bail!("the array has the snapshots {snapshots:?}");
    };
    let restored = array
        .volume(&copy.handle)
        .await
        .context("read the restored volume")?;
    ensure!(
        snapshot.source == source.handle && restored.source.as_ref() == Some(&snapshot.id),
        "{} was created from {:?}, not from the snapshot {snapshot:?} of {}",
        copy.handle,
        restored.source,
        source.handle
    );
    Ok(())
}

/// Name of the VolumeSnapshot.
const SNAPSHOT: &str = "before";

/// Requested size of the expanded claim.
const EXPANDED_CAPACITY: &str = "2Gi";

/// Creates a pod on node A with the claims `now`, `retained` and `late`, and with an ephemeral claim `scratch` of the class.
async fn pod_with_ephemeral_volume(env: &TestEnv<'_>, name: &str, class: &str) -> Result<()> {
    let claims = ["now", "retained", "late"].map(str::to_owned);
    let mut pod = mk_pod(env.prefix(), name, env.node(A).name(), &claims);
    let template = mk_claim_of_class(env.prefix(), "", class, Access::OneNode);
    let labels = template.metadata.labels;
    let volumes = pod.spec.as_mut().and_then(|spec| spec.volumes.as_mut());
    volumes.context("the pod has volumes")?.push(Volume {
        name: "scratch".to_owned(),
        ephemeral: Some(EphemeralVolumeSource {
            volume_claim_template: Some(PersistentVolumeClaimTemplate {
                metadata: Some(ObjectMeta {
                    labels,
                    ..ObjectMeta::default()
                }),
                spec: template.spec.context("a claim has a spec")?,
            }),
        }),
        ..Volume::default()
    });
    env.create_pod(&pod).await
}

/// Fails unless the volume is kept by the finalizers of its provisioner and of the attacher.
async fn ensure_held(env: &TestEnv<'_>, volume: &TestVolume) -> Result<()> {
    let pv = env.persistent_volume(volume).await?;
    let finalizers = pv.finalizers();
    for wanted in [env.finalizer().as_str(), PROVISIONER_FINALIZER] {
        ensure!(
            finalizers.iter().any(|finalizer| finalizer == wanted),
            "{} has no finalizer {wanted}: {finalizers:?}",
            volume.pv
        );
    }
    Ok(())
}

/// The finalizer by which an external-provisioner keeps a PersistentVolume until the driver has deleted its volume.
const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Fails unless DeleteVolume was called only after the volume was unpublished.
fn ensure_deleted_last(calls: &[Call], volume: &TestVolume) -> Result<()> {
    let of_volume = || calls.iter().filter(|call| call.volume == volume.handle);
    let unpublished = of_volume()
        .filter(|call| call.method == UNPUBLISH && call.succeeded())
        .filter_map(|call| Some(call.end.as_ref()?.at))
        .max();
    let deleted = of_volume().find(|call| call.method == "DeleteVolume");
    let deleted = deleted.with_context(|| format!("{} was not deleted at the driver", volume.pv))?;
    ensure!(
        unpublished.is_some_and(|unpublished| unpublished <= deleted.start),
        "the volume {} was to be deleted at {}, and unpublished at {unpublished:?}",
        volume.pv,
        deleted.start
    );
    Ok(())
}
