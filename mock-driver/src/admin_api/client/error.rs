//! Errors of the admin API's client.

use std::io;
use std::time::Duration;

use http::StatusCode;

use crate::admin_api::endpoint::Endpoint;
use crate::admin_api::resource::Problem;

/// Error of an admin API request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Connection refused.
    #[error("cannot reach the driver at {endpoint}: is it running, with --admin-endpoint={endpoint}?")]
    Unreachable {
        /// The endpoint.
        endpoint: Endpoint,
        /// The cause.
        source: io::Error,
    },
    /// Timeout.
    #[error("request to {endpoint} timed out after {waited:?}")]
    Late {
        /// The endpoint.
        endpoint: Endpoint,
        /// The timeout.
        waited: Duration,
    },
    /// The connection broke.
    #[error("{endpoint} closed the connection without a response")]
    Broken {
        /// The endpoint.
        endpoint: Endpoint,
        /// The cause.
        source: hyper::Error,
    },
    /// The driver refused.
    #[error("{}", problem.message)]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// Why.
        problem: Problem,
    },
    /// Unexpected response: another version, or not a csi-mock-driver.
    #[error("unexpected response from {endpoint}: {reason} (version mismatch, or not a csi-mock-driver)")]
    Foreign {
        /// The endpoint.
        endpoint: Endpoint,
        /// What is wrong with the response.
        reason: String,
    },
}
