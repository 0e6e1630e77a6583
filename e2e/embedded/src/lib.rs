//! The attach/detach path of Kubernetes in one process, for tests, simulation and the playground.
//!
//! The real control plane is the reference: where this crate differs from it, this crate is wrong. The clock is
//! tokio's, and randomness comes from a seed, so that a whole cluster runs on simulated time in one thread.

pub mod apiserver;
