//! What simulated nodes reported to the API, in order, for dumps and for the narrator.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

/// One thing a node did and when it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it was done.
    pub at: Timestamp,
    /// Name of the node.
    pub node: String,
    /// What was done.
    pub event: NodeEvent,
}

/// What a node can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The API server has these volumes as in use by the node.
    InUse {
        /// Handles of the volumes.
        handles: Vec<String>,
    },
    /// A pod runs.
    Started {
        /// Name of the pod.
        pod: String,
    },
    /// A pod's containers ended.
    Stopped {
        /// Name of the pod.
        pod: String,
    },
    /// A pod was removed for good.
    Finished {
        /// Name of the pod.
        pod: String,
    },
}

/// A shared log that many nodes write to.
#[derive(Clone, Debug)]
pub struct NodeEventLog(Arc<watch::Sender<Vec<Entry>>>);

// === impl NodeEventLog ===

impl Default for NodeEventLog {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }
}

impl NodeEventLog {
    /// Adds what `node` just did.
    pub fn record(&self, node: &str, event: NodeEvent) {
        let entry = Entry {
            at: Timestamp::now(),
            node: node.to_owned(),
            event,
        };
        self.0.send_modify(|entries| entries.push(entry));
    }

    /// Everything done so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.0.borrow().clone()
    }

    /// A receiver that is woken by each new entry.
    pub fn follow(&self) -> watch::Receiver<Vec<Entry>> {
        self.0.subscribe()
    }
}
