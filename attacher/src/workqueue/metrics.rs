//! What a queue has seen, in numbers.

use crate::metrics::Histogram;

/// What happened to the keys of one kind so far.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueMetrics {
    /// How often a key came to stand in a line.
    pub adds: u64,
    /// How often a key was sent to wait out a failure.
    pub retries: u64,
    /// How long keys stood in line before they ran.
    pub waited: Histogram,
    /// How long keys ran.
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
