//! The commands for snapshots and group snapshots.

use clap::Subcommand;

use super::output::{Done, Failure, Output};
use super::print::{done, print};
use crate::admin_api::client::Client;
use crate::admin_api::resource::{GroupSnapshotNew, SnapshotNew};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Show a snapshot.
    Get {
        /// Its id.
        snapshot: String,
    },
    /// Create a snapshot.
    Create {
        /// Its name.
        name: String,
        /// The volume's id.
        volume: String,
    },
    /// Delete a snapshot.
    Delete {
        /// Its id.
        snapshot: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// Show a group snapshot.
    Get {
        /// Its id.
        group: String,
    },
    /// Create a group snapshot.
    Create {
        /// Its name.
        name: String,
        /// The volumes' ids.
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Delete a group snapshot with its snapshots.
    Delete {
        /// Its id.
        group: String,
    },
}

// === impl SnapshotCommand ===

impl SnapshotCommand {
    pub(super) async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        match self {
            Self::Get { snapshot } => print(&client.snapshot(snapshot).await?, output),
            Self::Create { name, volume } => {
                let new = SnapshotNew {
                    name: name.clone(),
                    source: volume.clone(),
                    ..SnapshotNew::default()
                };
                print(&client.create_snapshot(&new).await?, output)
            }
            Self::Delete { snapshot } => {
                client.delete_snapshot(snapshot).await?;
                done(format!("deleted {snapshot}"), output)
            }
        }
    }
}

// === impl GroupCommand ===

impl GroupCommand {
    pub(super) async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        match self {
            Self::Get { group } => print(&client.group_snapshot(group).await?, output),
            Self::Create { name, volumes } => {
                let new = GroupSnapshotNew {
                    name: name.clone(),
                    sources: volumes.clone(),
                    ..GroupSnapshotNew::default()
                };
                print(&client.create_group_snapshot(&new).await?, output)
            }
            Self::Delete { group } => {
                client.delete_group_snapshot(group).await?;
                done(format!("deleted {group} with its snapshots"), output)
            }
        }
    }
}
