//! Calls in memory: running ones, the last ended ones, and statistics of all. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, HistogramOpts};
use tonic::Code;
use wildmatch::WildMatch;

use super::call::Call;
use crate::rpc::{code, method};

/// Maximum number of bytes of stored messages, for any number of calls: responses of lists are large.
const MAX_BYTES: usize = 64 << 20;

/// Maximum number of histograms by method and code. CSI has far fewer; a client of the proxy may call any method.
const MAX_HISTOGRAMS: usize = 1000;

/// The method of histograms beyond that.
const OTHER: &str = "other";

/// Upper bounds of a histogram's buckets in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0];

#[derive(Debug)]
pub(crate) struct Memory {
    kept: usize,
    /// Ended calls with their sequence numbers, in the order of their ends.
    ended: VecDeque<(u64, Arc<Call>)>,
    /// The sequence number of the last ended call; 0 before the first.
    pub(crate) last: u64,
    /// The sequence number of the last call that is not in memory any more; 0 if all are.
    dropped: u64,
    /// The sequence number of the last call before the journal was cleared.
    cleared: u64,
    bytes: usize,
    running: BTreeMap<u64, Arc<Call>>,
    /// Durations of the ended calls, by method without service and by the name of the code.
    pub(crate) durations: BTreeMap<(String, &'static str), Histogram>,
    #[cfg(test)]
    pub(crate) visited: std::cell::Cell<u64>,
}

/// A filter of ended calls. Absent fields match every call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) method: Option<String>,
    pub(crate) code: Option<Code>,
    /// Only errors, whatever their code.
    pub(crate) failed: bool,
    /// Pattern of the volume id, snapshot id or name.
    pub(crate) volume: Option<WildMatch>,
    pub(crate) node: Option<WildMatch>,
    pub(crate) fault: Option<WildMatch>,
}

/// A position in the ended calls, so that a reader gets each call once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    seen: u64,
    gap: Option<Gap>,
}

/// The calls that a reader missed because they are not in memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the journal has gaps: calls {first} to {last} are not in memory any more, so nothing can be said about them; clear the \
     journal before the test and not while it runs, set after to {last} or more, or raise --journal-size"
)]
pub(crate) struct Gap {
    first: u64,
    last: u64,
}

// === impl Cursor ===

impl Cursor {
    /// Begins after a sequence number. 0: after the last call that the journal was cleared of.
    pub(crate) fn after(sequence: u64, memory: &Memory) -> Self {
        Self {
            seen: if sequence == 0 { memory.cleared } else { sequence },
            gap: None,
        }
    }

    /// The calls that were dropped before this reader has seen them.
    pub(crate) fn gap(&self) -> Option<Gap> {
        self.gap
    }

    /// The calls that ended since the last read, oldest first.
    pub(crate) fn new_calls<'a>(
        &mut self,
        memory: &'a Memory,
    ) -> impl Iterator<Item = (u64, &'a Arc<Call>)> + use<'a> {
        let calls = memory.after(self.seen);
        if self.seen < memory.dropped {
            self.gap.get_or_insert(Gap {
                first: self.seen + 1,
                last: memory.dropped,
            });
        }
        self.seen = self.seen.max(memory.last);
        calls
    }
}

// === impl Memory ===

impl Memory {
    pub(super) fn new(kept: usize) -> Self {
        Self {
            kept,
            ended: VecDeque::new(),
            last: 0,
            dropped: 0,
            cleared: 0,
            bytes: 0,
            running: BTreeMap::new(),
            durations: BTreeMap::new(),
            #[cfg(test)]
            visited: std::cell::Cell::default(),
        }
    }

    pub(super) fn begin(&mut self, call: Arc<Call>) {
        self.running.insert(call.number, call);
    }

    /// Calls from before a reset are not recorded.
    pub(super) fn end(&mut self, call: &Arc<Call>) {
        if self.running.remove(&call.number).is_none() {
            return;
        }
        self.count(call);
        self.last += 1;
        self.bytes += call.bytes();
        self.ended.push_back((self.last, call.clone()));
        while self.ended.len() > self.kept || (self.bytes > MAX_BYTES && self.ended.len() > 1) {
            if let Some((sequence, oldest)) = self.ended.pop_front() {
                self.dropped = sequence;
                self.bytes -= oldest.bytes();
            }
        }
    }

    pub(super) fn reset(&mut self) {
        self.running.clear();
        self.durations.clear();
        self.clear();
    }

    pub(super) fn clear(&mut self) {
        self.ended.clear();
        (self.dropped, self.cleared) = (self.last, self.last);
        self.bytes = 0;
    }

    /// The ended calls after a sequence number, oldest first, with their numbers.
    pub(crate) fn after(&self, sequence: u64) -> impl DoubleEndedIterator<Item = (u64, &Arc<Call>)> {
        let ended = &self.ended;
        let from = ended.partition_point(|(at, _)| *at <= sequence);
        ended.range(from..).map(|(at, call)| {
            #[cfg(test)]
            self.visited.update(|visited| visited + 1);
            (*at, call)
        })
    }

    pub(crate) fn running(&self) -> impl ExactSizeIterator<Item = &Arc<Call>> {
        self.running.values()
    }

    fn count(&mut self, call: &Call) {
        let Some(end) = call.end() else { return };
        let mut key = (
            method::short(&call.method).to_owned(),
            code::name(end.status.code()),
        );
        if self.durations.len() >= MAX_HISTOGRAMS && !self.durations.contains_key(&key) {
            OTHER.clone_into(&mut key.0);
        }
        let time = Duration::try_from(end.time.duration_since(call.start)).unwrap_or_default();
        let times = self.durations.entry(key);
        let times = times.or_insert_with_key(|(method, code)| histogram(method, code));
        times.observe(time.as_secs_f64());
    }
}

fn histogram(method: &str, code: &str) -> Histogram {
    let help = "Duration of calls in seconds, from request to response.";
    let options = HistogramOpts::new("csi_mock_call_duration_seconds", help)
        .buckets(BOUNDS.to_vec())
        .const_label("method", method)
        .const_label("code", code);
    Histogram::with_opts(options).expect("a histogram's name, labels and bounds must be valid")
}

// === impl Filter ===

impl Filter {
    /// Whether a call matches. A running call has no code yet.
    pub(crate) fn covers(&self, call: &Call) -> bool {
        let method = |method: &String| *method == call.method || method == method::short(&call.method);
        let code = call.end().map(|end| end.status.code());
        self.method.as_ref().is_none_or(method)
            && self.code.is_none_or(|wanted| code == Some(wanted))
            && (!self.failed || code.is_some_and(|code| code != Code::Ok))
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
