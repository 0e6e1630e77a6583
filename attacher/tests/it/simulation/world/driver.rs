//! A fake driver that is slow, refuses calls, and returns errors for calls that succeeded.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_attacher::csi::{CallError, ControllerClient};
use csi_attacher::model::{Attachment, Capabilities, PublishTarget};
use csi_proto::v1;
use tonic::{Code, Status};

use super::client::Client;
use super::{State, World};

pub(in super::super) struct FakeDriver {
    pub(super) world: World,
    pub(super) client: Client,
}

enum Outcome {
    Success,
    /// An error without effect.
    Refused,
    /// Another call locks the node.
    Locked,
    /// An error although the call took effect.
    Uncertain,
}

// === impl FakeDriver ===

impl FakeDriver {
    /// `unknown_id` is the result if the driver knows the machine by another ID.
    async fn call(
        &self,
        name: &'static str,
        target: &PublishTarget,
        unknown_id: Result<(), Status>,
        act: impl FnOnce(&mut State) + Send + 'static,
    ) -> Result<(), CallError> {
        self.client.await_connection(&self.world).await;
        self.client.fence().await?;
        let (world, client, target) = (self.world.clone(), self.client.clone(), target.clone());
        let result = self.client.on_server(async move {
            client.check_lease(&mut world.state(), name);
            world.serve(name, &target, unknown_id, act).await
        });
        result.await.map_err(CallError::from)
    }
}

// === impl World ===

impl World {
    async fn serve(
        &self,
        name: &str,
        target: &PublishTarget,
        unknown_id: Result<(), Status>,
        act: impl FnOnce(&mut State),
    ) -> Result<(), Status> {
        let (outcome, before, after) = {
            let mut state = self.state();
            let running = state.calling.entry(target.clone()).or_default();
            *running += 1;
            if *running > 1 {
                state.violations.push(format!("two calls at once for {target:?}"));
            }
            let faults = state.faults.driver;
            let mut others = state.calling.keys().filter(|other| *other != target);
            let is_locked = state.faults.locks_nodes && others.any(|other| other.node_id == target.node_id);
            let outcome = match (state.percent(faults), state.random.bool()) {
                _ if is_locked => Outcome::Locked,
                (false, _) => Outcome::Success,
                (true, true) => Outcome::Refused,
                (true, false) => Outcome::Uncertain,
            };
            state.note(format_args!("{name} {target:?}"));
            (outcome, state.pause(), state.pause())
        };
        tokio::time::sleep(before).await;
        let result = {
            let mut state = self.state();
            let removed = state.removed_ids.contains(&state.present(target).node_id);
            match outcome {
                _ if !state.array.has_publish_capability() => {
                    Err(Status::new(Code::Unimplemented, "no such call"))
                }
                _ if state.is_unknown_id(target) => unknown_id,
                _ if removed => Err(Status::new(Code::NotFound, "no such node")),
                // Its node cache is cold.
                _ if state.faults.lies && state.percent(15) => {
                    Err(Status::new(Code::NotFound, "no such node"))
                }
                Outcome::Success => {
                    act(&mut state);
                    Ok(())
                }
                Outcome::Refused => Err(Status::new(Code::Internal, "no")),
                Outcome::Locked => {
                    state.calls.locked += 1;
                    Err(Status::new(Code::Aborted, "the node is locked"))
                }
                Outcome::Uncertain => {
                    act(&mut state);
                    Err(Status::new(Code::DeadlineExceeded, "too late"))
                }
            }
        };
        tokio::time::sleep(after).await;
        let mut state = self.state();
        state.note(format_args!(
            "{name} {target:?}: {:?}",
            result.as_ref().map_err(Status::code)
        ));
        state.calling.remove(target);
        result
    }
}

// === impl FakeDriver ===

impl ControllerClient for FakeDriver {
    async fn publish(
        &self,
        request: v1::ControllerPublishVolumeRequest,
        _: bool,
    ) -> Result<BTreeMap<String, String>, CallError> {
        let target = PublishTarget {
            volume_id: request.volume_id.into(),
            node_id: request.node_id.into(),
        };
        let unknown_id = Err(Status::new(Code::NotFound, "no such node"));
        self.call("publish", &target.clone(), unknown_id, move |state| {
            state.calls.publish += 1;
            // Crash safety: before the publish, an attachment with our finalizer must record the target.
            if !state.is_recorded(&target) {
                state
                    .violations
                    .push(format!("published without a record: {target:?}"));
            }
            let target = state.present(&target);
            state.publish(&target);
        })
        .await?;
        Ok(BTreeMap::from([("path".to_owned(), "/dev/sim".to_owned())]))
    }

    async fn unpublish(
        &self,
        request: v1::ControllerUnpublishVolumeRequest,
        _: bool,
    ) -> Result<(), CallError> {
        let target = PublishTarget {
            volume_id: request.volume_id.into(),
            node_id: request.node_id.into(),
        };
        self.call("unpublish", &target.clone(), Ok(()), move |state| {
            state.calls.unpublish += 1;
            let is_attached = |attachment: &Attachment| attachment.attached && !attachment.deleting;
            let present = state.present(&target);
            let is_in_use = state.attachments.values().any(|attachment| {
                let recorded = super::recorded(attachment);
                is_attached(attachment) && recorded.is_some_and(|there| state.present(&there) == present)
            });
            if state.published.contains(&present) && is_in_use {
                state
                    .violations
                    .push(format!("unpublished while attached: {target:?}"));
            }
            state.published.remove(&present);
        })
        .await
    }

    async fn list(&self, request: v1::ListVolumesRequest) -> Result<v1::ListVolumesResponse, CallError> {
        self.client.fence().await?;
        let pause = self.world.state().pause();
        tokio::time::sleep(pause).await;
        self.world.state().page(&request)
    }

    fn session(&self) -> Option<std::time::Instant> {
        Some(self.world.state().array.session())
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        Ok(self.world.state().array.capabilities())
    }
}

// === impl State ===

impl State {
    fn pause(&mut self) -> Duration {
        Duration::from_millis(self.random.u64(0..40))
    }

    fn is_recorded(&self, target: &PublishTarget) -> bool {
        self.attachments
            .values()
            .any(|attachment| attachment.finalizer && super::recorded(attachment).as_ref() == Some(target))
    }
}
