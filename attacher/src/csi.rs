//! Calls to the CSI driver, behind one small trait.

mod call;
mod code;
mod connection_manager;
mod metrics;
mod redact;
mod session;
mod stream;

use std::collections::BTreeMap;
use std::time::Instant;

pub use call::Caller;
pub use code::{CallError, Code, Reach};
pub use connection_manager::{ConnectionManager, ConnectionState, DriverChanged};
pub use metrics::Calls;
pub(crate) use metrics::ConnectionStats;
pub use session::{Connect, OpenError, Session, Socket};

use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, ListVolumesRequest, ListVolumesResponse,
};

use crate::model::Capabilities;

/// The Controller service, as far as the attacher uses it. `migrated` is the value of the metrics label `migrated`: whether
/// the volume is migrated from an in-tree plugin.
///
/// # Cancellation
///
/// Dropping a future cancels the call; the driver may execute it nevertheless. The result is unknown, as after a code that
/// is not final, until the call is repeated: CSI requires every call to be idempotent.
pub trait ControllerClient: Send + Sync + 'static {
    /// ControllerPublishVolume; returns `publish_context`.
    fn publish(
        &self,
        request: ControllerPublishVolumeRequest,
        migrated: bool,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, CallError>> + Send;

    /// ControllerUnpublishVolume.
    fn unpublish(
        &self,
        request: ControllerUnpublishVolumeRequest,
        migrated: bool,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// ListVolumes: one page.
    fn list(
        &self,
        request: ListVolumesRequest,
    ) -> impl Future<Output = Result<ListVolumesResponse, CallError>> + Send;

    /// Waits for a connection and returns the driver's capabilities. Build the next request from them; calls fail at
    /// once without a connection.
    fn ready(&self) -> impl Future<Output = Result<Capabilities, CallError>> + Send;

    /// When the present session with the driver was opened, which identifies it; `None` without a connection.
    fn session(&self) -> Option<Instant>;

    /// Waits until the present session is another one.
    fn session_ended(&self, session: Option<Instant>) -> impl Future<Output = ()> + Send;
}
