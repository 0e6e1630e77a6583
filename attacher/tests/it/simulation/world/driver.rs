//! A fake driver that is slow, refuses calls, answers untruly, and returns errors for calls that succeed, at once or later.

use std::collections::BTreeMap;
use std::time::Duration;

use attacher_contract::Observation;
use attacher_contract::observation::Method;
use csi_attacher::csi::{CallError, ControllerClient};
use csi_attacher::model::{Capabilities, PublishTarget};
use csi_proto::v1;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::choices::CallFault;
use super::client::Client;
use super::{Bug, Lie, State, World};

pub(in super::super) struct FakeDriver {
    pub(super) world: World,
    pub(super) client: Client,
}

/// A call as it arrives.
struct Request {
    method: Method,
    target: PublishTarget,
    has_secret: bool,
}

enum Outcome {
    Success,
    /// An error without effect.
    Refused,
    /// Another call locks the node.
    Locked,
    /// An error although the call took effect.
    Uncertain,
    /// OK without effect.
    Ignored,
    /// An error, and the call takes effect later.
    Late,
    /// As chosen.
    Chosen(CallFault),
}

/// The answer of the driver.
type Answered = Result<BTreeMap<String, String>, Status>;

/// When the effect of a call comes at the latest that ended with DEADLINE_EXCEEDED.
const LATE: u64 = 3_000;

// === impl FakeDriver ===

impl FakeDriver {
    async fn call(&self, request: Request) -> Result<BTreeMap<String, String>, CallError> {
        self.client.await_connection(&self.world).await;
        self.client.fence().await?;
        let (world, client) = (self.world.clone(), self.client.clone());
        let (method, bug) = (request.method, self.world.state().bug);
        let request = match (bug, method) {
            (Some(Bug::PresentNodeId), Method::Unpublish) => self.world.state().with_present_id(request),
            _ => request,
        };
        let served = self
            .client
            .on_server(async move { world.serve(&client, request).await });
        let answer = tokio::select! {
            biased;
            answer = served => answer,
            () = self.client.leadership().ended() => Err(Status::cancelled("not leading any more")),
        };
        let is_not_found = answer
            .as_ref()
            .is_err_and(|status| status.code() == Code::NotFound);
        match (bug, method) {
            (Some(Bug::NotFoundIsProof), Method::Unpublish) if is_not_found => Ok(BTreeMap::new()),
            _ => answer.map_err(CallError::from),
        }
    }
}

// === impl World ===

impl World {
    async fn serve(&self, client: &Client, request: Request) -> Answered {
        let Request {
            method,
            target,
            has_secret,
        } = request;
        let (number, outcome, before, after) = {
            let mut state = self.state();
            let number = state.observe_call(client, method, &target, has_secret);
            *state.calling.entry(target.clone()).or_default() += 1;
            let outcome = state.outcome(&target);
            (number, outcome, state.pause(), state.pause())
        };
        tokio::time::sleep(before).await;
        if matches!(outcome, Outcome::Chosen(CallFault::CrashBefore)) {
            self.crash().await;
        }
        let result = self.state().answer(method, &target, &outcome);
        if matches!(outcome, Outcome::Chosen(CallFault::CrashAfter)) {
            self.crash().await;
        }
        tokio::time::sleep(after).await;
        let mut state = self.state();
        state.observe_answer(number, &result);
        state.calling.remove(&target);
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
        let has_secret = !request.secrets.is_empty();
        self.call(Request {
            method: Method::Publish,
            target,
            has_secret,
        })
        .await
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
        let has_secret = !request.secrets.is_empty();
        let unpublished = self.call(Request {
            method: Method::Unpublish,
            target,
            has_secret,
        });
        unpublished.await.map(|_| ())
    }

    async fn list(&self, request: v1::ListVolumesRequest) -> Result<v1::ListVolumesResponse, CallError> {
        self.client.fence().await?;
        let pause = self.world.state().pause();
        tokio::time::sleep(pause).await;
        self.world.state().page(&request)
    }

    fn session(&self) -> Option<std::time::Instant> {
        Some(self.world.state().array.session().borrow().into_std())
    }

    async fn session_ended(&self, session: Option<std::time::Instant>) {
        let mut opened = self.world.state().array.session();
        drop(opened.wait_for(|opened| Some(opened.into_std()) != session).await);
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        Ok(self.world.state().array.capabilities())
    }
}

// === impl State ===

impl State {
    pub(super) fn pause(&mut self) -> Duration {
        Duration::from_millis(self.random.u64(0..40))
    }

    fn outcome(&mut self, target: &PublishTarget) -> Outcome {
        if let Some(choices) = &mut self.choices {
            let fault = choices.call_fault();
            self.had_chosen_fault |= fault.is_some();
            return fault.map_or(Outcome::Success, Outcome::Chosen);
        }
        let faults = self.faults.driver;
        let mut others = self.calling.keys().filter(|other| *other != target);
        let is_locked = self.faults.locks_nodes && others.any(|other| other.node_id == target.node_id);
        match (self.percent(faults), self.random.bool()) {
            _ if is_locked => Outcome::Locked,
            (false, _) if self.lies(Lie::OkWithoutEffect, 5) => Outcome::Ignored,
            (false, _) if self.lies(Lie::EffectLater, 5) => Outcome::Late,
            (false, _) => Outcome::Success,
            (true, true) => Outcome::Refused,
            (true, false) => Outcome::Uncertain,
        }
    }

    fn answer(&mut self, method: Method, target: &PublishTarget, outcome: &Outcome) -> Answered {
        let no_node = || Err(Status::new(Code::NotFound, "no such node"));
        let present = self.present(target);
        if !self.array.has_publish_capability() {
            return Err(Status::new(Code::Unimplemented, "no such call"));
        }
        if self.is_unknown_id(target) {
            // As vSphere's: an unpublish does nothing and succeeds.
            return match method {
                Method::Publish => no_node(),
                Method::Unpublish => Ok(BTreeMap::new()),
            };
        }
        if self.removed_ids.contains(&present.node_id) {
            return no_node();
        }
        if self.broken_node.is_some() && self.broken_node == self.node_of(&present.node_id) {
            return Err(Status::new(Code::Unavailable, "the node's fabric is down"));
        }
        // Its node cache is cold.
        if self.lies(Lie::NotFound, 15) {
            return no_node();
        }
        let outcome = match outcome {
            Outcome::Chosen(CallFault::NotFound) => return no_node(),
            Outcome::Chosen(CallFault::InvalidArgument) => {
                return Err(Status::new(Code::InvalidArgument, "no node ID of this array"));
            }
            Outcome::Chosen(CallFault::DeadlineWithoutEffect) => {
                return Err(Status::new(Code::DeadlineExceeded, "too late"));
            }
            Outcome::Chosen(CallFault::OkWithoutEffect) => &Outcome::Ignored,
            Outcome::Chosen(CallFault::Aborted) => &Outcome::Locked,
            Outcome::Chosen(CallFault::DeadlineWithEffect) => &Outcome::Uncertain,
            Outcome::Chosen(CallFault::CrashBefore | CallFault::CrashAfter)
            | Outcome::Success
            | Outcome::Refused
            | Outcome::Locked
            | Outcome::Uncertain
            | Outcome::Ignored
            | Outcome::Late => outcome,
        };
        match outcome {
            Outcome::Success | Outcome::Chosen(_) => {
                self.take_effect(method, &present);
                Ok(self.context(method, &present))
            }
            Outcome::Refused => Err(Status::new(Code::Internal, "the array refuses")),
            Outcome::Locked => {
                self.calls.locked += 1;
                Err(Status::new(Code::Aborted, "the node is locked"))
            }
            Outcome::Uncertain => {
                self.take_effect(method, &present);
                Err(Status::new(Code::DeadlineExceeded, "too late"))
            }
            Outcome::Ignored => {
                self.note(format_args!("the call has no effect"));
                Ok(self.context(method, &present))
            }
            Outcome::Late => {
                let at = Instant::now() + Duration::from_millis(self.random.u64(0..LATE));
                self.late.push((at, method, target.clone()));
                Err(Status::new(Code::DeadlineExceeded, "too late"))
            }
        }
    }

    /// The `publish_context`, which is the same as long as the volume stays published.
    fn context(&self, method: Method, present: &PublishTarget) -> BTreeMap<String, String> {
        if method == Method::Unpublish {
            return BTreeMap::new();
        }
        let device = self.devices.get(present).copied().unwrap_or_default();
        BTreeMap::from([("path".to_owned(), format!("/dev/sd{device}"))])
    }

    fn take_effect(&mut self, method: Method, present: &PublishTarget) {
        match method {
            Method::Publish => {
                self.calls.publish += 1;
                if self.published.insert(present.clone()) {
                    *self.devices.entry(present.clone()).or_default() += 1;
                }
            }
            Method::Unpublish => {
                self.calls.unpublish += 1;
                self.published.remove(present);
            }
        }
        self.observe_array();
    }

    /// Lets calls and writes take effect whose time has come.
    pub(super) fn take_late_effects(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.late_writes.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, write) in due {
            self.observe(Observation::Fault("a late write".to_owned()));
            self.executes_late = true;
            write(self);
            self.executes_late = false;
        }
        let due: Vec<_> = self.late.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, method, target) in due {
            let present = self.present(&target);
            // The driver does not find a machine by a former ID.
            let is_known = method == Method::Unpublish || present == target;
            if is_known && !self.removed_ids.contains(&present.node_id) {
                self.observe(Observation::Fault(format!("a late effect: {method}")));
                self.take_effect(method, &present);
            }
        }
    }

    /// The request of an attacher that ignores the recorded node ID.
    fn with_present_id(&self, mut request: Request) -> Request {
        let mut attachments = self.attachments.values();
        let of_target =
            attachments.find(|attachment| super::recorded(attachment).as_ref() == Some(&request.target));
        let node = of_target.and_then(|attachment| self.nodes.get(&*attachment.node));
        if let Some(id) = node.and_then(|node| node.id.clone()) {
            request.target.node_id = id;
        }
        request
    }

    /// The node that registers this ID.
    fn node_of(&self, id: &str) -> Option<std::sync::Arc<str>> {
        let mut nodes = self.nodes.values();
        let node = nodes.find(|node| node.id.as_deref() == Some(id));
        node.map(|node| node.name.clone())
    }
}
