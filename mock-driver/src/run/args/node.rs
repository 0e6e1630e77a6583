//! Flags of the node's side: which node this is, its devices, where the bytes lie.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args};

use super::array::read_place;
use super::{given, path_or_empty, switch};
use crate::admin_api::Endpoint;
use crate::array::Segments;
use crate::driver::mode::Mode;
use crate::driver::registration;
use crate::fault::duration;
use crate::node;
use crate::node::device::Choice;

/// What a process is told about the node it stands on.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Which services this process has: all, controller (all but Node, with the array), or node (Identity and
    /// Node, for an array in another process).
    #[arg(long, default_value = "all")]
    pub mode: Mode,

    /// With --mode=node: the --admin-endpoint of the process that has the array. All processes need the same
    /// --media-dir.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub array_endpoint: Endpoint,

    /// Kubelet's directory for registration sockets, usually /var/lib/kubelet/plugins_registry: with it no
    /// registrar sidecar is needed.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub registration_dir: PathBuf,

    /// The path of --endpoint as kubelet sees it; empty for the same.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub registration_endpoint: PathBuf,

    /// The id of the node this process stands on; with it the driver has a Node service. {name} in it
    /// stands for --node-name.
    #[arg(long, alias = "nodeid", default_value = "", hide_default_value = true)]
    pub node_id: String,

    /// The node's name, for --node-id: with --node-id=i-{name} the driver knows the node by another
    /// name than Kubernetes does.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub node_name: String,

    /// Where this node is, as in mock.csi.local/zone=zone-0,mock.csi.local/rack=7; the array hears it when the
    /// process starts. Empty for where the array has it. A node reaches the pools whose keys and values it has.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = segments)]
    pub topology: Segments,

    /// What attached volumes are on this node: loop devices (needs privileges), emulated by regular files
    /// and directories, or none; auto takes loop devices where they can be had.
    #[arg(long, default_value = "auto")]
    pub devices: Choice,

    /// Where to put the links to the devices; empty for a place beside the volumes' bytes.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub device_dir: PathBuf,

    /// How long NodeStageVolume and its like wait for a device that is not there yet.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub device_timeout: Duration,

    /// Answer NOT_FOUND when something is to be unpublished or unstaged of a volume that is gone, as the
    /// specification's words have it. Otherwise there is nothing to do, and that is a success.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub node_unpublish_strict: bool,

    /// Where the bytes of volumes and snapshots lie; empty for a place under --state-dir, or without
    /// that for a private one that goes with the driver.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub media_dir: PathBuf,
}

// === impl NodeArgs ===

impl NodeArgs {
    /// The id of the node; none for a driver without a Node service.
    pub fn id(&self) -> Option<String> {
        let id = self.node_id.replace("{name}", &self.node_name);
        Some(id).filter(|id| !id.is_empty())
    }

    /// How the driver that listens at `endpoint` registers; none if a sidecar does that for it.
    pub fn registration(&self, endpoint: &Path) -> Option<registration::Settings> {
        Some(registration::Settings {
            directory: given(&self.registration_dir)?,
            endpoint: given(&self.registration_endpoint).unwrap_or_else(|| endpoint.to_owned()),
        })
    }

    /// How the node's side is to be built.
    pub fn settings(&self) -> node::Settings {
        node::Settings {
            devices: self.devices,
            device_dir: given(&self.device_dir),
            device_timeout: self.device_timeout,
            strict_gone: self.node_unpublish_strict,
            topology: self
                .topology
                .iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

fn segments(text: &str) -> Result<Segments, String> {
    match text {
        "" => Ok(Segments::default()),
        text => read_place(text),
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
