//! The commands about pools and the storage of nodes.

use clap::Subcommand;

use super::command::size;
use super::output::{Done, Failure, Output};
use super::print::print;
use crate::admin_api::client::Client;
use crate::admin_api::resource::{NodeChange, StorageHealthIssue};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum PoolCommand {
    /// Show a pool.
    Get {
        /// Its name.
        pool: String,
    },
    /// Resize a pool.
    Resize {
        /// Its name.
        pool: String,
        /// The new capacity, in bytes or with a unit (10Gi); at least the allocated bytes.
        #[arg(value_parser = size)]
        bytes: u64,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum StorageCommand {
    /// Set a health issue of the storage.
    SetHealth {
        /// UNKNOWN, DEGRADED or UNREACHABLE.
        #[arg(default_value = "DEGRADED")]
        status: String,
        /// Machine-readable reason, in CamelCase.
        #[arg(long, default_value = "SetByHand")]
        reason: String,
        /// Only the storage of this node.
        #[arg(long)]
        node: Option<String>,
        /// Only for volumes with this capability, such as 'block SINGLE_NODE_WRITER'.
        #[arg(long)]
        capability: Option<String>,
    },
    /// Clear the health issues of the storage.
    ClearHealth {
        /// Only the storage of this node.
        #[arg(long)]
        node: Option<String>,
    },
}

// === impl PoolCommand ===

impl PoolCommand {
    pub(super) async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        let pool = match self {
            Self::Get { pool } => client.pool(pool).await?,
            Self::Resize { pool, bytes } => client.resize_pool(pool, *bytes).await?,
        };
        print(&pool, output)
    }
}

pub(super) async fn storage(
    client: &Client,
    what: Option<&StorageCommand>,
    output: Output,
) -> Result<Done, Failure> {
    let (node, health) = match what {
        None => return print(&client.storage().await?, output),
        Some(StorageCommand::ClearHealth { node }) => (node, Vec::new()),
        Some(StorageCommand::SetHealth {
            status,
            reason,
            node,
            capability,
        }) => {
            let issue = StorageHealthIssue {
                status: status.clone(),
                reason: reason.clone(),
                message: "set by csi-mock-driver ctl".to_owned(),
                capability: capability.clone(),
            };
            (node, vec![issue])
        }
    };
    match node {
        Some(node) => {
            let change = NodeChange {
                health: Some(health),
                ..NodeChange::default()
            };
            client.change_node(node, &change).await?;
        }
        None => {
            client.set_storage_health(health).await?;
        }
    }
    print(&client.storage().await?, output)
}
