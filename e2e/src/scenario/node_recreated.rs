//! A Node object is deleted and created again while its kubelet runs a pod with a volume
//! (<https://github.com/kubernetes/kubernetes/issues/37586>).

use anyhow::{Result, ensure};

use super::Scenario;
use super::test_env::{A, ScenarioConfig, TestEnv};
use crate::driver::journal::UNPUBLISH;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "node-recreated",
    "A Node that is deleted and created again while a pod uses a volume lists it in volumesAttached again; the volume stays attached.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("web", A, "data").await?;
    env.wait_for_volumes_attached(A, &[&volume]).await?;
    let statuses = env.follow_volumes_attached(A).await?;
    let attachment = env.attachment_name(&volume, A);
    let before = env.wait_until_attached(&attachment).await?.metadata.uid;

    env.recreate_node(A).await?;
    // The new Node has no volumesAttached until the attach/detach controller reports them.
    statuses.wait_for(&volume, &[true, false, true]).await?;
    let after = env.wait_until_attached(&attachment).await?.metadata;
    ensure!(
        after.uid == before && after.deletion_timestamp.is_none(),
        "the VolumeAttachment with UID {before:?} was deleted: {after:?}"
    );
    env.ensure_running("web").await?;
    env.ensure_calls(UNPUBLISH, &volume, 0)
}
