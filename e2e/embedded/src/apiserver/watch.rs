//! Watches: a stream of the changes of a table after a resource version.
//!
//! A watch keeps no queue: it remembers the revision up to which it has sent, and reads the table's changes from there.
//! One that falls behind the table's window ends, and its client resumes or lists again, as with kube-apiserver.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{self, Stream};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};

use super::Server;
use super::fault::WatchFault;
use super::list::{self, Read};
use super::list_options::ListOptions;
use super::object::Object;
use super::request::Location;
use super::show::ResponseEncoder;
use super::status::Status;
use super::stored::{Change, Stored};

/// Period of bookmarks.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// Time between the last bookmark and the watch's timeout.
const BOOKMARK_BEFORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of changes per batch.
const BATCH: usize = 500;
/// Minimum timeout of a watch without `timeoutSeconds`; the maximum is twice this.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

/// A watch.
struct Watch {
    server: Arc<Server>,
    location: Location,
    options: ListOptions,
    encoder: ResponseEncoder,
    /// The value of the table's indexed field that the watch is for.
    indexed_value: Option<String>,
    /// Changes up to this revision were sent.
    sent: u64,
    changed: broadcast::Receiver<()>,
    deadline: Instant,
    next_bookmark: Option<Instant>,
    /// Bookmarks up to this revision are not sent.
    started_at: u64,
    /// Events for the objects that existed at the start.
    initial: Option<Bytes>,
    ended: bool,
    fault: WatchFault,
}

/// Starts a watch.
///
/// # Errors
/// Malformed options. A resource version that is too old becomes an event of the stream.
pub(crate) fn watch(
    server: &Arc<Server>,
    location: &Location,
    options: ListOptions,
    encoder: ResponseEncoder,
    fault: WatchFault,
) -> Result<impl Stream<Item = Bytes> + Send + use<>, Status> {
    let requested = list::version_of_read(&options.resource_version)?;
    let now = Instant::now();
    let timeout = match options.timeout_seconds.filter(|seconds| *seconds > 0) {
        Some(seconds) => Duration::from_secs(seconds),
        None => DEFAULT_TIMEOUT.mul_f64(1.0 + server.random()),
    };
    let (changed, indexed_value, revision, newest, found) = {
        let mut store = server.store();
        let table = location.resource.table();
        let indexed_value = store
            .table(table)
            .indexed_field()
            .and_then(|field| options.fields.required(field))
            .map(ToOwned::to_owned);
        let all = ListOptions {
            labels: options.labels.clone(),
            fields: options.fields.clone(),
            ..ListOptions::default()
        };
        let found = match options.send_initial_events {
            Some(true) => {
                Read::of(location.resource, &location.namespace, &all)?
                    .page(&store)?
                    .items
            }
            Some(false) | None => Vec::new(),
        };
        let changed = store.subscribe(table, indexed_value.as_deref());
        let newest = store.table(table).newest();
        (changed, indexed_value, store.revision(), newest, found)
    };
    let from_now = options.send_initial_events == Some(true) || requested == 0;
    let mut watch = Watch {
        server: Arc::clone(server),
        location: location.clone(),
        encoder,
        indexed_value,
        sent: if from_now { revision } else { requested },
        changed,
        deadline: now + timeout,
        next_bookmark: None,
        started_at: if from_now { revision } else { requested.max(newest) },
        initial: None,
        ended: false,
        fault,
        options,
    };
    watch.next_bookmark = watch.bookmark_after(now);
    if watch.options.send_initial_events == Some(true) {
        watch.initial = Some(watch.initial_events(&found));
    }
    Ok(stream::unfold(watch, Watch::next))
}

// === impl Watch ===

impl Watch {
    /// The next bytes to send; `None` ends the stream.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        loop {
            if self.ended || self.fault.drops_now() {
                return None;
            }
            let deadline = self.deadline;
            if let Some(held) = self.fault.held_until() {
                tokio::select! {
                    biased;
                    () = self.fault.changed() => {}
                    () = sleep_until(deadline) => return None,
                    () = sleep_until(held) => {}
                }
                continue;
            }
            if let Some(initial) = self.initial.take()
                && !initial.is_empty()
            {
                return Some((initial, self));
            }
            if let Some(bytes) = self.step() {
                return Some((bytes, self));
            }
            let next_bookmark = self.next_bookmark;
            tokio::select! {
                biased;
                _ = self.changed.recv() => {}
                () = self.fault.changed() => {}
                () = sleep_until(deadline) => return None,
                () = sleep_until(next_bookmark.unwrap_or(deadline)), if next_bookmark.is_some() => {
                    self.next_bookmark = self.bookmark_after(Instant::now());
                    self.skip_other_changes();
                    if self.sent <= self.started_at {
                        continue;
                    }
                    let bookmark = self.bookmark(false);
                    return Some((bookmark, self));
                }
            }
        }
    }

    /// When the next bookmark is due: every minute, and shortly before the timeout (`cacheWatcher.nextBookmarkTime`).
    fn bookmark_after(&self, now: Instant) -> Option<Instant> {
        // etcd sends no bookmarks that often.
        if !self.options.bookmarks || !self.location.resource.is_cached() {
            return None;
        }
        let last = self.deadline.checked_sub(BOOKMARK_BEFORE_TIMEOUT)?;
        let next = last.min(now + BOOKMARK_PERIOD);
        (next > now).then_some(next)
    }

    /// The next changes; `None` if there are none yet.
    fn step(&mut self) -> Option<Bytes> {
        let batch: Result<Vec<Change>, u64> = {
            let store = self.server.store();
            let table = store.table(self.location.resource.table());
            let changes = table.changes_after(self.sent, self.indexed_value.as_deref());
            changes
                .map(|changes| changes.take(BATCH).cloned().collect())
                .map_err(|compacted| compacted.oldest)
        };
        let batch = match batch {
            Ok(batch) => batch,
            Err(oldest) => {
                self.ended = true;
                let message = if self.location.resource.is_cached() {
                    format!("too old resource version: {} ({oldest})", self.sent)
                } else {
                    "The resourceVersion for the provided watch is too old.".to_owned()
                };
                return Some(error(&Status::expired(message)));
            }
        };
        let full = batch.len() == BATCH;
        self.sent = batch.last()?.revision;
        let mut frames = BytesMut::new();
        for change in &batch {
            self.write_change(&mut frames, change);
        }
        if frames.is_empty() && full {
            return self.step();
        }
        (!frames.is_empty()).then(|| frames.freeze())
    }

    /// Marks changes as sent that have other values of the table's indexed field.
    fn skip_other_changes(&mut self) {
        let store = self.server.store();
        let table = store.table(self.location.resource.table());
        let changes = table.changes_after(self.sent, self.indexed_value.as_deref());
        if changes.is_ok_and(|mut changes| changes.next().is_none()) {
            self.sent = self.sent.max(table.newest());
        }
    }

    fn write_change(&mut self, frames: &mut BytesMut, change: &Change) {
        let namespace = self.location.namespace.as_str();
        let found = change.key.split_once('/').map(|(found, _)| found);
        if !namespace.is_empty() && found != Some(namespace) {
            return;
        }
        let selects = |stored: &Stored| self.options.selects(stored);
        let before = change.before.as_ref().filter(|before| selects(before));
        let after = (!change.is_deletion && selects(&change.after)).then_some(&change.after);
        match (before, after) {
            (None, Some(after)) => self.write_event(frames, "ADDED", after),
            (Some(_), Some(after)) => self.write_event(frames, "MODIFIED", after),
            (Some(_), None) if change.is_deletion => self.write_event(frames, "DELETED", &change.after),
            (Some(before), None) => {
                // The object left the selection: send its last selected state with the revision of the change.
                let departed = before.at_revision(change.revision);
                self.write_event(frames, "DELETED", &departed);
            }
            (None, None) => {}
        }
    }

    fn write_event(&mut self, frames: &mut BytesMut, kind: &str, stored: &Stored) {
        write_frame(frames, kind, |frames| self.encoder.write_object(frames, stored));
        self.encoder.omit_columns();
    }

    fn initial_events(&mut self, found: &[Arc<Stored>]) -> Bytes {
        let mut frames = BytesMut::new();
        for stored in found {
            self.write_event(&mut frames, "ADDED", stored);
        }
        if self.options.bookmarks {
            frames.extend_from_slice(&self.bookmark(true));
        }
        frames.freeze()
    }

    fn bookmark(&mut self, initial: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": self.sent.to_string() });
        if initial {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let mut object = Object::new();
        object.insert("metadata".to_owned(), Value::Object(Object::new()));
        let core = super::resource::of_kind(self.location.resource.kind);
        core.schema.normalize(&mut object);
        object.insert("metadata".to_owned(), metadata);
        let mut frames = BytesMut::new();
        self.write_event(&mut frames, "BOOKMARK", &Stored::unsaved(object));
        frames.freeze()
    }
}

/// The event of a watch that failed.
pub(crate) fn error(status: &Status) -> Bytes {
    let mut frame = BytesMut::new();
    write_frame(&mut frame, "ERROR", |frame| {
        frame.put_slice(status.body().to_string().as_bytes());
    });
    frame.freeze()
}

fn write_frame(frames: &mut BytesMut, kind: &str, object: impl FnOnce(&mut BytesMut)) {
    frames.put_slice(b"{\"type\":\"");
    frames.put_slice(kind.as_bytes());
    frames.put_slice(b"\",\"object\":");
    object(frames);
    frames.put_slice(b"}\n");
}
