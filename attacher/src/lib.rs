//! A CSI external-attacher.
//!
//! It watches VolumeAttachments and calls ControllerPublishVolume and ControllerUnpublishVolume on a CSI driver's
//! socket. [`model`], [`informer`], [`workqueue`], [`plan`], [`migration`] and [`controller::state`] are a pure core
//! (functions of the state and `now`); [`kube_api`] and [`csi`] do all I/O; [`controller`] syncs one key at a time;
//! [`manager`] starts, names and joins every task.
//!
//! ```text
//! watches (kube_api) ─> informer ─> workqueue ─> controller (plan) ─> kube_api + csi
//! ```

#[cfg(all(feature = "fips", feature = "ring"))]
compile_error!("rustls needs exactly one cryptography: --no-default-features --features fips");

pub mod args;
pub mod controller;
pub mod csi;
mod grpc;
pub mod http_server;
pub mod informer;
pub mod kube_api;
pub mod leader_election;
pub mod logging;
pub mod manager;
mod metrics;
pub mod migration;
pub mod model;
pub mod plan;
pub mod report;
pub mod trace;
pub mod workqueue;
