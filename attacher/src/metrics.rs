//! What is counted, and how it is told to Prometheus.
//!
//! Counts are plain numbers that live beside what they count: in the [`Queue`](crate::workqueue), the
//! [`ControllerState`](crate::controller::state), [`csi`](crate::csi) and [`kube_api`](crate::kube_api). Sizes are not
//! counted at all but looked at when they are asked for, so none can drift. This module owns the
//! numbers' form ([`Histogram`]), the list of all families ([`family`]) and the text ([`Exposition`]).

pub mod exposition;
pub mod family;
mod histogram;
pub mod process;

pub use exposition::Exposition;
pub use family::Family;
pub use histogram::Histogram;
