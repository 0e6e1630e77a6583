//! The commands about snapshots and groups of them.

use clap::Subcommand;

use super::output::{Done, Failure, Output};
use super::print::{done, print};
use crate::admin_api::client::Client;
use crate::admin_api::resource::{GroupSnapshotNew, SnapshotNew};

/// What to do with a snapshot.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Tells of one.
    Get {
        /// Its id.
        snapshot: String,
    },
    /// Takes one.
    Create {
        /// Its name.
        name: String,
        /// The volume's id.
        volume: String,
    },
    /// Deletes one.
    Delete {
        /// Its id.
        snapshot: String,
    },
}

/// What to do with a group of snapshots.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// Tells of one.
    Get {
        /// Its id.
        group: String,
    },
    /// Takes one.
    Create {
        /// Its name.
        name: String,
        /// The volumes' ids.
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Deletes one with its snapshots.
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
