//! client-go's workqueue metrics.

use crate::metrics::Histogram;

/// Metrics of the keys of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueMetrics {
    /// `workqueue_adds_total`.
    pub adds: u64,
    /// `workqueue_retries_total`.
    pub retries: u64,
    /// `workqueue_queue_duration_seconds`.
    pub waited: Histogram,
    /// `workqueue_work_duration_seconds`.
    pub worked: Histogram,
}

/// Those of client-go's work queues, to the last digit: they are powers of ten by repeated
/// multiplication, and a bucket's bound is part of its name.
const BOUNDS: &[f64] = &[
    1e-8,
    1e-7,
    1e-6,
    9.999_999_999_999_999e-6,
    9.999_999_999_999_999e-5,
    0.001,
    0.01,
    0.1,
    1.0,
    10.0,
];

// === impl QueueMetrics ===

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            adds: 0,
            retries: 0,
            waited: Histogram::new(BOUNDS),
            worked: Histogram::new(BOUNDS),
        }
    }
}
