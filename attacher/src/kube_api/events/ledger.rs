//! Which Event is to be written, and when: pure, with `now` as an argument.
//!
//! A notice that repeats the last one of its kind about its object makes the Event of that one count
//! further instead of a new one, and at most every [`FOLD`]. One object may be the cause of few new
//! Events ([`OBJECT_BURST`], then one in [`OBJECT_REFILL`]); beyond that, what happens is folded into the
//! last one, whatever its words. All objects together may cause [`BURST`] requests, then one in
//! [`REFILL`]. What is remembered is bounded ([`OBJECTS`]) and forgotten when the object is gone or
//! nothing has happened to it for a while ([`IDLE`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{Notice, Reason, Regarding};
use crate::model::Uid;

/// How long repeats of a failure are gathered before its Event counts them.
const FOLD: Duration = Duration::from_secs(10);
/// New Events about one object, and how long it takes until it may have one more.
const OBJECT_BURST: u32 = 8;
const OBJECT_REFILL: Duration = Duration::from_secs(60);
/// Requests for all objects together, and how long it takes until there may be one more. An API server
/// that serves a thousand attaches a second hardly notices.
const BURST: u32 = 50;
const REFILL: Duration = Duration::from_millis(100);
/// Objects that are remembered, at some kilobytes each.
const OBJECTS: usize = 1024;
/// Longer than the longest backoff, so that a failure that is still going on stays one Event.
const IDLE: Duration = Duration::from_secs(900);
/// The API server refuses longer messages.
const MESSAGE_BYTES: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    objects: HashMap<Uid, Told>,
    /// What is to be written, by when, and in the order in which it came.
    due: BTreeMap<(Instant, u64), (Uid, Reason)>,
    budget: Option<Bucket>,
    tickets: u64,
    dropped: u64,
}

/// What was told about one object.
#[derive(Debug)]
struct Told {
    regarding: Regarding,
    series: Vec<Series>,
    budget: Bucket,
    last: Instant,
}

/// One Event.
#[derive(Debug)]
struct Series {
    reason: Reason,
    message: String,
    first: Timestamp,
    last: Timestamp,
    count: u32,
    /// Its name, if it was written.
    name: Option<Arc<str>>,
    /// When it was last written.
    written: Option<Instant>,
    due: Option<(Instant, u64)>,
}

/// A request to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) notice: Notice,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    pub(super) count: u32,
    /// The Event that is there already.
    pub(super) known: Option<Arc<str>>,
}

/// Tokens that come back with time.
#[derive(Debug)]
struct Bucket {
    tokens: u32,
    burst: u32,
    refill: Duration,
    since: Instant,
}

// === impl Ledger ===

impl Ledger {
    /// Takes in what happened `at` a time of the calendar.
    pub(super) fn note(&mut self, notice: Notice, at: Timestamp, now: Instant) {
        if !self.make_room(&notice.regarding.uid, now) {
            self.dropped += 1;
            return;
        }
        let Notice {
            regarding,
            reason,
            message,
        } = notice;
        let message = message[..message.floor_char_boundary(MESSAGE_BYTES)].to_owned();
        let uid = regarding.uid.clone();
        let told = self.objects.entry(uid.clone()).or_insert_with(|| Told {
            regarding,
            series: Vec::new(),
            budget: Bucket::new(OBJECT_BURST, OBJECT_REFILL, now),
            last: now,
        });
        if now.saturating_duration_since(std::mem::replace(&mut told.last, now)) >= IDLE {
            told.series.retain(|series| series.due.is_some());
        }
        let known = told.series.iter_mut().find(|series| series.reason == reason);
        let series = match known {
            Some(series) if series.message == message || !told.budget.take(now) => {
                series.message = message;
                series.last = at;
                series.count = series.count.saturating_add(1);
                series
            }
            Some(series) => {
                if let Some(due) = series.due {
                    self.due.remove(&due);
                }
                *series = Series::new(reason, message, at);
                series
            }
            None if told.budget.take(now) => {
                told.series.push(Series::new(reason, message, at));
                told.series
                    .last_mut()
                    .expect("it must be there, as it was just pushed")
            }
            None => {
                self.dropped += 1;
                return;
            }
        };
        if series.due.is_none() {
            self.tickets += 1;
            let at = series.written.map_or(now, |written| now.max(written + FOLD));
            let due = (at, self.tickets);
            series.due = Some(due);
            self.due.insert(due, (uid, reason));
        }
    }

    /// The object is gone. What is to be written of it still is.
    pub(super) fn forget(&mut self, uid: &Uid) {
        let settled = |told: &Told| told.series.iter().all(|series| series.due.is_none());
        if self.objects.get(uid).is_some_and(settled) {
            self.objects.remove(uid);
        } else if let Some(told) = self.objects.get_mut(uid) {
            // Nothing more will happen to it; it goes with the next sweep.
            told.last = told.last.checked_sub(IDLE).unwrap_or(told.last);
        }
    }

    /// Whether anything is remembered of this object.
    pub(super) fn remembers(&self, uid: &Uid) -> bool {
        self.objects.contains_key(uid)
    }

    /// All objects that something is remembered of.
    #[cfg(test)]
    pub(super) fn uids(&self) -> impl Iterator<Item = &Uid> {
        self.objects.keys()
    }

    /// When [`Ledger::start`] is next worth calling.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let ((due, _), _) = self.due.first_key_value()?;
        Some(match &self.budget {
            Some(budget) => (*due).max(budget.next(now)),
            None => *due,
        })
    }

    /// The next request, if one is due and the budget allows for it. It is followed by [`Ledger::done`]
    /// or [`Ledger::lost`].
    pub(super) fn start(&mut self, now: Instant) -> Option<Write> {
        self.due.first_key_value().filter(|((due, _), _)| *due <= now)?;
        let budget = self.budget.get_or_insert_with(|| Bucket::new(BURST, REFILL, now));
        if !budget.take(now) {
            return None;
        }
        let (_, (uid, reason)) = self.due.pop_first()?;
        let told = self.objects.get_mut(&uid)?;
        let series = told.series.iter_mut().find(|series| series.reason == reason)?;
        series.due = None;
        series.written = Some(now);
        Some(Write {
            notice: Notice {
                regarding: told.regarding.clone(),
                reason,
                message: series.message.clone(),
            },
            first: series.first,
            last: series.last,
            count: series.count,
            known: series.name.clone(),
        })
    }

    /// The request succeeded.
    pub(super) fn done(&mut self, write: &Write) {
        let name = write.name();
        if let Some(series) = self.series(write) {
            series.name = Some(name);
        }
    }

    /// The request failed: its Event is not there (any more), and a repeat makes a new one.
    pub(super) fn lost(&mut self, write: &Write) {
        if let Some(series) = self.series(write) {
            series.name = None;
        }
    }

    /// The Event that was to count further is not there any more: a new one is to be made.
    pub(super) fn anew(&mut self, write: &Write, now: Instant) {
        self.tickets += 1;
        let due = (now, self.tickets);
        if let Some(series) = self.series(write) {
            series.name = None;
            series.due = Some(due);
            let Notice {
                regarding, reason, ..
            } = &write.notice;
            self.due.insert(due, (regarding.uid.clone(), *reason));
        }
    }

    /// How many notices could not be told since the last call.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    fn series(&mut self, write: &Write) -> Option<&mut Series> {
        let told = self.objects.get_mut(&write.notice.regarding.uid)?;
        told.series
            .iter_mut()
            .find(|series| series.reason == write.notice.reason && series.first == write.first)
    }

    /// Makes sure that one more object can be remembered.
    fn make_room(&mut self, uid: &Uid, now: Instant) -> bool {
        if self.objects.len() < OBJECTS || self.objects.contains_key(uid) {
            return true;
        }
        let settled = |told: &Told| told.series.iter().all(|series| series.due.is_none());
        self.objects
            .retain(|_, told| !(settled(told) && now.saturating_duration_since(told.last) >= IDLE));
        if self.objects.len() < OBJECTS {
            return true;
        }
        let longest_idle = self
            .objects
            .iter()
            .filter(|(_, told)| settled(told))
            .min_by_key(|(_, told)| told.last)
            .map(|(uid, _)| uid.clone());
        longest_idle.is_some_and(|uid| self.objects.remove(&uid).is_some())
    }
}

// === impl Series ===

impl Series {
    fn new(reason: Reason, message: String, at: Timestamp) -> Self {
        Self {
            reason,
            message,
            first: at,
            last: at,
            count: 1,
            name: None,
            written: None,
            due: None,
        }
    }
}

// === impl Write ===

impl Write {
    /// Whether there is no Event yet.
    pub(super) fn is_new(&self) -> bool {
        self.known.is_none()
    }

    pub(super) fn reason(&self) -> Reason {
        self.notice.reason
    }

    /// Where the Event goes: with its object, or where those of the whole cluster have theirs.
    pub(super) fn namespace(&self) -> Arc<str> {
        let own = self.notice.regarding.namespace.clone();
        own.unwrap_or_else(|| "default".into())
    }

    /// The Event's name: as client-go's, the object's with the time.
    pub(super) fn name(&self) -> Arc<str> {
        /// Of a name, less the dot and the time.
        const LONGEST: usize = 253 - 17;
        if let Some(known) = &self.known {
            return known.clone();
        }
        let object = &self.notice.regarding.name;
        let cut = object[..object.floor_char_boundary(LONGEST)].trim_end_matches(['.', '-']);
        format!("{cut}.{:x}", self.first.as_nanosecond()).into()
    }
}

// === impl Bucket ===

impl Bucket {
    fn new(burst: u32, refill: Duration, now: Instant) -> Self {
        Self {
            tokens: burst,
            burst,
            refill,
            since: now,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since);
        let back = elapsed.as_nanos() / self.refill.as_nanos();
        let back = u32::try_from(back).unwrap_or(u32::MAX);
        if back >= self.burst - self.tokens {
            self.tokens = self.burst;
            self.since = now;
        } else {
            self.tokens += back;
            self.since += self.refill * back;
        }
        let some = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        some
    }

    /// When there is a token.
    fn next(&self, now: Instant) -> Instant {
        if self.tokens > 0 {
            now
        } else {
            self.since + self.refill
        }
    }
}

#[cfg(test)]
mod tests;
