//! Events: what `kubectl describe` shows of a VolumeAttachment or a PersistentVolume.
//!
//! Failures, lost attachments and recoveries are reported, on the VolumeAttachment and on its PersistentVolume, by
//! kube's recorder (events.k8s.io/v1). A plain success is not.
//!
//! Invariants: reporting never waits and never fails: what does not fit the bounded channel is dropped and counted;
//! one task sends, within its rate limit, and nothing depends on whether it succeeds. Without the right to write
//! Events this is logged once. An Event's note is what the status says, which holds no credentials.
//! See docs/adr/0017-events.md.

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

use super::RateLimit;
use super::request_limiter::Priority;
use crate::args::kube_api::Rate;
use crate::csi::Code;
use crate::model::{Attachment, Uid, Volume};
use crate::report::chain;
use correlator::EventCorrelator;

/// Notices that may wait for the task that sends them.
const QUEUE: usize = 1024;
/// Requests for all objects together. An API server that serves a thousand attaches a second hardly notices.
const RATE: Rate = Rate { qps: 10.0, burst: 50 };
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long no Event is sent to a namespace that refused one.
const REFUSED: Duration = Duration::from_secs(600);
/// How long the shutdown waits for Events that were not sent yet: the next leader waits for this replica.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(250);
/// The API server refuses longer notes.
const NOTE_BYTES: usize = 1024;

/// An object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regarding {
    /// `apiVersion`.
    pub api_version: &'static str,
    /// `kind`.
    pub kind: &'static str,
    /// `metadata.namespace`; none for objects of the whole cluster.
    pub namespace: Option<Arc<str>>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
}

/// What happened. Its name is the Event's `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// An attach failed and will be tried again.
    AttachFailed,
    /// A detach failed and will be tried again.
    DetachFailed,
    /// An attach succeeded after it had failed.
    AttachRecovered,
    /// A detach succeeded after it had failed.
    DetachRecovered,
    /// The driver does not know of an attachment any more that we have made.
    AttachmentLost,
    /// A lost attachment was made again.
    AttachmentRestored,
    /// The leadership came or went.
    LeaderElection,
}

/// What happened to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Notice {
    regarding: Regarding,
    reason: Reason,
    /// What was tried, with the cause of the failure. kube's recorder counts Events of the same action as one and
    /// ignores their notes, so that without the cause a changed one would not be shown.
    action: String,
    note: String,
}

/// Takes notices. A clone sends to the same task.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// None: Events are off.
    notices_tx: Option<mpsc::Sender<Notice>>,
    dropped: Arc<AtomicU64>,
}

/// Sends what a [`Recorder`] took.
pub struct Publisher<L> {
    client: Client,
    reporter: Reporter,
    recorder: KubeRecorder,
    notices: mpsc::Receiver<Notice>,
    dropped: Arc<AtomicU64>,
    correlator: EventCorrelator,
    rate: RateLimit,
    /// Whether this replica may write now.
    leading: L,
    refused: HashMap<Option<Arc<str>>, Instant>,
}

// === impl Regarding ===

impl From<&Attachment> for Regarding {
    fn from(attachment: &Attachment) -> Self {
        Self {
            api_version: "storage.k8s.io/v1",
            kind: "VolumeAttachment",
            namespace: None,
            name: attachment.name.clone(),
            uid: attachment.uid.clone(),
        }
    }
}

impl From<&Volume> for Regarding {
    fn from(volume: &Volume) -> Self {
        Self {
            api_version: "v1",
            kind: "PersistentVolume",
            namespace: None,
            name: volume.name.clone(),
            uid: volume.uid.clone(),
        }
    }
}

impl Regarding {
    /// The lease of a leader election.
    pub fn lease(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            api_version: "coordination.k8s.io/v1",
            kind: "Lease",
            namespace: Some(namespace.into()),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

// === impl Reason ===

impl Reason {
    /// As it stands in the Event.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttachFailed => "AttachFailed",
            Self::DetachFailed => "DetachFailed",
            Self::AttachRecovered => "AttachRecovered",
            Self::DetachRecovered => "DetachRecovered",
            Self::AttachmentLost => "AttachmentLost",
            Self::AttachmentRestored => "AttachmentRestored",
            Self::LeaderElection => "LeaderElection",
        }
    }

    /// Whether the Event is a warning.
    pub fn is_warning(self) -> bool {
        match self {
            Self::AttachFailed | Self::DetachFailed | Self::AttachmentLost => true,
            Self::AttachRecovered
            | Self::DetachRecovered
            | Self::AttachmentRestored
            | Self::LeaderElection => false,
        }
    }
}

// === impl Notice ===

impl Notice {
    fn new(regarding: Regarding, reason: Reason, code: Option<Code>, note: &str) -> Self {
        let verb = match reason {
            Reason::AttachFailed | Reason::AttachRecovered => "Attach",
            Reason::DetachFailed | Reason::DetachRecovered => "Detach",
            Reason::AttachmentLost | Reason::AttachmentRestored => "Reconcile",
            Reason::LeaderElection => "LeaderElection",
        };
        Self {
            regarding,
            reason,
            action: match (code, reason) {
                (Some(code), _) => format!("{verb} ({})", code.name()),
                (None, Reason::AttachFailed | Reason::DetachFailed) => {
                    format!("{verb} (cause {:04x})", fingerprint(note))
                }
                (None, _) => verb.to_owned(),
            },
            note: note[..note.floor_char_boundary(NOTE_BYTES)].to_owned(),
        }
    }

    fn event(&self) -> Event {
        Event {
            type_: if self.reason.is_warning() {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: self.reason.name().to_owned(),
            note: Some(self.note.clone()),
            action: self.action.clone(),
            secondary: None,
        }
    }
}

/// Tells the causes of failures without a gRPC code apart.
fn fingerprint(note: &str) -> u16 {
    let mut hasher = DefaultHasher::new();
    note.hash(&mut hasher);
    hasher.finish() as u16
}

impl From<&Regarding> for ObjectReference {
    fn from(regarding: &Regarding) -> Self {
        Self {
            api_version: Some(regarding.api_version.to_owned()),
            kind: Some(regarding.kind.to_owned()),
            name: Some(regarding.name.to_string()),
            namespace: regarding.namespace.as_ref().map(ToString::to_string),
            uid: Some(regarding.uid.0.to_string()),
            ..Self::default()
        }
    }
}

// === impl Recorder ===

impl Recorder {
    /// A recorder, and the publisher of what it takes: through `client`, as `component` on `instance`, for as
    /// long as `leading` says that this replica may write.
    pub fn new<L: Fn() -> bool>(
        client: Client,
        component: String,
        instance: String,
        leading: L,
    ) -> (Self, Publisher<L>) {
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
            leading,
            refused: HashMap::new(),
        };
        let notices_tx = Some(notices_tx);
        (Self { notices_tx, dropped }, publisher)
    }

    /// A recorder that drops everything.
    pub fn silent() -> Self {
        Self {
            notices_tx: None,
            dropped: Arc::default(),
        }
    }

    /// Reports something that happened, with the gRPC code if the driver failed. Never waits; what does not fit the
    /// queue is dropped.
    pub fn report(
        &self,
        regarding: impl Into<Regarding>,
        reason: Reason,
        code: Option<Code>,
        message: impl AsRef<str>,
    ) {
        let Some(notices_tx) = &self.notices_tx else {
            return;
        };
        let notice = Notice::new(regarding.into(), reason, code, message.as_ref());
        if notices_tx.try_send(notice).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports a change of leadership on the Lease, as client-go does: "`identity` became leader".
    pub fn leadership(&self, lease: Regarding, message: impl AsRef<str>) {
        self.report(lease, Reason::LeaderElection, None, message);
    }
}

// === impl Publisher ===

impl<L: Fn() -> bool> Publisher<L> {
    /// Sends Events until `stop`, then what can still be sent at once.
    ///
    /// # Guarantees
    ///
    /// Never more than the rate limit, one request at a time, and nothing about attachments while another replica
    /// leads.
    ///
    /// # Errors
    ///
    /// None: a request that fails is logged, and its Event lost.
    ///
    /// # Cancellation
    ///
    /// What was not sent is lost.
    pub async fn run(mut self, stop: CancellationToken) {
        while let Some(Some(notice)) = stop.run_until_cancelled(self.notices.recv()).await {
            self.publish(notice).await;
        }
        let rest = async {
            while let Ok(notice) = self.notices.try_recv() {
                self.publish(notice).await;
            }
        };
        if timeout(SHUTDOWN_TIMEOUT, rest).await.is_err() {
            tracing::debug!("not all Events were sent before the end");
        }
    }

    async fn publish(&mut self, notice: Notice) {
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
        if !(about_leadership || (self.leading)()) || self.is_refused(&notice.regarding.namespace) {
            return;
        }
        let mut result = self.send(&notice).await;
        if let Err(kube::Error::Api(status)) = &result
            && status.code == 404
        {
            // The API server forgets Events after an hour, and kube's recorder does not learn of it.
            self.recorder = KubeRecorder::new(self.client.clone(), self.reporter.clone());
            result = self.send(&notice).await;
        }
        match result {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let namespace = notice.regarding.namespace.clone();
                let until = Instant::now() + REFUSED;
                if self.refused.insert(namespace, until).is_none() {
                    tracing::warn!(
                        error = status.message,
                        "Events cannot be written; grant create and patch on events.events.k8s.io to have them"
                    );
                }
            }
            Err(error) => tracing::warn!(error = chain(&error), "cannot write an Event"),
        }
    }

    async fn send(&self, notice: &Notice) -> Result<(), kube::Error> {
        let (event, regarding) = (notice.event(), ObjectReference::from(&notice.regarding));
        let request = self.recorder.publish(&event, &regarding);
        timeout(REQUEST_TIMEOUT, request)
            .await
            .unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
    }

    /// Whether this namespace takes no Events from us. Asked again after a while, without a log line.
    fn is_refused(&self, namespace: &Option<Arc<str>>) -> bool {
        self.refused
            .get(namespace)
            .is_some_and(|until| Instant::now() < *until)
    }
}

#[cfg(test)]
mod tests;
