//! The attach/detach path of Kubernetes in one process, for tests, simulation and the playground.
//!
//! The real control plane is the reference: any difference from it is a bug of this crate. The clock is tokio's
//! and randomness comes from a seed, so a whole cluster can run on simulated time in one thread.

mod api_error;
pub mod apiserver;
pub mod attach_detach;
pub mod cluster;
mod control_plane;
pub mod driver_connection;
mod event_recorder;
mod garbage_collector;
mod informer;
mod informers;
pub mod injected_bug;
pub mod kubelet;
pub mod migration;
mod namespace_controller;
mod nestedpendingoperations;
mod node;
mod node_lifecycle;
mod node_selector;
mod persistent_volume;
mod pod;
mod pod_gc;
mod quantity;
mod scheduler;
mod secret;
mod taint_eviction;
pub mod volume;
mod workqueue;
