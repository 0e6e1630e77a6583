//! Timeline: the events of all components in order.

use std::fmt::{Display, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The events of one history, and the first violated invariant.
#[derive(Clone, Debug)]
pub(crate) struct Timeline(Arc<Mutex<Events>>);

#[derive(Debug)]
struct Events {
    began: Instant,
    events: Vec<Event>,
    violation: Option<Violation>,
}

#[derive(Debug)]
struct Event {
    at: Duration,
    /// `None` for events about all volumes.
    volume: Option<String>,
    text: String,
}

/// The first violated invariant.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub volume: Option<String>,
    pub text: String,
}

// === impl Timeline ===

impl Timeline {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Events {
            began: Instant::now(),
            events: Vec::new(),
            violation: None,
        })))
    }

    /// Records an event of `component` about the volume with this name, or about all volumes.
    pub(crate) fn note(&self, component: impl Display, volume: Option<&str>, text: impl Display) {
        let mut events = self.lock();
        let at = events.began.elapsed();
        let about = volume.map(|volume| format!("{volume} ")).unwrap_or_default();
        events.events.push(Event {
            at,
            volume: volume.map(str::to_owned),
            text: format!("{component:<12} {about}{text}"),
        });
    }

    /// Records a violated invariant. The first violation ends the history.
    pub(crate) fn violated(&self, volume: Option<&str>, text: impl Display) {
        self.note("INVARIANT", volume, &text);
        self.lock().violation.get_or_insert_with(|| Violation {
            volume: volume.map(str::to_owned),
            text: text.to_string(),
        });
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    /// The events of one volume and those about all volumes; without a volume, all events.
    pub(crate) fn of(&self, volume: Option<&str>) -> String {
        let concerns = |event: &&Event| match (&event.volume, volume) {
            (Some(of), Some(wanted)) => of == wanted,
            (None, _) | (_, None) => true,
        };
        self.lock()
            .events
            .iter()
            .filter(concerns)
            .fold(String::new(), |mut text, event| {
                let at = event.at.as_secs_f64();
                writeln!(text, "{at:>10.3} {}", event.text).expect("writing to a String must succeed");
                text
            })
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
