//! A CSI external-attacher.
//!
//! It watches VolumeAttachments and calls ControllerPublishVolume and ControllerUnpublishVolume on a
//! CSI driver's socket. The modules from [`model`] to [`engine`] are a pure core (state and `now` go
//! in, actions come out); [`cluster`] and [`csi`] do all I/O; [`worker`] carries out one action;
//! [`reconcile`] asks the driver now and then where its volumes are; [`run`] is the supervisor that joins them.
//! [`explain`] is another program in the same binary: it only reads, and tells people where a volume is stuck.
//!
//! ```text
//! watches (cluster) ─> index ─> queue ─> decide ─> worker ─> cluster + csi
//!                      └──────── engine ───────┘
//! ```

pub mod admin;
pub mod args;
pub mod cluster;
pub mod csi;
pub mod decide;
pub mod dispatch;
pub mod engine;
pub mod explain;
mod grpc;
pub mod index;
pub mod lease;
pub mod log;
pub mod metrics;
pub mod migration;
pub mod model;
pub mod queue;
pub mod reconcile;
pub mod report;
pub mod run;
pub mod trace;
pub mod worker;
