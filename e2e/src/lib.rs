//! The whole attach/detach path on one machine: harness, scenarios, playground, benchmarks.

pub mod fixture;
pub mod node;
pub mod wait;
