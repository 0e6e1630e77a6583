//! All that we say to the CSI driver, behind one small trait.

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
pub use connection_manager::{ConnectionManager, ConnectionState, Lost};
pub use metrics::{Calls, ConnectionStats};
pub use session::{OpenError, Session, Socket, SocketError};

use crate::kube_api::Secrets;
use crate::model::{Capabilities, PublishTarget};
use crate::plan::Capability;

/// The calls that attaching is about.
///
/// # Cancellation
///
/// Dropping a future cancels the call; the driver may carry it out all the same. A call that failed
/// with a code that is not final leaves the same doubt. Both are resolved by calling again: the CSI
/// specification demands that every call can be repeated.
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

    /// Waits until the driver can be called, and says what it can do. A caller asks
    /// first, so that a request is made for the driver that gets it; the calls themselves do not wait.
    fn ready(&self) -> impl Future<Output = Result<Capabilities, CallError>> + Send;
}

/// A ControllerPublishVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRequest {
    /// Which volume, to which node.
    pub target: PublishTarget,
    /// How it is going to be used.
    pub capability: Capability,
    /// Whether to publish read-only.
    pub read_only: bool,
    /// The volume's attributes.
    pub volume_context: BTreeMap<String, String>,
    /// Credentials.
    pub secrets: Secrets,
    /// Whether the volume is an in-tree one that is migrated to CSI. Not for the driver: metrics tell it.
    pub migrated: bool,
}

/// A ListVolumes request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// How many entries the answer may have at most; 0 leaves it to the driver.
    pub max_entries: i32,
    /// Where the page begins; empty for the first one.
    pub starting_token: String,
}

/// A ListVolumes answer, as far as it says where volumes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The volumes.
    pub volumes: Vec<Listed>,
    /// Where the next page begins; empty after the last one.
    pub next_token: String,
}

/// One volume in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// CSI `volume_id`.
    pub handle: String,
    /// The ids of the nodes that it is published to, if the driver says.
    pub published: Option<Vec<String>>,
}

/// A ControllerUnpublishVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishRequest {
    /// Which volume, from which node.
    pub target: PublishTarget,
    /// Credentials.
    pub secrets: Secrets,
    /// Whether the volume is an in-tree one that is migrated to CSI. Not for the driver: metrics tell it.
    pub migrated: bool,
}
