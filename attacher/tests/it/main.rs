//! Tests of the attacher's parts together, without a cluster and without waiting.

mod connection;
mod election;
mod events;
mod simulation;
mod traces;
