//! The flags of csi-driver-host-path, so that this driver takes its place in manifests as they are. `--help`
//! does not show them; each has a flag of ours that says more.
//!
//! What they switch on is on here without them, also what host-path leaves out unless told otherwise, such as
//! attaching.

use std::str::FromStr;

use clap::Args;

use super::array::PoolFlag;
use super::switch;
use crate::backend::QosRule;
use crate::conduct::BlockRuns;
use crate::driver;
use crate::offer::Capability;

/// Flags under the names that host-path gives them.
#[derive(Args, Clone, Debug)]
pub struct HostPathArgs {
    /// Whether volumes are attached.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_attach: Option<bool>,

    /// Whether volumes lie in places.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_topology: Option<bool>,

    /// Whether volumes grow.
    #[arg(long, hide = true, alias = "node-expand-required", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_volume_expansion: Option<bool>,

    /// Whether the controller has no part in that.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    disable_controller_expansion: Option<bool>,

    /// Whether nodes have no part in that.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    disable_node_expansion: Option<bool>,

    /// Whether mutable parameters can be changed.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_controller_modify_volume: Option<bool>,

    /// Whether snapshots are listed.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_list_snapshots: Option<bool>,

    /// Whether there is a SnapshotMetadata service.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_snapshot_metadata: Option<bool>,

    /// Whether volumes in use are kept from being deleted.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    check_volume_lifecycle: Option<bool>,

    /// How blocks are told.
    #[arg(long, hide = true)]
    snapshot_metadata_block_type: Option<BlockType>,

    /// The mutable parameters that are taken, with any value.
    #[arg(long, hide = true)]
    accepted_mutable_parameter_names: Option<QosRule>,

    /// How many volumes a node takes; 0 for as many as come.
    #[arg(long, hide = true)]
    maxvolumespernode: Option<usize>,

    /// A kind of space and how much there is of it.
    #[arg(long = "capacity", hide = true)]
    capacity: Vec<PoolFlag>,

    /// What has no counterpart here, and changes nothing.
    #[command(flatten)]
    idle: IdleArgs,
}

/// Flags of host-path and of its logging library that change nothing here.
#[derive(Args, Clone, Debug)]
struct IdleArgs {
    /// Inline volumes are always taken.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    ephemeral: Option<bool>,

    /// Threads are as many as there are cores.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    automaxprocs: Option<bool>,

    /// All nodes make volumes of the same sizes.
    #[arg(long, hide = true)]
    max_volume_size_node: Option<String>,

    /// The log always goes to stderr.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    logtostderr: Option<bool>,

    /// The log always goes to stderr.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    alsologtostderr: Option<bool>,

    /// The log always goes to stderr.
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,

    /// All modules log alike.
    #[arg(long, hide = true)]
    vmodule: Option<String>,
}

/// How host-path spells how blocks are told.
#[derive(Clone, Copy, Debug)]
struct BlockType(BlockRuns);

// === impl BlockType ===

impl FromStr for BlockType {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "FIXED_LENGTH" => Ok(Self(BlockRuns::Fixed)),
            "VARIABLE_LENGTH" => Ok(Self(BlockRuns::Variable)),
            _ => Err("must be FIXED_LENGTH or VARIABLE_LENGTH"),
        }
    }
}

// === impl HostPathArgs ===

impl HostPathArgs {
    /// What is wrong with the flags together.
    pub(super) fn objection(&self) -> Option<String> {
        PoolFlag::twice("--capacity", &self.capacity)
    }

    /// Does what the flags say that were given.
    pub(super) fn settle(&self, settings: &mut driver::Settings) {
        let off = |flag: Option<bool>| flag == Some(false);
        let without: [(bool, &[Capability]); 7] = [
            (off(self.enable_attach), &[Capability::PublishUnpublishVolume]),
            (
                off(self.enable_topology),
                &[Capability::VolumeAccessibilityConstraints],
            ),
            (
                off(self.enable_volume_expansion) || self.disable_controller_expansion == Some(true),
                &[Capability::ExpandVolume],
            ),
            (
                off(self.enable_volume_expansion) || self.disable_node_expansion == Some(true),
                &[Capability::NodeExpandVolume],
            ),
            (
                off(self.enable_controller_modify_volume),
                &[Capability::ModifyVolume],
            ),
            (off(self.enable_list_snapshots), &[Capability::ListSnapshots]),
            (
                off(self.enable_snapshot_metadata),
                &[Capability::SnapshotMetadataService],
            ),
        ];
        for (_, capabilities) in without.into_iter().filter(|(is_off, _)| *is_off) {
            for capability in capabilities {
                settings.offer.set(*capability, false);
            }
        }
        if off(self.check_volume_lifecycle) {
            settings.array.lax.delete_in_use = true;
        }
        if let Some(BlockType(runs)) = self.snapshot_metadata_block_type {
            settings.conduct.block_runs = runs;
        }
        if let Some(qos) = &self.accepted_mutable_parameter_names {
            settings.array.qos = qos.clone();
        }
        if let Some(most) = self.maxvolumespernode {
            settings.array.attach_limit = Some(most).filter(|most| *most > 0);
        }
        if !self.capacity.is_empty() {
            settings.array.pools = self.capacity.iter().map(PoolFlag::pool).collect();
        }
    }
}
