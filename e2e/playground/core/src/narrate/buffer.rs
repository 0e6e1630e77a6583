//! The lines of a narrator: buffered in the order of their timestamps, and printed.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;

use super::{Actor, Line, TimelineRow};

/// Maximum number of printed lines in the timeline.
pub(super) const KEPT_LINES: usize = 1000;
/// Width of the column with the component's name.
const ACTOR_WIDTH: usize = 24;

/// The lines that are not printed yet, and the output.
pub(super) struct Buffer {
    began: Timestamp,
    pub(super) buffered: BTreeMap<(Timestamp, u64), Line>,
    taken: u64,
    /// Time of each volume's last watch event that is not a cause. The empty name stands for events without a volume.
    effects: BTreeMap<String, Timestamp>,
    /// Which replica of the attacher leads, from a time on. Empty without replicas.
    pub(super) leaders: BTreeMap<Timestamp, String>,
    pub(super) printed: VecDeque<TimelineRow>,
    pub(super) chapter: String,
    /// Pause after a heading, for each character.
    pub(super) reading_time: Duration,
    colour: bool,
    pub(super) out: Box<dyn Write + Send>,
}

// === impl Buffer ===

impl Buffer {
    pub(super) fn new(colour: bool, out: Box<dyn Write + Send>, began: Timestamp) -> Self {
        Self {
            began,
            buffered: BTreeMap::new(),
            taken: 0,
            effects: BTreeMap::new(),
            leaders: BTreeMap::new(),
            printed: VecDeque::new(),
            chapter: String::new(),
            reading_time: Duration::ZERO,
            colour,
            out,
        }
    }

    pub(super) fn take(&mut self, line: Line) {
        self.buffered.insert((line.at, self.taken), line);
        self.taken += 1;
    }

    pub(super) fn last_effect(&self, volumes: &[String]) -> Timestamp {
        let all = std::iter::once("");
        let names = volumes.iter().map(String::as_str).chain(all);
        let times = names.filter_map(|name| self.effects.get(name).copied());
        times.max().unwrap_or(Timestamp::MIN)
    }

    pub(super) fn record_effect(&mut self, volumes: &[String], at: Timestamp) {
        if volumes.is_empty() {
            self.effects.insert(String::new(), at);
        }
        self.effects
            .extend(volumes.iter().map(|volume| (volume.clone(), at)));
    }

    pub(super) fn write_heading(&mut self, text: &str) -> Result<Duration> {
        text.clone_into(&mut self.chapter);
        let heading = if self.colour {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        };
        writeln!(self.out, "\n{heading}").context("write to the terminal")?;
        let characters = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Ok(self.reading_time.saturating_mul(characters))
    }

    pub(super) fn keep(&mut self, line: Line) {
        if self.printed.len() == KEPT_LINES {
            self.printed.pop_front();
        }
        let row = TimelineRow {
            at: self.since(line.at),
            actor: self.actor(&line),
            volumes: line.volumes,
            text: line.text,
        };
        self.printed.push_back(row);
    }

    /// The component, and which replica of it.
    fn actor(&self, line: &Line) -> String {
        let name = line.actor.name();
        match self.leaders.range(..=line.at).next_back() {
            Some((_, leader)) if line.actor == Actor::Attacher => format!("{name} {leader}"),
            _ => name,
        }
    }

    pub(super) fn since(&self, at: Timestamp) -> f64 {
        at.duration_since(self.began).as_secs_f64().max(0.0)
    }

    pub(super) fn format(&self, line: &Line) -> String {
        let since = self.since(line.at);
        let name = self.actor(line);
        let (on, off) = if self.colour {
            (format!("\x1b[{}m", line.actor.colour()), "\x1b[0m")
        } else {
            (String::new(), "")
        };
        format!("{since:8.2}s  {on}{name:<ACTOR_WIDTH$}{off}  {}", line.text)
    }
}
