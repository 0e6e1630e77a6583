//! Flags of the node's side: which node this is, its devices, where the bytes lie.

use std::path::PathBuf;

use clap::Args;

use super::path_or_empty;

/// What a process is told about the node it stands on.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// The id of the node this process stands on; with it the driver has a Node service.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub node_id: String,

    /// Where the bytes of volumes and snapshots lie; empty for a place under --state-dir, or without
    /// that for a private one that goes with the driver.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub media_dir: PathBuf,
}
