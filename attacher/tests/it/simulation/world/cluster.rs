//! A fake API server with the rules measured on kube-apiserver, which sometimes loses requests and responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher::kube_api::{AttachmentRequest, Cluster, Error, VolumeRequest, patch};
use csi_attacher::model::attachment::{
    NODE_ID_ANNOTATION, PUBLISH_SECRET_ANNOTATION, VOLUME_HANDLE_ANNOTATION,
};
use csi_attacher::model::{Attachment, Metadata, Problem, Recorded, SecretRef, Secrets, Uid, Volume};
use csi_attacher::plan::{Operation, Record};
use serde_json::json;
use tokio::time::Instant;

use super::choices::ApiFault;
use super::client::Client;
use super::{Bug, Lie, State, World};

const FINALIZER: &str = "external-attacher/sim";

pub(in super::super) struct FakeCluster {
    pub(super) world: World,
    pub(super) client: Client,
}

/// When a late request is executed: after two repetitions.
const LATE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Read,
    Write,
}

// === impl FakeCluster ===

impl FakeCluster {
    async fn request<T: Send + 'static>(
        &self,
        kind: RequestKind,
        act: impl FnOnce(&mut State) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let mut chosen = None;
        let mut late = LATE;
        let (lost_before, lost_after, delay) = {
            let mut state = self.world.state();
            if let Some(choices) = state.choices.as_mut().filter(|_| kind == RequestKind::Write) {
                chosen = choices.api_fault();
                state.had_chosen_fault |= chosen.is_some();
            }
            let faults = state.faults.api;
            let lost = state.percent(faults);
            let before = state.random.bool();
            if kind == RequestKind::Write && lost && before && state.random.u8(..4) == 0 {
                chosen = Some(ApiFault::Late);
                late = Duration::from_millis(state.random.u64(100..10_000));
            }
            (
                lost && before || matches!(chosen, Some(ApiFault::RequestLost)),
                lost && !before || matches!(chosen, Some(ApiFault::ResponseLost)),
                Duration::from_millis(state.random.u64(0..20)),
            )
        };
        let (before_send, after_send) = self.client.split(delay);
        tokio::time::sleep(before_send).await;
        if kind == RequestKind::Write {
            self.client.await_connection(&self.world).await;
            self.client.fence().await?;
        }
        match chosen {
            Some(ApiFault::CrashBefore) => self.world.crash().await,
            Some(ApiFault::StrayNotFound) => {
                return Err(Error::NotFound("a proxy does not know the path".into()));
            }
            Some(ApiFault::Late) => {
                let act = move |state: &mut State| drop(act(state));
                let at = Instant::now() + late;
                self.world.state().late_writes.push((at, Box::new(act)));
                return Err(Error::Unanswered("no response".into()));
            }
            _ => {}
        }
        let (world, client) = (self.world.clone(), self.client.clone());
        let response = self.client.on_server(async move {
            if !after_send.is_zero() {
                tokio::time::sleep(after_send).await;
            }
            if lost_before {
                return Err(Error::Unanswered("request lost".into()));
            }
            let mut state = world.state();
            if kind == RequestKind::Write {
                state.observe_write(&client, "an object", true);
            }
            act(&mut state)
        });
        let response = tokio::select! {
            biased;
            response = response => response,
            () = self.client.leadership().ended(), if kind == RequestKind::Write => {
                Err(Error::Unanswered("not leading any more".into()))
            }
        };
        match chosen {
            Some(ApiFault::CrashAfter) => self.world.crash().await,
            Some(ApiFault::StrayTimeout) => return Err(stray(504)),
            _ => {}
        }
        if lost_before {
            return response;
        }
        tokio::time::sleep(delay).await;
        if lost_after {
            Err(Error::Unanswered("response lost".into()))
        } else {
            response
        }
    }

    /// `is_of_one_version`: the write is for the known version.
    async fn change(
        &self,
        attachment: &Attachment,
        is_of_one_version: bool,
        change: impl FnOnce(&mut Attachment, &mut State) -> Result<(), Error> + Send + 'static,
    ) -> Result<Attachment, Error> {
        let (attachment, client) = (attachment.clone(), self.client.clone());
        self.request(RequestKind::Write, move |state| {
            if state.lies(Lie::StrayNotFound, 2) {
                return Err(Error::NotFound("a proxy does not know the path".into()));
            }
            let stray = state.lies(Lie::StrayStatus, 4).then(|| state.stray_status());
            if let Some((error, false)) = &stray {
                return Err(error.clone());
            }
            let before = state.attachment(&attachment)?;
            if is_of_one_version && before.version != attachment.version {
                return Err(Error::Rejected {
                    status: 409,
                    message: "the object has been modified".into(),
                    retry_after: None,
                });
            }
            let context = state.contexts.get(&before.uid).cloned();
            let mut after = before.clone();
            state.writes.attachments += 1;
            change(&mut after, state)?;
            // A write without a change keeps the resourceVersion and causes no watch event.
            if after == before && state.contexts.get(&before.uid) == context.as_ref() {
                state.observe_write(&client, &before.name, false);
                return Ok(before);
            }
            if after.finalizer && !before.finalizer {
                state.finalizer_added.insert(after.uid.clone(), Instant::now());
            }
            let stored = state.put_attachment(after);
            match stray {
                Some((error, _)) => Err(error),
                None => Ok(stored),
            }
        })
        .await
    }
}

impl FakeCluster {
    async fn record(&self, known: &Attachment, record: &Record) -> Result<Attachment, Error> {
        let body = patch::record(known, record, FINALIZER);
        self.change(known, true, move |attachment, _| {
            let metadata = &body["metadata"];
            let adds = metadata["finalizers"] == json!([FINALIZER]);
            if adds && attachment.deleting && !attachment.finalizer {
                let message = "no new finalizers can be added if the object is being deleted".into();
                return Err(Error::Rejected {
                    status: 422,
                    message,
                    retry_after: None,
                });
            }
            attachment.finalizer |= adds;
            for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
                annotate(&mut attachment.recorded, key, value.as_str());
            }
            Ok(())
        })
        .await
    }

    async fn add_pv_finalizer(&self, name: &str, uid: &Uid) -> Result<Volume, Error> {
        let (name, uid) = (name.to_owned(), uid.clone());
        self.request(RequestKind::Write, move |state| {
            let volume = state.volume(&name)?;
            state.writes.volumes += 1;
            match (volume.uid == uid, volume.finalizer, volume.deleting) {
                (false, _, _) => Err(Error::Replaced("other uid".into())),
                (true, true, _) => {
                    if state.bug == Some(Bug::PvFinalizerAppended) {
                        state.observe_volume(&volume, 2);
                    }
                    Ok(volume)
                }
                (true, false, true) => Err(Error::Rejected {
                    status: 422,
                    message: "no new finalizers".into(),
                    retry_after: None,
                }),
                (true, false, false) => Ok(state.put_volume(Volume {
                    finalizer: true,
                    ..volume
                })),
            }
        })
        .await
    }

    async fn mark_attached(
        &self,
        attachment: &Attachment,
        context: &BTreeMap<String, String>,
    ) -> Result<Attachment, Error> {
        let context = context.clone();
        self.change(attachment, true, move |attachment, state| {
            attachment.attached = true;
            attachment.metadata = Metadata::of(&context);
            state.contexts.insert(attachment.uid.clone(), context);
            attachment.attach_error = None;
            Ok(())
        })
        .await
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        self.change(attachment, false, |attachment, state| {
            state.contexts.remove(&attachment.uid);
            attachment.attached = false;
            attachment.metadata = Metadata::default();
            attachment.detach_error = None;
            Ok(())
        })
        .await
    }

    async fn remove_finalizer(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        self.change(attachment, false, |attachment, _| {
            attachment.finalizer = false;
            Ok(())
        })
        .await
    }

    async fn remove_pv_finalizer(&self, volume: &Volume) -> Result<Volume, Error> {
        let volume = volume.clone();
        self.request(RequestKind::Write, move |state| {
            let known = state.volume(&volume.name)?;
            if known.version != volume.version {
                return Err(Error::Rejected {
                    status: 409,
                    message: "the object has been modified".into(),
                    retry_after: None,
                });
            }
            if known.uid != volume.uid {
                return Err(Error::Replaced("other uid".into()));
            }
            Ok(state.put_volume(Volume {
                finalizer: false,
                ..known
            }))
        })
        .await
    }

    async fn save_error(
        &self,
        attachment: &Attachment,
        failed: Operation,
        problem: &Problem,
    ) -> Result<Attachment, Error> {
        let is_of_one_version = AttachmentRequest::SaveError(failed, problem).is_of_one_version();
        let problem = Some(Box::new(problem.clone()));
        self.change(attachment, is_of_one_version, move |attachment, _| {
            match failed {
                Operation::Attach => attachment.attach_error = problem,
                Operation::Detach => attachment.detach_error = problem,
            }
            Ok(())
        })
        .await
    }
}

impl Cluster for FakeCluster {
    async fn attachment(
        &self,
        known: &Attachment,
        request: AttachmentRequest<'_>,
    ) -> Result<Attachment, Error> {
        match request {
            AttachmentRequest::Get => {
                let known = known.clone();
                let get = move |state: &mut State| state.attachment(&known);
                self.request(RequestKind::Read, get).await
            }
            AttachmentRequest::Record(record) => self.record(known, record).await,
            AttachmentRequest::MarkAttached(context) => self.mark_attached(known, context).await,
            AttachmentRequest::MarkDetached => self.mark_detached(known).await,
            AttachmentRequest::SaveError(side, problem) => self.save_error(known, side, problem).await,
            AttachmentRequest::RemoveFinalizer(_) => self.remove_finalizer(known).await,
        }
    }

    async fn volume(&self, name: &str, request: VolumeRequest<'_>) -> Result<Volume, Error> {
        match request {
            VolumeRequest::Get => {
                let name = name.to_owned();
                self.request(RequestKind::Read, move |state| state.volume(&name))
                    .await
            }
            VolumeRequest::AddFinalizer(uid) => self.add_pv_finalizer(name, uid).await,
            VolumeRequest::RemoveFinalizer(volume) => self.remove_pv_finalizer(volume).await,
        }
    }

    async fn has_node(&self, name: &str) -> Result<bool, Error> {
        let name = name.to_owned();
        self.request(RequestKind::Read, move |state| {
            Ok(state.nodes.contains_key(&name))
        })
        .await
    }

    async fn secret(&self, reference: &SecretRef) -> Result<Secrets, Error> {
        let reference = reference.clone();
        self.request(RequestKind::Read, move |state| {
            state.reads_of_secrets += 1;
            let faults = state.faults.api;
            if state.percent(faults) {
                return Err(Error::NotFound(format!("secrets {reference} not found").into()));
            }
            if state
                .secret_forbidden_until
                .is_some_and(|until| Instant::now() < until)
            {
                return Err(Error::Rejected {
                    status: 403,
                    message: format!("secrets {reference} is forbidden").into(),
                    retry_after: None,
                });
            }
            Ok(Secrets(
                [("password".to_owned(), "of the tenant".to_owned())].into(),
            ))
        })
        .await
    }
}

fn stray(status: u16) -> Error {
    Error::Rejected {
        status,
        message: format!("a proxy answers {status}").into(),
        retry_after: None,
    }
}

fn annotate(recorded: &mut Recorded, key: &str, value: Option<&str>) {
    match key {
        NODE_ID_ANNOTATION => recorded.node_id = value.map(Arc::from),
        VOLUME_HANDLE_ANNOTATION => recorded.handle = value.map(Arc::from),
        PUBLISH_SECRET_ANNOTATION => recorded.secret = value.and_then(SecretRef::parse),
        key => panic!("an unknown annotation: {key}"),
    }
}

// === impl State ===

impl State {
    fn attachment(&self, wanted: &Attachment) -> Result<Attachment, Error> {
        let known = self
            .attachments
            .get(&*wanted.name)
            .ok_or_else(|| Error::NotFound(format!("{:?} not found", wanted.name).into()))?;
        if known.uid == wanted.uid || self.bug == Some(Bug::WritesWithoutUid) {
            Ok(known.clone())
        } else {
            Err(Error::Replaced("other uid".into()))
        }
    }

    fn volume(&self, name: &str) -> Result<Volume, Error> {
        let not_found = || Error::NotFound(format!("persistentvolumes {name:?} not found").into());
        self.volumes.get(name).cloned().ok_or_else(not_found)
    }

    /// An answer of a proxy, and whether the request took effect before.
    fn stray_status(&mut self) -> (Error, bool) {
        let status = [404, 408, 425, 429, 502, 504][self.random.usize(..6)];
        // Only a timeout of a proxy leaves the result open.
        (
            stray(status),
            matches!(status, 408 | 502 | 504) && self.random.bool(),
        )
    }
}
