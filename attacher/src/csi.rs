//! Calls to the CSI driver, behind one small trait.

mod call;
mod code;
mod connection_manager;
mod metrics;
mod redact;
mod session;
mod stream;

use std::collections::BTreeMap;

pub use call::Caller;
pub use code::{CallError, Code, Reach};
pub use connection_manager::{ConnectionManager, ConnectionState, DriverChanged};
pub use metrics::Calls;
pub(crate) use metrics::ConnectionStats;
pub use session::{Connect, OpenError, Session, Socket, SocketError};

use csi_proto::v1::VolumeCapability;

use crate::model::{Capabilities, PublishTarget, Secrets};

/// The Controller service, as far as the attacher uses it.
///
/// # Cancellation
///
/// Dropping a future cancels the call; the driver may execute it nevertheless. The result is unknown, as after a code that
/// is not final, until the call is repeated: CSI requires every call to be idempotent.
pub trait ControllerClient: Send + Sync + 'static {
    /// ControllerPublishVolume; returns `publish_context`.
    fn publish(
        &self,
        request: PublishRequest,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, CallError>> + Send;

    /// ControllerUnpublishVolume.
    fn unpublish(&self, request: UnpublishRequest) -> impl Future<Output = Result<(), CallError>> + Send;

    /// ListVolumes: one page.
    fn list(&self, request: ListRequest) -> impl Future<Output = Result<Page, CallError>> + Send;

    /// Waits for a connection and returns the driver's capabilities. Build the next request from them; calls fail at
    /// once without a connection.
    fn ready(&self) -> impl Future<Output = Result<Capabilities, CallError>> + Send;
}

/// A ControllerPublishVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRequest {
    /// Volume and node.
    pub target: PublishTarget,
    /// `volume_capability`.
    pub capability: VolumeCapability,
    /// `readonly`.
    pub read_only: bool,
    /// `volume_context`.
    pub volume_context: BTreeMap<String, String>,
    /// `secrets`.
    pub secrets: Secrets,
    /// Whether the volume is migrated from an in-tree plugin, for metrics.
    pub migrated: bool,
}

/// A ListVolumes request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// `max_entries`; 0 leaves the limit to the driver.
    pub max_entries: i32,
    /// `starting_token`; empty for the first page.
    pub starting_token: String,
}

/// A ListVolumes response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The volumes.
    pub volumes: Vec<Listed>,
    /// `next_token`; empty on the last page.
    pub next_token: String,
}

/// An entry of a ListVolumes response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// CSI `volume_id`.
    pub handle: String,
    /// `published_node_ids`, if the entry has a status.
    pub published: Option<Vec<String>>,
}

/// A ControllerUnpublishVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishRequest {
    /// Volume and node.
    pub target: PublishTarget,
    /// `secrets`.
    pub secrets: Secrets,
    /// Whether the volume is migrated from an in-tree plugin, for metrics.
    pub migrated: bool,
}
