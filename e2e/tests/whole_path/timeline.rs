//! Timeline: the events of all components in order.

use std::fmt::{Display, Write as _};
use std::time::Duration;

/// The events of one history.
#[derive(Debug, Default)]
pub(crate) struct Timeline(Vec<Event>);

#[derive(Debug)]
struct Event {
    at: Duration,
    /// `None` for events about all volumes.
    volume: Option<String>,
    text: String,
}

// === impl Timeline ===

impl Timeline {
    /// Adds an event of `component` about the volume with this name, or about all volumes.
    pub(crate) fn note(&mut self, at: Duration, component: &str, volume: Option<&str>, text: impl Display) {
        let about = volume.map(|volume| format!("{volume} ")).unwrap_or_default();
        self.0.push(Event {
            at,
            volume: volume.map(str::to_owned),
            text: format!("{component:<12} {about}{text}"),
        });
    }

    /// The events of one volume and those about all volumes; without a volume, all events.
    pub(crate) fn of(&self, volume: Option<&str>) -> String {
        let concerns = |event: &&Event| match (&event.volume, volume) {
            (Some(of), Some(wanted)) => of == wanted,
            (None, _) | (_, None) => true,
        };
        let mut text = String::new();
        for event in self.0.iter().filter(concerns) {
            let at = event.at.as_secs_f64();
            writeln!(text, "{at:>10.3} {}", event.text).expect("writing to a String must succeed");
        }
        text
    }
}
