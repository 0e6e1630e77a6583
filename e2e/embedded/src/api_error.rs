//! Errors of requests to the API server.

/// The API server's message, as client-go prints a StatusError.
pub(crate) fn message_of(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    error.to_string()
}

/// The result of a write. Another client may delete the object first: that is no error.
pub(crate) fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop),
    }
}
