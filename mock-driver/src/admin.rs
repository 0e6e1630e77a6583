//! The admin API: out-of-band inspection and modification of the driver, for users and tests.
//!
//! HTTP and JSON on a loopback address or a Unix socket, described by `/openapi.json`, with the
//! dashboard at `/`, `/metrics` for Prometheus, `/healthz` and `/readyz`. Nothing is served unless an endpoint is
//! given.
//!
//! Invariants:
//! - whatever is changed here goes the way of the CSI call that would change it, past the fault
//!   rules, the journal and the queue for the volume: as if it happened at the array's own console;
//! - no page of a foreign site can change anything ([`guard`](self) refuses its requests), nor read
//!   anything by pointing its own name at this machine;
//! - an answer that waits ends when the driver stops.

pub use self::dashboard::site;
pub use self::server::{BindError, Server};

mod dashboard;
mod guard;
mod metrics;
mod page;
mod problem;
mod request;
mod route;
mod sequence;
mod server;
mod state;
