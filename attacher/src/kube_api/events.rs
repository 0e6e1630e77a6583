//! Events: what `kubectl describe` tells people about a VolumeAttachment or a PersistentVolume.
//!
//! Success is silent; failures, lost attachments and recoveries are told, on the VolumeAttachment and on
//! its PersistentVolume, as core/v1 Events, which is what client-go writes.
//!
//! Invariants: telling never waits for anything and never fails: what does not fit the bounded channel is
//! dropped and counted; one task sends, slowly, within its budget (`Ledger`), and nothing depends on
//! whether it succeeds. Without the right to write Events this is logged once and then left alone. An
//! Event's message is what the status says, which holds no credentials, cut as the API server wants it.

mod ledger;
mod object;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::model::{Attachment, Uid, Volume};
use crate::report::chain;
use ledger::{Ledger, Write};

/// Notices that may wait for the task that sends them, which takes them in at once unless a request is
/// under way.
const WAITING: usize = 1024;
/// Objects of which it is known that something was told, beyond those that the ledger remembers.
const MENTIONED: usize = 4096;
/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(5);
/// How long no Event is sent to a namespace that refused one.
const REFUSED: Duration = Duration::from_secs(600);
/// How long Events that were not sent yet may take when work is over: the next leader waits for us.
const LAST_REQUESTS: Duration = Duration::from_millis(250);

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

/// Something to be told about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The object.
    pub regarding: Regarding,
    /// What happened to it.
    pub reason: Reason,
    /// In words.
    pub message: String,
}

/// What a recorder hands on.
#[derive(Debug)]
enum Told {
    Notice(Notice),
    /// There is no such object any more.
    Gone(Uid),
}

/// Takes notices. A clone tells the same task.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// None: nobody is told anything.
    told_tx: Option<mpsc::Sender<Told>>,
    dropped: Arc<AtomicU64>,
    mentioned: Mentioned,
}

/// Objects that something was told about. There is nothing to forget of others, which are nearly all: word
/// of their going would take the places of notices.
#[derive(Clone, Debug, Default)]
struct Mentioned(Arc<Mutex<HashSet<Uid>>>);

/// Sends what a [`Recorder`] took.
pub struct Publisher<L> {
    client: Client,
    told: mpsc::Receiver<Told>,
    dropped: Arc<AtomicU64>,
    mentioned: Mentioned,
    ledger: Ledger,
    /// Who says that they write; the Go sidecar's name with the driver's.
    component: String,
    instance: String,
    /// Whether we may write now.
    leading: L,
    refused: HashMap<Arc<str>, Instant>,
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

    /// Whether somebody should worry.
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

// === impl Recorder ===

impl Recorder {
    /// A recorder, and who sends what it takes: through `client`, as `component` on `instance`, for as
    /// long as `leading` says that we may write.
    pub fn new<L: Fn() -> bool>(
        client: Client,
        component: String,
        instance: String,
        leading: L,
    ) -> (Self, Publisher<L>) {
        let (told_tx, told) = mpsc::channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let mentioned = Mentioned::default();
        let recorder = Self {
            told_tx: Some(told_tx),
            dropped: dropped.clone(),
            mentioned: mentioned.clone(),
        };
        let publisher = Publisher {
            client,
            told,
            dropped,
            mentioned,
            ledger: Ledger::default(),
            component,
            instance,
            leading,
            refused: HashMap::new(),
        };
        (recorder, publisher)
    }

    /// A recorder that tells nobody anything.
    pub fn silent() -> Self {
        Self {
            told_tx: None,
            dropped: Arc::default(),
            mentioned: Mentioned::default(),
        }
    }

    /// Tells of something that happened. Never waits; what cannot be taken is dropped.
    pub fn tell(&self, regarding: impl Into<Regarding>, reason: Reason, message: impl Into<String>) {
        self.send(|| {
            let regarding = regarding.into();
            self.mentioned.lock().insert(regarding.uid.clone());
            Told::Notice(Notice {
                regarding,
                reason,
                message: message.into(),
            })
        });
    }

    /// The object is gone, and nothing more will be told about it.
    pub fn forget(&self, uid: &Uid) {
        if self.mentioned.lock().remove(uid) {
            self.send(|| Told::Gone(uid.clone()));
        }
    }

    fn send(&self, told: impl FnOnce() -> Told) {
        let Some(told_tx) = &self.told_tx else { return };
        if told_tx.try_send(told()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells of a change of leadership, as client-go does: "`identity` became leader", on the Lease.
    pub fn leadership(&self, lease: Regarding, message: impl Into<String>) {
        self.tell(lease, Reason::LeaderElection, message);
    }
}

// === impl Mentioned ===

impl Mentioned {
    fn lock(&self) -> MutexGuard<'_, HashSet<Uid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Publisher ===

impl<L: Fn() -> bool> Publisher<L> {
    /// Sends Events until `stop`, then what can still be sent at once.
    ///
    /// # Guarantees
    ///
    /// Never more than the `Ledger`'s budget, one request at a time, and nothing about objects that we
    /// work on while another one leads.
    ///
    /// # Errors
    ///
    /// None: a request that fails is logged, and its Event lost.
    ///
    /// # Cancellation
    ///
    /// What was not sent is lost.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let due = self.ledger.next_due(Instant::now().into_std());
            let next = async {
                match due {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                told = self.told.recv() => match told {
                    Some(told) => self.take_in(told),
                    None => break,
                },
                () = next => self.send_one().await,
            }
        }
        while let Ok(told) = self.told.try_recv() {
            self.take_in(told);
        }
        let rest = async {
            while self
                .ledger
                .next_due(Instant::now().into_std())
                .is_some_and(|at| at <= Instant::now().into_std())
            {
                self.send_one().await;
            }
        };
        if timeout(LAST_REQUESTS, rest).await.is_err() {
            tracing::debug!("not all Events could be sent before the end");
        }
    }

    fn take_in(&mut self, first: Told) {
        let now = Instant::now().into_std();
        let more = std::iter::from_fn(|| self.told.try_recv().ok());
        for told in std::iter::once(first).chain(more) {
            match told {
                Told::Notice(notice) => self.ledger.note(notice, Timestamp::now(), now),
                Told::Gone(uid) => self.ledger.forget(&uid),
            }
        }
        let mut mentioned = self.mentioned.lock();
        if mentioned.len() > MENTIONED {
            // Not all go by our hand.
            mentioned.retain(|uid| self.ledger.remembers(uid));
        }
        drop(mentioned);
        let dropped = self.dropped.swap(0, Ordering::Relaxed) + self.ledger.take_dropped();
        if dropped > 0 {
            tracing::debug!(dropped, "more happened than Events can tell");
        }
    }

    async fn send_one(&mut self) {
        let Some(write) = self.ledger.start(Instant::now().into_std()) else {
            return;
        };
        let namespace = write.namespace();
        let about_leadership = write.reason() == Reason::LeaderElection;
        if !(about_leadership || (self.leading)()) || self.is_refused(&namespace) {
            self.ledger.lost(&write);
            return;
        }
        let error = match timeout(REQUEST, self.request(&write)).await {
            Ok(Ok(())) => return self.ledger.done(&write),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && !write.is_new() => {
                // The API server forgets Events after an hour.
                return self.ledger.anew(&write, Instant::now().into_std());
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                let until = Instant::now() + REFUSED;
                if self.refused.insert(namespace.clone(), until).is_none() {
                    tracing::warn!(
                        %namespace,
                        error = status.message,
                        "Events cannot be written; grant create and patch on events to have them"
                    );
                }
                return self.ledger.lost(&write);
            }
            Ok(Err(error)) => chain(&error),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::debug!(error, "an Event could not be written");
        self.ledger.lost(&write);
    }

    /// Whether this namespace takes no Events from us. Looked at again after a while, in silence.
    fn is_refused(&mut self, namespace: &Arc<str>) -> bool {
        self.refused
            .get(namespace)
            .is_some_and(|until| Instant::now() < *until)
    }

    async fn request(&self, write: &Write) -> Result<(), kube::Error> {
        let request = object::request(write, &self.component, &self.instance)?;
        self.client.request::<IgnoredAny>(request).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use tower::service_fn;

    use super::*;
    use crate::decide::tests::mk_attachment;

    fn mk_client() -> Client {
        let refuse = service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nobody is asked"))
        });
        Client::new(refuse, "default")
    }

    #[tokio::test]
    async fn objects_that_nothing_was_told_about_take_no_place() {
        let (recorder, mut publisher) = Recorder::new(mk_client(), String::new(), String::new(), || true);
        let told = mk_attachment("told");
        recorder.tell(&told, Reason::AttachFailed, "why");
        for n in 0..2 * WAITING {
            recorder.forget(&mk_attachment(&n.to_string()).uid);
        }
        recorder.forget(&told.uid);
        recorder.forget(&told.uid);
        recorder.tell(&told, Reason::DetachRecovered, "how");
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 0);
        let mut waiting = std::iter::from_fn(|| publisher.told.try_recv().ok());
        assert!(
            matches!(waiting.next(), Some(Told::Notice(notice)) if notice.reason == Reason::AttachFailed)
        );
        assert!(matches!(waiting.next(), Some(Told::Gone(uid)) if uid == told.uid));
        assert!(
            matches!(waiting.next(), Some(Told::Notice(notice)) if notice.reason == Reason::DetachRecovered)
        );
        assert!(waiting.next().is_none());
    }

    #[tokio::test]
    async fn what_is_known_of_objects_is_bounded() {
        let (recorder, mut publisher) = Recorder::new(mk_client(), String::new(), String::new(), || true);
        for n in 0..2 * MENTIONED {
            recorder.tell(&mk_attachment(&n.to_string()), Reason::AttachFailed, "why");
            if let Ok(told) = publisher.told.try_recv() {
                publisher.take_in(told);
            }
        }
        assert!(recorder.mentioned.lock().len() <= MENTIONED + 1);
        // What the ledger remembers can still be forgotten.
        let mentioned = recorder.mentioned.lock().clone();
        assert!(publisher.ledger.uids().all(|uid| mentioned.contains(uid)));
    }
}
