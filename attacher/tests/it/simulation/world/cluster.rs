//! A fake API server with the rules measured on kube-apiserver, which sometimes loses requests and responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher::kube_api::{AttachmentRequest, Cluster, Error, VolumeRequest, patch};
use csi_attacher::model::attachment::{
    NODE_ID_ANNOTATION, PUBLISH_SECRET_ANNOTATION, VOLUME_HANDLE_ANNOTATION,
};
use csi_attacher::model::{Attachment, Problem, Recorded, SecretRef, Secrets, Uid, Volume};
use csi_attacher::plan::{Operation, Record};
use serde_json::json;

use super::client::Client;
use super::{State, World, recorded};

const FINALIZER: &str = "external-attacher/sim";

pub(in super::super) struct FakeCluster {
    pub(super) world: World,
    pub(super) client: Client,
}

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
        let (lost_before, lost_after, delay) = {
            let mut state = self.world.state();
            let faults = state.faults.api;
            let lost = state.percent(faults);
            let before = state.random.bool();
            (
                lost && before,
                lost && !before,
                Duration::from_millis(state.random.u64(0..20)),
            )
        };
        let (before_send, after_send) = self.client.split(delay);
        tokio::time::sleep(before_send).await;
        if kind == RequestKind::Write {
            self.client.await_connection(&self.world).await;
            self.client.fence().await?;
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
                client.check_lease(&mut state, "a write");
            }
            act(&mut state)
        });
        let response = response.await;
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

    async fn change(
        &self,
        attachment: &Attachment,
        change: impl FnOnce(&mut Attachment, &mut State) -> Result<(), Error> + Send + 'static,
    ) -> Result<Attachment, Error> {
        let attachment = attachment.clone();
        self.request(RequestKind::Write, move |state| {
            if state.faults.lies && state.percent(2) {
                return Err(Error::NotFound("a proxy does not know the path".into()));
            }
            let before = state.attachment(&attachment)?;
            let mut after = before.clone();
            state.writes.attachments += 1;
            change(&mut after, state)?;
            // A write without a change keeps the resourceVersion and causes no watch event.
            Ok(if after == before {
                before
            } else {
                state.put_attachment(after)
            })
        })
        .await
    }
}

impl FakeCluster {
    async fn record(&self, known: &Attachment, record: &Record) -> Result<Attachment, Error> {
        let body = patch::record(known, record, FINALIZER);
        self.change(known, move |attachment, _| {
            let metadata = &body["metadata"];
            let adds = metadata["finalizers"] == json!([FINALIZER]);
            if adds && attachment.deleting && !attachment.finalizer {
                let message = "no new finalizers can be added if the object is being deleted".into();
                return Err(Error::Refused {
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
                (true, true, _) => Ok(volume),
                (true, false, true) => Err(Error::Refused {
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
        let keys = context.keys().map(|key| key.as_str().into()).collect();
        self.change(attachment, move |attachment, state| {
            if !state.is_published(attachment, true) && !state.array.may_lack_publish_capability() {
                state
                    .violations
                    .push(format!("attached but not published: {attachment:?}"));
            }
            let lacks_finalizer = |volume: &Volume| {
                !volume.finalizer
                    && !volume.deleting
                    && volume.spec.csi().map(|csi| &csi.handle) == attachment.recorded.handle.as_ref()
            };
            if state.volumes.values().any(lacks_finalizer) && !state.array.may_lack_publish_capability() {
                state.violations.push(format!(
                    "attached but the PersistentVolume has no finalizer: {attachment:?}"
                ));
            }
            attachment.attached = true;
            attachment.metadata_keys = keys;
            attachment.attach_error = None;
            Ok(())
        })
        .await
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        self.change(attachment, |attachment, _| {
            attachment.attached = false;
            attachment.metadata_keys = Box::default();
            attachment.detach_error = None;
            Ok(())
        })
        .await
    }

    /// The array's truth counts, whatever driver, CSINode or lists say.
    async fn remove_finalizer(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        self.change(attachment, |attachment, state| {
            if state.is_published(attachment, false) && !state.is_left_to_another(attachment) {
                state
                    .violations
                    .push(format!("finalizer removed while published: {attachment:?}"));
            }
            attachment.finalizer = false;
            Ok(())
        })
        .await
    }

    async fn remove_pv_finalizer(&self, name: &str, uid: &Uid) -> Result<Volume, Error> {
        let (name, uid) = (name.to_owned(), uid.clone());
        self.request(RequestKind::Write, move |state| {
            let known = state.volume(&name)?;
            if known.uid != uid {
                return Err(Error::Replaced("other uid".into()));
            }
            let handle = known.spec.csi().map(|csi| csi.handle.clone());
            // An attach of a volume that is not deleting may begin now; it adds the finalizer again before its call.
            if state
                .attachments
                .values()
                .any(|a| a.finalizer && (known.deleting || a.attached) && a.recorded.handle == handle)
            {
                state
                    .violations
                    .push(format!("finalizer of a volume in use removed: {known:?}"));
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
        let problem = Some(Box::new(problem.clone()));
        self.change(attachment, move |attachment, _| {
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
            VolumeRequest::RemoveFinalizer(uid) => self.remove_pv_finalizer(name, uid).await,
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
            Ok(Secrets::default())
        })
        .await
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
        if known.uid == wanted.uid {
            Ok(known.clone())
        } else {
            Err(Error::Replaced("other uid".into()))
        }
    }

    fn volume(&self, name: &str) -> Result<Volume, Error> {
        let not_found = || Error::NotFound(format!("persistentvolumes {name:?} not found").into());
        self.volumes.get(name).cloned().ok_or_else(not_found)
    }

    /// Whether another attachment's detach will unpublish this one's target.
    pub(super) fn is_left_to_another(&self, attachment: &Attachment) -> bool {
        let Some(target) = recorded(attachment).map(|target| self.present(&target)) else {
            return false;
        };
        self.attachments.values().any(|other| {
            let is_there = recorded(other).is_some_and(|there| {
                let has_id = self.present_node_id(other).as_ref() == Some(&target.node_id);
                there.volume_id == target.volume_id && (has_id || self.present(&there) == target)
            });
            other.uid != attachment.uid && other.finalizer && is_there
        })
    }

    fn is_published(&self, attachment: &Attachment, attached: bool) -> bool {
        // The publishes of a removed machine no longer exist; the attacher cannot detect that in time.
        recorded(attachment).is_some_and(|target| {
            let target = self.present(&target);
            let lost = self.removed_ids.contains(&target.node_id) || self.was_lost(&target);
            self.published.contains(&target) || attached && lost
        })
    }
}
