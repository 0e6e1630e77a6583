//! The admin API without its server: resources, endpoints and the client.

pub(crate) use self::endpoint::is_dns_name;
pub use self::endpoint::{Endpoint, InvalidEndpoint};

pub mod client;
pub mod resource;

mod endpoint;
