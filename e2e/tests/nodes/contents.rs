//! Descriptions of the trials on real kubelets, as in the table of `e2e/README.md`.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use csi_e2e::toolchain::workspace_root;

/// Trials in order, except for the scenarios `path::`, and their descriptions.
const ABOUT: &[(&str, &str)] = &[
    (
        "nothing_survives_a_killed_harness",
        "The harness is killed while pods use volumes: processes, namespaces, mounts, cgroups, loop devices and files of the nodes are gone.",
    ),
    (
        "driver_uses_another_kubelet_directory",
        "The kubelets have the `--root-dir` of `deploy/components/kubelet-directory`, and the driver has the component: it registers, and pods get volumes with filesystems and raw block volumes.",
    ),
    (
        "pod_attaches",
        "A pod gets a volume that is provisioned, attached, formatted and mounted for it, and writes to it.",
    ),
    (
        "pod_moves_with_its_data",
        "What a pod wrote on one node, a pod on the other node reads.",
    ),
    (
        "block_volume_moves_with_its_data",
        "What a pod wrote to a raw block volume on one node, a pod on the other node reads.",
    ),
    (
        "block_volume_is_shared_by_two_nodes",
        "A ReadWriteMany raw block volume is attached to two nodes at once: each pod reads what the other wrote, and one detach leaves the other attachment.",
    ),
    (
        "two_pods_share_a_volume_on_one_node",
        "A volume is staged once for two pods, and stays mounted and attached until both are gone.",
    ),
    (
        "inline_volume_lives_as_long_as_its_pod",
        "The driver makes an inline volume for its pod, without claim and attachment, and deleted with it.",
    ),
    (
        "volume_belongs_to_the_fs_group",
        "The driver with VOLUME_MOUNT_GROUP, or kubelet, gives a volume to the pod's fsGroup.",
    ),
    (
        "sub_paths_are_directories_of_one_volume",
        "Two subPaths of a volume are two directories of it.",
    ),
    (
        "volume_grows_while_in_use",
        "A claim is enlarged while its pod runs: volume, device and XFS filesystem grow.",
    ),
    (
        "attach_limit_reaches_csi_node",
        "The array accepts fewer volumes for a node than it reported: kubelet updates the CSINode after RESOURCE_EXHAUSTED.",
    ),
    (
        "volume_without_attachment_moves",
        "With `attachRequired: false` a volume is used, and moves, without VolumeAttachment.",
    ),
    (
        "kubelet_is_killed_with_a_volume_mounted",
        "A pod is deleted while its kubelet is dead: the next kubelet reconstructs the mounts and unmounts them, and the volume moves with its data.",
    ),
    (
        "kubelet_is_killed_while_it_stages",
        "kubelet dies during NodeStageVolume: the next one stages again and starts the pod.",
    ),
    (
        "failed_stage_is_repeated",
        "NodeStageVolume fails twice: kubelet reports it in Events and repeats the call.",
    ),
    (
        "uncertain_stage_is_unstaged",
        "NodeStageVolume times out after its effect and the pod is deleted: kubelet unstages the volume.",
    ),
    (
        "node_driver_is_replaced_under_a_pod",
        "The node's driver is killed and its pod replaced: a running pod keeps its volume, and the next driver unmounts it.",
    ),
    (
        "lost_node_is_taken_out_of_service",
        "A node loses its power and gets the out-of-service taint: a pod on the other node gets the volume with its data; the node boots again.",
    ),
    (
        "image_swapped_in_attachers_deployment",
        "The commands of deploy/README.md replace the Go sidecar by csi-attacher in external-attacher's Deployment, and back: two volumes stay attached, and a third moves.",
    ),
    (
        "image_swapped_in_hostpaths_stateful_set",
        "The same in the StatefulSet of csi-driver-host-path.",
    ),
    (
        "attachers_chart_upgraded_with_volumes_attached",
        "The command of the chart's README upgrades the attacher's Helm chart while volumes are attached: none is detached.",
    ),
    (
        "install_with_kustomize",
        "The commands of the documents install the driver with kustomize, use it and remove it.",
    ),
    (
        "explain_a_stuck_volume",
        "The commands of the documents explain a volume that the array refuses to attach.",
    ),
    (
        "restore_a_snapshot",
        "The commands of the documents restore a snapshot and a group snapshot.",
    ),
    (
        "install_the_drivers_chart",
        "The commands of the documents install the driver's Helm chart and remove it.",
    ),
    (
        "install_the_attachers_chart",
        "The commands of the documents install the attacher's Helm chart and remove it.",
    ),
    (
        "monitoring_service_returns_metrics",
        "`deploy/components/monitoring` with the Prometheus operator's definitions: its Service has the attacher's pod as endpoint, and returns the attacher's metrics at the port and path of the ServiceMonitor. With `components/authenticated-metrics`, kubelet probes another port, and the commands of deploy/README.md show the status page to an account with the role, and to no other.",
    ),
];

/// The table in `e2e/README.md` is [`ABOUT`], which has all trials.
pub(crate) fn readme_lists_the_trials(trials: &[&str], short: &[&str]) -> Result<()> {
    let described: Vec<_> = ABOUT.iter().map(|(name, _)| *name).collect();
    ensure!(
        described == trials,
        "e2e/tests/nodes/contents.rs describes {described:?}, and the trials are {trials:?}"
    );
    let mut table = String::from("| trial | short form | content |\n|---|---|---|\n");
    for (name, about) in ABOUT {
        let is_short = if short.contains(name) { "yes" } else { "-" };
        writeln!(table, "| `{name}` | {is_short} | {about} |").expect("writing to a String must succeed");
    }
    let readme =
        std::fs::read_to_string(workspace_root().join("e2e/README.md")).context("read the README")?;
    ensure!(
        readme.contains(&format!("\n\n{table}\n")),
        "replace the table of trials in e2e/README.md by\n{table}"
    );
    Ok(())
}
