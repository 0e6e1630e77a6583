//! The admin API: what people and tests see of the driver and do to it behind the back of CSI.

pub use self::endpoint::{Endpoint, NoEndpoint};

mod endpoint;
