//! Prints, line by line and in real time, what each component on the attach/detach path does.
//!
//! Translators ([`attachment`], [`call`], [`object`]) are pure functions from changes to sentences. The [`Narrator`] follows the
//! sources, sorts the sentences and prints them.
//!
//! Sources differ in their delay: the journals of driver and nodes have timestamps, while a watch event may arrive after other
//! components have acted on the change. The narrator therefore buffers lines for a short time and prints them by timestamp.

pub mod attachment;
mod buffer;
pub mod call;
mod names;
pub mod object;
mod pace;
mod source;

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use buffer::Buffer;
pub use names::Names;
pub(crate) use pace::Pace;

use csi_e2e::mutex::lock;
use csi_e2e::scenario::TestEnv;

/// How long a line is buffered, so that a line with an earlier timestamp can be printed before it.
const HOLD: Duration = Duration::from_millis(250);
/// Interval at which due lines are printed.
const PRINT: Duration = Duration::from_millis(50);
/// Maximum lag of a watch behind components that act on the same change. It is subtracted from the time of a watch event that
/// is a cause, so that it is printed before its effect.
const WATCH_LAG: SignedDuration = SignedDuration::from_millis(20);
/// Time to read a character.
const READING_TIME: Duration = Duration::from_millis(40);

/// The component that acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The user, whose actions the story performs.
    You,
    /// kube-scheduler.
    Scheduler,
    /// The attach/detach controller in kube-controller-manager.
    AttachDetach,
    /// Our attacher.
    Attacher,
    /// The CSI driver.
    Driver,
    /// The kubelet of a node.
    Kubelet(String),
    /// The API server and its garbage collection.
    Api,
}

/// A sentence about an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Time of the event; approximate for watch events.
    pub at: Timestamp,
    /// The component that caused it.
    pub actor: Actor,
    /// Names of the affected volumes; empty if all volumes are affected.
    pub volumes: Vec<String>,
    /// The sentence.
    pub text: String,
}

/// A sentence about a watch event, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narration {
    /// The component that changed the object.
    pub actor: Actor,
    /// The sentence.
    pub text: String,
    /// Whether other components act on the change, perhaps before this process sees it.
    pub is_cause: bool,
}

/// A printed line.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineRow {
    /// Seconds since the narrator started.
    pub at: f64,
    /// The component.
    pub actor: String,
    /// The affected volumes; empty if all volumes are affected.
    pub volumes: Vec<String>,
    /// Description.
    pub text: String,
}

/// Prints lines by timestamp.
#[derive(Clone)]
pub struct Narrator {
    buffer: Arc<Mutex<Buffer>>,
    pace: Pace,
}

/// The tasks that follow one test environment. Dropping it ends them.
pub struct Following(JoinSet<()>);

/// A message of a gRPC error as users read it: `RESOURCE_EXHAUSTED: full` in place of `rpc error: code = ResourceExhausted
/// desc = full`.
pub(crate) fn without_rpc_prefix(message: &str) -> String {
    let parts = message.split_once("rpc error: code = ");
    let Some((before, (code, text))) =
        parts.and_then(|(before, error)| Some((before, error.split_once(" desc = ")?)))
    else {
        return message.to_owned();
    };
    let mut name = String::new();
    for character in code.chars() {
        if character.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(character.to_uppercase());
    }
    format!("{before}{name}: {text}")
}

// === impl Actor ===

impl Actor {
    fn name(&self) -> String {
        match self {
            Self::You => "you".to_owned(),
            Self::Scheduler => "scheduler".to_owned(),
            Self::AttachDetach => "attach/detach controller".to_owned(),
            Self::Attacher => "attacher".to_owned(),
            Self::Driver => "driver".to_owned(),
            Self::Kubelet(node) => format!("kubelet on {node}"),
            Self::Api => "kubernetes".to_owned(),
        }
    }

    /// The component's colour on a terminal.
    fn colour(&self) -> &'static str {
        match self {
            Self::You => "1",
            Self::Scheduler | Self::Api => "34",
            Self::AttachDetach => "36",
            Self::Attacher => "1;32",
            Self::Driver => "35",
            Self::Kubelet(_) => "33",
        }
    }
}

// === impl Narration ===

impl Narration {
    pub(crate) fn cause(actor: Actor, text: String) -> Self {
        Self {
            actor,
            text,
            is_cause: true,
        }
    }

    pub(crate) fn effect(actor: Actor, text: String) -> Self {
        Self {
            actor,
            text,
            is_cause: false,
        }
    }
}

// === impl Narrator ===

impl Narrator {
    /// A narrator that prints to stdout, in colour on a terminal.
    pub fn on_stdout() -> Self {
        let stdout = std::io::stdout();
        Self::new(stdout.is_terminal(), Box::new(stdout), Timestamp::now())
    }

    /// A narrator that prints to `out`, without colours.
    pub fn to(out: Box<dyn Write + Send>) -> Self {
        Self::new(false, out, Timestamp::now())
    }

    /// Pauses after each heading until a user who reads `speed` times as fast as most has read it.
    #[must_use]
    pub fn with_speed(self, speed: f64) -> Self {
        self.buffer().reading_time = READING_TIME.div_f64(speed);
        self
    }

    /// From `at` on, this replica of the attacher is the leader.
    pub(crate) fn set_leader(&self, at: Timestamp, replica: &str) {
        self.buffer().leaders.insert(at, replica.to_owned());
    }

    /// Its pace.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    fn new(colour: bool, out: Box<dyn Write + Send>, began: Timestamp) -> Self {
        Self {
            buffer: Arc::new(Mutex::new(Buffer::new(colour, out, began))),
            pace: Pace::new(),
        }
    }

    /// Buffers a line until it is due.
    pub fn take(&self, line: Line) {
        self.buffer().take(line);
    }

    /// Buffers a line about a watch event that arrived at `at`. A cause is moved back by [`WATCH_LAG`], but not before an
    /// earlier watch event: the API server's order holds among watch events.
    pub(crate) fn take_watched(&self, at: Timestamp, volumes: Vec<String>, narration: Narration) {
        let mut buffer = self.buffer();
        let at = if narration.is_cause {
            buffer.last_effect(&volumes).max(at - WATCH_LAG)
        } else {
            buffer.record_effect(&volumes, at);
            at
        };
        buffer.take(Line {
            at,
            actor: narration.actor,
            volumes,
            text: narration.text,
        });
    }

    /// Adds a line about an action of the user that affects all volumes.
    pub fn you(&self, text: &str) {
        self.you_to(Vec::new(), text);
    }

    /// Adds a line about an action of the user that affects these volumes; all, if there are none.
    pub(crate) fn you_to(&self, volumes: Vec<String>, text: &str) {
        self.take(Line {
            at: Timestamp::now(),
            actor: Actor::You,
            volumes,
            text: text.to_owned(),
        });
    }

    /// Seconds since the narrator started.
    pub(crate) fn elapsed(&self) -> f64 {
        self.buffer().since(Timestamp::now())
    }

    /// The last heading, and the last lines that were printed.
    pub(crate) fn timeline(&self) -> (String, Vec<TimelineRow>) {
        let buffer = self.buffer();
        (buffer.chapter.clone(), buffer.printed.iter().cloned().collect())
    }

    /// Prints all lines with timestamps up to `until`. The timeline also has the lines that could not be written.
    pub fn print(&self, until: Timestamp) -> Result<()> {
        let mut buffer = self.buffer();
        let later = buffer.buffered.split_off(&(until, u64::MAX));
        let due = std::mem::replace(&mut buffer.buffered, later);
        let mut written = Ok(());
        for line in due.into_values() {
            let text = buffer.format(&line);
            buffer.keep(line);
            written = written.and_then(|()| writeln!(buffer.out, "{text}"));
        }
        written
            .and_then(|()| buffer.out.flush())
            .context("write to the terminal")
    }

    /// Prints all buffered lines, then a heading.
    pub async fn heading(&self, text: &str) -> Result<()> {
        // Lines of the previous chapter may still be buffered.
        tokio::time::sleep(HOLD).await;
        self.print(Timestamp::now())?;
        let reading_time = self.buffer().write_heading(text)?;
        tokio::time::sleep(reading_time).await;
        Ok(())
    }

    /// Follows a test environment until the returned value is dropped.
    pub fn follow(&self, env: &TestEnv<'_>) -> Result<Following> {
        let mut tasks = JoinSet::new();
        source::follow(self, env, &mut tasks)?;
        let narrator = self.clone();
        tasks.spawn(async move {
            let mut ticks = interval(PRINT);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = narrator.print(Timestamp::now() - HOLD) {
                    tracing::debug!(error = %format!("{error:#}"), "cannot print the narration");
                }
            }
        });
        Ok(Following(tasks))
    }

    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        lock(&self.buffer)
    }
}

// === impl Following ===

impl Following {
    /// Ends the tasks.
    pub async fn end(mut self) {
        self.0.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::buffer::KEPT_LINES;
    use super::*;

    /// An output that the test can read.
    #[derive(Clone, Default)]
    struct SharedOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millisecond).unwrap()
    }

    fn line(millisecond: i64, text: &str) -> Line {
        Line {
            at: at(millisecond),
            actor: Actor::Attacher,
            volumes: vec!["data".to_owned()],
            text: text.to_owned(),
        }
    }

    #[test]
    fn grpc_errors_are_short() {
        for (message, expected) in [
            ("the port is locked", "the port is locked"),
            (
                "rpc error: code = Internal desc = the port is locked",
                "INTERNAL: the port is locked",
            ),
            (
                "failed: rpc error: code = ResourceExhausted desc = full",
                "failed: RESOURCE_EXHAUSTED: full",
            ),
            ("rpc error: code = Internal", "rpc error: code = Internal"),
        ] {
            assert_eq!(without_rpc_prefix(message), expected);
        }
    }

    #[test]
    fn prints_due_lines_by_timestamp() {
        let output = SharedOutput::default();
        let narrator = Narrator::new(false, Box::new(output.clone()), at(0));
        for line in [line(2_000, "second"), line(1_000, "first"), line(3_000, "third")] {
            narrator.take(line);
        }
        narrator.print(at(2_500)).unwrap();
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let printed: Vec<_> = text
            .lines()
            .map(|line| line.split_whitespace().last().unwrap())
            .collect();
        assert_eq!(printed, ["first", "second"], "{text}");
        assert!(text.starts_with("    1.00s  attacher"), "{text}");
    }

    #[test]
    fn lines_with_equal_timestamps_keep_their_order() {
        let output = SharedOutput::default();
        let narrator = Narrator::new(false, Box::new(output.clone()), at(0));
        for text in ["a", "b", "c"] {
            narrator.take(line(1_000, text));
        }
        narrator.print(at(1_000)).unwrap();
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let printed: String = text.lines().filter_map(|line| line.chars().last()).collect();
        assert_eq!(printed, "abc");
    }

    /// The texts of the timeline after watch events at these milliseconds.
    fn narrated(events: &[(i64, Narration)]) -> Vec<String> {
        let narrator = Narrator::new(false, Box::new(SharedOutput::default()), at(0));
        for (millisecond, narration) in events {
            narrator.take_watched(at(*millisecond), vec!["data".to_owned()], narration.clone());
        }
        narrator.print(at(10_000)).unwrap();
        narrator.timeline().1.into_iter().map(|row| row.text).collect()
    }

    #[test]
    fn watch_events_keep_their_order() {
        let effect = |text: &str| Narration::effect(Actor::Attacher, text.to_owned());
        let cause = |text: &str| Narration::cause(Actor::AttachDetach, text.to_owned());
        let events = [
            (1_000, effect("reports no volume in use")),
            (1_005, cause("reports that data is about to be detached")),
            (1_010, cause("deletes VolumeAttachment csi-1")),
            (1_500, effect("removes its finalizer")),
        ];
        let expected: Vec<_> = events.iter().map(|(_, event)| event.text.clone()).collect();
        assert_eq!(narrated(&events), expected);
    }

    #[test]
    fn cause_is_printed_before_the_call_that_it_causes() {
        let narrator = Narrator::new(false, Box::new(SharedOutput::default()), at(0));
        narrator.take(line(1_000, "calls ControllerUnpublishVolume"));
        let deleted = Narration::cause(Actor::AttachDetach, "deletes VolumeAttachment csi-1".to_owned());
        narrator.take_watched(at(1_010), vec!["data".to_owned()], deleted);
        narrator.print(at(10_000)).unwrap();
        let (_, timeline) = narrator.timeline();
        assert!(timeline[0].text.starts_with("deletes"), "{timeline:?}");
    }

    #[test]
    fn timeline_continues_after_the_output_is_closed() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let narrator = Narrator::new(false, Box::new(Closed), at(0));
        for text in ["a", "b", "c"] {
            narrator.take(line(1_000, text));
        }
        assert!(narrator.print(at(2_000)).is_err());
        assert_eq!(narrator.timeline().1.len(), 3);
    }

    #[test]
    fn printed_lines_are_kept_for_the_timeline() {
        let narrator = Narrator::new(false, Box::new(SharedOutput::default()), at(0));
        narrator.take(line(1_500, "reports csi-1 attached"));
        assert!(narrator.timeline().1.is_empty());
        narrator.print(at(2_000)).unwrap();
        let row = TimelineRow {
            at: 1.5,
            actor: "attacher".to_owned(),
            volumes: vec!["data".to_owned()],
            text: "reports csi-1 attached".to_owned(),
        };
        assert_eq!(narrator.timeline().1, std::slice::from_ref(&row));
        for millisecond in 0..KEPT_LINES {
            narrator.take(line(3_000 + millisecond as i64, "later"));
        }
        narrator.print(at(10_000)).unwrap();
        let (_, kept) = narrator.timeline();
        assert!(kept.len() == KEPT_LINES && !kept.contains(&row));
    }
}
