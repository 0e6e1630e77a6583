//! Publish and unpublish over the session of the moment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::volume_capability::{AccessType, BlockVolume, MountVolume, access_mode};
use tokio::sync::watch;

use super::code::CallError;
use super::connect::Link;
use super::session::Session;
use super::{Controller, PublishRequest, UnpublishRequest};
use crate::cluster::Secrets;
use crate::decide::{Access, AccessMode, Capability};
use crate::model::Capabilities;

/// Calls whatever driver is connected.
#[derive(Debug)]
pub struct Caller {
    link: watch::Receiver<Link>,
    timeout: Duration,
    /// Of the last session there was, so that decisions do not change while the driver is away.
    capabilities: Mutex<Capabilities>,
}

// === impl Caller ===

impl Caller {
    /// Calls with this deadline each (`--timeout`). While the driver is away a call waits for it,
    /// and that wait has a deadline of the same length.
    pub fn new(link: watch::Receiver<Link>, timeout: Duration) -> Self {
        Self {
            link,
            timeout,
            capabilities: Mutex::default(),
        }
    }

    async fn session(&self) -> Result<Arc<Session>, CallError> {
        let mut link = self.link.clone();
        let up = tokio::time::timeout(self.timeout, link.wait_for(|link| link.session().is_some())).await;
        match up {
            Ok(Ok(link)) => Ok(link
                .session()
                .expect("the link must be up: it was waited for")
                .clone()),
            Ok(Err(_)) => Err(CallError::disconnected("the attacher is shutting down")),
            Err(_) => Err(CallError::disconnected("the CSI driver is not connected")),
        }
    }

    /// Sends one call. The deadline goes along with it, so that a driver that heeds it stops in time;
    /// our own clock makes sure of the rest.
    async fn send<Q, A, F>(
        &self,
        request: Q,
        call: impl FnOnce(tonic::Request<Q>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let mut request = tonic::Request::new(request);
        request.set_timeout(self.timeout);
        match tokio::time::timeout(self.timeout, call(request)).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(CallError::deadline_exceeded()),
        }
    }
}

impl Controller for Caller {
    async fn publish(&self, request: PublishRequest) -> Result<BTreeMap<String, String>, CallError> {
        let mut controller = self.session().await?.controller();
        let secrets = request.secrets.clone();
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: request.target.handle.to_string(),
            node_id: request.target.node_id.to_string(),
            volume_capability: Some(request.capability.into()),
            readonly: request.read_only,
            secrets: request.secrets.0.into_iter().collect(),
            volume_context: request.volume_context.into_iter().collect(),
        };
        tracing::trace!(?request, "ControllerPublishVolume");
        let answer = self
            .send(request, |request| controller.controller_publish_volume(request))
            .await;
        let answer = answer.map_err(|error| without(&secrets, error));
        tracing::trace!(?answer, "ControllerPublishVolume answered");
        Ok(answer?.publish_context.into_iter().collect())
    }

    async fn unpublish(&self, request: UnpublishRequest) -> Result<(), CallError> {
        let mut controller = self.session().await?.controller();
        let secrets = request.secrets.clone();
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: request.target.handle.to_string(),
            node_id: request.target.node_id.to_string(),
            secrets: request.secrets.0.into_iter().collect(),
        };
        tracing::trace!(?request, "ControllerUnpublishVolume");
        let answer = self
            .send(request, |request| controller.controller_unpublish_volume(request))
            .await;
        let answer = answer.map_err(|error| without(&secrets, error));
        tracing::trace!(?answer, "ControllerUnpublishVolume answered");
        answer.map(|_| ())
    }

    fn capabilities(&self) -> Capabilities {
        let mut known = self
            .capabilities
            .lock()
            .expect("nothing must panic while this is locked");
        if let Some(session) = self.link.borrow().session() {
            *known = session.capabilities;
        }
        *known
    }
}

/// Takes the values of secrets out of an error: some drivers say what they could not log in with, and
/// from here the message goes into logs, statuses and events. Values too short to be secrets stay, as
/// taking them out would garble every message.
fn without(secrets: &Secrets, mut error: CallError) -> CallError {
    const SHORTEST: usize = 4;
    for secret in secrets.0.values().filter(|secret| secret.len() >= SHORTEST) {
        if error.message.contains(secret.as_str()) {
            error.message = error.message.replace(secret.as_str(), "***stripped***");
        }
    }
    error
}

// === impl VolumeCapability ===

impl From<Capability> for v1::VolumeCapability {
    fn from(capability: Capability) -> Self {
        use access_mode::Mode;
        let access_type = match capability.access {
            Access::Block => AccessType::Block(BlockVolume {}),
            Access::Mount { fs_type, flags } => AccessType::Mount(MountVolume {
                fs_type,
                mount_flags: flags,
                // Kubernetes gives the group to the node's calls only (KEP-2317).
                volume_mount_group: String::new(),
            }),
        };
        let mode = match capability.mode {
            AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
            AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
            AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
            AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
            AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        };
        Self {
            access_type: Some(access_type),
            access_mode: Some(v1::volume_capability::AccessMode { mode: mode.into() }),
        }
    }
}
