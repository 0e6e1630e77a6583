//! Volumes in normal use.

use anyhow::{Context, Result, ensure};
use csi_e2e::nodes::{DRIVER, NODES};
use csi_e2e::objects;
use csi_e2e::wait::{self, Progress};
use csi_mock_driver::admin_api::resource::Call;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::{ListParams, Patch};
use kube::runtime::watcher;
use serde_json::json;
use tonic::Code;

use crate::env::{EXT4, Env, PodSpec, STEP, WRITE, XFS};
use crate::restore::{ATTACH_LIMIT, VOLUME_MOUNT_GROUP, limit, set_attach_required, set_update_period};
use crate::shared_nodes::Scenario;

const A: &str = NODES[0];
const B: &str = NODES[1];

pub(crate) const SCENARIOS: &[Scenario] = scenarios![
    pod_attaches,
    pod_moves_with_its_data,
    block_volume_moves_with_its_data,
    block_volume_is_shared_by_two_nodes,
    two_pods_share_a_volume_on_one_node,
    inline_volume_lives_as_long_as_its_pod,
    volume_belongs_to_the_fs_group,
    sub_paths_are_directories_of_one_volume,
    volume_grows_while_in_use,
    attach_limit_reaches_csi_node,
    volume_without_attachment_moves,
];

/// A volume is provisioned, attached, formatted and mounted for a pod, which writes to it.
async fn pod_attaches(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_writer("web", A).await?;
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

/// A pod on one node reads the data that its predecessor wrote on the other.
async fn pod_moves_with_its_data(env: &Env<'_>) -> Result<()> {
    move_pod(env).await?;
    let attached = env.attached_to("data").await?;
    ensure!(attached == [B], "the volume is attached to {attached:?}");
    Ok(())
}

/// Replaces a pod on one node with one on the other, which reads what the first one wrote.
async fn move_pod(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_writer("web-1", A).await?;
    env.delete_pod("web-1").await?;
    env.run_reader("web-2", B).await
}

/// A pod on one node reads the data that its predecessor wrote to a raw block volume on the other.
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

/// A ReadWriteMany raw block volume is attached to both nodes at once. Each pod reads the other's data, from a block that its
/// node has not cached; a detach from one node leaves the other attachment.
async fn block_volume_is_shared_by_two_nodes(env: &Env<'_>) -> Result<()> {
    const FAR: &str = "16384";
    let write = |text: &str, block: &str| {
        format!("echo {text} | dd of=/dev/data bs=4096 seek={block} count=1 conv=sync,fsync")
    };
    let read = |text: &str, block: &str| {
        format!("dd if=/dev/data bs=4096 skip={block} count=1 | head -n 1 | grep -qx {text}")
    };
    env.shared_block_claim("data").await?;
    let meet = "touch /signal/written\nuntil [ -e /signal/go ]; do sleep 1; done";
    let script = format!("{}\n{meet}\n{}", write("from-a", "0"), read("from-b", FAR));
    let on_a = PodSpec::new("web-a", &script).on(A).device("data").volume(
        "signal",
        json!({"emptyDir": {}}),
        json!({"mountPath": "/signal"}),
    );
    env.create_pod(&on_a).await?;
    let node = env.nodes.node(A)?;
    let signal = format!(
        "{}/pods/{}/volumes/kubernetes.io~empty-dir/signal",
        node.root_dir(),
        env.uid("web-a").await?
    );
    let written = format!("{signal}/written");
    wait::poll(STEP, "the pod on the first node to have written", || async {
        let listed = node.command(&["ls", &written]).await;
        Ok(Progress::of(listed.is_ok(), || format!("{listed:?}")))
    })
    .await?;
    let script = format!("{}\n{}", read("from-a", "0"), write("from-b", FAR));
    env.run_pod(&PodSpec::new("web-b", &script).on(B).device("data"))
        .await?;
    env.wait_for_attachments("data", &[A, B]).await?;
    node.command(&["touch", &format!("{signal}/go")]).await?;
    env.wait_until_ready("web-a").await?;
    env.delete_pod("web-a").await?;
    env.wait_for_attachments("data", &[B]).await?;
    let attached = env.attached_to("data").await?;
    ensure!(attached == [B], "the volume is attached to {attached:?}");
    env.wait_until_ready("web-b").await?;
    env.delete_pod("web-b").await?;
    env.wait_until_detached("data").await
}

/// The volume is staged once, and stays mounted and attached until its last pod on the node is gone.
async fn two_pods_share_a_volume_on_one_node(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_writer("web-1", A).await?;
    env.run_reader("web-2", A).await?;
    for (method, expected) in [("NodeStageVolume", 1), ("NodePublishVolume", 2)] {
        let calls = env.calls(A, method, "data").await?;
        ensure!(
            calls.len() == expected,
            "{method} was not called {expected} times: {calls:?}"
        );
    }
    env.delete_pod("web-1").await?;
    env.filesystem(env.nodes.node(A)?, "web-2", "data").await?;
    let attached = env.attached_to("data").await?;
    ensure!(attached == [A], "the volume is attached to {attached:?}");
    env.delete_pod("web-2").await?;
    env.wait_until_detached("data").await
}

/// An inline volume is created for its pod, without claim and VolumeAttachment, and deleted with it.
async fn inline_volume_lives_as_long_as_its_pod(env: &Env<'_>) -> Result<()> {
    let source = json!({"csi": {"driver": DRIVER, "fsType": "ext4", "volumeAttributes": {"size": "256Mi"}}});
    let script = format!("mountpoint -q /data && {WRITE}");
    let pod = PodSpec::new("web", &script).on(A);
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

/// The driver with VOLUME_MOUNT_GROUP, or kubelet, changes the volume's group to the pod's fsGroup, so that a non-root pod can
/// write.
async fn volume_belongs_to_the_fs_group(env: &Env<'_>) -> Result<()> {
    write_as_group(env, "delegated", "2000").await?;
    let driver = env.nodes.node_driver(A)?;
    driver
        .set_capability(VOLUME_MOUNT_GROUP, false)
        .await
        .context("disable VOLUME_MOUNT_GROUP")?;
    write_as_group(env, "kubelet", "").await?;
    driver
        .set_capability(VOLUME_MOUNT_GROUP, true)
        .await
        .context("enable VOLUME_MOUNT_GROUP")?;
    Ok(())
}

/// A pod with fsGroup 2000 writes to a new volume; `delegated` is the volume_mount_group that kubelet must send.
async fn write_as_group(env: &Env<'_>, claim: &str, delegated: &str) -> Result<()> {
    env.claim(claim, EXT4, "Filesystem").await?;
    let script = format!("{WRITE}\ntest \"$(stat -c %g /data/greeting)\" = 2000");
    let user = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000});
    env.run_pod(
        &PodSpec::new(claim, &script)
            .on(A)
            .claim(claim)
            .security_context(user),
    )
    .await?;
    let calls = env.calls(A, "NodePublishVolume", claim).await?;
    let group = |call: &Call| {
        let group = call
            .request
            .as_ref()?
            .pointer("/volume_capability/mount/volume_mount_group")?;
        group.as_str().map(str::to_owned)
    };
    let groups: Vec<_> = calls.iter().map(|call| group(call).unwrap_or_default()).collect();
    ensure!(
        !groups.is_empty() && groups.iter().all(|group| group == delegated),
        "volume_mount_group is {groups:?}, expected {delegated:?}"
    );
    Ok(())
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

/// A claim is expanded while its pod runs: volume, device and filesystem grow. XFS, because growing a mounted ext4 needs
/// CAP_SYS_RESOURCE, which containers may lack.
async fn volume_grows_while_in_use(env: &Env<'_>) -> Result<()> {
    const WANTED: &str = "1Gi";
    env.claim("data", XFS, "Filesystem").await?;
    env.run_writer("web", A).await?;
    let node = env.nodes.node(A)?;
    let (before, kind) = env.filesystem(node, "web", "data").await?;
    ensure!(
        kind == "xfs" && before <= 512 << 20,
        "the filesystem is {kind} of {before} bytes"
    );
    let patch = json!({"spec": {"resources": {"requests": {"storage": WANTED}}}});
    objects::patch(&env.claims(), "data", &Patch::Merge(&patch)).await?;
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

/// The array accepts fewer volumes for a node than reported: the attacher stores RESOURCE_EXHAUSTED, and kubelet updates the
/// CSINode (MutableCSINodeAllocatableCount). With the old limit the volume is attached.
async fn attach_limit_reaches_csi_node(env: &Env<'_>) -> Result<()> {
    wait_for_allocatable(env, ATTACH_LIMIT).await?;
    // The minimum that the API server accepts.
    set_update_period(env.nodes, Some(10)).await?;
    limit(env.nodes, 1).await?;
    env.claim("first", EXT4, "Filesystem").await?;
    env.claim("second", EXT4, "Filesystem").await?;
    env.run_pod(&PodSpec::new("web-1", "true").on(A).claim("first"))
        .await?;
    env.create_pod(&PodSpec::new("web-2", "true").on(A).claim("second"))
        .await?;
    wait_for_attach_error(env, Code::ResourceExhausted).await?;
    wait_for_allocatable(env, 1).await?;
    limit(env.nodes, ATTACH_LIMIT).await?;
    env.wait_until_ready("web-2").await?;
    wait_for_allocatable(env, ATTACH_LIMIT).await?;
    set_update_period(env.nodes, None).await
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

async fn wait_for_allocatable(env: &Env<'_>, wanted: usize) -> Result<()> {
    let csi_nodes = Api::<CSINode>::all(env.nodes.client());
    let what = format!("CSINode to have the limit {wanted}");
    wait::for_object(&csi_nodes, A, STEP, &what, |found| {
        let drivers = found
            .map(|found| found.spec.drivers.as_slice())
            .unwrap_or_default();
        let driver = drivers.iter().find(|driver| driver.name == DRIVER);
        let count = driver.and_then(|driver| driver.allocatable.as_ref()?.count);
        let count = count.and_then(|count| usize::try_from(count).ok());
        Progress::of(count == Some(wanted), || format!("it is {count:?}"))
    })
    .await
}

/// With `attachRequired: false`, and without ControllerPublishVolume, volumes are used without VolumeAttachment.
async fn volume_without_attachment_moves(env: &Env<'_>) -> Result<()> {
    set_attach_required(env.nodes, false).await?;
    move_pod(env).await?;
    let attachments = env.attachments().list(&ListParams::default()).await?;
    ensure!(
        attachments.items.is_empty(),
        "there are attachments: {:?}",
        attachments.items
    );
    env.delete_pod("web-2").await?;
    set_attach_required(env.nodes, true).await
}
