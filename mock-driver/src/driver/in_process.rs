//! Drivers within another process, such as a simulation: without socket, thread or file, on the runtime's clock.
//! [`services`](crate::service::services) returns its gRPC services, which a client can call directly.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Driver, OpenError, Settings};
use crate::admin_api;
use crate::driver::exit::ExitOrder;
use crate::driver::locks::LockTable;
use crate::driver::mode::Mode;
use crate::node::device::Choice;
use crate::node::{self, Node};
use crate::store::volume_files::VolumeFiles;

// === impl Driver ===

impl Driver {
    /// A driver with its array in memory. Volumes have no data, and staging and publishing are only recorded.
    ///
    /// Settings of files, sockets and other processes are ignored. With [`Settings::seed`] and [`Settings::clock`], runs are
    /// reproducible.
    ///
    /// # Errors
    /// Scenarios exclude each other, or getrandom fails.
    pub fn in_memory(settings: Settings) -> Result<Arc<Self>, OpenError> {
        let (driver, _) = Self::open(Settings {
            mode: Mode::All,
            array_endpoint: admin_api::Endpoint::None,
            registration: None,
            node: node::Settings {
                devices: Choice::Simulated,
                device_dir: None,
                ..settings.node
            },
            state_dir: None,
            media_dir: None,
            journal: None,
            faults: None,
            proxy_to: None,
            ..settings
        })?;
        Ok(driver)
    }

    /// A node process of this driver's array, with the Node service. It shares array, fault rules, capabilities and journal.
    /// Dropping it forgets what is staged and published, as the exit of a process without state directory does.
    ///
    /// # Errors
    /// The node cannot be opened.
    pub fn on_node(&self, id: &str) -> Result<Arc<Self>, OpenError> {
        let volume_files = VolumeFiles::nowhere();
        let settings = node::Settings {
            devices: Choice::Simulated,
            ..node::Settings::default()
        };
        let node = Node::open(id.to_owned(), settings, volume_files.clone(), None)?;
        super::take_current_id(Some(&node), &self.store);
        Ok(Arc::new(Self {
            name: self.name.clone(),
            mode: Mode::Node,
            remote: None,
            registrar: None,
            node: Some(Arc::new(node)),
            latency: self.latency,
            capabilities: self.capabilities.clone(),
            config: self.config.clone(),
            ready_from: Instant::now(),
            pool_topology: self.pool_topology.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            volume_files,
            locks: LockTable::new(self.locks.rule),
            faults: self.faults.clone(),
            socket_control: Arc::default(),
            exit: ExitOrder::default(),
            proxy_to: None,
            journal: self.journal.clone(),
            limits_drawn: AtomicU64::new(0),
            state: None,
            work: TaskTracker::new(),
            halt: CancellationToken::new(),
        }))
    }
}
