//! Streams of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive, KeepAliveStream};
use futures::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use tokio::time;
use utoipa::IntoParams;

use super::info::counts;
use super::journal::{filter, shown};
use crate::admin::problem::Refusal;
use crate::admin::request::Query;
use crate::admin::state::Admin;
use crate::admin_api::resource::{Call, Changed, Problem};
use crate::journal;

/// The shortest time between two change events, so that pages do not redraw for each call of a busy driver.
const PAUSE: Duration = Duration::from_millis(200);

type Events = Sse<KeepAliveStream<Pin<Box<dyn Stream<Item = Result<Event, Infallible>> + Send>>>>;

/// Filter of calls to stream.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// Calls of this method, with or without its service.
    method: Option<String>,
    /// Calls whose volume id, snapshot id or name matches this pattern with `*` and `?`.
    volume: Option<String>,
    /// Calls whose node id matches this pattern.
    node: Option<String>,
    /// `false` omits requests and responses.
    messages: Option<bool>,
}

/// Streams calls: start (`begin`), response (`end`), and completion after the client disconnected (`late`).
/// A slow client gets the number of lost events (`lost`).
#[utoipa::path(get, path = "/events", tag = "calls", params(EventQuery),
    responses((status = 200, content_type = "text/event-stream", body = Call), (status = "default", body = Problem)))]
pub(super) async fn calls(
    State(admin): State<Admin>,
    Query(query): Query<EventQuery>,
) -> Result<Events, Refusal> {
    let wanted = filter([&query.method, &None, &query.volume, &query.node, &None])?;
    let journal = admin.journal()?.clone();
    let messages = query.messages.unwrap_or(true);
    let received = journal.subscribe();
    let events = stream::unfold(received, |mut received| async move {
        let event = match received.recv().await {
            Ok(event) => Ok(event),
            Err(RecvError::Lagged(missed)) => Err(missed),
            Err(RecvError::Closed) => return None,
        };
        Some((event, received))
    });
    let events = events.filter_map(move |happened| {
        let shown = |name: &str, call: &journal::Call| {
            let shown = wanted
                .covers(call)
                .then(|| shown(&journal, call, None, messages))?;
            Some(event(name, &shown))
        };
        let event = match happened {
            Ok(journal::Event::Begin(call)) => shown("begin", &call),
            Ok(journal::Event::End(call)) => shown("end", &call),
            Ok(journal::Event::Late(call)) => shown("late", &call),
            Err(missed) => Some(Event::default().event("lost").data(missed.to_string())),
        };
        std::future::ready(event.map(Ok))
    });
    Ok(until_stop(&admin, events))
}

/// Streams the object counts: at once, and after each change, at most five times a second. For pages that
/// refresh their data after a change.
#[utoipa::path(get, path = "/changes", tag = "driver",
    responses((status = 200, content_type = "text/event-stream", body = Changed), (status = "default", body = Problem)))]
pub(super) async fn changes(State(admin): State<Admin>) -> Result<Events, Refusal> {
    let mut revision = admin.journal()?.revision();
    revision.mark_changed();
    let followed = admin.clone();
    let events = stream::unfold(revision, move |mut revision| {
        let admin = followed.clone();
        async move {
            revision.changed().await.ok()?;
            // Changes during the pause are reported after it.
            time::sleep(PAUSE).await;
            let number = *revision.borrow_and_update();
            let changed = Changed {
                revision: number,
                counts: counts(&admin).await.ok()?,
            };
            Some((Ok(event("changed", &changed)), revision))
        }
    });
    Ok(until_stop(&admin, events))
}

/// Ends a stream when the driver stops, which would otherwise wait for it.
fn until_stop(
    admin: &Admin,
    events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
) -> Events {
    let stopped = admin.stop.clone().cancelled_owned();
    let events: Pin<Box<dyn Stream<Item = _> + Send>> = Box::pin(events.take_until(Box::pin(stopped)));
    Sse::new(events).keep_alive(KeepAlive::default())
}

fn event(name: &str, data: &impl Serialize) -> Event {
    let data = serde_json::to_string(data).expect("what the API speaks of must be representable as JSON");
    Event::default().event(name).data(data)
}
