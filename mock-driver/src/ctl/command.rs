//! The commands.

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

use super::array::{NodeCommand, VolumeCommand};
use super::calls::JournalArgs;
use super::faults::{FaultCommand, ScenarioCommand, TroubleCommand, capabilities, faults, troubles};
use super::output::{Done, Failure, Output};
use super::print::{done, print};
use super::snapshots::{GroupCommand, SnapshotCommand};
use super::state::StateCommand;
use super::storage::{PoolCommand, StorageCommand, storage};
use crate::admin_api::client::Client;
use crate::admin_api::resource::Attach;

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    /// Tells what the driver is and how much there is of everything.
    Info,
    /// Says whether the driver is healthy and, with --registration-dir, registered with kubelet. For readiness probes.
    Ready,
    /// Lists volumes; makes, grows and deletes them, makes them sick or well.
    Volumes {
        #[command(flatten)]
        part: Part,
        /// Those that this node holds.
        #[arg(long)]
        node: Option<String>,
        #[command(subcommand)]
        what: Option<VolumeCommand>,
    },
    /// Lists snapshots; takes and deletes them.
    Snapshots {
        #[command(flatten)]
        part: Part,
        /// Those of this volume.
        #[arg(long)]
        source: Option<String>,
        /// Those of this group.
        #[arg(long)]
        group: Option<String>,
        #[command(subcommand)]
        what: Option<SnapshotCommand>,
    },
    /// Lists groups of snapshots; takes and deletes them.
    GroupSnapshots {
        #[command(flatten)]
        part: Part,
        /// Those with a snapshot of this volume.
        #[arg(long)]
        source: Option<String>,
        #[command(subcommand)]
        what: Option<GroupCommand>,
    },
    /// Lists pools and how they are filled; gives them more space or less.
    Pools {
        #[command(subcommand)]
        what: Option<PoolCommand>,
    },
    /// Shows or sets the health of the storage behind nodes.
    Storage {
        #[command(subcommand)]
        what: Option<StorageCommand>,
    },
    /// Lists nodes; registers them, takes them away, changes their limits and ids.
    Nodes {
        #[command(flatten)]
        part: Part,
        #[command(subcommand)]
        what: Option<NodeCommand>,
    },
    /// Lists who is attached where.
    Attachments(AttachmentsArgs),
    /// Attaches a volume out of band.
    Attach(AttachArgs),
    /// Detaches a volume out of band: the attacher does not see it.
    Detach {
        /// The volume's id.
        volume: String,
        /// The node's id.
        node: String,
    },
    /// Lists capabilities; with names, switches them: +NAME on, -NAME off.
    Capabilities {
        /// +NAME or -NAME.
        #[arg(allow_hyphen_values = true)]
        changes: Vec<String>,
    },
    /// Lists fault rules; adds, removes, switches and releases them.
    Faults {
        #[command(subcommand)]
        what: Option<FaultCommand>,
    },
    /// Lists troubles of the array; adds, removes and switches them.
    Troubles {
        #[command(subcommand)]
        what: Option<TroubleCommand>,
    },
    /// Lists built-in scenarios; plays and ends them.
    Scenarios {
        #[command(subcommand)]
        what: Option<ScenarioCommand>,
    },
    /// Lists the calls that ended; waits for some, compares them with what is expected.
    Journal(JournalArgs),
    /// Lists the calls that run.
    Calls,
    /// Reads a state directory, without a driver.
    State {
        #[command(subcommand)]
        what: StateCommand,
    },
}

/// Which attachments are listed.
#[derive(Args, Clone, Debug)]
pub(super) struct AttachmentsArgs {
    /// Those of this volume.
    #[arg(long)]
    volume: Option<String>,
    /// Those to this node.
    #[arg(long)]
    node: Option<String>,
    /// Those of volumes after this one.
    #[arg(long)]
    after: Option<String>,
    /// At most so many, 1 to 1000; 100 unless told otherwise.
    #[arg(long, value_parser = limits())]
    limit: Option<usize>,
}

/// What is attached where, and how.
#[derive(Args, Clone, Debug)]
pub(super) struct AttachArgs {
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
}

/// Some of many.
#[derive(Args, Clone, Debug)]
pub(super) struct Part {
    /// Those whose id or name contains this text.
    #[arg(long)]
    search: Option<String>,
    /// Those after this id.
    #[arg(long)]
    after: Option<String>,
    /// At most so many, 1 to 1000; 100 unless told otherwise.
    #[arg(long, value_parser = limits())]
    limit: Option<usize>,
}

/// The flags of a list, as a query.
struct Choice(Query);

type Query = Vec<(&'static str, String)>;

// === impl Command ===

impl Command {
    pub(super) async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        match self {
            Self::Info => print(&client.info().await?, output),
            Self::Ready => {
                client.ready().await?;
                done("ready".to_owned(), output)
            }
            Self::Volumes { part, node, what } => {
                let choice = part.choice(&[("node", node)]);
                match what {
                    Some(what) => what.run(choice.of_one(client)?, output).await,
                    None => print(&client.volumes(&choice.0).await?, output),
                }
            }
            Self::Snapshots {
                part,
                source,
                group,
                what,
            } => {
                let choice = part.choice(&[("source", source), ("group", group)]);
                match what {
                    Some(what) => what.run(choice.of_one(client)?, output).await,
                    None => print(&client.snapshots(&choice.0).await?, output),
                }
            }
            Self::GroupSnapshots { part, source, what } => {
                let choice = part.choice(&[("source", source)]);
                match what {
                    Some(what) => what.run(choice.of_one(client)?, output).await,
                    None => print(&client.group_snapshots(&choice.0).await?, output),
                }
            }
            Self::Pools { what: Some(what) } => what.run(client, output).await,
            Self::Pools { what: None } => print(&client.pools().await?, output),
            Self::Storage { what } => storage(client, what.as_ref(), output).await,
            Self::Nodes { part, what } => {
                let choice = part.choice(&[]);
                match what {
                    Some(what) => what.run(choice.of_one(client)?, output).await,
                    None => print(&client.nodes(&choice.0).await?, output),
                }
            }
            Self::Attachments(which) => print(&client.attachments(&which.query()).await?, output),
            Self::Attach(attach) => attach.run(client, output).await,
            Self::Detach { volume, node } => {
                client.detach(volume, node).await?;
                done(format!("detached {volume} from {node}"), output)
            }
            Self::Capabilities { changes } => capabilities(client, changes, output).await,
            Self::Faults { what } => faults(client, what.as_ref(), output).await,
            Self::Troubles { what } => troubles(client, what.as_ref(), output).await,
            Self::Scenarios { what } => {
                match what {
                    None => return print(&client.scenarios().await?, output),
                    Some(ScenarioCommand::Start { scenario }) => client.set_scenario(scenario, true).await?,
                    Some(ScenarioCommand::Stop { scenario }) => client.set_scenario(scenario, false).await?,
                };
                print(&client.scenarios().await?, output)
            }
            Self::Journal(journal) => journal.run(client, output).await,
            Self::Calls => print(&client.running().await?, output),
            Self::State { what } => what.run(),
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

// === impl AttachArgs ===

impl AttachArgs {
    async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        let attach = Attach {
            access_mode: self.access_mode.clone(),
            block: self.block,
            readonly: self.readonly,
        };
        print(&client.attach(&self.volume, &self.node, &attach).await?, output)
    }
}

// === impl Part ===

impl Part {
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
    /// The client for a command about one of many. Nothing that chooses among them stands before it, as it would
    /// be passed over.
    fn of_one<'a>(&self, client: &'a Client) -> Result<&'a Client, Failure> {
        match self.0.first() {
            None => Ok(client),
            Some((name, _)) => Err(Failure::Usage(format!(
                "--{name} chooses what is listed, and this command lists nothing: leave it out"
            ))),
        }
    }
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
