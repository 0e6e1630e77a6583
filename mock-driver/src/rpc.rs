//! The catalogue of CSI's RPCs: names, messages, capabilities, validation of requests, and gRPC codes.

pub(crate) mod capabilities;
pub(crate) mod code;
pub(crate) mod method;
pub(crate) mod timeout;
pub(crate) mod validate;
