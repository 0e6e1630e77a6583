//! The commands.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
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
use crate::admin_api::resource::Attach;
use crate::array::quantity;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    /// Show driver version, configuration and object counts.
    Info,
    /// Exit with 0 if the driver is healthy and, with --registration-dir, registered with kubelet.
    Ready,
    /// List, create, expand and delete volumes; set their health.
    Volumes {
        #[command(flatten)]
        list: ListArgs,
        /// Only volumes attached to this node.
        #[arg(long)]
        node: Option<String>,
        #[command(subcommand)]
        what: Option<VolumeCommand>,
    },
    /// List, create and delete snapshots.
    Snapshots {
        #[command(flatten)]
        list: ListArgs,
        /// Only snapshots of this source volume.
        #[arg(long)]
        source: Option<String>,
        /// Only snapshots of this group.
        #[arg(long)]
        group: Option<String>,
        #[command(subcommand)]
        what: Option<SnapshotCommand>,
    },
    /// List, create and delete group snapshots.
    GroupSnapshots {
        #[command(flatten)]
        list: ListArgs,
        /// Only groups with a snapshot of this source volume.
        #[arg(long)]
        source: Option<String>,
        #[command(subcommand)]
        what: Option<GroupCommand>,
    },
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
    Nodes {
        #[command(flatten)]
        list: ListArgs,
        #[command(subcommand)]
        what: Option<NodeCommand>,
    },
    /// List attached volumes per node.
    Attachments(AttachmentsArgs),
    /// Attach a volume out of band.
    Attach {
        /// The volume's id.
        volume: String,
        /// The node's id.
        node: String,
        /// Read-only.
        #[arg(long)]
        readonly: bool,
        /// As a raw block device.
        #[arg(long)]
        block: bool,
        /// The access mode, as CSI spells it.
        #[arg(long)]
        access_mode: Option<String>,
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
    Reset {
        /// First unpublish and unstage the volumes that the driver's own node uses.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Clone, Debug)]
pub(super) struct AttachmentsArgs {
    /// Only attachments of this volume.
    #[arg(long)]
    volume: Option<String>,
    /// Only attachments to this node.
    #[arg(long)]
    node: Option<String>,
    /// Continue after this volume id.
    #[arg(long)]
    after: Option<String>,
    /// Maximum number of items, 1 to 1000. Default: 100.
    #[arg(long, value_parser = limits())]
    limit: Option<usize>,
}

#[derive(Args, Clone, Debug)]
pub(super) struct ListArgs {
    /// Only items whose id or name contains this text.
    #[arg(long)]
    search: Option<String>,
    /// Continue after this id.
    #[arg(long)]
    after: Option<String>,
    /// Maximum number of items, 1 to 1000. Default: 100.
    #[arg(long, value_parser = limits())]
    limit: Option<usize>,
}

/// The flags of a list, as a query.
struct Choice(Query);

type Query = Vec<(&'static str, String)>;

/// Runs the command about one resource, if there is one, and else lists all.
macro_rules! list_or_run {
    ($client:ident, $output:ident, $what:expr, $list:ident, $choice:expr) => {{
        let choice: Choice = $choice;
        match $what {
            Some(what) => what.run(choice.of_one($client)?, $output).await,
            None => print(&$client.$list(&choice.0).await?, $output),
        }
    }};
    ($client:ident, $output:ident, $what:expr, $list:ident) => {
        match $what {
            Some(what) => what.run($client, $output).await,
            None => print(&$client.$list().await?, $output),
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
            Self::Volumes { list, node, what } => {
                list_or_run!(client, output, what, volumes, list.choice(&[("node", &node)]))
            }
            Self::Snapshots {
                list,
                source,
                group,
                what,
            } => {
                list_or_run!(
                    client,
                    output,
                    what,
                    snapshots,
                    list.choice(&[("source", &source), ("group", &group)])
                )
            }
            Self::GroupSnapshots { list, source, what } => {
                list_or_run!(
                    client,
                    output,
                    what,
                    group_snapshots,
                    list.choice(&[("source", &source)])
                )
            }
            Self::Nodes { list, what } => list_or_run!(client, output, what, nodes, list.choice(&[])),
            Self::Pools { what } => list_or_run!(client, output, what, pools),
            Self::Storage { what } => list_or_run!(client, output, what, storage),
            Self::Attachments(which) => print(&client.attachments(&which.query()).await?, output),
            Self::Attach {
                volume,
                node,
                readonly,
                block,
                access_mode,
            } => {
                let attach = Attach {
                    access_mode,
                    block,
                    readonly,
                };
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
            Self::BackendFaults { what } => list_or_run!(client, output, what, backend_faults),
            Self::Scenarios { what } => list_or_run!(client, output, what, scenarios),
            Self::Journal(journal) => journal.run(client, output).await,
            Self::Calls => print(&client.running().await?, output),
            Self::Export => Ok(Done::Text(json(&client.export().await?), true)),
            Self::Import { file } => {
                client.import(&yaml_file(&file)?).await?;
                done("imported".to_owned(), output)
            }
            Self::Reset { force } => {
                match force {
                    true => client.force_reset().await?,
                    false => client.reset().await?,
                }
                done("reset".to_owned(), output)
            }
        }
    }
}

// === impl AttachmentsArgs ===

impl AttachmentsArgs {
    fn query(&self) -> Query {
        let limit = self.limit.map(|limit| limit.to_string());
        given(&[
            ("volume", &self.volume),
            ("node", &self.node),
            ("after", &self.after),
            ("limit", &limit),
        ])
    }
}

// === impl ListArgs ===

impl ListArgs {
    fn choice(&self, more: &[(&'static str, &Option<String>)]) -> Choice {
        let limit = self.limit.map(|limit| limit.to_string());
        let mut query = given(&[
            ("search", &self.search),
            ("after", &self.after),
            ("limit", &limit),
        ]);
        query.extend(given(more));
        Choice(query)
    }
}

// === impl Choice ===

impl Choice {
    /// The client for a command about one object. Refuses filters before the subcommand, which would be ignored.
    fn of_one<'a>(&self, client: &'a Client) -> Result<&'a Client, Failure> {
        match self.0.first() {
            None => Ok(client),
            Some((name, _)) => Err(Failure::Usage(format!(
                "--{name} only applies to lists: omit it with this subcommand"
            ))),
        }
    }
}

pub(super) fn size(text: &str) -> Result<u64, &'static str> {
    quantity::bytes(text).ok_or("must be a number of bytes, with or without a unit such as Mi or Gi")
}

fn limits() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

fn given(pairs: &[(&'static str, &Option<String>)]) -> Query {
    pairs
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| (*name, value.clone())))
        .collect()
}
