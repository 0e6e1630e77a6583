//! The admin API: out-of-band inspection and modification of the driver, for users and tests.
//!
//! HTTP and JSON on a loopback address or a Unix socket, described by `/openapi.json`, with the dashboard at `/`, `/metrics`
//! for Prometheus, `/healthz` and `/readyz`. It is disabled unless an endpoint is configured.
//!
//! Invariants:
//! - a change uses the code of the CSI call that would make it, without fault rules, journal and the lock of the volume's
//!   calls: as if an administrator made it at the array;
//! - no page of another site can change anything ([`guard`](self) refuses its requests), or read anything by DNS rebinding;
//! - a pending response ends when the driver stops.

pub use self::dashboard::page_router;
pub(crate) use self::server::BindError;
pub use self::server::Server;

mod dashboard;
mod expectation;
mod guard;
mod metrics;
mod page;
mod problem;
mod request;
mod route;
mod server;
mod state;
