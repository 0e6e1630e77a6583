//! The commands about space and about the ways to it.

use clap::Subcommand;

use super::output::{Done, Failure, Output};
use super::print::print;
use crate::admin_api::client::Client;
use crate::admin_api::resource::{NodeChange, StorageHealthIssue};

/// What to do with a pool.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum PoolCommand {
    /// Tells of one.
    Get {
        /// Its name.
        pool: String,
    },
    /// Gives one more space or less.
    Resize {
        /// Its name.
        pool: String,
        /// The bytes it is to have; no fewer than its volumes and snapshots have.
        bytes: u64,
    },
}

/// What to do with the storage behind nodes.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum StorageCommand {
    /// Sets a health issue of the storage.
    Hurt {
        /// UNKNOWN, DEGRADED or UNREACHABLE.
        #[arg(default_value = "DEGRADED")]
        status: String,
        /// Machine-readable reason, in CamelCase.
        #[arg(long, default_value = "SetByHand")]
        reason: String,
        /// That behind this node only.
        #[arg(long)]
        node: Option<String>,
        /// For this use of volumes only, such as 'block SINGLE_NODE_WRITER'.
        #[arg(long)]
        capability: Option<String>,
    },
    /// Clears the health issues of the storage.
    Heal {
        /// That behind this node only; that behind all nodes stays as it is.
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

/// Shows or sets the health of the storage.
pub(super) async fn storage(
    client: &Client,
    what: Option<&StorageCommand>,
    output: Output,
) -> Result<Done, Failure> {
    let (node, health) = match what {
        None => return print(&client.storage().await?, output),
        Some(StorageCommand::Heal { node }) => (node, Vec::new()),
        Some(StorageCommand::Hurt {
            status,
            reason,
            node,
            capability,
        }) => {
            let issue = StorageHealthIssue {
                status: status.clone(),
                reason: reason.clone(),
                message: "made sick by csi-mock-driver ctl".to_owned(),
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
