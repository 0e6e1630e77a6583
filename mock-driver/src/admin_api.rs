//! The admin API without its server: resources, endpoints and the client.

pub use self::endpoint::{Endpoint, InvalidEndpoint};

pub mod client;
pub mod query;
pub mod resource;

mod endpoint;
pub(crate) mod endpoints;
