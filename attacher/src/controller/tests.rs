//! Single syncs with a fake API server and a fake driver.

mod drain;
mod exhaustive;
mod node_ids;
mod proof;
mod stored;
mod target_usage;
mod waits;
mod written;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use csi_proto::secret::SecretMap;
use csi_proto::v1;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::controller::state::tests::mk_state;
use crate::csi::{CallError, Code, Reach};
use crate::kube_api::patch;
use crate::model::attachment::{NODE_ID_ANNOTATION, PUBLISH_SECRET_ANNOTATION, VOLUME_HANDLE_ANNOTATION};
use crate::model::{Capabilities, Metadata, Node, Problem, Recorded, SecretRef, Secrets, Version};
use crate::plan::tests::{mk_attachment, mk_driver, mk_node, mk_volume};
use crate::plan::{Operation, Record, Subject};

const FINALIZER: &str = "external-attacher/test";
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// The state and the faults of API server and driver.
#[derive(Default)]
struct State {
    attachment: Option<Attachment>,
    volume: Option<Volume>,
    /// Requests and calls, in order.
    seen: Vec<&'static str>,
    unpublished: Vec<PublishTarget>,
    /// Secrets that do not exist.
    no_secrets: Vec<&'static str>,
    /// Of the last unpublish.
    sent_secrets: SecretMap,
    /// Requests and calls that get no response before [`World::respond`].
    silent: Vec<&'static str>,
    /// Failures of requests; others succeed.
    refusals: VecDeque<(&'static str, Error)>,
    disconnected: bool,
    /// When the session with the driver was opened.
    session: Option<tokio::time::Instant>,
    /// Whether a live read shows the CSINode.
    node_exists: bool,
    /// Whether the driver has no publish calls.
    without_publish: bool,
    panics: bool,
    /// What a webhook makes of records.
    changes_records: Option<fn(&mut Recorded)>,
    /// Other VolumeAttachments that are deleted.
    gone: Vec<Uid>,
    /// What a live read shows of another VolumeAttachment that the store shows otherwise.
    live: Option<Attachment>,
    /// What a webhook makes of each write.
    webhook: Option<fn(&mut Attachment)>,
    /// A webhook removes the finalizers of PersistentVolumes.
    strips_pv_finalizers: bool,
    published: Vec<PublishTarget>,
    /// The process crashes after this number of requests and calls.
    crashes_after: Option<usize>,
    /// Call, node id and code of failing calls.
    refused_at: Vec<(&'static str, &'static str, &'static str)>,
}

#[derive(Clone, Default)]
struct World {
    state: Arc<Mutex<State>>,
    /// Sends one withheld response.
    respond: Arc<Notify>,
    reconnected: Arc<Notify>,
}

// === impl World ===

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    async fn take(&self, request: &'static str) -> Result<(), Error> {
        let (crashed, silent) = {
            let mut state = self.state();
            state.seen.push(request);
            let crashed = state.crashes_after.is_some_and(|most| state.seen.len() > most);
            (crashed, state.silent.contains(&request))
        };
        if crashed {
            std::future::pending::<()>().await;
        }
        if silent {
            self.respond.notified().await;
        }
        let mut state = self.state();
        match state.refusals.iter().position(|(refused, _)| *refused == request) {
            Some(at) => Err(state.refusals.remove(at).expect("it was found").1),
            None => Ok(()),
        }
    }

    async fn write_to(
        &self,
        request: &'static str,
        known: &Attachment,
        change: impl FnOnce(&mut Attachment),
    ) -> Result<Attachment, Error> {
        self.take(request).await?;
        let stored = self
            .state()
            .attachment
            .as_ref()
            .map(|attachment| attachment.version);
        match stored.is_none_or(|stored| stored == known.version) {
            true => self.change(change),
            false => Err(conflict()),
        }
    }

    async fn write(
        &self,
        request: &'static str,
        change: impl FnOnce(&mut Attachment),
    ) -> Result<Attachment, Error> {
        self.take(request).await?;
        self.change(change)
    }

    fn refuses(&self, call: &str, target: &PublishTarget) -> Result<(), CallError> {
        let state = self.state();
        let mut refused = state.refused_at.iter();
        match refused.find(|(refused, id, _)| *refused == call && **id == *target.node_id) {
            Some((.., code)) => Err(refusal(code)),
            None => Ok(()),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Attachment)) -> Result<Attachment, Error> {
        let mut state = self.state();
        let webhook = state.webhook;
        let Some(attachment) = &mut state.attachment else {
            return Err(Error::NotFound("no such attachment".into()));
        };
        change(attachment);
        if let Some(webhook) = webhook {
            webhook(attachment);
        }
        attachment.version = Version(attachment.version.0 + 1);
        let after = attachment.clone();
        if after.deleting && !after.finalizer && !after.foreign_finalizers {
            state.attachment = None;
        }
        Ok(after)
    }
}

impl World {
    async fn record(&self, known: &Attachment, record: &Record) -> Result<Attachment, Error> {
        let body = patch::record(known, record, FINALIZER);
        let metadata = &body["metadata"];
        let change = self.state().changes_records;
        self.write_to("record", known, |attachment| {
            attachment.finalizer |= metadata["finalizers"] == json!([FINALIZER]);
            let recorded = &mut attachment.recorded;
            for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
                let value = value.as_str();
                match &**key {
                    NODE_ID_ANNOTATION => recorded.node_id = value.map(Arc::from),
                    VOLUME_HANDLE_ANNOTATION => recorded.handle = value.map(Arc::from),
                    PUBLISH_SECRET_ANNOTATION => recorded.secret = value.and_then(SecretRef::parse),
                    key => panic!("an unknown annotation: {key}"),
                }
            }
            if let Some(change) = change {
                change(recorded);
            }
        })
        .await
    }

    async fn add_pv_finalizer(&self) -> Result<Volume, Error> {
        self.take("add PV finalizer").await?;
        Ok(Volume {
            version: Version(2),
            finalizer: !self.state().strips_pv_finalizers,
            ..mk_secret_volume()
        })
    }

    async fn mark_attached(
        &self,
        known: &Attachment,
        context: &BTreeMap<String, String>,
    ) -> Result<Attachment, Error> {
        self.write_to("mark attached", known, |attachment| {
            attachment.attached = true;
            let before = attachment.metadata.keys.iter();
            let kept = before.filter(|key| !known.metadata.keys.contains(key));
            let mut metadata: BTreeMap<_, _> = kept.map(|key| (key.to_string(), String::new())).collect();
            metadata.extend(context.clone());
            attachment.metadata = Metadata::of(&metadata);
            attachment.attach_error = None;
        })
        .await
    }

    async fn mark_detached(&self) -> Result<Attachment, Error> {
        self.write("mark detached", |attachment| {
            attachment.attached = false;
            attachment.detach_error = None;
        })
        .await
    }

    async fn remove_finalizer(&self) -> Result<Attachment, Error> {
        self.write("remove finalizer", |attachment| attachment.finalizer = false)
            .await
    }

    async fn save_error(
        &self,
        known: &Attachment,
        failed: Operation,
        problem: &Problem,
    ) -> Result<Attachment, Error> {
        let patch = patch::problem(known, failed, problem);
        let change = |attachment: &mut Attachment| {
            let problem = Some(Box::new(problem.clone()));
            match failed {
                Operation::Attach => attachment.attach_error = problem,
                Operation::Detach => attachment.detach_error = problem,
            }
        };
        match patch["metadata"].get("resourceVersion") {
            Some(_) => self.write_to("problem", known, change).await,
            None => self.write("problem", change).await,
        }
    }

    async fn get(&self, known: &Attachment) -> Result<Attachment, Error> {
        if known.uid != mk_attachment("va").uid {
            self.take("get user").await?;
            let is_gone = self.state().gone.contains(&known.uid);
            let gone = || Error::NotFound("no such attachment".into());
            let live = self.state().live.clone();
            let live = live.filter(|live| live.uid == known.uid);
            let live = live.unwrap_or_else(|| known.clone());
            return (!is_gone).then_some(live).ok_or_else(gone);
        }
        self.take("get attachment").await?;
        self.state()
            .attachment
            .clone()
            .ok_or_else(|| Error::NotFound("no such attachment".into()))
    }
}

impl Cluster for World {
    async fn attachment(
        &self,
        known: &Attachment,
        request: AttachmentRequest<'_>,
    ) -> Result<Attachment, Error> {
        match request {
            AttachmentRequest::Get => self.get(known).await,
            AttachmentRequest::Record(record) => self.record(known, record).await,
            AttachmentRequest::MarkAttached(context) => self.mark_attached(known, context).await,
            AttachmentRequest::MarkDetached => self.mark_detached().await,
            AttachmentRequest::SaveError(side, problem) => self.save_error(known, side, problem).await,
            AttachmentRequest::RemoveFinalizer(proof) => {
                assert_eq!(*proof.uid(), known.uid);
                self.remove_finalizer().await
            }
        }
    }

    async fn volume(&self, _: &str, request: VolumeRequest<'_>) -> Result<Volume, Error> {
        match request {
            VolumeRequest::Get => self.take("get volume").await?,
            VolumeRequest::AddFinalizer(_) => return self.add_pv_finalizer().await,
            VolumeRequest::RemoveFinalizer(_) => self.take("remove PV finalizer").await?,
        }
        let volume = self.state().volume.clone();
        volume.ok_or_else(|| Error::NotFound("no such volume".into()))
    }

    async fn has_node(&self, _: &str) -> Result<bool, Error> {
        self.take("get CSINode").await?;
        Ok(self.state().node_exists)
    }

    async fn secret(&self, secret: &SecretRef) -> Result<Secrets, Error> {
        self.take("get secret").await?;
        let name = secret.to_string();
        if self.state().no_secrets.contains(&&*name) {
            return Err(Error::NotFound("no such secret".into()));
        }
        // So that the call shows which one it has.
        Ok(Secrets([(name, String::new())].into()))
    }
}

impl ControllerClient for World {
    async fn publish(
        &self,
        request: v1::ControllerPublishVolumeRequest,
        _: bool,
    ) -> Result<BTreeMap<String, String>, CallError> {
        let panics = self.state().panics;
        assert!(!panics, "the test panics here");
        self.take("publish").await.expect("calls are refused otherwise");
        let target = PublishTarget {
            volume_id: request.volume_id.into(),
            node_id: request.node_id.into(),
        };
        self.refuses("publish", &target)?;
        self.state().published.push(target);
        Ok(BTreeMap::new())
    }

    async fn unpublish(
        &self,
        request: v1::ControllerUnpublishVolumeRequest,
        _: bool,
    ) -> Result<(), CallError> {
        self.take("unpublish").await.expect("calls are refused otherwise");
        let target = PublishTarget {
            volume_id: request.volume_id.into(),
            node_id: request.node_id.into(),
        };
        let refused = self.refuses("unpublish", &target);
        let mut state = self.state();
        state.sent_secrets = request.secrets;
        state.unpublished.push(target);
        refused
    }

    async fn list(&self, _: v1::ListVolumesRequest) -> Result<v1::ListVolumesResponse, CallError> {
        Ok(v1::ListVolumesResponse::default())
    }

    fn session(&self) -> Option<std::time::Instant> {
        let mut state = self.state();
        let opened = *state.session.get_or_insert_with(tokio::time::Instant::now);
        (!state.disconnected).then(|| opened.into_std())
    }

    async fn session_ended(&self, session: Option<std::time::Instant>) {
        while self.session() == session {
            self.reconnected.notified().await;
        }
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        self.take("ready").await.expect("calls are refused otherwise");
        if self.state().disconnected {
            return Err(CallError::not_connected("not connected"));
        }
        Ok(Capabilities {
            publish: !self.state().without_publish,
            ..mk_driver().capabilities
        })
    }
}

struct Fixture {
    world: World,
    state: Arc<Mutex<ControllerState>>,
    controller: Controller<World, World>,
    now: std::time::Instant,
}

// === impl Fixture ===

impl Fixture {
    /// A process that has just started, with `attachment` of a volume that has a Secret.
    fn new(attachment: Attachment) -> Self {
        let world = World::default();
        world.state().attachment = Some(attachment);
        world.state().volume = Some(mk_secret_volume());
        Self::on(world)
    }

    /// A process that has just started.
    fn on(world: World) -> Self {
        let mut state = mk_state(10);
        state.queue.now = Instant::now().into_std();
        state.handle(Event::DriverConnected(mk_driver().capabilities));
        state.handle(Event::Volumes(Change::Applied(mk_secret_volume())));
        state.handle(Event::Nodes(Change::Applied(mk_node("node", Some("id")))));
        if let Some(attachment) = world.state().attachment.clone() {
            state.handle(Event::Attachments(Change::Applied(attachment)));
        }
        let state = Arc::new(Mutex::new(state));
        // The connected driver's capabilities count, not those of the start.
        let driver = Driver {
            capabilities: Capabilities::default(),
            ..mk_driver()
        };
        let controller = Controller::new(world.clone(), world.clone(), driver, state.clone(), || {
            Timestamp::UNIX_EPOCH
        });
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let now = std::time::Instant::now();
        Self {
            world,
            state,
            controller,
            now,
        }
    }

    fn state(&self) -> MutexGuard<'_, ControllerState> {
        self.state.lock().expect("no test panics with it")
    }

    /// Starts the next item after its backoff.
    fn item(&mut self) -> Option<Item> {
        self.now += FOREVER;
        let now = self.now;
        self.state().start(now)
    }

    /// Syncs the next item.
    async fn sync_next(&mut self) -> Option<Result<(), SyncError>> {
        let item = self.item()?;
        let result = self.controller.sync(&item).await;
        self.finish(&item, result.clone());
        Some(result)
    }

    fn finish(&self, item: &Item, result: Result<(), SyncError>) {
        self.state().finish(item, result, self.now);
    }

    async fn fails(&mut self) {
        let result = self.sync_next().await;
        assert!(matches!(result, Some(Err(_))), "{result:?}");
    }

    fn refuse(&self, request: &'static str, error: Error) {
        self.world.state().refusals.push_back((request, error));
    }

    fn seen(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.world.state().seen)
    }

    fn attachment(&self) -> Attachment {
        self.world
            .state()
            .attachment
            .clone()
            .expect("the attachment exists")
    }

    /// A user deletes the attachment.
    fn delete(&self) {
        let after = self
            .world
            .change(|attachment| attachment.deleting = true)
            .expect("the attachment exists");
        let change = match &self.world.state().attachment {
            Some(_) => Change::Applied(after),
            None => Change::Deleted {
                name: after.name,
                uid: after.uid,
            },
        };
        self.state().handle(Event::Attachments(change));
    }
}

fn mk_secret_volume() -> Volume {
    let mut volume = mk_volume("pv");
    let csi = volume
        .spec
        .csi
        .as_mut()
        .expect("mk_volume must make a CSI volume");
    csi.publish_secret = SecretRef::parse("ns/secret");
    volume
}

fn refusal(code: &str) -> CallError {
    CallError {
        code: Code::named(code).expect("a code of gRPC"),
        message: "no such node".to_owned(),
        reach: Reach::Answered,
    }
}

fn conflict() -> Error {
    Error::Rejected {
        status: 409,
        message: "the object has been modified".into(),
        retry_after: None,
    }
}

fn forbidden() -> Error {
    Error::Rejected {
        status: 403,
        message: "forbidden".into(),
        retry_after: None,
    }
}

fn mk_deleting() -> Attachment {
    Attachment {
        deleting: true,
        finalizer: true,
        recorded: Recorded {
            node_id: Some("id".into()),
            handle: Some("handle".into()),
            secret: None,
        },
        ..mk_attachment("va")
    }
}

fn name_of(item: &Item) -> String {
    match item {
        Item::Subject(Subject::Attachment(_, attachment)) => attachment.name.to_string(),
        Item::Volume(volume) | Item::Backfill { volume, .. } => volume.name.to_string(),
        Item::Subject(Subject::Orphan(orphan)) => orphan.target.volume_id.to_string(),
    }
}
