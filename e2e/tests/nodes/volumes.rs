//! What users do with volumes.

use anyhow::{Context, Result, ensure};
use csi_e2e::nodes::{DRIVER, NODES};
use csi_e2e::wait::{self, Progress};
use csi_mock_driver::admin_api::resource::NodeChange;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde_json::json;
use tonic::Code;

use crate::env::{EXT4, Env, PodSpec, STEP, XFS};
use crate::shared_nodes::Scenario;

const A: &str = NODES[0];
const B: &str = NODES[1];

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "pod_attaches",
        run: |env| Box::pin(pod_attaches(env)),
    },
    Scenario {
        name: "pod_moves_with_its_data",
        run: |env| Box::pin(pod_moves_with_its_data(env)),
    },
    Scenario {
        name: "block_volume_moves_with_its_data",
        run: |env| Box::pin(block_volume_moves_with_its_data(env)),
    },
    Scenario {
        name: "two_pods_share_a_volume_on_one_node",
        run: |env| Box::pin(two_pods_share_a_volume_on_one_node(env)),
    },
    Scenario {
        name: "inline_volume_lives_as_long_as_its_pod",
        run: |env| Box::pin(inline_volume_lives_as_long_as_its_pod(env)),
    },
    Scenario {
        name: "volume_belongs_to_the_fs_group",
        run: |env| Box::pin(volume_belongs_to_the_fs_group(env)),
    },
    Scenario {
        name: "sub_paths_are_directories_of_one_volume",
        run: |env| Box::pin(sub_paths_are_directories_of_one_volume(env)),
    },
    Scenario {
        name: "volume_grows_while_in_use",
        run: |env| Box::pin(volume_grows_while_in_use(env)),
    },
    Scenario {
        name: "attach_limit_reaches_csi_node",
        run: |env| Box::pin(attach_limit_reaches_csi_node(env)),
    },
    Scenario {
        name: "volume_without_attachment_moves",
        run: |env| Box::pin(volume_without_attachment_moves(env)),
    },
];

/// A pod gets a volume that is provisioned, attached, formatted and mounted for it, and writes to it.
async fn pod_attaches(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_pod(
        &PodSpec::new("web", "echo hello >/data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    let attached = env.attached_to("data").await?;
    ensure!(attached == [A], "the volume is attached to {attached:?}");
    let (size, kind) = env.filesystem(env.nodes.node(A)?, "web", "data").await?;
    ensure!(kind == "ext2/ext3", "the filesystem is {kind}");
    ensure!(
        (400 << 20..=512 << 20).contains(&size),
        "the filesystem has {size} bytes"
    );
    env.delete_pod("web").await?;
    env.wait_until_detached("data").await
}

/// What a pod wrote on one node, its successor reads on the other.
async fn pod_moves_with_its_data(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_pod(
        &PodSpec::new("web-1", "echo hello >/data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    env.delete_pod("web-1").await?;
    env.run_pod(
        &PodSpec::new("web-2", "grep -qx hello /data/greeting")
            .on(B)
            .claim("data"),
    )
    .await?;
    let attached = env.attached_to("data").await?;
    ensure!(attached == [B], "the volume is attached to {attached:?}");
    Ok(())
}

/// What a pod wrote to a raw block device on one node, its successor reads on the other.
async fn block_volume_moves_with_its_data(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Block").await?;
    let write = "echo hello | dd of=/dev/data bs=512 conv=sync,fsync";
    env.run_pod(&PodSpec::new("web-1", write).on(A).device("data"))
        .await?;
    env.delete_pod("web-1").await?;
    let read = "head -n 1 /dev/data | grep -qx hello";
    env.run_pod(&PodSpec::new("web-2", read).on(B).device("data"))
        .await
}

/// The volume stays mounted and attached until its last pod on the node is gone.
async fn two_pods_share_a_volume_on_one_node(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_pod(
        &PodSpec::new("web-1", "echo hello >/data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    env.run_pod(
        &PodSpec::new("web-2", "grep -qx hello /data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    env.delete_pod("web-1").await?;
    env.filesystem(env.nodes.node(A)?, "web-2", "data").await?;
    let attached = env.attached_to("data").await?;
    ensure!(attached == [A], "the volume is attached to {attached:?}");
    env.delete_pod("web-2").await?;
    env.wait_until_detached("data").await
}

/// An inline volume is made for its pod, without a claim and without an attachment, and deleted with it.
async fn inline_volume_lives_as_long_as_its_pod(env: &Env<'_>) -> Result<()> {
    let source = json!({"csi": {"driver": DRIVER, "fsType": "ext4", "volumeAttributes": {"size": "256Mi"}}});
    let pod = PodSpec::new("web", "mountpoint -q /data && echo hello >/data/greeting").on(A);
    env.run_pod(&pod.volume("data", source, json!({"mountPath": "/data"})))
        .await?;
    let attachments = env.attachments().list(&ListParams::default()).await?;
    ensure!(
        attachments.items.is_empty(),
        "an inline volume was attached: {:?}",
        attachments.items
    );
    env.delete_pod("web").await?;
    env.wait_until_nothing_is_mounted().await
}

/// kubelet gives the volume to the pod's fsGroup, so that a pod that is not root can write.
async fn volume_belongs_to_the_fs_group(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    let script = "echo hello >/data/greeting\ntest \"$(stat -c %g /data/greeting)\" = 2000";
    let user = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000});
    env.run_pod(
        &PodSpec::new("web", script)
            .on(A)
            .claim("data")
            .security_context(user),
    )
    .await
}

/// Two subPaths of one volume are two directories of it.
async fn sub_paths_are_directories_of_one_volume(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    let source = json!({"persistentVolumeClaim": {"claimName": "data"}});
    let pod = PodSpec::new("web-1", "echo one >/a/file\necho two >/b/file")
        .on(A)
        .volume("data", source.clone(), json!({"mountPath": "/a", "subPath": "a"}))
        .volume("data", source, json!({"mountPath": "/b", "subPath": "b"}));
    env.run_pod(&pod).await?;
    env.delete_pod("web-1").await?;
    let script = "grep -qx one /data/a/file\ngrep -qx two /data/b/file";
    env.run_pod(&PodSpec::new("web-2", script).on(B).claim("data"))
        .await
}

/// A claim is enlarged while its pod runs: volume, device and filesystem grow under it. XFS, because growing a mounted ext4
/// needs CAP_SYS_RESOURCE, which containers of a machine may lack.
async fn volume_grows_while_in_use(env: &Env<'_>) -> Result<()> {
    const WANTED: &str = "1Gi";
    env.claim("data", XFS, "Filesystem").await?;
    env.run_pod(
        &PodSpec::new("web", "echo hello >/data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    let node = env.nodes.node(A)?;
    let (before, kind) = env.filesystem(node, "web", "data").await?;
    ensure!(
        kind == "xfs" && before <= 512 << 20,
        "the filesystem is {kind} of {before} bytes"
    );
    let patch = json!({"spec": {"resources": {"requests": {"storage": WANTED}}}});
    env.claims()
        .patch("data", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    let what = "the claim to have its new size";
    wait::for_object(
        &env.claims(),
        "data",
        STEP,
        what,
        |claim: Option<&PersistentVolumeClaim>| {
            let status = claim.and_then(|claim| claim.status.clone()).unwrap_or_default();
            let capacity = status
                .capacity
                .as_ref()
                .and_then(|capacity| capacity.get("storage"));
            Progress::of(capacity.is_some_and(|capacity| capacity.0 == WANTED), || {
                format!("{status:?}")
            })
        },
    )
    .await?;
    let (after, _) = env.filesystem(node, "web", "data").await?;
    ensure!(
        after > 900 << 20,
        "the filesystem has grown from {before} to {after} bytes only"
    );
    env.wait_until_ready("web").await
}

/// The array takes fewer volumes for a node than it said: the attacher reports RESOURCE_EXHAUSTED, and kubelet updates the
/// CSINode (MutableCSINodeAllocatableCount). With the old limit the volume is attached.
async fn attach_limit_reaches_csi_node(env: &Env<'_>) -> Result<()> {
    wait_for_allocatable(env, 64).await?;
    // The least that the API server accepts.
    set_update_period(env, Some(10)).await?;
    limit(env, 1).await?;
    env.claim("first", EXT4, "Filesystem").await?;
    env.claim("second", EXT4, "Filesystem").await?;
    env.run_pod(&PodSpec::new("web-1", "true").on(A).claim("first"))
        .await?;
    env.create_pod(&PodSpec::new("web-2", "true").on(A).claim("second"))
        .await?;
    wait_for_attach_error(env, Code::ResourceExhausted).await?;
    wait_for_allocatable(env, 1).await?;
    limit(env, 64).await?;
    env.wait_until_ready("web-2").await?;
    wait_for_allocatable(env, 64).await?;
    set_update_period(env, None).await
}

async fn wait_for_attach_error(env: &Env<'_>, code: Code) -> Result<()> {
    let everywhere = watcher::Config::default();
    wait::for_objects(&env.attachments(), everywhere, STEP, "an attach error", |found| {
        let errors = found
            .values()
            .filter_map(|found| found.status.as_ref()?.attach_error.as_ref());
        let codes: Vec<_> = errors.filter_map(|error| error.error_code).collect();
        Progress::of(codes.contains(&(code as i32)), || {
            format!("the codes are {codes:?}")
        })
    })
    .await
}

async fn set_update_period(env: &Env<'_>, seconds: Option<u32>) -> Result<()> {
    let drivers = Api::<CSIDriver>::all(env.nodes.client());
    let patch = json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": seconds}});
    drivers
        .patch(DRIVER, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

async fn wait_for_allocatable(env: &Env<'_>, wanted: i32) -> Result<()> {
    let csi_nodes = Api::<CSINode>::all(env.nodes.client());
    let what = format!("CSINode to have the limit {wanted}");
    wait::for_object(&csi_nodes, A, STEP, &what, |found| {
        let drivers = found
            .map(|found| found.spec.drivers.as_slice())
            .unwrap_or_default();
        let driver = drivers.iter().find(|driver| driver.name == DRIVER);
        let count = driver.and_then(|driver| driver.allocatable.as_ref()?.count);
        Progress::of(count == Some(wanted), || format!("it is {count:?}"))
    })
    .await
}

/// With `attachRequired: false`, and without ControllerPublishVolume, volumes are used without VolumeAttachment.
async fn volume_without_attachment_moves(env: &Env<'_>) -> Result<()> {
    set_attach_required(env, false).await?;
    let moved = move_without_attachment(env).await;
    set_attach_required(env, true).await?;
    moved
}

async fn move_without_attachment(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_pod(
        &PodSpec::new("web-1", "echo hello >/data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    env.delete_pod("web-1").await?;
    env.run_pod(
        &PodSpec::new("web-2", "grep -qx hello /data/greeting")
            .on(B)
            .claim("data"),
    )
    .await?;
    let attachments = env.attachments().list(&ListParams::default()).await?;
    ensure!(
        attachments.items.is_empty(),
        "there are attachments: {:?}",
        attachments.items
    );
    env.delete_pod("web-2").await
}

/// Replaces the CSIDriver, whose `attachRequired` is immutable, and has the driver attach volumes or not.
async fn set_attach_required(env: &Env<'_>, required: bool) -> Result<()> {
    let nodes = env.nodes;
    for driver in [nodes.array()?, nodes.node_driver(A)?, nodes.node_driver(B)?] {
        let set = driver.set_capability("PUBLISH_UNPUBLISH_VOLUME", required).await;
        set.context("set the driver's capability")?;
    }
    let drivers = Api::<CSIDriver>::all(nodes.client());
    let mut driver = drivers.get(DRIVER).await?;
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    driver.metadata = ObjectMeta {
        name: Some(DRIVER.to_owned()),
        ..ObjectMeta::default()
    };
    driver.spec.attach_required = Some(required);
    drivers.create(&PostParams::default(), &driver).await?;
    Ok(())
}

async fn limit(env: &Env<'_>, limit: usize) -> Result<()> {
    let change = NodeChange {
        limit: Some(limit),
        advertised_limit: Some(limit),
        ..NodeChange::default()
    };
    let changed = env.nodes.array()?.change_node(A, &change).await;
    changed
        .map(drop)
        .with_context(|| format!("limit {A} to {limit} volumes at the array"))
}
