//! The driver: array, call pipeline and shared state.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::exit::ExitRequest;
use self::locks::LockTable;
use self::mode::Mode;
pub(crate) use self::proxied::NO_DRIVER;
use self::registration::Registrar;
use self::remote::RemoteArray;
use self::reset::ResetScope;
pub use self::settings::{OpenError, Settings};
use crate::admin_api;
use crate::array::{PoolName, Segments};
use crate::error_chain;
use crate::fault::{FaultFile, Faults};
use crate::journal::Journal;
use crate::node::{self, Node, NodeInfo};
use crate::rpc::capabilities::LiveCapabilities;
use crate::socket::{BindError, SocketControl};
use crate::store::volume_files::VolumeFiles;
use crate::store::{Database, Store};

use self::directories::{
    claim, open_faults, open_journal, open_state, open_store, random, volume_files_in, with_absolute_paths,
};

pub(crate) mod abandoned;
mod backend_faults;
mod device_release;
mod directories;
pub(crate) mod error;
pub(crate) mod exit;
mod in_process;
pub mod locks;
pub mod mode;
pub(crate) mod node_devices;
mod proxied;
pub mod registration;
mod remote;
mod remote_sync;
mod reset;
pub mod service_config;
mod settings;
mod volumes;

/// Maximum time to write the last lines of the journal.
const LAST_LINES: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Driver {
    pub(crate) settings: Settings,
    pub(crate) remote: Option<RemoteArray>,
    pub(crate) registrar: Option<Arc<Registrar>>,
    /// The node of this process; `None` without a Node service.
    pub node: Option<Arc<Node>>,
    /// What a reset restores.
    pub(crate) initial_node: Option<NodeInfo>,
    pub capabilities: Arc<LiveCapabilities>,
    /// Time from which Probe reports ready.
    pub(crate) ready_from: Instant,
    pub(crate) pool_topology: BTreeMap<PoolName, Segments>,
    pub store: Arc<Store>,
    pub volume_files: VolumeFiles,
    pub(crate) locks: LockTable,
    pub faults: Arc<Faults>,
    pub socket_control: Arc<SocketControl>,
    pub exit: ExitRequest,
    pub(crate) journal: Option<Arc<Journal>>,
    /// The database of the array and of the node's records; `None` without a state directory.
    pub(crate) state: Option<Arc<Database>>,
    /// Operations of the array, which continue after their client has disconnected.
    pub(crate) work: TaskTracker,
    /// The rest of the time of snapshots that are being copied. The driver does not wait for it at its end.
    pub(crate) copies: TaskTracker,
    /// Cancels these operations, as a crash does.
    pub(crate) halt: CancellationToken,
    /// What the next reset cancels.
    pub(crate) reset_scope: ResetScope,
    /// Number of random attach limits that NodeGetInfo has reported.
    pub(crate) random_limits: AtomicU64,
}

// === impl Driver ===

impl Driver {
    /// Restores the array and opens the files. The caller must follow the returned fault file.
    ///
    /// # Errors
    /// A file or directory cannot be used.
    pub fn open(settings: Settings) -> Result<(Arc<Self>, Option<FaultFile>), OpenError> {
        Self::open_if(settings, &|| Ok(()))
    }

    /// As [`Driver::open`], with a check that must succeed before the stored state is changed.
    pub(crate) fn open_if(
        settings: Settings,
        check: &impl Fn() -> Result<(), BindError>,
    ) -> Result<(Arc<Self>, Option<FaultFile>), OpenError> {
        let settings = with_absolute_paths(settings)?;
        let pools = settings.array.pools.iter();
        let pool_topology = pools
            .map(|pool| (pool.name.clone(), pool.segments.clone()))
            .collect();
        // The locks first: the caller retries `open` while another process holds one of them.
        let state = open_state(settings.state_dir.as_deref())?;
        let journal = open_journal(&settings)?;
        let (rules, fault_file) = open_faults(&settings)?;
        let rules = Arc::new(rules);
        let id_seed = match settings.seed {
            Some(_) => u128::from(rules.seed.keyed_hash(b"array")),
            None => u128::from_le_bytes(random()?),
        };
        let volume_files = volume_files_in(&settings);
        let remote = remote(&settings)?;
        let registrar = |registration| Arc::new(Registrar::new(settings.name.clone(), registration));
        let registrar = settings.registration.clone().map(registrar);
        if settings.mode.has_array() {
            volume_files.lock_used()?;
        }
        let node = open_node(&settings, &volume_files, state.clone(), &rules)?;
        check().map_err(OpenError::Bind)?;
        // The state directory of a process with a node only belongs to the node.
        let array_state = state.clone().filter(|_| settings.mode.has_array());
        let store = open_store(array_state, &settings, id_seed, &rules)?;
        if settings.mode.has_array() {
            claim(&volume_files, &store, id_seed, settings.state_dir.as_deref())?;
        }
        if let Some(node) = &node {
            node.devices.lock().map_err(node::Error::from)?;
        }
        take_current_id(node.as_deref().filter(|_| remote.is_none()), &store);
        // After all locks are acquired, so that it is logged once.
        if let Some(file) = &fault_file {
            file.announce(journal.as_deref());
        }
        let halt = CancellationToken::new();
        let driver = Self {
            remote,
            registrar,
            initial_node: node.as_ref().map(|node| node.info()),
            node,
            capabilities: Arc::new(LiveCapabilities::new(settings.capabilities.clone())),
            ready_from: Instant::now() + settings.config.ready_after,
            pool_topology,
            store: Arc::new(store),
            volume_files,
            locks: LockTable::new(settings.busy),
            faults: rules,
            socket_control: Arc::default(),
            exit: ExitRequest::default(),
            journal,
            state,
            work: TaskTracker::new(),
            copies: TaskTracker::new(),
            reset_scope: ResetScope::within(&halt),
            halt,
            random_limits: AtomicU64::new(0),
            settings,
        };
        Ok((Arc::new(driver), fault_file))
    }

    /// Whether the array is in this process: not in another one, and not behind a proxy.
    pub(crate) fn has_array(&self) -> bool {
        self.settings.mode.has_array() && self.settings.proxy_to.is_none()
    }

    /// Releases the driver's directories; the state directory last, because the next process waits for its lock.
    pub(crate) fn close(&self) {
        if let Some(journal) = &self.journal {
            journal.flush(LAST_LINES);
        }
        if let Some(node) = &self.node {
            node.devices.unlock();
        }
        if let Err(error) = self.volume_files.close() {
            tracing::warn!(error = error_chain(&error), "failed to remove all volume files");
        }
        if let Some(state) = &self.state {
            state.close();
        }
    }

    /// Waits until a write to the state directory fails, and returns the error.
    pub(crate) async fn state_failed(&self) -> Arc<io::Error> {
        match &self.state {
            Some(state) => state.failed().await,
            None => std::future::pending().await,
        }
    }
}

/// Opens the node; `None` if the process has none.
fn open_node(
    settings: &Settings,
    volume_files: &VolumeFiles,
    state: Option<Arc<Database>>,
    rules: &Arc<Faults>,
) -> Result<Option<Arc<Node>>, OpenError> {
    let id = settings.node_id.clone().filter(|_| settings.mode.has_node());
    let open = |id| {
        let node = Node::open(
            id,
            settings.node.clone(),
            volume_files.clone(),
            state,
            rules.clone(),
        );
        node.map(Arc::new)
    };
    let node = id.map(open).transpose()?;
    let missing = match &node {
        Some(node) => node.lacks_for_device_faults(),
        None => Some(
            "device faults need a node in this process: --node-id, or the process with --mode=node"
                .to_owned(),
        ),
    };
    match missing {
        Some(reason) if settings.node.device_faults => return Err(OpenError::NoDeviceFaults { reason }),
        Some(reason) => rules.add_device_fault_check(reason),
        // Published volumes are known after recovery.
        None => {
            node.iter()
                .for_each(|node| rules.add_device_fault_check(Arc::downgrade(node)));
            return Ok(node);
        }
    }
    match rules.io_conflicts().into_iter().next() {
        Some(conflict) => Err(OpenError::DeviceFaults(conflict)),
        None => Ok(node),
    }
}

/// Gives the node the id that it had in the previous process, under which its volumes are attached.
fn take_current_id(node: Option<&Node>, store: &Store) {
    let Some(node) = node else { return };
    let id = node.info().id;
    let current = store.peek(|array| array.current_id(&id).to_owned());
    if current != id {
        tracing::info!(from = id, to = current, "the array gave this node another id");
        node.set_info(|info| info.id = current);
    }
}

fn remote(settings: &Settings) -> Result<Option<RemoteArray>, OpenError> {
    match (settings.mode, settings.array_endpoint.clone()) {
        (Mode::All | Mode::Controller, _) => Ok(None),
        (Mode::Node, admin_api::Endpoint::None) => Err(OpenError::NodeAlone),
        (Mode::Node, _) if settings.node_id.is_none() => Err(OpenError::NodeAlone),
        (Mode::Node, endpoint) => Ok(Some(RemoteArray::at(endpoint, settings.media_dir.is_some()))),
    }
}
