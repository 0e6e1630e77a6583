//! The commands about one resource, one row each: its arguments and what it does.

use std::path::PathBuf;

use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::command::size;
use super::faults::add;
use super::output::{Done, Failure, Output};
use super::print::{changed, done, print};
use super::table;
use crate::admin_api::client::Client;
use crate::admin_api::resource::{
    GroupSnapshotNew, NodeChange, NodeNew, SnapshotNew, StorageHealthIssue, VolumeChange, VolumeNew,
};

/// The message of health issues that are set here.
const BY_CTL: &str = "set by csi-mock-driver ctl";

macro_rules! commands {
    ($($resource:ident($client:ident, $output:ident) {
        $($(#[$about:meta])* $command:ident($($(#[$doc:meta])* $arg:ident: $type:ty),*) => $run:expr,)+
    })+) => {$(
        #[derive(Clone, Debug, Subcommand)]
        pub(super) enum $resource {
            $($(#[$about])* $command { $($(#[$doc])* $arg: $type),* },)+
        }

        impl $resource {
            pub(super) async fn run(self, $client: &Client, $output: Output) -> Result<Done, Failure> {
                match self {
                    $(Self::$command { $($arg),* } => $run,)+
                }
            }
        }
    )+};
}

commands! {
    VolumeCommand(client, output) {
        /// Show a volume.
        Get(/** Its id. */ volume: String) => print(&client.volume(&volume).await?, output),
        /// Create a volume.
        Create(
            /** Its name. */ name: String,
            /** Its size, in bytes or with a unit (1Gi). */ #[arg(long, value_parser = size)] bytes: Option<u64>,
            /** As a raw block volume. */ #[arg(long)] block: bool,
            /** The access mode, as CSI spells it. */ #[arg(long)] access_mode: Option<String>
        ) => {
            let new = VolumeNew { name, capacity_bytes: bytes, access_mode, block, ..VolumeNew::default() };
            let volume = client.create_volume(&new).await?;
            changed(format!("created volume {}", volume.id), &volume, output)
        },
        /// Delete a volume.
        Delete(/** Its id. */ volume: String) => {
            client.delete_volume(&volume).await?;
            done(format!("deleted {volume}"), output)
        },
        /// Expand a volume.
        Expand(
            /** Its id. */ volume: String,
            /** The new size, in bytes or with a unit (2Gi). */ #[arg(value_parser = size)] bytes: u64
        ) => {
            let change = VolumeChange { capacity_bytes: Some(bytes), ..VolumeChange::default() };
            let expanded = client.change_volume(&volume, &change).await?;
            changed(format!("expanded {volume} to {}", table::size(expanded.capacity_bytes)), &expanded, output)
        },
        /// Set a health issue of a volume (VolumeHealth).
        SetHealth(
            /** Its id. */ volume: String,
            /** UNKNOWN, DEGRADED, INACCESSIBLE or DATA_LOSS. */ #[arg(default_value = "DEGRADED")] status: String,
            /** Machine-readable reason, in CamelCase. */ #[arg(long, default_value = "SetByHand")] reason: String
        ) => {
            let issue = issue(json!({"status": status, "reason": reason, "message": BY_CTL}))?;
            let change = VolumeChange { health: Some(vec![issue]), ..VolumeChange::default() };
            changed(format!("set the health of {volume}"), &client.change_volume(&volume, &change).await?, output)
        },
        /// Clear the health issues of a volume.
        ClearHealth(/** Its id. */ volume: String) => {
            let change = VolumeChange { health: Some(Vec::new()), ..VolumeChange::default() };
            changed(format!("cleared the health of {volume}"), &client.change_volume(&volume, &change).await?, output)
        },
    }

    NodeCommand(client, output) {
        /// Show a node.
        Get(/** Its id. */ node: String) => print(&client.node(&node).await?, output),
        /// Register a node.
        Register(/** Its id. */ node: String) => {
            let new = NodeNew { id: node, limit: None, topology: None };
            let node = client.register_node(&new).await?;
            changed(format!("registered node {}", node.id), &node, output)
        },
        /// Deregister a node. Its volumes stay attached.
        Deregister(/** Its id. */ node: String) => {
            client.remove_node(&node).await?;
            done(format!("deregistered node {node}"), output)
        },
        /// Set the attach limit, and the limit that NodeGetInfo reports. 0 means unlimited.
        SetLimit(
            /** Its id. */ node: String,
            /** Maximum number of attached volumes. */ limit: usize,
            /** Limit that NodeGetInfo reports (max_volumes_per_node). */ #[arg(long)] advertised_limit: Option<usize>
        ) => {
            let change = NodeChange { limit: Some(limit), advertised_limit, ..NodeChange::default() };
            changed(format!("set the limit of node {node} to {limit}"), &client.change_node(&node, &change).await?, output)
        },
        /// Change the id of a node.
        Rename(/** Its id. */ node: String, /** Its new id. */ to: String) => {
            let change = NodeChange { id: Some(to.clone()), ..NodeChange::default() };
            changed(format!("renamed node {node} to {to}"), &client.change_node(&node, &change).await?, output)
        },
    }

    SnapshotCommand(client, output) {
        /// Show a snapshot.
        Get(/** Its id. */ snapshot: String) => print(&client.snapshot(&snapshot).await?, output),
        /// Create a snapshot.
        Create(/** Its name. */ name: String, /** The volume's id. */ volume: String) => {
            let new = SnapshotNew { name, source: volume, ..SnapshotNew::default() };
            let snapshot = client.create_snapshot(&new).await?;
            changed(format!("created snapshot {}", snapshot.id), &snapshot, output)
        },
        /// Delete a snapshot.
        Delete(/** Its id. */ snapshot: String) => {
            client.delete_snapshot(&snapshot).await?;
            done(format!("deleted {snapshot}"), output)
        },
    }

    GroupCommand(client, output) {
        /// Show a group snapshot.
        Get(/** Its id. */ group: String) => print(&client.group_snapshot(&group).await?, output),
        /// Create a group snapshot.
        Create(/** Its name. */ name: String, /** The volumes' ids. */ #[arg(required = true)] volumes: Vec<String>) => {
            let new = GroupSnapshotNew { name, sources: volumes, ..GroupSnapshotNew::default() };
            let group = client.create_group_snapshot(&new).await?;
            changed(format!("created group snapshot {}", group.id), &group, output)
        },
        /// Delete a group snapshot with its snapshots.
        Delete(/** Its id. */ group: String) => {
            client.delete_group_snapshot(&group).await?;
            done(format!("deleted {group} with its snapshots"), output)
        },
    }

    PoolCommand(client, output) {
        /// Show a pool.
        Get(/** Its name. */ pool: String) => print(&client.pool(&pool).await?, output),
        /// Resize a pool.
        Resize(
            /** Its name. */ pool: String,
            /** The new capacity, in bytes or with a unit (10Gi); at least the allocated bytes. */ #[arg(value_parser = size)] bytes: u64
        ) => {
            let resized = client.resize_pool(&pool, bytes).await?;
            changed(format!("resized pool {pool} to {}", table::size(bytes)), &resized, output)
        },
    }

    StorageCommand(client, output) {
        /// Set a health issue of the storage.
        SetHealth(
            /** UNKNOWN, DEGRADED or UNREACHABLE. */ #[arg(default_value = "DEGRADED")] status: String,
            /** Machine-readable reason, in CamelCase. */ #[arg(long, default_value = "SetByHand")] reason: String,
            /** Only the storage of this node. */ #[arg(long)] node: Option<String>,
            /** Only for volumes with this capability, such as 'block SINGLE_NODE_WRITER'. */ #[arg(long)] capability: Option<String>
        ) => {
            let issue = issue(json!({"status": status, "reason": reason, "message": BY_CTL, "capability": capability}))?;
            set_storage_health(client, node, vec![issue], output).await
        },
        /// Clear the health issues of the storage.
        ClearHealth(/** Only the storage of this node. */ #[arg(long)] node: Option<String>) => {
            set_storage_health(client, node, Vec::new(), output).await
        },
    }

    FaultCommand(client, output) {
        /// Apply a fault file atomically.
        Add(/** A list of rules, a rule, or `rules` and `backend-faults`, in YAML; - for stdin. */ file: PathBuf) => {
            add(client, &file, "rules", output).await
        },
        /// Remove a fault rule.
        Remove(/** Its id. */ rule: String) => {
            client.remove_fault(&rule).await?;
            done(format!("removed {rule}"), output)
        },
        /// Enable a fault rule.
        Enable(/** Its id. */ rule: String) => {
            client.set_fault(&rule, true).await?;
            done(format!("enabled {rule}"), output)
        },
        /// Disable a fault rule.
        Disable(/** Its id. */ rule: String) => {
            client.set_fault(&rule, false).await?;
            done(format!("disabled {rule}"), output)
        },
        /// Release the calls that a rule blocks (`action.hang: release`).
        Release(/** Its id. */ rule: String) => {
            let released = client.release_fault(&rule).await?;
            done(format!("{rule} released {} calls", released.calls), output)
        },
        /// Reset the counters and state of all rules.
        Reset() => {
            client.reset_faults().await?;
            done("reset the counters and the state of all rules".to_owned(), output)
        },
    }

    BackendFaultCommand(client, output) {
        /// Apply a fault file atomically.
        Add(/** A list of backend faults, a backend fault, or `rules` and `backend-faults`, in YAML; - for stdin. */ file: PathBuf) => {
            add(client, &file, "backend-faults", output).await
        },
        /// Remove a backend fault.
        Remove(/** Its id. */ fault: String) => {
            client.remove_backend_fault(&fault).await?;
            done(format!("removed {fault}"), output)
        },
        /// Enable a backend fault.
        Enable(/** Its id. */ fault: String) => {
            client.set_backend_fault(&fault, true).await?;
            done(format!("enabled {fault}"), output)
        },
        /// Disable a backend fault.
        Disable(/** Its id. */ fault: String) => {
            client.set_backend_fault(&fault, false).await?;
            done(format!("disabled {fault}"), output)
        },
    }

    ScenarioCommand(client, output) {
        /// Start a scenario.
        Start(/** Its name. */ scenario: String) => {
            let started = client.set_scenario(&scenario, true).await?;
            done(format!("started {scenario}: {}", started.about), output)
        },
        /// Stop a scenario.
        Stop(/** Its name. */ scenario: String) => {
            client.set_scenario(&scenario, false).await?;
            done(format!("stopped {scenario}"), output)
        },
    }
}

fn issue<T: DeserializeOwned>(issue: Value) -> Result<T, Failure> {
    serde_json::from_value(issue).map_err(|error| Failure::Usage(error.to_string()))
}

/// Sets the health issues of the storage of a node, or of all nodes.
async fn set_storage_health(
    client: &Client,
    node: Option<String>,
    health: Vec<StorageHealthIssue>,
    output: Output,
) -> Result<Done, Failure> {
    let act = if health.is_empty() { "cleared" } else { "set" };
    let whose = node
        .as_ref()
        .map_or_else(|| "all nodes".to_owned(), |node| format!("node {node}"));
    match node {
        Some(node) => {
            let health = Some(health);
            let change = NodeChange {
                health,
                ..NodeChange::default()
            };
            client.change_node(&node, &change).await.map(drop)?;
        }
        None => client.set_storage_health(health).await.map(drop)?,
    }
    let text = format!("{act} the storage health of {whose}");
    changed(text, &client.storage().await?, output)
}
