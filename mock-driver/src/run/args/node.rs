//! Flags of the node: its id, its devices, and the media directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args};

use super::array::{self, parse_segments};
use super::ineffective::NAME;
use super::value::{given, path_or_empty, switch};
use crate::admin_api::Endpoint;
use crate::array::Segments;
use crate::driver::mode::Mode;
use crate::driver::registration;
use crate::fault::duration;
use crate::node;
use crate::node::device::Choice;

/// Flags of the process's node.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The node")]
pub(crate) struct NodeArgs {
    /// Services of this process: all, controller (all services except Node, with the array), or node
    /// (Identity and Node, for an array in another process).
    #[arg(long, help_heading = super::HEADING, default_value = "all")]
    pub(crate) mode: Mode,

    /// With --mode=node: --admin-endpoint of the process with the array. All processes need the same
    /// --media-dir.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) array_endpoint: Endpoint,

    /// Kubelet's plugin registration directory, usually /var/lib/kubelet/plugins_registry. Replaces the
    /// node-driver-registrar sidecar.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) registration_dir: PathBuf,

    /// Path of --endpoint on the host, as reported to kubelet. Default: the same path.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) registration_endpoint: PathBuf,

    /// ID of this process's node. With it, the driver has a Node service. {name} is replaced by --node-name.
    #[arg(long, alias = "nodeid", default_value = "", hide_default_value = true)]
    pub(crate) node_id: String,

    /// Kubernetes name of the node, for --node-id: with --node-id=i-{name} the node's CSI ID differs from its
    /// name.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) node_name: String,

    /// Topology of this node, such as mock.csi.local/zone=zone-0,mock.csi.local/rack=7, reported to the array
    /// at the start. Default: the array's value. A node can access the pools whose keys and values it has.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = segments)]
    pub(crate) topology: Segments,

    /// Devices of attached volumes: loop (needs privileges), emulated with files and directories, none, or
    /// auto for loop devices if available, else emulated.
    #[arg(long, default_value = "auto")]
    pub(crate) devices: Choice,

    /// Directory of the device links, which the driver locks: each driver needs its own. Default: beside the volume
    /// files.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) device_dir: PathBuf,

    /// Maximum time that node calls such as NodeStageVolume wait for a device.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(crate) device_timeout: Duration,

    /// Publish all mounted volumes so that fault rules with match.io take effect on them, through a FUSE filesystem.
    /// Without it, only those that such a rule names when they are published.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) device_faults: bool,

    /// Answer NodeUnpublishVolume and NodeUnstageVolume for an unknown volume with NOT_FOUND, as in the
    /// specification's text, instead of OK.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) node_unpublish_strict: bool,

    /// Directory of the volume and snapshot files: empty, or used by this array before (media.json names the
    /// array, and the driver locks the directory). Files that the array does not know are moved to orphaned/,
    /// which the driver never empties: without --state-dir it grows at each restart. Default: media in
    /// --state-dir, or a private directory that is removed on exit.
    #[arg(long, help_heading = array::HEADING, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) media_dir: PathBuf,
}

// === impl NodeArgs ===

impl NodeArgs {
    /// The id of the node; `None` for a driver without a Node service.
    pub(crate) fn id(&self) -> Option<String> {
        let id = self.node_id.replace(NAME, &self.node_name);
        Some(id).filter(|id| !id.is_empty())
    }

    /// The registration of a driver that listens at `endpoint`; `None` if a sidecar registers it.
    pub(crate) fn registration(&self, endpoint: &Path) -> Option<registration::Settings> {
        Some(registration::Settings {
            directory: given(&self.registration_dir)?,
            endpoint: given(&self.registration_endpoint).unwrap_or_else(|| endpoint.to_owned()),
        })
    }

    pub(crate) fn settings(&self) -> node::Settings {
        node::Settings {
            devices: self.devices,
            device_dir: given(&self.device_dir),
            device_timeout: self.device_timeout,
            strict_gone: self.node_unpublish_strict,
            device_faults: self.device_faults,
            topology: self.topology.as_map().clone(),
        }
    }
}

fn segments(text: &str) -> Result<Segments, String> {
    match text {
        "" => Ok(Segments::default()),
        text => parse_segments(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_keys_with_values() {
        let read = segments("a/zone=1,rack=7").unwrap();
        assert_eq!(read, [("a/zone", "1"), ("rack", "7")].into_iter().collect());
        assert_eq!(segments("").unwrap(), Segments::default());
        let long = format!("zone={}", "x".repeat(64));
        for text in [
            "zone",
            "=1",
            "zone=",
            "zone=1,x",
            "zone=a b!",
            "zone=1,Zone=2",
            &long,
        ] {
            assert!(segments(text).is_err(), "{text}");
        }
    }
}
