//! Single jobs, with an API server and a driver that do as they are told.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::cluster::{ApiServer, Clients, Released, Side};
use crate::csi::{Caller, Code, Keeper, ListRequest, Page, PublishRequest, UnpublishRequest};
use crate::decide::tests::{mk_attachment, mk_driver, mk_node, mk_volume};
use crate::decide::{Claim, Record};
use crate::engine::Held;
use crate::lease::Leadership;
use crate::model::{Capabilities, Problem, Recorded, Target, Version, VolumeSource};
use crate::queue::{Backoff, Limits};

const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// What the API server and the driver have, and how they answer.
#[derive(Default)]
struct State {
    attachment: Option<Attachment>,
    volume: Option<Volume>,
    /// Requests and calls, in order.
    seen: Vec<&'static str>,
    unpublished: Vec<Target>,
    /// Requests and calls that are not answered until somebody says so.
    silent: Vec<&'static str>,
    /// Answers to requests; whatever has none succeeds.
    refusals: VecDeque<(&'static str, Error)>,
    away: bool,
    panics: bool,
    /// What the driver answers to its first Unpublish.
    unknown: bool,
    /// Calls for a node id that the driver refuses, with this code.
    refused_at: Vec<(&'static str, &'static str, &'static str)>,
}

#[derive(Clone, Default)]
struct World {
    state: Arc<Mutex<State>>,
    /// Ends the silence, once.
    answer: Arc<Notify>,
}

// === impl World ===

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    async fn take(&self, request: &'static str) -> Result<(), Error> {
        let silent = {
            let mut state = self.state();
            state.seen.push(request);
            state.silent.contains(&request)
        };
        if silent {
            self.answer.notified().await;
        }
        let mut state = self.state();
        match state.refusals.iter().position(|(refused, _)| *refused == request) {
            Some(at) => Err(state.refusals.remove(at).expect("it was found").1),
            None => Ok(()),
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

    fn refuses(&self, call: &str, target: &Target) -> Result<(), CallError> {
        let state = self.state();
        let mut refused = state.refused_at.iter();
        match refused.find(|(refused, id, _)| *refused == call && **id == *target.node_id) {
            Some((.., code)) => Err(refusal(code)),
            None => Ok(()),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Attachment)) -> Result<Attachment, Error> {
        let mut state = self.state();
        let Some(attachment) = &mut state.attachment else {
            return Err(Error::NotFound("no such attachment".into()));
        };
        change(attachment);
        attachment.version = Version(attachment.version.0 + 1);
        let after = attachment.clone();
        if after.deleting && !after.finalizer && !after.foreign_finalizers {
            state.attachment = None;
        }
        Ok(after)
    }
}

impl Cluster for World {
    async fn record(&self, _: &Attachment, record: &Record) -> Result<Attachment, Error> {
        self.write("record", |attachment| {
            attachment.finalizer = true;
            attachment.recorded = record.annotations.clone();
        })
        .await
    }

    async fn claim(&self, _: &Claim) -> Result<Volume, Error> {
        self.take("claim").await?;
        Ok(Volume {
            version: Version(2),
            finalizer: true,
            ..mk_secret_volume()
        })
    }

    async fn mark_attached(&self, _: &Attachment, _: &BTreeMap<String, String>) -> Result<Attachment, Error> {
        self.write("mark attached", |attachment| {
            attachment.attached = true;
            attachment.attach_error = None;
        })
        .await
    }

    async fn mark_detached(&self, _: &Attachment) -> Result<Attachment, Error> {
        self.write("mark detached", |attachment| {
            attachment.attached = false;
            attachment.detach_error = None;
        })
        .await
    }

    async fn release(&self, _: &Attachment) -> Result<Released, Error> {
        let left = self
            .write("release", |attachment| attachment.finalizer = false)
            .await?;
        Ok(if left.deleting && !left.foreign_finalizers {
            Released::Gone
        } else {
            Released::Kept(Box::new(left))
        })
    }

    async fn release_volume(&self, volume: &Volume) -> Result<Volume, Error> {
        self.take("release volume").await?;
        Ok(volume.clone())
    }

    async fn save_problem(&self, _: &Attachment, side: Side, problem: &Problem) -> Result<Attachment, Error> {
        self.write("problem", |attachment| {
            let problem = Some(Box::new(problem.clone()));
            match side {
                Side::Attach => attachment.attach_error = problem,
                Side::Detach => attachment.detach_error = problem,
            }
        })
        .await
    }

    async fn attachment(&self, _: &Attachment) -> Result<Attachment, Error> {
        self.take("get attachment").await?;
        self.state()
            .attachment
            .clone()
            .ok_or_else(|| Error::NotFound("no such attachment".into()))
    }

    async fn volume(&self, _: &str) -> Result<Volume, Error> {
        self.take("get volume").await?;
        let volume = self.state().volume.clone();
        volume.ok_or_else(|| Error::NotFound("no such volume".into()))
    }

    async fn secret(&self, _: &SecretRef) -> Result<Secrets, Error> {
        self.take("get secret").await?;
        Ok(Secrets::default())
    }
}

impl Controller for World {
    async fn publish(&self, request: PublishRequest) -> Result<BTreeMap<String, String>, CallError> {
        let panics = self.state().panics;
        assert!(!panics, "as it was told");
        self.take("publish").await.expect("calls are refused otherwise");
        self.refuses("publish", &request.target)?;
        Ok(BTreeMap::new())
    }

    async fn unpublish(&self, request: UnpublishRequest) -> Result<(), CallError> {
        self.take("unpublish").await.expect("calls are refused otherwise");
        let target = request.target;
        let refused = self.refuses("unpublish", &target);
        let mut state = self.state();
        state.unpublished.push(target);
        if std::mem::take(&mut state.unknown) {
            return Err(refusal("NotFound"));
        }
        refused
    }

    async fn list(&self, _: ListRequest) -> Result<Page, CallError> {
        Ok(Page::default())
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        self.take("ready").await.expect("calls are refused otherwise");
        if self.state().away {
            return Err(CallError::unsent("not connected"));
        }
        Ok(mk_driver().capabilities)
    }
}

struct Bench {
    world: World,
    engine: Arc<Mutex<Engine>>,
    worker: Worker<World, World>,
    now: Instant,
}

// === impl Bench ===

impl Bench {
    /// `attachment` of a volume that has a Secret.
    fn new(attachment: Attachment) -> Self {
        let world = World::default();
        world.state().attachment = Some(attachment.clone());
        world.state().volume = Some(mk_secret_volume());
        let limits = Limits {
            attach: 10,
            detach: 10,
            volume: 10,
        };
        let backoff = Backoff {
            start: Duration::from_secs(1),
            max: Duration::from_secs(300),
        };
        let mut engine = Engine::new(limits, backoff, 1);
        engine.handle(Event::DriverBack(mk_driver().capabilities));
        engine.handle(Event::Volumes(Change::Put(mk_secret_volume())));
        engine.handle(Event::Nodes(Change::Put(mk_node("node", Some("id")))));
        engine.handle(Event::Attachments(Change::Put(attachment)));
        let engine = Arc::new(Mutex::new(engine));
        let worker = Worker::new(world.clone(), world.clone(), mk_driver(), engine.clone(), || {
            Timestamp::UNIX_EPOCH
        });
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let now = Instant::now();
        Self {
            world,
            engine,
            worker,
            now,
        }
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().expect("no test panics with it")
    }

    /// The next job, however long it has to wait for its turn.
    fn job(&mut self) -> Option<Job> {
        self.now += FOREVER;
        let now = self.now;
        self.engine().start(now)
    }

    /// Runs the next job.
    async fn turn(&mut self) -> Option<Outcome> {
        let job = self.job()?;
        let report = self.worker.run(job).await;
        let outcome = report.outcome.clone();
        let now = self.now;
        self.engine().finish(report, now);
        Some(outcome)
    }

    async fn fails(&mut self) {
        let outcome = self.turn().await;
        assert!(matches!(outcome, Some(Outcome::Failed { .. })), "{outcome:?}");
    }

    fn refuse(&self, request: &'static str, error: Error) {
        self.world.state().refusals.push_back((request, error));
    }

    fn seen(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.world.state().seen)
    }

    fn attachment(&self) -> Attachment {
        self.world.state().attachment.clone().expect("it is there")
    }

    /// A user deletes the attachment.
    fn delete(&self) {
        let after = self
            .world
            .change(|attachment| attachment.deleting = true)
            .expect("it is there");
        let change = match &self.world.state().attachment {
            Some(_) => Change::Put(after),
            None => Change::Gone {
                name: after.name,
                uid: after.uid,
            },
        };
        self.engine().handle(Event::Attachments(change));
    }
}

fn mk_secret_volume() -> Volume {
    let mut volume = mk_volume("pv");
    if let VolumeSource::Csi(csi) = &mut volume.spec.source {
        csi.publish_secret = SecretRef::parse("ns/secret");
    }
    volume
}

fn refusal(code: &str) -> CallError {
    CallError {
        code: Code::named(code).expect("a code of gRPC"),
        message: "no such node".to_owned(),
        reach: Reach::Answered,
    }
}

fn forbidden() -> Error {
    Error::Refused {
        status: 403,
        message: "forbidden".into(),
    }
}

#[tokio::test]
async fn what_was_never_called_for_can_be_deleted_at_once() {
    let failures = [
        ("get secret", forbidden()),
        ("get secret", Error::NotFound("no such secret".into())),
        ("get secret", Error::Unusable("not valid UTF-8".into())),
    ];
    for (request, error) in failures {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.refuse(request, error.clone());
        bench.fails().await;
        let attachment = bench.attachment();
        assert!(!attachment.finalizer, "{error}");
        let told = attachment.attach_error.expect("people must know");
        assert!(told.message.contains(&error.to_string()), "{told:?}");
        bench.delete();
        assert_eq!(bench.world.state().attachment, None);
        assert_eq!(bench.turn().await, None);
        let seen = bench.seen();
        assert!(
            !seen.contains(&"publish") && !seen.contains(&"unpublish"),
            "{seen:?}"
        );
    }
}

#[tokio::test]
async fn a_retry_without_its_secret_writes_nothing_until_it_is_there() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("get secret", forbidden());
    bench.fails().await;
    bench.seen();
    bench.refuse("get secret", forbidden());
    bench.fails().await;
    assert_eq!(bench.seen(), ["ready", "get secret"]);
    assert_eq!(bench.turn().await, Some(Outcome::Done));
    assert_eq!(
        bench.seen(),
        [
            "ready",
            "get secret",
            "claim",
            "record",
            "publish",
            "mark attached"
        ]
    );
}

#[tokio::test]
async fn what_may_have_been_called_for_keeps_the_finalizer() {
    let mut bench = Bench::new(Attachment {
        finalizer: true,
        ..mk_attachment("va")
    });
    bench.refuse("get secret", forbidden());
    bench.fails().await;
    assert!(bench.attachment().finalizer);
    assert!(!bench.seen().contains(&"release"));
}

fn mk_leaving() -> Attachment {
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

#[tokio::test]
async fn a_detach_leaves_nothing_to_an_attach_that_has_stored_no_finalizer() {
    let mut bench = Bench::new(mk_leaving());
    let starting = Change::Put(mk_attachment("other"));
    bench.engine().handle(Event::Attachments(starting));
    bench.world.state().silent.push("record");
    let attach = bench.job().expect("an attach");
    let attach = bench.worker.run(attach);
    let mut attach = std::pin::pin!(attach);
    assert!(attach.as_mut().now_or_never().is_none());
    let now = bench.now;
    let detach = bench.engine().start(now).expect("a detach");
    assert!(matches!(
        detach,
        Job::Attachment {
            wanted: Wanted::Detach,
            ..
        }
    ));
    let report = bench.worker.run(detach).await;
    assert_eq!(report.outcome, Outcome::Done);
    assert_eq!(bench.world.state().unpublished.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_comes_to_need_a_volume_while_the_secret_is_read_keeps_it() {
    for (finalizer, unpublished, done) in [(true, 0, true), (false, 0, false)] {
        let mut bench = Bench::new(mk_leaving());
        bench.world.state().silent.push("get secret");
        let job = bench.job().expect("a detach");
        let run = bench.worker.run(job);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let living = Attachment {
            finalizer,
            attached: true,
            ..mk_attachment("other")
        };
        bench.engine().handle(Event::Attachments(Change::Put(living)));
        bench.world.answer.notify_one();
        let report = run.await;
        assert_eq!(report.outcome == Outcome::Done, done, "{:?}", report.outcome);
        assert_eq!(bench.world.state().unpublished.len(), unpublished);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attach_to_where_a_detach_is_under_way_waits_for_it() {
    let mut bench = Bench::new(mk_leaving());
    bench.world.state().silent.push("unpublish");
    let detach = bench.job().expect("a detach");
    let run = bench.worker.run(detach);
    let mut run = std::pin::pin!(run);
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    assert!(bench.worker.turn_at(&target).now_or_never().is_none());
    bench.world.answer.notify_one();
    assert_eq!(run.await.outcome, Outcome::Done);
    assert!(bench.worker.turn_at(&target).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn our_finalizers_are_stored_side_by_side_and_before_the_call() {
    for [late, other] in [["claim", "record"], ["record", "claim"]] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.world.state().silent.push(late);
        let job = bench.job().expect("an attach");
        let run = bench.worker.run(job);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let mut seen = bench.seen();
        seen.sort_unstable();
        assert_eq!(seen, ["claim", "get secret", "ready", "record"], "{late} is late");
        let stored = match other {
            "record" => bench.attachment().finalizer,
            _ => bench.engine().volume("pv").is_some_and(|volume| volume.finalizer),
        };
        assert!(stored, "{other} does not wait for {late}");
        bench.world.answer.notify_one();
        assert_eq!(run.await.outcome, Outcome::Done);
        assert_eq!(bench.seen(), ["publish", "mark attached"]);
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_our_finalizers_is_stored_though_the_other_is_refused() {
    for [late, refused] in [["claim", "record"], ["record", "claim"]] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.refuse(refused, forbidden());
        bench.world.state().silent.push(late);
        let job = bench.job().expect("an attach");
        let run = bench.worker.run(job);
        let mut run = std::pin::pin!(run);
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        bench.world.answer.notify_one();
        assert!(matches!(run.await.outcome, Outcome::Failed { .. }));
        let volume = bench.engine().volume("pv").is_some_and(|volume| volume.finalizer);
        assert_eq!(
            (bench.attachment().finalizer, volume),
            (late == "record", late == "claim")
        );
        assert!(!bench.seen().contains(&"publish"));
    }
}

/// Its finalizer was stored, so others may have left the volume to it, though it called nobody yet.
#[tokio::test]
async fn whose_volume_could_not_be_claimed_unpublishes_what_was_left_to_it() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("claim", forbidden());
    bench.fails().await;
    assert!(bench.attachment().finalizer);
    let leaving = Attachment {
        name: "leaving".into(),
        uid: "leaving".into(),
        ..mk_leaving()
    };
    let target = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    assert_eq!(bench.engine().held_besides(&leaving, &target), Held::ByLiving);
    bench.seen();
    bench.delete();
    assert_eq!(bench.turn().await, Some(Outcome::Done));
    assert_eq!(bench.world.state().unpublished, [target]);
    assert_eq!(bench.world.state().attachment, None);
}

/// It has the node id on record, and nothing else.
#[tokio::test]
async fn the_handle_of_a_volume_that_is_gone_is_recorded_on_what_the_go_sidecar_attached() {
    let made_by_go = Attachment {
        deleting: false,
        attached: true,
        recorded: Recorded {
            handle: None,
            ..mk_leaving().recorded
        },
        ..mk_leaving()
    };
    let gone = || {
        let Volume { name, uid, .. } = mk_secret_volume();
        Event::Volumes(Change::Gone { name, uid })
    };
    let mut bench = Bench::new(made_by_go.clone());
    assert!(bench.job().is_none(), "while the volume is there, it tells");
    bench.engine().handle(gone());
    assert_eq!(bench.turn().await, Some(Outcome::Done));
    let recorded = bench.attachment().recorded;
    assert_eq!(recorded.handle.as_deref(), Some("handle"));
    assert_eq!(recorded.node_id.as_deref(), Some("id"));
    assert_eq!(recorded.secret, SecretRef::parse("ns/secret"));
    assert!(bench.job().is_none(), "once");

    // Nor has a detach to wait for that.
    let mut bench = Bench::new(made_by_go);
    bench.world.state().volume = None;
    bench.engine().handle(gone());
    bench.refuse("record", forbidden());
    bench.fails().await;
    bench.delete();
    while bench.world.state().attachment.is_some() {
        bench.turn().await.expect("a detach");
    }
    let unpublished = bench.world.state().unpublished.clone();
    assert_eq!(
        unpublished.iter().map(|t| &*t.handle).collect::<Vec<_>>(),
        ["handle"]
    );
    assert!(bench.job().is_none());
}

/// Attached, on a machine that came back under another id, and to be repaired.
fn mk_moved() -> Attachment {
    Attachment {
        attached: true,
        finalizer: false,
        deleting: false,
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_leaving().recorded
        },
        ..mk_leaving()
    }
}

/// A detach that looked before it said so may be under way there.
#[tokio::test(start_paused = true)]
async fn nobody_says_to_be_attached_elsewhere_while_somebody_else_calls_there() {
    let mut bench = Bench::new(mk_moved());
    let refused = ("publish", "old-id", "NotFound");
    bench.world.state().refused_at.push(refused);
    let job = bench.job().expect("an attach");
    let there = Target {
        handle: "handle".into(),
        node_id: "id".into(),
    };
    let others = bench.worker.calls.take(&there).await;
    let run = bench.worker.run(job);
    let mut run = std::pin::pin!(run);
    assert!(timeout(FOREVER, run.as_mut()).await.is_err());
    assert!(bench.seen().contains(&"publish"));
    assert_eq!(bench.attachment().recorded.node_id.as_deref(), Some("old-id"));
    drop(others);
    assert_eq!(run.await.outcome, Outcome::Done);
    assert_eq!(bench.attachment().recorded.node_id.as_deref(), Some("id"));
}

fn name_of(job: &Job) -> String {
    match job.subject() {
        Subject::Attachment(_, attachment) => attachment.name.to_string(),
        Subject::Volume(volume) => volume.name.to_string(),
    }
}

/// Its state asks for nothing then, but the volume is nowhere.
#[tokio::test]
async fn an_attach_elsewhere_that_fails_is_tried_again() {
    let mut bench = Bench::new(mk_moved());
    bench.world.state().refused_at.extend([
        ("publish", "old-id", "NotFound"),
        ("publish", "id", "DeadlineExceeded"),
    ]);
    bench.fails().await;
    let attachment = bench.attachment();
    assert!(attachment.finalizer && attachment.attached);
    assert_eq!(attachment.recorded.node_id.as_deref(), Some("id"));
    bench.world.state().refused_at.clear();
    bench.seen();
    assert_eq!(bench.turn().await, Some(Outcome::Done));
    assert_eq!(bench.seen(), ["ready", "get secret", "publish", "mark attached"]);
    assert_eq!(bench.turn().await, None);
}

/// Two attachments of one volume on a node that has another id by now. The first to be detached may leave the
/// volume only to somebody who does not leave it himself.
#[tokio::test(start_paused = true)]
async fn nobody_leaves_a_volume_to_one_who_is_about_to_leave_it() {
    for answer in ["in time", "lost"] {
        let moving = Attachment {
            finalizer: true,
            recorded: Recorded {
                node_id: Some("old-id".into()),
                ..mk_leaving().recorded
            },
            ..mk_attachment("va")
        };
        let staying = Attachment {
            name: "other".into(),
            uid: "other".into(),
            attached: true,
            ..moving.clone()
        };
        let mut bench = Bench::new(moving);
        bench
            .engine()
            .handle(Event::Attachments(Change::Put(staying.clone())));
        bench.world.state().silent.push("record");
        if answer == "lost" {
            bench.refuse("record", Error::Unanswered("lost".into()));
        }
        let attach = bench.job().expect("an attach");
        let mut attach = std::pin::pin!(bench.worker.run(attach));
        assert!(timeout(FOREVER, attach.as_mut()).await.is_err());
        assert_eq!(bench.world.state().unpublished, [], "it is left to the other one");
        let leaving = Attachment {
            deleting: true,
            version: Version(9),
            ..staying
        };
        let gone = Change::Put(leaving.clone());
        bench.engine().handle(Event::Attachments(gone));
        bench.now += FOREVER;
        let now = bench.now;
        let detach = bench.engine().start(now).expect("a detach");
        assert_eq!(name_of(&detach), "other");
        let mut detach = std::pin::pin!(bench.worker.run(detach));
        assert!(
            timeout(FOREVER, detach.as_mut()).await.is_err(),
            "it waits for its turn"
        );
        bench.world.answer.notify_one();
        attach.await;
        detach.await;
        let old = |target: &Target| &*target.node_id == "old-id";
        assert!(bench.world.state().unpublished.iter().any(old), "{answer}");
    }
}

#[tokio::test]
async fn a_record_that_is_in_doubt_is_written_again_before_the_call() {
    let recorded = Attachment {
        finalizer: true,
        recorded: mk_leaving().recorded,
        ..mk_attachment("va")
    };
    let mut bench = Bench::new(recorded.clone());
    bench.world.state().volume = None;
    bench.engine().moves(&recorded);
    let first = bench.turn().await;
    let seen = bench.seen();
    let record = seen.iter().position(|seen| *seen == "record").expect("a record");
    let publish = seen.iter().position(|seen| *seen == "publish").expect("a call");
    assert!(record < publish, "{first:?}: {seen:?}");
    assert!(!bench.engine().is_moving(&recorded));
}

/// With a namespace goes the RoleBinding that let us read its Secrets.
#[tokio::test]
async fn a_secret_that_may_not_be_read_any_more_does_not_hold_up_a_detach() {
    for error in [forbidden(), Error::NotFound("no such secret".into())] {
        let leaving = Attachment {
            recorded: Recorded {
                secret: SecretRef::parse("ns/secret"),
                ..mk_leaving().recorded
            },
            ..mk_leaving()
        };
        let mut bench = Bench::new(leaving.clone());
        bench.refuse("get secret", error.clone());
        assert_eq!(bench.turn().await, Some(Outcome::Done), "{error}");
        assert_eq!(bench.world.state().unpublished.len(), 1);
        let mut bench = Bench::new(leaving);
        bench.refuse("get secret", error.clone());
        bench
            .world
            .state()
            .refused_at
            .push(("unpublish", "id", "Internal"));
        bench.fails().await;
        let told = bench.attachment().detach_error.expect("people must know");
        assert!(told.message.contains("without secret \"ns/secret\""), "{told:?}");
    }
}

/// Nobody is left to detach it, and it may be published all the same.
#[tokio::test(start_paused = true)]
async fn an_attach_that_may_have_failed_is_undone_when_the_attachment_is_gone() {
    for (code, undone) in [("DeadlineExceeded", 1), ("Internal", 0)] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.world.state().refused_at.push(("publish", "id", code));
        bench.world.state().silent.push("publish");
        let job = bench.job().expect("an attach");
        let mut run = std::pin::pin!(bench.worker.run(job));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        let Attachment { name, uid, .. } = bench.attachment();
        bench.world.state().attachment = None;
        bench
            .engine()
            .handle(Event::Attachments(Change::Gone { name, uid }));
        bench.world.answer.notify_one();
        run.await;
        assert_eq!(bench.world.state().unpublished.len(), undone, "{code}");
    }
}

#[tokio::test]
async fn an_attach_elsewhere_leaves_nothing_where_the_volume_was() {
    let unguarded = mk_moved();
    for (answer, moves) in [
        (None, true),
        (Some("NotFound"), true),
        (Some("InvalidArgument"), false),
    ] {
        let mut bench = Bench::new(unguarded.clone());
        bench
            .world
            .state()
            .refused_at
            .push(("publish", "old-id", "InvalidArgument"));
        if let Some(code) = answer {
            bench.world.state().refused_at.push(("unpublish", "old-id", code));
        }
        let outcome = bench.turn().await.expect("an attach");
        assert_eq!(outcome == Outcome::Done, moves, "{answer:?}: {outcome:?}");
        assert_eq!(bench.world.state().unpublished.len(), 1, "{answer:?}");
        let recorded = bench.attachment().recorded.node_id;
        let expected = if moves { "id" } else { "old-id" };
        assert_eq!(recorded.as_deref(), Some(expected), "{answer:?}");
    }
}

#[tokio::test]
async fn a_detach_that_tries_the_other_node_id_leaves_what_is_needed_there() {
    let leaving = Attachment {
        deleting: true,
        finalizer: true,
        recorded: Recorded {
            node_id: Some("old-id".into()),
            handle: Some("handle".into()),
            secret: None,
        },
        ..mk_attachment("va")
    };
    for needed in [false, true] {
        let mut bench = Bench::new(leaving.clone());
        bench.world.state().unknown = true;
        if needed {
            let living = Attachment {
                finalizer: true,
                attached: true,
                ..mk_attachment("living")
            };
            bench.engine().handle(Event::Attachments(Change::Put(living)));
        }
        assert_eq!(bench.turn().await, Some(Outcome::Done));
        assert_eq!(bench.world.state().attachment, None);
        let ids: Vec<_> = bench.world.state().unpublished.drain(..).collect();
        let ids: Vec<_> = ids.iter().map(|target| &*target.node_id).collect();
        let expected: &[&str] = if needed { &["old-id"] } else { &["old-id", "id"] };
        assert_eq!(ids, expected);
    }
}

#[tokio::test]
async fn a_status_that_outlives_our_finalizer_is_written_however_often_that_fails() {
    let leaving = Attachment {
        deleting: true,
        finalizer: true,
        attached: true,
        recorded: Recorded {
            node_id: Some("id".into()),
            handle: Some("handle".into()),
            secret: None,
        },
        ..mk_attachment("va")
    };
    let mut bench = Bench::new(leaving);
    // Which the watch has not told.
    if let Some(attachment) = &mut bench.world.state().attachment {
        attachment.foreign_finalizers = true;
    }
    for attempt in 0..3 {
        bench.refuse("mark detached", Error::Unanswered("no answer".into()));
        bench.fails().await;
        let seen = bench.seen();
        let called = seen.contains(&"unpublish") || seen.contains(&"release");
        assert_eq!(called, attempt == 0, "{attempt}: {seen:?}");
        assert!(bench.attachment().attached && !bench.attachment().finalizer);
    }
    assert_eq!(bench.turn().await, Some(Outcome::Done));
    assert_eq!(bench.seen(), ["mark detached"]);
    assert!(!bench.attachment().says_attached());
    assert!(bench.job().is_none());
}

#[tokio::test]
async fn an_answer_is_written_while_the_driver_is_away() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("mark attached", Error::Unanswered("no answer".into()));
    bench.fails().await;
    assert!(!bench.attachment().attached);
    bench.world.state().away = true;
    assert_eq!(bench.turn().await, Some(Outcome::Done));
    assert!(bench.attachment().attached);
    let calls = bench.seen();
    assert_eq!(calls.iter().filter(|seen| **seen == "publish").count(), 1);
}

#[tokio::test]
async fn an_answer_outlasts_a_failure_to_read_what_it_needs() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.refuse("mark attached", Error::Unanswered("no answer".into()));
    bench.fails().await;
    let volume = mk_secret_volume();
    let unknown = Change::Departed {
        name: volume.name,
        uid: volume.uid,
    };
    bench.engine().handle(Event::Volumes(unknown));
    bench.refuse("get volume", Error::Unanswered("no answer".into()));
    bench.fails().await;
    assert_eq!(bench.turn().await, Some(Outcome::Done));
    let calls = bench.seen();
    assert_eq!(calls.iter().filter(|seen| **seen == "publish").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn winding_up_drops_what_leads_to_a_call() {
    for silent in ["ready", "record", "claim", "get secret"] {
        let mut bench = Bench::new(mk_attachment("va"));
        bench.world.state().silent.push(silent);
        let job = bench.job().expect("an attach");
        let wind_up = async {
            tokio::task::yield_now().await;
            bench.worker.wind_up();
        };
        let both = async { futures::join!(bench.worker.run(job), wind_up).0 };
        let report = timeout(FOREVER, both).await.expect("it must not wait");
        assert!(matches!(report.outcome, Outcome::Failed { .. }));
        let seen = bench.seen();
        assert!(seen.contains(&silent), "{seen:?}");
        assert!(
            !seen.contains(&"publish") && !seen.contains(&"problem"),
            "{seen:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn winding_up_drops_a_detach_before_its_call() {
    for silent in ["ready", "get secret"] {
        let mut bench = Bench::new(Attachment {
            deleting: true,
            finalizer: true,
            ..mk_attachment("va")
        });
        bench.world.state().silent.push(silent);
        let job = bench.job().expect("a detach");
        let wind_up = async {
            tokio::task::yield_now().await;
            bench.worker.wind_up();
        };
        let both = async { futures::join!(bench.worker.run(job), wind_up).0 };
        timeout(FOREVER, both).await.expect("it must not wait");
        let seen = bench.seen();
        assert_eq!(seen.last(), Some(&silent), "{seen:?}");
        assert!(bench.attachment().finalizer);
    }
}

#[tokio::test(start_paused = true)]
async fn winding_up_lets_a_call_and_its_status_write_end() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.world.state().silent.push("publish");
    let job = bench.job().expect("an attach");
    let run = bench.worker.run(job);
    let mut run = std::pin::pin!(run);
    assert!(
        timeout(FOREVER, run.as_mut()).await.is_err(),
        "the call is under way"
    );
    bench.worker.wind_up();
    assert!(timeout(FOREVER, run.as_mut()).await.is_err(), "and still is");
    bench.world.answer.notify_one();
    assert_eq!(run.await.outcome, Outcome::Done);
    assert!(bench.attachment().attached);
}

#[tokio::test]
async fn a_panic_is_told_in_the_status() {
    let mut bench = Bench::new(mk_attachment("va"));
    bench.world.state().panics = true;
    bench.fails().await;
    let told = bench.attachment().attach_error.expect("people must know");
    assert!(told.message.contains("a fault of its own"), "{told:?}");
}

/// Each job that waits for the driver is a future of its own, and there may be thousands: with the states of
/// all steps side by side it had ten kilobytes, which made half of the process. A step that is not taken now
/// takes no room, since it is in a box. What a call itself needs, two kilobytes, is in another one.
#[tokio::test]
async fn a_job_that_waits_for_the_driver_is_small() {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let clients = Clients::new(&config, None).unwrap();
    let (_keeper, link) = Keeper::new("/nowhere".parse().unwrap(), FOREVER);
    let driver = mk_driver();
    let cluster = ApiServer::new(&clients, Leadership::unopposed(), Arc::new(driver.clone()));
    let csi = Caller::new(link, FOREVER, Leadership::unopposed());
    let limits = Limits {
        attach: 1,
        detach: 1,
        volume: 1,
    };
    let backoff = Backoff {
        start: FOREVER,
        max: FOREVER,
    };
    let engine = Arc::new(Mutex::new(Engine::new(limits, backoff, 0)));
    let worker = Worker::new(cluster, csi, driver, engine, || Timestamp::UNIX_EPOCH);
    let facts = || Facts {
        attachment: Arc::new(mk_attachment("va")),
        volume: None,
        node: None,
    };
    let target = Target {
        handle: "h".into(),
        node_id: "n".into(),
    };
    let request = UnpublishRequest {
        target,
        secrets: Secrets::default(),
        migrated: false,
    };
    let job = Job::Attachment {
        wanted: Wanted::Attach,
        facts: facts(),
        answer: None,
        repair: false,
    };
    for (future, bytes, most) in [
        ("a job", size_of_val(&worker.run(job)), 768),
        ("an attach", size_of_val(&worker.attach(facts(), None)), 1280),
        ("a detach", size_of_val(&worker.detach(facts(), None, false)), 768),
        ("a call", size_of_val(&worker.csi.unpublish(request)), 896),
    ] {
        assert!(bytes <= most, "{future} takes {bytes} bytes, and may take {most}");
    }
}
