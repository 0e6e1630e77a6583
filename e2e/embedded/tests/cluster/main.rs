//! The whole attach/detach path in process, on simulated time: API server, controllers and kubelets of this crate, with
//! a CSI driver and an attacher of few lines that the tests control.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod attach;
mod attacher;
mod driver;
mod lost_node;
mod restart;
mod scheduling;
mod volumes;
mod world;
