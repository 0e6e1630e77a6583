//! The calls that an assertion is about.

use std::collections::BTreeMap;

use serde_json::Value;
use wildmatch::WildMatch;

use super::filter;
use crate::admin::expectation::{self, Came, Counted};
use crate::admin::problem::Refusal;
use crate::admin::request;
use crate::admin_api::resource::{Comparison, Expectation, ExpectationResult, ExpectationStatus};
use crate::fault::ValueMatch;
use crate::journal::{self, Cursor, Filter, Gap, Journal, Memory};
use crate::rpc::code;
use crate::rpc::method::{self, Method};

/// The tracked calls so far.
pub(super) struct Calls<'a> {
    journal: &'a Journal,
    expectation: &'a Expectation,
    volume: Option<WildMatch>,
    cursor: Cursor,
    squashed: Vec<Came>,
    counters: Vec<Counter>,
    /// Those of the expected calls.
    matchers: Vec<Matcher>,
}

/// The calls that an expected count is about.
struct Counter {
    matcher: Matcher,
    counted: u64,
}

struct Matcher {
    filter: Filter,
    request: BTreeMap<String, ValueMatch>,
}

// === impl Matcher ===

impl Matcher {
    /// `field` names the conditions in errors: method, code, volume and node, and those on the request.
    fn of(field: &str, wanted: [&Option<String>; 4], request: Option<&Value>) -> Result<Self, Refusal> {
        let [method, code, volume, node] = wanted;
        let filter = filter([method, code, volume, node, &None]).map_err(|refusal| refusal.within(field))?;
        let request = match request {
            None => BTreeMap::new(),
            Some(request) => {
                let field = format!("{field}.request");
                let request = serde_json::from_value(request.clone()).map_err(|error| error.to_string());
                // A proxy may forward methods that the driver does not know.
                let known = method.as_deref().and_then(|method| method.parse::<Method>().ok());
                let checked = request.and_then(|request| {
                    let checked = ValueMatch::check(&request, known.as_slice());
                    checked.map_err(|(path, reason)| format!("{path}: {reason}"))?;
                    Ok(request)
                });
                checked.map_err(|reason| Refusal::invalid(field.clone(), format!("{field}: {reason}")))?
            }
        };
        Ok(Self { filter, request })
    }

    /// Whether a call matches. A running call has no code yet.
    fn covers(&self, journal: &Journal, call: &journal::Call) -> bool {
        self.filter.covers(call)
            && (self.request.is_empty() || ValueMatch::all(&self.request, &journal.full_request(call)))
    }
}

// === impl Calls ===

impl<'a> Calls<'a> {
    pub(super) fn new(journal: &'a Journal, expectation: &'a Expectation) -> Result<Self, Refusal> {
        let counts = expectation.counts.iter().enumerate();
        let counters = counts.map(|(index, count)| {
            let wanted = [
                &Some(count.method.clone()),
                &count.code,
                &count.volume,
                &count.node,
            ];
            let matcher = Matcher::of(&format!("counts[{index}]"), wanted, count.request.as_ref())?;
            Ok::<_, Refusal>(Counter { matcher, counted: 0 })
        });
        let expected = expectation.expected.iter().enumerate();
        let matchers = expected.map(|(index, call)| {
            let (method, code) = (Some(call.method.clone()), Some(call.code.clone()));
            let wanted = [&method, &code, &call.volume, &call.node];
            Matcher::of(&format!("expected[{index}]"), wanted, call.request.as_ref())
        });
        Ok(Self {
            journal,
            expectation,
            volume: request::pattern(expectation.volume.as_deref()),
            cursor: journal.read(|memory| Cursor::after(expectation.after, memory)),
            squashed: Vec::new(),
            counters: counters.collect::<Result<_, _>>()?,
            matchers: matchers.collect::<Result<_, _>>()?,
        })
    }

    /// Whether no later call can change the status.
    pub(super) fn is_final(&self, status: ExpectationStatus) -> bool {
        match status {
            ExpectationStatus::Mismatch => true,
            ExpectationStatus::Incomplete => false,
            // A call that must not come may come later.
            ExpectationStatus::Complete => {
                let mut counts = self.expectation.counts.iter();
                !self.forbids_tracked() && counts.all(|count| count.at_most.is_none())
            }
        }
    }

    /// Whether no call of the tracked methods is expected.
    fn forbids_tracked(&self) -> bool {
        let tracked = self.expectation.tracked.as_ref();
        self.expectation.expected.is_empty() && tracked.is_some_and(|tracked| !tracked.is_empty())
    }

    /// Adds the calls that finished since the last comparison, and compares all with the expected calls.
    ///
    /// # Errors
    /// Some of them were dropped before.
    pub(super) fn compare(&mut self, memory: &Memory) -> Result<ExpectationResult, Gap> {
        let Expectation {
            expected, tracked, ..
        } = self.expectation;
        let is_tracked = |method: &str| match tracked {
            Some(tracked) => tracked.iter().any(|name| method::short(name) == method),
            None => expected
                .iter()
                .any(|expected| method::short(&expected.method) == method),
        };
        let volume = self.volume.as_ref();
        let is_about = |call: &journal::Call| volume.is_none_or(|volume| volume.matches(call.volume()));
        let calls = self.cursor.new_calls(memory);
        for (sequence, call) in calls.filter(|(_, call)| is_about(call)) {
            for counter in &mut self.counters {
                counter.counted += u64::from(counter.matcher.covers(self.journal, call));
            }
            let method = method::short(&call.method);
            if let Some(end) = call.end().filter(|_| is_tracked(method)) {
                let code = code::name(end.status.code());
                let is_unfit = |(index, matcher): (usize, &Matcher)| {
                    let expected = &self.expectation.expected[index];
                    let is_alike = method::short(&expected.method) == method && expected.code == code;
                    (is_alike && !matcher.covers(self.journal, call)).then_some(index)
                };
                let unfit = self.matchers.iter().enumerate().filter_map(is_unfit).collect();
                expectation::squash(&mut self.squashed, sequence, method, code, unfit);
            }
        }
        let running = || memory.running().filter(|call| is_about(call));
        let counted = self.counters.iter().map(|counter| Counted {
            ended: counter.counted,
            running: running()
                .filter(|call| counter.matcher.covers(self.journal, call))
                .count() as u64,
        });
        let counted: Vec<Counted> = counted.collect();
        if let Some(gap) = self.cursor.gap() {
            return Err(gap);
        }
        let mut result = expectation::compare(self.expectation, &self.squashed, &counted);
        let forbidden = running().find(|call| is_tracked(method::short(&call.method)));
        if let Some(call) = forbidden.filter(|_| self.forbids_tracked()) {
            let came = format!("{} in flight", method::short(&call.method));
            if result.status != ExpectationStatus::Mismatch {
                result.status = ExpectationStatus::Mismatch;
                result.message = format!("{came}, but no call is expected");
            }
            result.comparison.push(Comparison {
                expected: None,
                came: Some(came),
                agrees: false,
            });
        }
        Ok(result)
    }
}
