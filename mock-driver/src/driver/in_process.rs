//! Drivers within another process, such as a simulation: without socket, thread or file, on the runtime's clock.
//! [`services`](crate::service::services) returns its gRPC services, which a client can call directly.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Driver, OpenError, Settings};
use crate::admin_api;
use crate::driver::exit::ExitRequest;
use crate::driver::locks::LockTable;
use crate::driver::mode::Mode;
use crate::driver::reset::ResetScope;
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
            fixture: None,
            journal: None,
            faults: None,
            proxy_to: None,
            ..settings
        })?;
        Ok(driver)
    }

    /// A node process of this driver's array, with the Node service. It shares array, fault rules, capabilities and journal.
    /// Dropping it discards the records of staged and published volumes, like the exit of a process without state directory.
    ///
    /// # Errors
    /// The node cannot be opened.
    pub fn on_node(&self, id: &str) -> Result<Arc<Self>, OpenError> {
        let volume_files = VolumeFiles::nowhere();
        let settings = node::Settings {
            devices: Choice::Simulated,
            ..node::Settings::default()
        };
        let node = Node::open(
            id.to_owned(),
            settings,
            volume_files.clone(),
            None,
            self.faults.clone(),
        )?;
        super::take_current_id(Some(&node), &self.store);
        let mut process = self.process_of_this_array(Some(Arc::new(node)), volume_files);
        process.settings.mode = Mode::Node;
        process.ready_from = Instant::now();
        Ok(Arc::new(process))
    }

    /// Starts the next process of this driver. It keeps what a restart with a state directory keeps: the array, and the staged
    /// and published volumes. It shares fault rules, capabilities and journal. Locks and running operations of this process
    /// end; do not send it further calls.
    #[must_use]
    pub fn restarted(&self) -> Arc<Self> {
        self.halt.cancel();
        let next = self.process_of_this_array(self.node.clone(), self.volume_files.clone());
        next.resume_copies();
        Arc::new(next)
    }

    /// A process on a copy of this driver's array, without node, faults, journal and volume data. Changes are discarded with it.
    pub(crate) fn with_copied_array(&self) -> Self {
        Self {
            store: Arc::new(self.store.copy()),
            faults: Arc::default(),
            journal: None,
            ..self.process_of_this_array(None, VolumeFiles::nowhere())
        }
    }

    fn process_of_this_array(&self, node: Option<Arc<Node>>, volume_files: VolumeFiles) -> Self {
        let halt = CancellationToken::new();
        Self {
            settings: Settings {
                proxy_to: None,
                ..self.settings.clone()
            },
            remote: None,
            registrar: None,
            node,
            initial_node: self.initial_node.clone(),
            capabilities: self.capabilities.clone(),
            ready_from: Instant::now() + self.settings.config.ready_after,
            pool_topology: self.pool_topology.clone(),
            store: self.store.clone(),
            volume_files,
            locks: LockTable::new(self.locks.rule),
            faults: self.faults.clone(),
            socket_control: Arc::default(),
            exit: ExitRequest::default(),
            journal: self.journal.clone(),
            state: None,
            work: TaskTracker::new(),
            copies: TaskTracker::new(),
            reset_scope: ResetScope::within(&halt),
            halt,
            random_limits: AtomicU64::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::locks::{Key, LockMode, Scope};

    #[tokio::test]
    async fn restarted_driver_keeps_the_array_without_locks_and_operations() {
        let driver = Driver::in_memory(Settings {
            initial_volumes: 1,
            ..Settings::default()
        });
        let driver = driver.unwrap();
        let keys = || vec![(Key::Volume("vol-0".to_owned()), LockMode::Exclusive)];
        let _locked = driver.locks.lock(Scope::Call, keys()).await.unwrap();
        let operation = driver.spawn_work(std::future::pending::<()>());

        let next = driver.restarted();
        assert!(next.store.peek(|array| array.volume("vol-0").is_ok()));
        assert!(next.locks.lock(Scope::Call, keys()).await.is_ok());
        assert_eq!(
            operation.await.unwrap(),
            None,
            "the running operation must be cancelled"
        );
        assert_eq!(next.spawn_work(async { 7 }).await.unwrap(), Some(7));
    }

    #[tokio::test]
    async fn restarted_node_driver_keeps_its_node() {
        let array = Driver::in_memory(Settings::default()).unwrap();
        let driver = array.on_node("node-1").unwrap();
        let next = driver.restarted();
        assert_eq!(next.settings.mode, Mode::Node);
        assert!(Arc::ptr_eq(
            next.node.as_ref().unwrap(),
            driver.node.as_ref().unwrap()
        ));
    }
}
