//! Records events like client-go's recorder: a repeated event increments the count of the first one.
//!
//! Recording does not block: events go through a queue to one task, which writes them in order.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::apiserver::Clock;

/// client-go's `maxTriesPerEvent`.
const MAX_TRIES: usize = 12;
/// Delay between two attempts.
const SLEEP: Duration = Duration::from_secs(10);
/// Delay before the first retry. client-go's is random, at most `SLEEP`.
const FIRST_SLEEP: Duration = Duration::from_secs(5);
/// Maximum number of cached events, whose counts the recorder increments.
const CACHE_ENTRIES: usize = 4096;

/// Normal or Warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventType {
    Normal,
    Warning,
}

/// Enqueues events of one component.
#[derive(Clone, Debug)]
pub(crate) struct EventRecorder {
    component: &'static str,
    host: String,
    queue: mpsc::UnboundedSender<Recorded>,
}

/// Writes the events that recorders enqueue.
pub(crate) struct EventBroadcaster {
    client: Client,
    clock: Clock,
    tx: mpsc::UnboundedSender<Recorded>,
    rx: mpsc::UnboundedReceiver<Recorded>,
    written: BTreeMap<Identity, Written>,
    sequence: i64,
}

#[derive(Debug)]
struct Recorded {
    identity: Identity,
    regarding: ObjectReference,
    host: String,
}

/// Events with the same identity become one event with a count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    component: &'static str,
    object: String,
    kind: EventType,
    reason: String,
    message: String,
}

#[derive(Debug)]
struct Written {
    namespace: String,
    name: String,
    count: i32,
    /// The event that was written last.
    sequence: i64,
}

// === impl EventType ===

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

// === impl EventRecorder ===

impl EventRecorder {
    /// Records an event about `object`.
    pub(crate) fn event<K>(&self, object: &K, kind: EventType, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.event_about(object.object_ref(&()), kind, reason, message);
    }

    /// Records an event about the object that `regarding` references.
    pub(crate) fn event_about(
        &self,
        regarding: ObjectReference,
        kind: EventType,
        reason: &str,
        message: &str,
    ) {
        let identity = Identity {
            component: self.component,
            object: format!(
                "{}/{}/{}/{}",
                regarding.kind.as_deref().unwrap_or_default(),
                regarding.namespace.as_deref().unwrap_or_default(),
                regarding.name.as_deref().unwrap_or_default(),
                regarding.uid.as_deref().unwrap_or_default(),
            ),
            kind,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let recorded = Recorded {
            identity,
            regarding,
            host: self.host.clone(),
        };
        // The queue is closed when the cluster stops; its last events are lost.
        drop(self.queue.send(recorded));
    }
}

// === impl EventBroadcaster ===

impl EventBroadcaster {
    pub(crate) fn new(client: Client, clock: Clock) -> Self {
        let (tx, rx) = mpsc::unbounded_channel();
        Self {
            client,
            clock,
            tx,
            rx,
            written: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// A recorder for `component`, on a node or with an empty host.
    pub(crate) fn recorder(&self, component: &'static str, host: &str) -> EventRecorder {
        EventRecorder {
            component,
            host: host.to_owned(),
            queue: self.tx.clone(),
        }
    }

    /// Writes events until the channel is closed. It drops an event that the API server rejects; without a response it
    /// retries up to `MAX_TRIES` times, while later events wait.
    pub(crate) async fn run(mut self) {
        while let Some(recorded) = self.rx.recv().await {
            let now = self.clock.now();
            self.sequence += 1;
            for tried in 1..=MAX_TRIES {
                let Err(error) = self.write(&recorded, now).await else {
                    break;
                };
                tracing::debug!(%error, "event was not written");
                if matches!(error, kube::Error::Api(_)) || tried == MAX_TRIES {
                    break;
                }
                sleep(if tried == 1 { FIRST_SLEEP } else { SLEEP }).await;
            }
        }
    }

    async fn write(&mut self, recorded: &Recorded, now: Timestamp) -> kube::Result<()> {
        if let Some(written) = self.written.get_mut(&recorded.identity) {
            let events = Api::<Event>::namespaced(self.client.clone(), &written.namespace);
            let count = written.count + 1;
            let patch = json!({"count": count, "lastTimestamp": Time(now)});
            match events
                .patch(&written.name, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(_) => {
                    written.count = count;
                    written.sequence = self.sequence;
                    return Ok(());
                }
                // Events expire; then a new one is written.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.new_event(recorded, now);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let name = event.metadata.name.clone().unwrap_or_default();
        Api::<Event>::namespaced(self.client.clone(), &namespace)
            .create(&PostParams::default(), &event)
            .await?;
        if self.written.len() >= CACHE_ENTRIES {
            // Evict the older half.
            let mut sequences: Vec<i64> = self.written.values().map(|written| written.sequence).collect();
            let (_, median, _) = sequences.select_nth_unstable(CACHE_ENTRIES / 2);
            self.written.retain(|_, written| written.sequence > *median);
        }
        let written = Written {
            namespace,
            name,
            count: 1,
            sequence: self.sequence,
        };
        self.written.insert(recorded.identity.clone(), written);
        Ok(())
    }

    fn new_event(&self, recorded: &Recorded, now: Timestamp) -> Event {
        let nanos = now.as_nanosecond() + i128::from(self.sequence);
        let regarding = recorded.regarding.clone();
        let namespace = regarding
            .namespace
            .clone()
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or_else(|| "default".to_owned());
        Event {
            metadata: ObjectMeta {
                name: Some(format!(
                    "{}.{nanos:x}",
                    regarding.name.as_deref().unwrap_or_default()
                )),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: regarding,
            type_: Some(recorded.identity.kind.as_str().to_owned()),
            reason: Some(recorded.identity.reason.clone()),
            message: Some(recorded.identity.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource {
                component: Some(recorded.identity.component.to_owned()),
                host: Some(recorded.host.clone()).filter(|host| !host.is_empty()),
            }),
            reporting_component: Some(recorded.identity.component.to_owned()),
            reporting_instance: Some(recorded.host.clone()).filter(|host| !host.is_empty()),
            ..Event::default()
        }
    }
}
