//! Errors of the admin API's client.

use std::io;
use std::time::Duration;

use http::StatusCode;

use crate::admin_api::endpoint::Endpoint;
use crate::admin_api::resource::Problem;

/// Error of an admin API request.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum Error {
    #[error("cannot reach the driver at {endpoint}: is it running, with --admin-endpoint={endpoint}?")]
    Unreachable { endpoint: Endpoint, source: io::Error },
    #[error("request to {endpoint} timed out after {waited:?}")]
    Late { endpoint: Endpoint, waited: Duration },
    #[error("{endpoint} closed the connection without a response")]
    Broken {
        endpoint: Endpoint,
        source: hyper::Error,
    },
    #[error("{}", problem.message)]
    Refused { status: StatusCode, problem: Problem },
    #[error("unexpected response from {endpoint}: {reason} (version mismatch, or not a csi-mock-driver)")]
    Foreign { endpoint: Endpoint, reason: String },
}
