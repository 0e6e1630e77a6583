//! A driver that takes its time, refuses, and answers wrongly that it failed.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_attacher::csi::{CallError, ControllerClient, ListRequest, Page, PublishRequest, UnpublishRequest};
use csi_attacher::model::{Attachment, Capabilities, PublishTarget};
use tonic::{Code, Status};

use super::{State, World};

pub(in super::super) struct FakeDriver(pub(super) World);

enum Luck {
    Good,
    RefusesBefore,
    FailsAfter,
}

// === impl FakeDriver ===

impl FakeDriver {
    /// `forgotten` is the answer about a machine that has another id.
    async fn call(
        &self,
        target: &PublishTarget,
        forgotten: Result<(), Status>,
        act: impl FnOnce(&mut State),
    ) -> Result<(), CallError> {
        let (luck, before, after) = {
            let mut state = self.0.state();
            let under_way = state.calling.entry(target.clone()).or_default();
            *under_way += 1;
            if *under_way > 1 {
                state.violations.push(format!("two calls at once for {target:?}"));
            }
            let faults = state.faults.driver;
            let luck = match (state.percent(faults), state.random.bool()) {
                (false, _) => Luck::Good,
                (true, true) => Luck::RefusesBefore,
                (true, false) => Luck::FailsAfter,
            };
            (luck, state.pause(), state.pause())
        };
        tokio::time::sleep(before).await;
        let gone = {
            let state = self.0.state();
            state.gone_ids.contains(&state.present(target).node_id)
        };
        let is_forgotten = self.0.state().is_forgotten(target);
        let has_calls = self.0.state().array.has_calls();
        let result = match luck {
            _ if !has_calls => Err(Status::new(Code::Unimplemented, "no such call")),
            _ if is_forgotten => forgotten,
            _ if gone => Err(Status::new(Code::NotFound, "no such node")),
            Luck::Good => {
                act(&mut self.0.state());
                Ok(())
            }
            Luck::RefusesBefore => Err(Status::new(Code::Internal, "no")),
            Luck::FailsAfter => {
                act(&mut self.0.state());
                Err(Status::new(Code::DeadlineExceeded, "too late"))
            }
        };
        tokio::time::sleep(after).await;
        self.0.state().calling.remove(target);
        result.map_err(CallError::from)
    }
}

impl ControllerClient for FakeDriver {
    async fn publish(&self, request: PublishRequest) -> Result<BTreeMap<String, String>, CallError> {
        let target = &request.target;
        let forgotten = Err(Status::new(Code::NotFound, "no such node"));
        self.call(target, forgotten, |state| {
            state.calls.publish += 1;
            // Crash safety: before anything is published, an attachment with our finalizer says so.
            if !state.is_recorded(target, |attachment| attachment.finalizer) {
                state
                    .violations
                    .push(format!("published without a record: {target:?}"));
            }
            let target = state.present(target);
            state.publish(&target);
        })
        .await?;
        Ok(BTreeMap::from([("path".to_owned(), "/dev/sim".to_owned())]))
    }

    async fn unpublish(&self, request: UnpublishRequest) -> Result<(), CallError> {
        let target = &request.target;
        self.call(target, Ok(()), |state| {
            state.calls.unpublish += 1;
            let is_attached = |attachment: &Attachment| attachment.attached && !attachment.deleting;
            let present = state.present(target);
            if state.published.contains(&present) && state.is_recorded(target, is_attached) {
                state
                    .violations
                    .push(format!("unpublished while attached: {target:?}"));
            }
            state.published.remove(&present);
        })
        .await
    }

    async fn list(&self, request: ListRequest) -> Result<Page, CallError> {
        let pause = self.0.state().pause();
        tokio::time::sleep(pause).await;
        self.0.state().page(&request)
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        Ok(self.0.state().array.capabilities())
    }
}

// === impl State ===

impl State {
    fn pause(&mut self) -> Duration {
        Duration::from_millis(self.random.u64(0..40))
    }

    fn is_recorded(&self, target: &PublishTarget, which: impl Fn(&Attachment) -> bool) -> bool {
        self.attachments
            .values()
            .any(|attachment| which(attachment) && super::recorded(attachment).as_ref() == Some(target))
    }
}
