//! The commands about one volume or one node.

use clap::Subcommand;

use super::command::size;
use super::output::{Done, Failure, Output};
use super::print::{done, print};
use crate::admin_api::client::Client;
use crate::admin_api::resource::{HealthIssue, NodeChange, NodeNew, VolumeChange, VolumeNew};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// Show a volume.
    Get {
        /// Its id.
        volume: String,
    },
    /// Create a volume.
    Create {
        /// Its name.
        name: String,
        /// Its size, in bytes or with a unit (1Gi).
        #[arg(long, value_parser = size)]
        bytes: Option<u64>,
        /// As a raw block volume.
        #[arg(long)]
        block: bool,
        /// The access mode, as CSI spells it.
        #[arg(long)]
        access_mode: Option<String>,
    },
    /// Delete a volume.
    Delete {
        /// Its id.
        volume: String,
    },
    /// Expand a volume.
    Expand {
        /// Its id.
        volume: String,
        /// The new size, in bytes or with a unit (2Gi).
        #[arg(value_parser = size)]
        bytes: u64,
    },
    /// Set a health issue of a volume (VolumeHealth).
    SetHealth {
        /// Its id.
        volume: String,
        /// UNKNOWN, DEGRADED, INACCESSIBLE or DATA_LOSS.
        #[arg(default_value = "DEGRADED")]
        status: String,
        /// Machine-readable reason, in CamelCase.
        #[arg(long, default_value = "SetByHand")]
        reason: String,
    },
    /// Clear the health issues of a volume.
    ClearHealth {
        /// Its id.
        volume: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Show a node.
    Get {
        /// Its id.
        node: String,
    },
    /// Register a node.
    Register {
        /// Its id.
        node: String,
    },
    /// Deregister a node. Its volumes stay attached.
    Deregister {
        /// Its id.
        node: String,
    },
    /// Set the attach limit, and the limit that NodeGetInfo reports. 0 means unlimited.
    SetLimit {
        /// Its id.
        node: String,
        /// Maximum number of attached volumes.
        limit: usize,
        /// Limit that NodeGetInfo reports (max_volumes_per_node).
        #[arg(long)]
        advertised_limit: Option<usize>,
    },
    /// Change the id of a node.
    Rename {
        /// Its id.
        node: String,
        /// Its new id.
        to: String,
    },
}

// === impl VolumeCommand ===

impl VolumeCommand {
    pub(super) async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        let change = |volume: &str, change: VolumeChange| {
            let volume = volume.to_owned();
            async move { print(&client.change_volume(&volume, &change).await?, output) }
        };
        match self {
            Self::Get { volume } => print(&client.volume(volume).await?, output),
            Self::Create {
                name,
                bytes,
                block,
                access_mode,
            } => {
                let new = VolumeNew {
                    name: name.clone(),
                    capacity_bytes: *bytes,
                    access_mode: access_mode.clone(),
                    block: *block,
                    ..VolumeNew::default()
                };
                print(&client.create_volume(&new).await?, output)
            }
            Self::Delete { volume } => {
                client.delete_volume(volume).await?;
                done(format!("deleted {volume}"), output)
            }
            Self::Expand { volume, bytes } => {
                let larger = VolumeChange {
                    capacity_bytes: Some(*bytes),
                    ..VolumeChange::default()
                };
                change(volume, larger).await
            }
            Self::SetHealth {
                volume,
                status,
                reason,
            } => {
                let issue = HealthIssue {
                    status: status.clone(),
                    reason: reason.clone(),
                    message: "set by csi-mock-driver ctl".to_owned(),
                };
                change(volume, health(vec![issue])).await
            }
            Self::ClearHealth { volume } => change(volume, health(Vec::new())).await,
        }
    }
}

fn health(issues: Vec<HealthIssue>) -> VolumeChange {
    VolumeChange {
        health: Some(issues),
        ..VolumeChange::default()
    }
}

// === impl NodeCommand ===

impl NodeCommand {
    pub(super) async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        let node = match self {
            Self::Get { node } => client.node(node).await?,
            Self::Register { node } => {
                let new = NodeNew {
                    id: node.clone(),
                    limit: None,
                    topology: None,
                };
                client.register_node(&new).await?
            }
            Self::Deregister { node } => {
                client.remove_node(node).await?;
                return done(format!("deregistered node {node}"), output);
            }
            Self::SetLimit {
                node,
                limit,
                advertised_limit,
            } => {
                let change = NodeChange {
                    limit: Some(*limit),
                    advertised_limit: *advertised_limit,
                    ..NodeChange::default()
                };
                client.change_node(node, &change).await?
            }
            Self::Rename { node, to } => {
                let change = NodeChange {
                    id: Some(to.clone()),
                    ..NodeChange::default()
                };
                client.change_node(node, &change).await?
            }
        };
        print(&node, output)
    }
}
