//! Why a request to the admin API failed.

use std::io;
use std::time::Duration;

use http::StatusCode;

use crate::admin_api::endpoint::Endpoint;
use crate::admin_api::resource::Problem;

/// Why a request was not answered with what it asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Connection refused.
    #[error("cannot reach the driver at {endpoint}: is it running, with --admin-endpoint={endpoint}?")]
    Unreachable {
        /// Where.
        endpoint: Endpoint,
        /// How it failed.
        source: io::Error,
    },
    /// It took too long.
    #[error("the driver at {endpoint} gave no answer within {waited:?}: is it stopped?")]
    Late {
        /// Where.
        endpoint: Endpoint,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The connection broke.
    #[error("the driver at {endpoint} gave no answer")]
    Broken {
        /// Where.
        endpoint: Endpoint,
        /// How it failed.
        source: hyper::Error,
    },
    /// The driver refused.
    #[error("{}", problem.message)]
    Refused {
        /// The status of the answer.
        status: StatusCode,
        /// Why.
        problem: Problem,
    },
    /// An answer that is not understood: another version, or no driver at all.
    #[error("{endpoint} gave an answer that no csi-mock-driver gives: {reason}")]
    Foreign {
        /// Where.
        endpoint: Endpoint,
        /// What is wrong with it.
        reason: String,
    },
}
