//! Errors of requests to the API server.

/// The API server's message, as client-go prints a StatusError.
pub(crate) fn message_of(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    error.to_string()
}
