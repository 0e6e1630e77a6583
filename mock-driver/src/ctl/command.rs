//! The commands.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::calls::JournalArgs;
use super::faults::{capabilities, yaml_file};
use super::output::{Done, Failure, Output};
use super::print::{changed, done, json, print, print_faults};
use super::resources::{
    BackendFaultCommand, FaultCommand, GroupCommand, NodeCommand, PoolCommand, ScenarioCommand,
    SnapshotCommand, StorageCommand, VolumeCommand,
};
use crate::admin_api::client::Client;
use crate::admin_api::query::{
    AttachmentQuery, GroupQuery, NodeQuery, ResetQuery, SnapshotQuery, VolumeQuery,
};
use crate::admin_api::resource::Attach;
use crate::array::quantity;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    /// Show driver version, configuration and object counts.
    Info,
    /// Exit with 0 if the driver is healthy and, with --registration-dir, registered with kubelet.
    Ready,
    /// List, create, expand and delete volumes; set their health.
    Volumes(ListArgs<VolumeQuery, VolumeCommand>),
    /// List, create and delete snapshots.
    Snapshots(ListArgs<SnapshotQuery, SnapshotCommand>),
    /// List, create and delete group snapshots.
    GroupSnapshots(ListArgs<GroupQuery, GroupCommand>),
    /// List storage pools with their usage; resize them.
    Pools {
        #[command(subcommand)]
        what: Option<PoolCommand>,
    },
    /// Show, set or clear the health of the storage of nodes.
    Storage {
        #[command(subcommand)]
        what: Option<StorageCommand>,
    },
    /// List, register and deregister nodes; change their attach limits and ids.
    Nodes(ListArgs<NodeQuery, NodeCommand>),
    /// List attached volumes per node.
    Attachments(AttachmentQuery),
    /// Attach a volume out of band.
    Attach {
        /// The volume's id.
        volume: String,
        /// The node's id.
        node: String,
        #[command(flatten)]
        attach: Attach,
    },
    /// Detach a volume out of band: the attacher does not see it.
    Detach {
        /// The volume's id.
        volume: String,
        /// The node's id.
        node: String,
    },
    /// List capabilities; with names, enable (+NAME) or disable (-NAME) them.
    Capabilities {
        /// +NAME or -NAME.
        #[arg(allow_hyphen_values = true)]
        changes: Vec<String>,
    },
    /// List, add, remove, enable, disable and release fault rules.
    Faults {
        #[command(subcommand)]
        what: Option<FaultCommand>,
    },
    /// List, add, remove, enable and disable backend faults.
    BackendFaults {
        #[command(subcommand)]
        what: Option<BackendFaultCommand>,
    },
    /// List, start and stop built-in fault scenarios.
    Scenarios {
        #[command(subcommand)]
        what: Option<ScenarioCommand>,
    },
    /// Query the call journal: list, wait for and assert finished calls.
    Journal(JournalArgs),
    /// List in-flight calls.
    Calls,
    /// Print the state of the array as a fixture, for `import` and --fixture.
    Export,
    /// Replace the state of the array by a fixture.
    Import {
        /// A fixture in YAML or JSON; - for stdin.
        file: PathBuf,
    },
    /// Return to the state after the start: array, rules, capabilities and journal.
    Reset(ResetQuery),
}

/// A command about one object, or a list. Filters before a command, which would be ignored, are refused.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ListArgs<Q: Args, C: Subcommand> {
    #[command(flatten)]
    query: Q,
    #[command(subcommand)]
    what: Option<C>,
}

/// Runs the command about one resource, if there is one, and else lists all.
macro_rules! list_or_run {
    ($client:ident, $output:ident, $what:expr, $list:ident($($query:expr)?)) => {
        match $what {
            Some(what) => what.run($client, $output).await,
            None => print(&$client.$list($(&$query)?).await?, $output),
        }
    };
}

// === impl Command ===

impl Command {
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<Done, Failure> {
        match self {
            Self::Info => print(&client.info().await?, output),
            Self::Ready => {
                client.ready().await?;
                done("ready".to_owned(), output)
            }
            Self::Volumes(args) => list_or_run!(client, output, args.what, volumes(args.query)),
            Self::Snapshots(args) => list_or_run!(client, output, args.what, snapshots(args.query)),
            Self::GroupSnapshots(args) => {
                list_or_run!(client, output, args.what, group_snapshots(args.query))
            }
            Self::Nodes(args) => list_or_run!(client, output, args.what, nodes(args.query)),
            Self::Pools { what } => list_or_run!(client, output, what, pools()),
            Self::Storage { what } => list_or_run!(client, output, what, storage()),
            Self::Attachments(query) => print(&client.attachments(&query).await?, output),
            Self::Attach { volume, node, attach } => {
                let attached = client.attach(&volume, &node, &attach).await?;
                changed(format!("attached {volume} to {node}"), &attached, output)
            }
            Self::Detach { volume, node } => {
                client.detach(&volume, &node).await?;
                done(format!("detached {volume} from {node}"), output)
            }
            Self::Capabilities { changes } => capabilities(client, &changes, output).await,
            Self::Faults { what: Some(what) } => what.run(client, output).await,
            Self::Faults { what: None } => print_faults(&client.faults().await?, output),
            Self::BackendFaults { what } => list_or_run!(client, output, what, backend_faults()),
            Self::Scenarios { what } => list_or_run!(client, output, what, scenarios()),
            Self::Journal(journal) => journal.run(client, output).await,
            Self::Calls => print(&client.running().await?, output),
            Self::Export => Ok(Done::Text(json(&client.export().await?), true)),
            Self::Import { file } => {
                client.import(&yaml_file(&file)?).await?;
                done("imported".to_owned(), output)
            }
            Self::Reset(query) => {
                client.reset(&query).await?;
                done("reset".to_owned(), output)
            }
        }
    }
}

pub(super) fn size(text: &str) -> Result<u64, &'static str> {
    quantity::bytes(text).ok_or("must be a number of bytes, with or without a unit such as Mi or Gi")
}
