//! Events of VolumeAttachments, PersistentVolumes and the Lease, written by kube's recorder (events.k8s.io/v1).
//!
//! Failures, lost attachments and recoveries have Events on the VolumeAttachment and its PersistentVolume; a plain success has
//! none.
//!
//! Invariants: reporting never waits and never fails: notices beyond the bounded channel are dropped and counted; one task sends
//! them within a rate limit, and nothing depends on its success. Missing permission is logged once. A note is the text of the
//! status, which contains no credentials. See docs/adr/0017-events.md.

mod correlator;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder as KubeRecorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::request_limiter::Priority;
use super::{Rate, RateLimit};
use crate::csi::Code;
use crate::leader_election::Leadership;
use crate::model::{Attachment, Volume};
use crate::report::chain;
use correlator::EventCorrelator;

/// Maximum queued notices.
const QUEUE: usize = 1024;
/// Rate limit for all objects together.
const RATE: Rate = Rate { qps: 10.0, burst: 50 };
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time without Events to a namespace that answered 403.
const FORBIDDEN_FOR: Duration = Duration::from_secs(600);
/// Timeout of the last Events at shutdown: the next leader waits for this replica.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(250);
/// The API server's limit.
const NOTE_BYTES: usize = 1024;

/// An Event's `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is named for its Event")]
pub enum Reason {
    AttachFailed,
    DetachFailed,
    AttachRecovered,
    DetachRecovered,
    AttachmentLost,
    AttachmentRestored,
    NodeIdNotUnique,
    AttachedTwice,
    PublishedWithoutAttachment,
    LeaderElection,
}

#[derive(Clone, Debug)]
struct Notice {
    regarding: ObjectReference,
    reason: Reason,
    /// The operation with the cause of its failure. kube's recorder merges Events of the same action and ignores their notes, so
    /// without the cause a changed one would be hidden.
    action: String,
    note: String,
}

/// Queues notices. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    notices_tx: mpsc::Sender<Notice>,
    dropped: Arc<AtomicU64>,
}

/// Sends the notices of a [`Recorder`].
pub struct Publisher {
    client: Client,
    reporter: Reporter,
    recorder: KubeRecorder,
    notices: mpsc::Receiver<Notice>,
    dropped: Arc<AtomicU64>,
    correlator: EventCorrelator,
    rate: RateLimit,
    forbidden: HashMap<Option<String>, Instant>,
}

impl From<&Attachment> for ObjectReference {
    fn from(attachment: &Attachment) -> Self {
        reference(
            "storage.k8s.io/v1",
            "VolumeAttachment",
            &attachment.name,
            &attachment.uid.0,
        )
    }
}

impl From<&Volume> for ObjectReference {
    fn from(volume: &Volume) -> Self {
        reference("v1", "PersistentVolume", &volume.name, &volume.uid.0)
    }
}

/// The object of an Event about the lease of a leader election.
pub fn lease(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        namespace: Some(namespace.to_owned()),
        ..reference("coordination.k8s.io/v1", "Lease", name, uid)
    }
}

fn reference(api_version: &str, kind: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

// === impl Reason ===

impl Reason {
    /// The `reason`.
    pub fn name(self) -> &'static str {
        self.fields().0
    }

    /// The `reason`, the verb of the `action`, and whether the Event is a warning.
    fn fields(self) -> (&'static str, &'static str, bool) {
        match self {
            Self::AttachFailed => ("AttachFailed", "Attach", true),
            Self::DetachFailed => ("DetachFailed", "Detach", true),
            Self::AttachRecovered => ("AttachRecovered", "Attach", false),
            Self::DetachRecovered => ("DetachRecovered", "Detach", false),
            Self::AttachmentLost => ("AttachmentLost", "Reconcile", true),
            Self::AttachmentRestored => ("AttachmentRestored", "Reconcile", false),
            Self::NodeIdNotUnique => ("NodeIDNotUnique", "Reconcile", true),
            Self::AttachedTwice => ("AttachedTwice", "Reconcile", true),
            Self::PublishedWithoutAttachment => ("PublishedWithoutAttachment", "Reconcile", true),
            Self::LeaderElection => ("LeaderElection", "LeaderElection", false),
        }
    }
}

// === impl Notice ===

impl Notice {
    fn new(regarding: ObjectReference, reason: Reason, code: Option<Code>, note: &str) -> Self {
        let (_, verb, _) = reason.fields();
        Self {
            regarding,
            reason,
            action: match (code, reason) {
                (Some(code), _) => format!("{verb} ({})", code.name()),
                // A volume may be published on several nodes.
                (None, Reason::AttachFailed | Reason::DetachFailed | Reason::PublishedWithoutAttachment) => {
                    format!("{verb} (cause {:04x})", fingerprint(note))
                }
                (None, _) => verb.to_owned(),
            },
            note: note[..note.floor_char_boundary(NOTE_BYTES)].to_owned(),
        }
    }

    fn event(&self) -> Event {
        let (reason, _, is_warning) = self.reason.fields();
        Event {
            type_: match is_warning {
                true => EventType::Warning,
                false => EventType::Normal,
            },
            reason: reason.to_owned(),
            note: Some(self.note.clone()),
            action: self.action.clone(),
            secondary: None,
        }
    }
}

/// Distinguishes causes of failures without a gRPC code.
fn fingerprint(note: &str) -> u16 {
    let mut hasher = DefaultHasher::new();
    note.hash(&mut hasher);
    hasher.finish() as u16
}

// === impl Recorder ===

impl Recorder {
    /// A recorder and its publisher, which writes with `client` as `component` on `instance`.
    pub fn new(client: Client, component: String, instance: String) -> (Self, Publisher) {
        let (notices_tx, notices) = mpsc::channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let reporter = Reporter {
            controller: component,
            instance: Some(instance),
        };
        let publisher = Publisher {
            recorder: KubeRecorder::new(client.clone(), reporter.clone()),
            client,
            reporter,
            notices,
            dropped: dropped.clone(),
            correlator: EventCorrelator::default(),
            rate: RateLimit::new(RATE),
            forbidden: HashMap::new(),
        };
        (Self { notices_tx, dropped }, publisher)
    }

    /// A recorder without publisher, which drops all notices.
    pub fn silent() -> Self {
        Self {
            notices_tx: mpsc::channel(1).0,
            dropped: Arc::default(),
        }
    }

    /// How many notices were dropped.
    #[cfg(test)]
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Queues a notice, with the gRPC code if the driver failed. Drops it if the queue is full.
    pub fn report(
        &self,
        regarding: impl Into<ObjectReference>,
        reason: Reason,
        code: Option<Code>,
        message: impl AsRef<str>,
    ) {
        let notice = Notice::new(regarding.into(), reason, code, message.as_ref());
        if self.notices_tx.try_send(notice).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl Publisher ===

impl Publisher {
    /// Sends Events until `stop`, and then the queued ones until a short timeout. It applies the rate limit,
    /// sends one request at a time, and sends Events about attachments only while we lead. A failed request is
    /// logged, and its Event is lost.
    pub async fn run(mut self, leadership: Leadership, stop: CancellationToken) {
        while let Some(Some(notice)) = stop.run_until_cancelled(self.notices.recv()).await {
            self.publish(notice, &leadership).await;
        }
        let rest = async {
            while let Ok(notice) = self.notices.try_recv() {
                self.publish(notice, &leadership).await;
            }
        };
        if timeout(SHUTDOWN_TIMEOUT, rest).await.is_err() {
            tracing::debug!("shutdown before all Events were sent");
        }
    }

    async fn publish(&mut self, notice: Notice, leadership: &Leadership) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::debug!(dropped, "the queue of Events was full");
        }
        if !self.correlator.admits(&notice, Instant::now()) {
            return;
        }
        self.rate.acquire(Priority::Low).await;
        // After the wait: another replica may have become the leader during it.
        let about_leadership = notice.reason == Reason::LeaderElection;
        if !(about_leadership || leadership.check().is_ok()) || self.is_forbidden(&notice.regarding.namespace)
        {
            return;
        }
        let mut result = self.send(&notice).await;
        if let Err(kube::Error::Api(status)) = &result
            && status.code == 404
        {
            // The API server deletes Events after an hour, which kube's recorder does not notice.
            self.recorder = KubeRecorder::new(self.client.clone(), self.reporter.clone());
            result = self.send(&notice).await;
        }
        match result {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let namespace = notice.regarding.namespace.clone();
                let until = Instant::now() + FORBIDDEN_FOR;
                if self.forbidden.insert(namespace, until).is_none() {
                    tracing::warn!(
                        error = status.message,
                        "Events cannot be written; grant create and patch on events.events.k8s.io to have them"
                    );
                }
            }
            Err(error) => tracing::warn!(
                kind = notice.regarding.kind,
                name = notice.regarding.name,
                reason = notice.reason.fields().0,
                error = chain(&error),
                "cannot write an Event"
            ),
        }
    }

    async fn send(&self, notice: &Notice) -> Result<(), kube::Error> {
        let event = notice.event();
        let request = self.recorder.publish(&event, &notice.regarding);
        timeout(REQUEST_TIMEOUT, request)
            .await
            .unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
    }

    /// Whether this namespace has recently answered 403.
    fn is_forbidden(&self, namespace: &Option<String>) -> bool {
        self.forbidden
            .get(namespace)
            .is_some_and(|until| Instant::now() < *until)
    }
}

#[cfg(test)]
mod tests;
