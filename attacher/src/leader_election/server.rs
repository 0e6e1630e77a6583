//! Requests for the Lease.

use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;

use super::LeaseError;

/// The API server, as far as the election uses it.
///
/// # Cancellation
///
/// A dropped write may be executed, now or later, or not at all.
pub trait LeaseServer: Send + Sync + 'static {
    /// Reads the Lease; `None` if it does not exist.
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, LeaseError>> + Send;

    /// Replaces the version of the Lease whose resourceVersion `lease` carries; creates the Lease if it carries none.
    fn write(&self, lease: &Lease) -> impl Future<Output = Result<Lease, LeaseError>> + Send;

    /// Watches the Lease from `version`; `None` is a deletion. The stream may end at any time, as the elector also reads the
    /// Lease periodically.
    fn changes(&self, version: &str) -> BoxStream<'static, Option<Lease>>;

    /// Host and port, for errors.
    fn address(&self) -> &str;

    /// Abandons the connection after a timeout.
    fn reconnect(&mut self);
}
