//! Claims that are bound after their pods are scheduled, and volumes whose binding the PV controller rolls back.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;

use super::Scenario;
use super::test_env::{A, SECRET, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use crate::fixture::{Access, VolumeSource, mk_claim, mk_persistent_volume, mk_pod};
use crate::objects;
use crate::wait::{self, Progress};

/// Marks a volume whose claim the PV controller chose.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// The attach/detach controller learns of the volume from the claim, long after the pod.
pub(super) const CLAIM_BOUND_LATE: Scenario = Scenario::new(
    "claim-bound-late",
    "A pod that was on its node before its claim was bound gets its volume attached once the claim is bound.",
    |env| Box::pin(claim_bound_late(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

/// Two volumes name the same claim.
pub(super) const VOLUME_UNBOUND: Scenario = Scenario::new(
    "volume-unbound",
    "A volume that names a claim bound to another volume becomes available, and is attached once a claim is bound to it.",
    |env| Box::pin(volume_unbound(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

async fn claim_bound_late(env: &mut TestEnv<'_>) -> Result<()> {
    let pv = format!("{}-data", env.prefix());
    let claim = mk_claim(env.prefix(), "data", &pv, Access::OneNode);
    objects::create(&env.claims(), &claim).await?;
    // The scheduler would wait for the claim.
    let mut pod = mk_pod(env.prefix(), "web", env.node(A).name(), &["data".to_owned()]);
    pod.spec.get_or_insert_default().node_name = Some(env.node(A).name().to_owned());
    env.create_pod(&pod).await?;
    // The controller handles pods in order: once the later pod's volume is attached, it has handled the earlier pod.
    let other = env.running_pod("other", A, "other").await?;
    env.ensure_not_running("web").await?;

    let namespace = env.prefix().to_owned();
    let (pv, handle) = env.unbound_volume_with_secret(&namespace).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    let volume = TestVolume {
        pv,
        claim: "data".to_owned(),
        handle,
        access: Access::OneNode,
    };
    env.wait_for_volumes_attached(A, &[&volume, &other]).await?;
    env.delete_pod("web").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await
}

async fn volume_unbound(env: &mut TestEnv<'_>) -> Result<()> {
    let first = env.volume("first", Access::OneNode).await?;
    let handle = env.unbound_volume("second").await?;
    let second = TestVolume {
        pv: format!("{}-second", env.prefix()),
        claim: "second".to_owned(),
        handle: handle.clone(),
        access: Access::OneNode,
    };
    let source = VolumeSource {
        driver: env.driver.name().to_owned(),
        handle,
        attributes: BTreeMap::new(),
        access: Access::OneNode,
        publish_secret: Some((env.prefix().to_owned(), SECRET.to_owned())),
    };
    let claim = env.claims().get(&first.claim).await.context("read the claim")?;
    let mut pv = mk_persistent_volume(env.prefix(), &second.pv, &source, &claim);
    pv.metadata.annotations = Some([(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned())].into());
    let volumes = Api::<PersistentVolume>::all(env.client());
    objects::create(&volumes, &pv).await?;
    wait::for_object(
        &volumes,
        &second.pv,
        STEP_TIMEOUT,
        "the volume to be unbound",
        |pv| {
            let claim = pv.and_then(|pv| pv.spec.as_ref()?.claim_ref.as_ref());
            let phase = pv.and_then(|pv| pv.status.as_ref()?.phase.as_deref());
            let is_unbound = pv.is_some() && claim.is_none() && phase == Some("Available");
            Progress::of(is_unbound, || format!("it is {phase:?} with claimRef {claim:?}"))
        },
    )
    .await?;
    let claim = env.claims().get(&first.claim).await.context("read the claim")?;
    let bound = claim.spec.and_then(|spec| spec.volume_name);
    ensure!(
        bound.as_ref() == Some(&first.pv),
        "the claim lost its volume to {bound:?}"
    );

    let claim = mk_claim(env.prefix(), &second.claim, &second.pv, Access::OneNode);
    objects::create(&env.claims(), &claim).await?;
    env.pod("web", A, &[&first, &second]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&first, &second]).await
}
