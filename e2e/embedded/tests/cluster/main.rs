//! The whole attach/detach path in process, in simulated time: API server, controllers and kubelets of this crate, with a
//! minimal CSI driver and attacher that the tests control.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod attach;
mod attacher;
mod driver;
mod kubelet;
mod lost_node;
mod restart;
mod scheduling;
mod volumes;
mod world;
