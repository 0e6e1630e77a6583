//! client-go's workqueue metrics.

use prometheus::{Histogram, HistogramOpts, IntCounter, Opts};

use crate::metrics::{Scrape, WORKQUEUE_BOUNDS};

/// Name of the Go sidecar's queue of VolumeAttachments.
pub(crate) const ATTACHMENT_QUEUE: &str = "csi-attacher-va";
/// Name of the Go sidecar's queue of PersistentVolumes.
pub(crate) const VOLUME_QUEUE: &str = "csi-attacher-pv";

/// Metrics of the keys of one kind. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct QueueMetrics {
    pub(crate) adds: IntCounter,
    pub(crate) retries: IntCounter,
    pub(crate) waited: Histogram,
    pub(crate) worked: Histogram,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowMetrics {
    /// Refusals because of other calls for the node.
    pub(crate) refused_by_node: u64,
    /// Refusals because of calls for other nodes.
    pub(crate) refused_by_driver: u64,
    /// Failures without other calls.
    pub(crate) failed_alone: u64,
    /// Calls that were sent while the driver was down.
    pub(crate) outage_probes: u64,
}

// === impl QueueMetrics ===

impl QueueMetrics {
    pub(super) fn new(queue: &str) -> Self {
        const VALID: &str = "names, labels and bounds must be valid";
        let counter = |name, help| IntCounter::with_opts(Opts::new(name, help).const_label("name", queue));
        let histogram = |name, help| {
            let opts = HistogramOpts::new(name, help).const_label("name", queue);
            Histogram::with_opts(opts.buckets(WORKQUEUE_BOUNDS.to_vec())).expect(VALID)
        };
        Self {
            adds: counter(
                "workqueue_adds_total",
                "Total number of adds handled by workqueue",
            )
            .expect(VALID),
            retries: counter(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue",
            )
            .expect(VALID),
            waited: histogram(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested",
            ),
            worked: histogram(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes",
            ),
        }
    }

    pub(crate) fn collect(&self, scrape: &Scrape) {
        scrape.add(self.adds.clone());
        scrape.add(self.retries.clone());
        scrape.add(self.waited.clone());
        scrape.add(self.worked.clone());
    }
}
