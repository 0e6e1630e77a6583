//! All that we say to the CSI driver, behind one small trait.

mod call;
mod code;
mod connect;
mod session;

use std::collections::BTreeMap;

pub use call::Caller;
pub use code::{CallError, Code, Reach};
pub use connect::{Keeper, Link, Lost};
pub use session::{OpenError, Session, Socket, SocketError};

use crate::cluster::Secrets;
use crate::decide::Capability;
use crate::model::{Capabilities, Target};

/// The two calls that attaching is about.
///
/// # Cancellation
///
/// Dropping a future cancels the call; the driver may carry it out all the same. A call that failed
/// with a code that is not final leaves the same doubt. Both are resolved by calling again: the CSI
/// specification demands that every call can be repeated.
pub trait Controller: Send + Sync + 'static {
    /// ControllerPublishVolume; returns `publish_context`.
    fn publish(
        &self,
        request: PublishRequest,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, CallError>> + Send;

    /// ControllerUnpublishVolume.
    fn unpublish(&self, request: UnpublishRequest) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Waits until the driver can be called, and says what it can do. Whoever is about to call asks
    /// first, so that a request is made for the driver that gets it; the calls themselves do not wait.
    fn ready(&self) -> impl Future<Output = Result<Capabilities, CallError>> + Send;
}

/// A ControllerPublishVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRequest {
    /// Which volume, to which node.
    pub target: Target,
    /// How it is going to be used.
    pub capability: Capability,
    /// Whether to publish read-only.
    pub read_only: bool,
    /// The volume's attributes.
    pub volume_context: BTreeMap<String, String>,
    /// Credentials.
    pub secrets: Secrets,
}

/// A ControllerUnpublishVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishRequest {
    /// Which volume, from which node.
    pub target: Target,
    /// Credentials.
    pub secrets: Secrets,
}
