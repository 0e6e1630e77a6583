//! The whole attach/detach path on one machine: harness, scenarios, playground, benchmarks.

pub mod cluster;
pub mod control_plane;
pub mod driver;
pub mod fixture;
pub mod invariant;
mod kubeconfig;
pub mod node;
pub mod process;
pub mod toolchain;
pub mod wait;
