//! The calls in memory: those that run, the last ones that ended, and counters of all. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use wildmatch::WildMatch;

use super::call::Call;

/// How many bytes of messages are kept, whatever the number of calls: listings are large.
const MAX_BYTES: usize = 64 << 20;

/// Limit of method and code pairs with statistics of their own. CSI has far fewer; a client of the proxy may call any name.
const MAX_STATS: usize = 1000;

/// The method that further ones are counted under.
const OTHER: &str = "other";

/// The upper bounds of the duration counters, in seconds.
pub(crate) const BOUNDS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0];

/// Calls in memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// How many ended calls to keep; 0 keeps none.
    kept: usize,
    /// By the order in which they ended, each with its place in that order.
    ended: VecDeque<(u64, Arc<Call>)>,
    /// The place of the last one that ended.
    last: u64,
    bytes: usize,
    running: BTreeMap<u64, Arc<Call>>,
    stats: BTreeMap<StatsKey, CallStats>,
}

/// Method and code, which have statistics of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatsKey {
    /// The path of the method.
    pub(crate) method: Cow<'static, str>,
    /// The code, as a number.
    pub(crate) code: i32,
}

/// The calls of one method that ended with one code.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallStats {
    /// Number of calls.
    pub(crate) calls: u64,
    /// How long they took together.
    pub(crate) time: Duration,
    /// How many took at most each of the bounds; what took longer is in none.
    pub(crate) within: [u64; BOUNDS.len()],
}

/// Which ended calls are meant. What is absent matches every call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Method, with or without service.
    pub(crate) method: Option<String>,
    pub(crate) code: Option<Code>,
    /// A pattern for the volume, snapshot or name.
    pub(crate) volume: Option<WildMatch>,
    /// A pattern for the node.
    pub(crate) node: Option<WildMatch>,
    /// The fault rule that had a hand in it.
    pub(crate) fault: Option<WildMatch>,
}

/// A look at the calls in memory.
#[derive(Debug)]
pub struct Look<'a>(pub(super) &'a Memory);

/// A reader that sees each ended call once, however often it looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    seen: u64,
}

// === impl Cursor ===

impl Cursor {
    /// Begins after a place in the order of ended calls.
    pub(crate) fn after(place: u64) -> Self {
        Self { seen: place }
    }

    /// The calls that have ended since the last look, oldest first.
    pub(crate) fn new_calls<'a>(
        &mut self,
        look: &Look<'a>,
    ) -> impl Iterator<Item = (u64, &'a Arc<Call>)> + use<'a> {
        let calls = look.after(self.seen);
        self.seen = self.seen.max(look.last());
        calls
    }
}

// === impl StatsKey ===

impl StatsKey {
    /// The method without its service.
    pub(crate) fn short_method(&self) -> &str {
        self.method.rsplit('/').next().unwrap_or_default()
    }
}

// === impl Memory ===

impl Memory {
    pub(super) fn new(kept: usize) -> Self {
        Self {
            kept,
            ended: VecDeque::new(),
            last: 0,
            bytes: 0,
            running: BTreeMap::new(),
            stats: BTreeMap::new(),
        }
    }

    pub(super) fn begin(&mut self, call: Arc<Call>) {
        if self.kept > 0 {
            self.running.insert(call.number, call);
        }
    }

    pub(super) fn end(&mut self, call: &Arc<Call>) {
        if self.kept == 0 {
            return;
        }
        self.running.remove(&call.number);
        self.count(call);
        self.last += 1;
        self.bytes += call.bytes();
        self.ended.push_back((self.last, call.clone()));
        while self.ended.len() > self.kept || (self.bytes > MAX_BYTES && self.ended.len() > 1) {
            if let Some((_, oldest)) = self.ended.pop_front() {
                self.bytes -= oldest.bytes();
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.ended.clear();
        self.bytes = 0;
    }

    fn count(&mut self, call: &Call) {
        let Some(end) = call.end() else { return };
        let mut key = StatsKey {
            method: call.method.clone(),
            code: end.outcome.code.into(),
        };
        if self.stats.len() >= MAX_STATS && !self.stats.contains_key(&key) {
            key.method = Cow::Borrowed(OTHER);
        }
        let time = Duration::try_from(end.time.duration_since(call.start)).unwrap_or_default();
        let stats = self.stats.entry(key).or_default();
        stats.calls += 1;
        stats.time += time;
        for (bound, within) in BOUNDS.iter().zip(&mut stats.within) {
            *within += u64::from(time.as_secs_f64() <= *bound);
        }
    }
}

// === impl Look ===

impl<'a> Look<'a> {
    /// The ended calls after a place in their order, oldest first, each with its own place.
    pub fn after(&self, place: u64) -> impl DoubleEndedIterator<Item = (u64, &'a Arc<Call>)> + use<'a> {
        let ended = &self.0.ended;
        let from = ended.partition_point(|(at, _)| *at <= place);
        ended.range(from..).map(|(at, call)| (*at, call))
    }

    /// The place of the call that ended last; 0 before the first.
    pub fn last(&self) -> u64 {
        self.0.last
    }

    /// The calls that run, oldest first.
    pub fn running(&self) -> impl ExactSizeIterator<Item = &'a Arc<Call>> {
        self.0.running.values()
    }

    /// The counters.
    pub(crate) fn stats(&self) -> &'a BTreeMap<StatsKey, CallStats> {
        &self.0.stats
    }
}

// === impl Filter ===

impl Filter {
    /// Whether a call is meant. One that runs has no code yet.
    pub(crate) fn covers(&self, call: &Call) -> bool {
        let method = |method: &String| *method == call.method || method == call.short_method();
        let code = |code: &Code| call.end().is_some_and(|end| end.outcome.code == *code);
        self.method.as_ref().is_none_or(method)
            && self.code.as_ref().is_none_or(code)
            && self
                .volume
                .as_ref()
                .is_none_or(|pattern| pattern.matches(call.volume()))
            && self
                .node
                .as_ref()
                .is_none_or(|pattern| pattern.matches(call.node()))
            && self
                .fault
                .as_ref()
                .is_none_or(|pattern| call.fault().is_some_and(|fault| pattern.matches(&fault)))
    }
}
