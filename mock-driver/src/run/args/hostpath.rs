//! The flags of csi-driver-host-path, so that this driver can replace it in unchanged manifests.
//!
//! A flag that only csi-driver-host-path has selects that driver's defaults: without `--enable-attach` volumes are not
//! attached, there is one node, and the class parameter `kind` selects a pool. Flags of this driver may be added and take
//! precedence. A flag without effect is logged at the start; an unknown one is refused.
//!
//! `--help` does not show these flags: the README has a table of them.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{Args, Command};

use super::array::pool;
use super::value::switch;
use crate::array::{Pool, PoolName, QosRule, Segments, Values};
use crate::rpc::capabilities::{Capability, CapabilitySet, ReportedIn};

pub(super) mod translate;

/// Flags of csi-driver-host-path that are aliases of other flags.
const ALIASES: [&str; 4] = ["drivername", "node-expand-required", "nodeid", "statedir"];

/// Its defaults that differ: field name and value in the form of the flag.
const DEFAULTS: [(&str, &str); 7] = [
    ("driver_name", "hostpath.csi.k8s.io"),
    ("enable_attach", "false"),
    ("enable_controller_modify_volume", "false"),
    ("enable_snapshot_metadata", "false"),
    ("endpoint", "unix:///tmp/csi.sock"),
    ("mutable_parameters", QosRule::ANY_KEY),
    // Its own node only.
    ("nodes", "0"),
];

/// Flags that only csi-driver-host-path has.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostPathArgs {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_attach: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_topology: Option<bool>,
    #[arg(long, hide = true, alias = "node-expand-required", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_volume_expansion: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    disable_controller_expansion: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    disable_node_expansion: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_controller_modify_volume: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_list_snapshots: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    enable_snapshot_metadata: Option<bool>,

    /// Whether volumes in use cannot be deleted; default: true.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    check_volume_lifecycle: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    ephemeral: Option<bool>,
    #[arg(long, hide = true, conflicts_with = "mutable_parameters")]
    accepted_mutable_parameter_names: Vec<String>,

    /// Maximum volumes per node that NodeGetInfo reports; 0 = unlimited.
    #[arg(long, hide = true, conflicts_with = "advertised_attach_limit")]
    maxvolumespernode: Option<usize>,

    /// Maximum size in bytes to which NodeExpandVolume grows a volume; 0 = the maximum of all volumes.
    #[arg(long, hide = true)]
    max_volume_size_node: Option<u64>,
    #[arg(long, hide = true, conflicts_with = "pools", value_parser = pool)]
    capacity: Vec<Pool>,
    #[arg(long, hide = true, value_parser = block_type)]
    snapshot_metadata_block_type: Option<()>,
}

// === impl HostPathArgs ===

impl HostPathArgs {
    /// Whether a word, a flag with its value, is a flag that only csi-driver-host-path has.
    pub(super) fn is_host_path_command_line(words: &[OsString]) -> bool {
        let name = |word: &OsString| {
            let word = word.to_str()?.strip_prefix("--")?;
            Some(word.split_once('=').map_or(word, |(name, _)| name).to_owned())
        };
        let command = Self::augment_args(Command::new(""));
        let is_own = |name: &str| command.get_arguments().any(|flag| flag.get_long() == Some(name));
        let mut names = words.iter().filter_map(name);
        names.any(|name| is_own(&name) || ALIASES.contains(&name.as_str()))
    }

    pub(super) fn defaults(command: Command) -> Command {
        DEFAULTS.into_iter().fold(command, |command, (field, text)| {
            command.mut_arg(field, |arg| arg.required(false).default_value(text))
        })
    }

    /// The capabilities before the changes of `--capabilities`.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no flag changes the other capabilities"
    )]
    fn capabilities(&self) -> CapabilitySet {
        let off = |flag: Option<bool>| flag == Some(false);
        let on = |flag: Option<bool>| flag == Some(true);
        let is_of_controller =
            |capability: Capability| matches!(capability.reported_in(), ReportedIn::Controller(_));
        let is_off = |capability: Capability| match capability {
            any if on(self.ephemeral) && is_of_controller(any) => true,
            Capability::PublishUnpublishVolume
            | Capability::PublishReadonly
            | Capability::ListVolumesPublishedNodes => off(self.enable_attach),
            Capability::VolumeAccessibilityConstraints | Capability::SnapshotAccessibilityConstraints => {
                off(self.enable_topology)
            }
            Capability::VolumeExpansionOnline => off(self.enable_volume_expansion),
            Capability::ExpandVolume => {
                off(self.enable_volume_expansion) || on(self.disable_controller_expansion)
            }
            Capability::NodeExpandVolume => {
                off(self.enable_volume_expansion) || on(self.disable_node_expansion)
            }
            Capability::ModifyVolume => off(self.enable_controller_modify_volume),
            Capability::ListSnapshots => off(self.enable_list_snapshots),
            Capability::SnapshotMetadataService => off(self.enable_snapshot_metadata),
            // Otherwise kubelet leaves fsGroup to the driver.
            Capability::NodeVolumeMountGroup => true,
            _ => false,
        };
        let mut capabilities = CapabilitySet::default();
        capabilities.set(Capability::VolumeCondition, true);
        capabilities.set(Capability::NodeVolumeCondition, true);
        for capability in Capability::ALL
            .into_iter()
            .filter(|capability| is_off(*capability))
        {
            capabilities.set(capability, false);
        }
        capabilities
    }

    /// The pools by kind, of which the last flag counts, or an unlimited one; all with the topology `segments`.
    fn pools(&self, segments: &Segments) -> Vec<Pool> {
        let named = |pool: Pool| (pool.name.clone(), pool);
        let mut kinds: BTreeMap<PoolName, Pool> = self.capacity.iter().cloned().map(named).collect();
        if kinds.is_empty() {
            kinds.extend([named(Pool {
                name: PoolName::from("pool-0"),
                segments: Segments::default(),
                capacity: Pool::DEFAULT_CAPACITY,
            })]);
        }
        for pool in kinds.values_mut().filter(|pool| pool.segments.is_empty()) {
            pool.segments = segments.clone();
        }
        kinds.into_values().collect()
    }

    fn mutable_parameters(&self) -> Option<QosRule> {
        let names = self.accepted_mutable_parameter_names.iter();
        let names = names.flat_map(|names| names.split(',').map(str::trim));
        let mut names = names.filter(|name| !name.is_empty()).peekable();
        names.peek()?;
        Some(QosRule::new(names.map(|name| (name.to_owned(), Values::Any))))
    }

    /// Requested behaviour that this driver implements differently.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.ephemeral == Some(true) {
            notes.push(
                "--ephemeral: the Controller service has no capabilities; a volume is an inline one only where the \
                 caller says so in volume_context, as kubelet does since Kubernetes 1.16"
                    .to_owned(),
            );
        }
        let modifies = self.enable_controller_modify_volume != Some(false);
        if !self.accepted_mutable_parameter_names.is_empty() && !modifies {
            let note =
                "--accepted-mutable-parameter-names: has no effect without --enable-controller-modify-volume";
            notes.push(note.to_owned());
        }
        notes
    }
}

fn block_type(text: &str) -> Result<(), &'static str> {
    match text {
        "VARIABLE_LENGTH" => Ok(()),
        _ => Err("block metadata is always VARIABLE_LENGTH: remove the flag"),
    }
}

#[cfg(test)]
mod tests;
