//! The commands about one volume or one node.

use clap::Subcommand;

use super::output::{Done, Failure, Output};
use super::print::{done, print};
use crate::admin_api::client::Client;
use crate::admin_api::resource::{HealthIssue, NodeChange, NodeNew, VolumeChange, VolumeNew};

/// What to do with a volume.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// Tells of one.
    Get {
        /// Its id.
        volume: String,
    },
    /// Makes one.
    Create {
        /// Its name.
        name: String,
        /// Its size in bytes.
        #[arg(long)]
        bytes: Option<u64>,
        /// As a raw block volume.
        #[arg(long)]
        block: bool,
        /// The access mode, as CSI spells it.
        #[arg(long)]
        access_mode: Option<String>,
    },
    /// Deletes one.
    Delete {
        /// Its id.
        volume: String,
    },
    /// Makes one larger.
    Expand {
        /// Its id.
        volume: String,
        /// The size in bytes to grow to.
        bytes: u64,
    },
    /// Sets a health issue of a volume.
    Hurt {
        /// Its id.
        volume: String,
        /// UNKNOWN, DEGRADED, INACCESSIBLE or DATA_LOSS.
        #[arg(default_value = "DEGRADED")]
        status: String,
        /// Machine-readable reason, in CamelCase.
        #[arg(long, default_value = "SetByHand")]
        reason: String,
    },
    /// Clears the health issues of a volume.
    Heal {
        /// Its id.
        volume: String,
    },
}

/// What to do with a node.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Tells of one.
    Get {
        /// Its id.
        node: String,
    },
    /// Registers one.
    Register {
        /// Its id.
        node: String,
    },
    /// Takes one away; what is attached to it stays so.
    Remove {
        /// Its id.
        node: String,
    },
    /// Sets how many volumes one takes, and how many it says it takes; 0 for as many as come.
    Limit {
        /// Its id.
        node: String,
        /// How many it takes.
        limit: usize,
        /// How many it says it takes.
        #[arg(long)]
        says: Option<usize>,
    },
    /// Gives one another id.
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
            Self::Hurt {
                volume,
                status,
                reason,
            } => {
                let issue = HealthIssue {
                    status: status.clone(),
                    reason: reason.clone(),
                    message: "made sick by csi-mock-driver ctl".to_owned(),
                };
                change(volume, health(vec![issue])).await
            }
            Self::Heal { volume } => change(volume, health(Vec::new())).await,
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
            Self::Remove { node } => {
                client.remove_node(node).await?;
                return done(format!("took {node} away"), output);
            }
            Self::Limit { node, limit, says } => {
                let change = NodeChange {
                    limit: Some(*limit),
                    advertised_limit: *says,
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
