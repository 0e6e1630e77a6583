//! A number for each state of the search. States that differ only in the numbers of their versions and connections, or in the ages of old times,
//! have the same histories and the same number.

use std::fmt;
use std::hash::{Hash as _, Hasher as _};

/// Takes the `Debug` text of a state that begins with the present time.
#[derive(Default)]
pub(crate) struct Digest {
    text: String,
    versions: Vec<u64>,
    connections: Vec<u64>,
    /// In seconds, without the digits that order times of the same step.
    times: Vec<(u64, u64)>,
    expected: Expected,
}

/// What the next part of the text is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Other,
    /// The text before the number.
    Before(Number),
    Number(Number),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    Version,
    Connection,
    Seconds,
    Nanoseconds,
}

/// No rule of the attacher distinguishes longer times, in seconds. `--assume-unpublished-after` is not set.
const LONGEST: u64 = 100;

// === impl Digest ===

impl Digest {
    pub(super) fn number(&self) -> u64 {
        let versions = sorted(&self.versions);
        let connections = sorted(&self.connections);
        let times = sorted(&self.times);
        let (now, _) = self.times.first().copied().unwrap_or_default();
        let age = |time: &(u64, u64)| (times.binary_search(time), now.saturating_sub(time.0).min(LONGEST));
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(self.text.as_bytes());
        for version in &self.versions {
            versions.binary_search(version).hash(&mut hasher);
        }
        for connection in &self.connections {
            connections.binary_search(connection).hash(&mut hasher);
        }
        for time in &self.times {
            age(time).hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn sorted<T: Copy + Ord>(numbers: &[T]) -> Vec<T> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// `Debug` writes a name, what precedes the number, and the number one by one. Other implementations of it would only make more states
/// differ.
impl fmt::Write for Digest {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let expected = std::mem::take(&mut self.expected);
        match (expected, part) {
            (Expected::Number(number), digits) if let Ok(digits) = digits.parse() => match number {
                Number::Version => self.versions.push(digits),
                Number::Connection => self.connections.push(digits),
                Number::Seconds => self.times.push((digits, 0)),
                Number::Nanoseconds => {
                    if let Some((_, nanoseconds)) = self.times.last_mut() {
                        *nanoseconds = digits;
                    }
                }
            },
            (Expected::Before(number), _) => self.expected = Expected::Number(number),
            (_, "Version") => self.expected = Expected::Before(Number::Version),
            (_, "connection") => self.expected = Expected::Before(Number::Connection),
            (_, "tv_sec") => self.expected = Expected::Before(Number::Seconds),
            (_, "tv_nsec") => self.expected = Expected::Before(Number::Nanoseconds),
            (_, other) => self.text.push_str(other),
        }
        Ok(())
    }
}
