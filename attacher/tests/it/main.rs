//! Tests of the attacher's parts together, without a cluster and without waiting.

mod authentication;
mod connection;
mod election;
mod events;
mod http;
mod logging;
mod manager;
mod simulation;
mod traces;
