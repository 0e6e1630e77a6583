//! A CSI external-attacher.
//!
//! It watches VolumeAttachments and calls ControllerPublishVolume and ControllerUnpublishVolume on a
//! CSI driver's socket. The modules from [`model`] to [`engine`] are a pure core (state and `now` go
//! in, actions come out); [`kube_api`] and [`csi`] do all I/O; [`worker`] carries out one action;
//! [`reconcile`] asks the driver now and then where its volumes are; [`run`] is the supervisor that joins them.
//!
//! ```text
//! watches (kube_api) ─> index ─> queue ─> decide ─> worker ─> kube_api + csi
//!                      └──────── engine ───────┘
//! ```

pub mod args;
pub mod csi;
pub mod decide;
pub mod dispatch;
pub mod engine;
mod grpc;
pub mod http_server;
pub mod index;
pub mod kube_api;
pub mod leader_election;
pub mod logging;
pub mod metrics;
pub mod migration;
pub mod model;
pub mod queue;
pub mod reconcile;
pub mod report;
pub mod run;
pub mod trace;
pub mod worker;
