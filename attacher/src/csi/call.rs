//! Publish, unpublish and list over the session of the moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::volume_capability::{AccessType, BlockVolume, MountVolume, access_mode};
use tokio::sync::watch;

use super::code::CallError;
use super::connect::Link;
use super::session::Session;
use super::{Controller, ListRequest, Listed, Page, PublishRequest, UnpublishRequest};
use crate::cluster::Secrets;
use crate::decide::{Access, AccessMode, Capability};
use crate::lease::Leadership;
use crate::model::Capabilities;

/// Calls whatever driver is connected.
#[derive(Debug)]
pub struct Caller {
    link: watch::Receiver<Link>,
    timeout: Duration,
    leadership: Leadership,
}

// === impl Caller ===

impl Caller {
    /// Calls with this deadline each (`--timeout`). [`Controller::ready`] waits as long for a driver that
    /// is away. Only while `leadership` lasts is anything sent.
    pub fn new(link: watch::Receiver<Link>, timeout: Duration, leadership: Leadership) -> Self {
        Self {
            link,
            timeout,
            leadership,
        }
    }

    fn session(&self) -> Result<Arc<Session>, CallError> {
        let link = self.link.borrow();
        link.session()
            .cloned()
            .ok_or_else(|| CallError::unsent("the CSI driver is not connected"))
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
        self.leadership.check()?;
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
        let mut controller = self.session()?.controller();
        let secrets = request.secrets.clone();
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: request.target.handle.to_string(),
            node_id: request.target.node_id.to_string(),
            volume_capability: Some(request.capability.into()),
            readonly: request.read_only,
            secrets: request.secrets.0.into_iter().collect(),
            volume_context: request.volume_context.into_iter().collect(),
        };
        tracing::trace!(
            volume = request.volume_id,
            node_id = request.node_id,
            readonly = request.readonly,
            volume_context = ?request.volume_context.keys(),
            secrets = ?request.secrets.keys(),
            "ControllerPublishVolume"
        );
        let answer = self
            .send(request, |request| controller.controller_publish_volume(request))
            .await;
        let answer = answer.map_err(|error| without(&secrets, error));
        let answer = answer.inspect_err(|error| tracing::trace!(%error, "ControllerPublishVolume failed"))?;
        tracing::trace!(publish_context = ?answer.publish_context.keys(), "ControllerPublishVolume succeeded");
        Ok(answer.publish_context.into_iter().collect())
    }

    async fn unpublish(&self, request: UnpublishRequest) -> Result<(), CallError> {
        let mut controller = self.session()?.controller();
        let secrets = request.secrets.clone();
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: request.target.handle.to_string(),
            node_id: request.target.node_id.to_string(),
            secrets: request.secrets.0.into_iter().collect(),
        };
        tracing::trace!(
            volume = request.volume_id,
            node_id = request.node_id,
            secrets = ?request.secrets.keys(),
            "ControllerUnpublishVolume"
        );
        let answer = self
            .send(request, |request| controller.controller_unpublish_volume(request))
            .await;
        let answer = answer.map_err(|error| without(&secrets, error));
        answer.inspect_err(|error| tracing::trace!(%error, "ControllerUnpublishVolume failed"))?;
        tracing::trace!("ControllerUnpublishVolume succeeded");
        Ok(())
    }

    async fn list(&self, request: ListRequest) -> Result<Page, CallError> {
        let mut controller = self.session()?.controller();
        let request = v1::ListVolumesRequest {
            max_entries: request.max_entries,
            starting_token: request.starting_token,
        };
        tracing::trace!(
            max_entries = request.max_entries,
            token = request.starting_token,
            "ListVolumes"
        );
        let answer = self
            .send(request, |request| controller.list_volumes(request))
            .await
            .inspect_err(|error| tracing::trace!(%error, "ListVolumes failed"))?;
        tracing::trace!(
            entries = answer.entries.len(),
            token = answer.next_token,
            "ListVolumes succeeded"
        );
        let listed = |entry: v1::list_volumes_response::Entry| {
            Some(Listed {
                handle: entry.volume?.volume_id,
                published: entry.status.map(|status| status.published_node_ids),
            })
        };
        Ok(Page {
            volumes: answer.entries.into_iter().filter_map(listed).collect(),
            next_token: answer.next_token,
        })
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        let mut link = self.link.clone();
        let up = tokio::time::timeout(self.timeout, link.wait_for(|link| link.session().is_some())).await;
        match up {
            Ok(Ok(_)) => Ok(self.session()?.capabilities),
            Ok(Err(_)) => Err(CallError::unsent("the attacher is shutting down")),
            Err(_) => Err(CallError::unsent("the CSI driver is not connected")),
        }
    }
}

/// Takes the values of secrets out of an error: some drivers say what they could not log in with, and
/// from here the message goes into logs, statuses and events. Values too short to be secrets stay, as
/// taking them out would garble every message.
fn without(secrets: &Secrets, mut error: CallError) -> CallError {
    const SHORTEST: usize = 4;
    // The longest first, or what is left of one that contains another would still show.
    let mut values: Vec<&String> = secrets
        .0
        .values()
        .filter(|secret| secret.len() >= SHORTEST)
        .collect();
    values.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in values {
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
