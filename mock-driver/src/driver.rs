//! The driver: array, call pipeline and shared state.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::exit::ExitOrder;
use self::locks::LockTable;
use self::mode::Mode;
use self::readiness::Readiness;
use self::registration::Registrar;
use self::remote::RemoteArray;
use self::seed::{random, seed_of_run};
use self::service_config::ServiceConfig;
pub use self::settings::{OpenError, Settings};
use crate::admin_api;
use crate::array::{PoolName, Segments};
use crate::error_chain;
use crate::fault::{FaultFile, Faults};
use crate::journal::Journal;
use crate::journal::clock::Clock;
use crate::node::Node;
use crate::rpc::capabilities::LiveCapabilities;
use crate::socket::SocketControl;
use crate::store::volume_files::VolumeFiles;
use crate::store::{Database, Store};

use self::directories::{
    claim, open_faults, open_journal, open_state, open_store, volume_files_in, with_absolute_paths,
};

mod backend_faults;
mod device_release;
mod directories;
pub(crate) mod error;
pub(crate) mod exit;
mod in_process;
mod list_overlay;
pub mod locks;
pub mod mode;
mod node_devices;
pub mod readiness;
pub mod registration;
mod remote;
mod remote_sync;
mod seed;
pub mod service_config;
mod settings;
mod volumes;

/// A driver, ready to be served.
#[derive(Debug)]
pub struct Driver {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) remote: Option<RemoteArray>,
    pub(crate) registrar: Option<Arc<Registrar>>,
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) latency: Duration,
    pub(crate) capabilities: Arc<LiveCapabilities>,
    pub(crate) config: ServiceConfig,
    pub(crate) readiness: Readiness,
    pub(crate) places: BTreeMap<PoolName, Segments>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Clock,
    pub(crate) volume_files: VolumeFiles,
    /// What calls and operations have locked.
    pub(crate) locks: LockTable,
    pub(crate) faults: Arc<Faults>,
    pub(crate) socket_control: Arc<SocketControl>,
    pub(crate) exit: ExitOrder,
    pub(crate) proxy_to: Option<PathBuf>,
    pub(crate) journal: Option<Arc<Journal>>,
    pub(crate) limits_drawn: AtomicU64,
    /// What keeps the array and the node's records; none for as long as the process lives.
    pub(crate) state: Option<Arc<Database>>,
    /// Work on the array, which goes on when its client has left.
    pub(crate) work: TaskTracker,
    /// Ends that work where it stands, as a crash would.
    pub(crate) halt: CancellationToken,
}

// === impl Driver ===

impl Driver {
    /// Restores the array and opens the files. The fault file, if any, is to be followed.
    ///
    /// # Errors
    /// If a file or directory cannot be used as its flag asks.
    pub fn open(settings: Settings) -> Result<(Arc<Self>, Option<FaultFile>), OpenError> {
        let Settings {
            name,
            array,
            config,
            initial_volumes,
            latency,
            busy,
            mode,
            array_endpoint,
            registration,
            node_id,
            node,
            capabilities,
            state_dir,
            media_dir,
            journal,
            journal_config,
            faults,
            scenarios,
            seed,
            proxy_to,
            clock,
        } = with_absolute_paths(settings)?;
        let places = array
            .pools
            .iter()
            .map(|pool| (pool.name.clone(), pool.segments.clone()));
        let places = places.collect();
        // First, because the caller repeats all of this while another process has the lock.
        let state = open_state(state_dir.as_deref())?;
        let journal = open_journal(journal.as_deref(), journal_config, &clock)?;
        let (rules, fault_file) = open_faults(faults.as_deref(), seed_of_run(seed)?, &scenarios)?;
        let epoch = match seed {
            Some(_) => u128::from(rules.seed().keyed_hash(b"array")),
            None => u128::from_le_bytes(random()?),
        };
        let volume_files = volume_files_in(media_dir, state_dir.as_deref(), node.devices);
        let remote = remote(mode, array_endpoint, node_id.is_some())?;
        let registrar = registration.map(|settings| Arc::new(Registrar::new(name.clone(), settings)));
        let node = node_id
            .filter(|_| mode.has_node())
            .map(|id| Node::open(id, node, volume_files.clone(), state.clone()))
            .transpose()?
            .map(Arc::new);
        // The directory of a process that has only a node is the node's own.
        let array_state = state.clone().filter(|_| mode.has_array());
        let store = open_store(array_state, array, epoch, initial_volumes, &rules)?;
        if mode.has_array() && proxy_to.is_none() {
            claim(&volume_files, &store, epoch, state_dir.as_deref())?;
        }
        take_current_id(node.as_deref().filter(|_| remote.is_none()), &store);
        // When all locks are held, so that it is said once.
        if let Some(file) = &fault_file {
            file.announce(journal.as_deref());
        }
        let driver = Self {
            name,
            mode,
            remote,
            registrar,
            node,
            latency,
            capabilities: Arc::new(LiveCapabilities::new(capabilities)),
            readiness: Readiness::after(config.ready_after),
            config,
            places,
            store: Arc::new(store),
            clock,
            volume_files,
            locks: LockTable::new(busy),
            faults: Arc::new(rules),
            socket_control: Arc::default(),
            exit: ExitOrder::default(),
            proxy_to,
            journal,
            limits_drawn: AtomicU64::new(0),
            state,
            work: TaskTracker::new(),
            halt: CancellationToken::new(),
        };
        Ok((Arc::new(driver), fault_file))
    }

    /// Whether the array is in this process, and not in another one or in the driver behind a proxy.
    pub(crate) fn has_array(&self) -> bool {
        self.mode.has_array() && self.proxy_to.is_none()
    }

    /// What the driver says it can do; it may be changed while calls are answered.
    pub fn capabilities(&self) -> &LiveCapabilities {
        &self.capabilities
    }

    /// The fault rules.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The node this process stands on; none for a driver without a Node service.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// The socket and the connections that came in over it.
    pub fn socket_control(&self) -> &SocketControl {
        &self.socket_control
    }

    /// The way to end the driver from inside.
    pub fn exit(&self) -> &ExitOrder {
        &self.exit
    }

    /// What Probe answers; it may be changed while calls are answered.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// The bytes of its volumes and snapshots.
    pub fn volume_files(&self) -> &VolumeFiles {
        &self.volume_files
    }

    /// Ends what the driver does with its directories, and lets other processes have them: the state directory last,
    /// for that is the lock that the next process waits for.
    pub(crate) fn close(&self) {
        if let Err(error) = self.volume_files.close() {
            tracing::warn!(error = error_chain(&error), "failed to remove all volume files");
        }
        if let Some(state) = &self.state {
            state.close();
        }
    }

    /// Waits until the state directory cannot be written any more, and returns the error.
    pub(crate) async fn state_failed(&self) -> Arc<io::Error> {
        match &self.state {
            Some(state) => state.failed().await,
            None => std::future::pending().await,
        }
    }

    /// The array and what keeps it.
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) async fn follow_faults(&self, file: FaultFile, stop: CancellationToken) {
        let follow = file.follow(&self.faults, self.journal.as_deref());
        stop.run_until_cancelled(follow).await;
    }
}

/// Gives the node the id that it got in the previous process: what is attached to it is attached to
/// that one.
fn take_current_id(node: Option<&Node>, store: &Store) {
    let Some(node) = node else { return };
    let id = node.info().id;
    let current = store.peek(|array| array.current_id(&id).to_owned());
    if current != id {
        tracing::info!(from = id, to = current, "the array gave this node another id");
        node.tell(|info| info.id = current);
    }
}

fn remote(
    mode: Mode,
    endpoint: admin_api::Endpoint,
    has_node: bool,
) -> Result<Option<RemoteArray>, OpenError> {
    match (mode, endpoint) {
        (Mode::All | Mode::Controller, _) => Ok(None),
        (Mode::Node, admin_api::Endpoint::None) => Err(OpenError::NodeAlone),
        (Mode::Node, _) if !has_node => Err(OpenError::NodeAlone),
        (Mode::Node, endpoint) => Ok(Some(RemoteArray::at(endpoint))),
    }
}
