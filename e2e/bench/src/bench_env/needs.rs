//! Requirements of a row.

use std::time::Duration;

use serde_json::Value;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    /// Number of volumes.
    pub(crate) volumes: usize,
    /// Number of nodes, on which the volumes are distributed evenly.
    pub(crate) nodes: usize,
    /// Latency of each driver call.
    pub(crate) latency: Duration,
    /// The driver's fault file.
    pub(crate) faults: Option<Value>,
    /// One-way network delay to the API server.
    pub(crate) api_delay: Option<Duration>,
    /// Whether the driver keeps a journal.
    pub(crate) journal: bool,
    /// Whether the driver's state survives a kill.
    pub(crate) durable: bool,
    /// Whether an external driver, started before the benchmark, may be used.
    pub(crate) any_driver: bool,
}

// === impl Needs ===

impl Default for Needs {
    fn default() -> Self {
        Self {
            volumes: 0,
            nodes: 10,
            latency: Duration::ZERO,
            faults: None,
            api_delay: None,
            journal: false,
            durable: false,
            any_driver: false,
        }
    }
}
