//! Translates the flags of csi-driver-host-path to those of this driver.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::run::args::Args;

/// Its state directory, used if it exists, because its manifests mount it there. In Kubernetes' tests several drivers on a
/// node share it, so each has a subdirectory of its name.
const STATE_DIR: &str = "/csi-data-dir";

/// Its topology key, whatever the driver's name.
const NODE_KEY: &str = "topology.hostpath.csi/node";

/// The class parameter that names a kind of space.
const KIND: &str = "kind";

/// The smallest disk of a volume with a filesystem, in bytes. Its volumes are directories without a limit, and Kubernetes'
/// tests write 102 MiB to a claim of 1 MiB; XFS needs 300 MiB.
const MIN_FILESYSTEM_BYTES: u64 = 320 << 20;

/// From this verbosity on it logs complete calls, which Kubernetes' tests read.
const CALLS_FROM_V: u8 = 5;

pub(in crate::run::args) fn translate(args: &mut Args, matches: &ArgMatches) {
    let is_given = |field: &str| {
        !matches!(
            matches.value_source(field),
            None | Some(ValueSource::DefaultValue)
        )
    };
    let host_path = &args.host_path;
    let mut capabilities = host_path.capabilities();
    // Validated before, so it cannot fail.
    for changes in matches.get_raw("capabilities").into_iter().flatten() {
        capabilities.change(&changes.to_string_lossy()).ok();
    }
    args.capabilities = capabilities;
    args.array.attach_optional = true;
    args.array.min_filesystem_bytes = MIN_FILESYSTEM_BYTES;
    if !is_given("state_dir")
        && let Some(directory) = state_dir(Path::new(STATE_DIR), &args.driver_name)
    {
        args.state_dir = directory;
    }
    if let Some(qos) = host_path.mutable_parameters() {
        args.array.mutable_parameters = qos;
    }
    if host_path.check_volume_lifecycle == Some(false) {
        args.array.delete_in_use = true;
    }
    if let (Some(limit), 0) = (host_path.maxvolumespernode, args.attach_limit) {
        args.array.advertised_attach_limit = limit;
    }
    args.array.node_growth_limit = host_path.max_volume_size_node.filter(|most| *most > 0);
    let has_topology = is_given("pools") || is_given("zones");
    if !has_topology || !host_path.capacity.is_empty() {
        let node = args
            .node
            .id()
            .filter(|_| host_path.enable_topology != Some(false));
        let segments = node.map(|node| (NODE_KEY, node)).into_iter().collect();
        args.array.pools = host_path.pools(&segments);
    }
    args.array.pool_parameter = KIND;
    if args.v >= CALLS_FROM_V && !is_given("log_grpc_calls") {
        args.admin.log_grpc_calls = true;
    }
}

/// The subdirectory of a driver in the shared directory, if that exists.
pub(super) fn state_dir(shared: &Path, driver_name: &str) -> Option<PathBuf> {
    shared.is_dir().then(|| shared.join(driver_name))
}
