//! The calls that an assertion is about.

use std::collections::BTreeMap;

use wildmatch::WildMatch;

use super::filter;
use crate::admin::expectation;
use crate::admin::problem::Refusal;
use crate::admin::request;
use crate::admin_api::resource::{
    Expectation, ExpectationResult, ExpectationStatus, ExpectedCount, Squashed,
};
use crate::fault::ValueMatch;
use crate::journal::{self, Cursor, Filter, Gap, Journal, Memory};
use crate::rpc::code;
use crate::rpc::method;

/// The tracked calls so far.
pub(super) struct Calls<'a> {
    journal: &'a Journal,
    expectation: &'a Expectation,
    volume: Option<WildMatch>,
    cursor: Cursor,
    squashed: Vec<Squashed>,
    counters: Vec<Counter>,
}

/// The calls that an expected count is about.
struct Counter {
    filter: Filter,
    request: BTreeMap<String, ValueMatch>,
    counted: u64,
}

// === impl Counter ===

impl Counter {
    fn of(index: usize, expected: &ExpectedCount) -> Result<Self, Refusal> {
        let field = |refusal: Refusal| refusal.within(&format!("counts[{index}]"));
        let method = Some(expected.method.clone());
        let (volume, node) = (&expected.volume, &expected.node);
        let filter = filter([&method, &expected.code, volume, node, &None]).map_err(field)?;
        let request = match &expected.request {
            None => BTreeMap::new(),
            Some(request) => {
                let field = format!("counts[{index}].request");
                let request = serde_json::from_value(request.clone()).map_err(|error| error.to_string());
                let checked = request.and_then(|request| {
                    ValueMatch::check(&request, &expected.method)?;
                    Ok(request)
                });
                checked.map_err(|reason| Refusal::invalid(field.clone(), format!("{field}: {reason}")))?
            }
        };
        Ok(Self {
            filter,
            request,
            counted: 0,
        })
    }

    fn covers(&self, journal: &Journal, call: &journal::Call) -> bool {
        call.end().is_some()
            && self.filter.covers(call)
            && (self.request.is_empty() || ValueMatch::all(&self.request, &journal.request(call)))
    }
}

// === impl Calls ===

impl<'a> Calls<'a> {
    pub(super) fn new(journal: &'a Journal, expectation: &'a Expectation) -> Result<Self, Refusal> {
        let counts = expectation.counts.iter().enumerate();
        let counters = counts.map(|(index, expected)| Counter::of(index, expected));
        Ok(Self {
            journal,
            expectation,
            volume: request::pattern(expectation.volume.as_deref()),
            cursor: Cursor::after(expectation.after),
            squashed: Vec::new(),
            counters: counters.collect::<Result<_, _>>()?,
        })
    }

    /// Whether no later call can change the status.
    pub(super) fn is_final(&self, status: ExpectationStatus) -> bool {
        match status {
            ExpectationStatus::Mismatch => true,
            ExpectationStatus::Incomplete => false,
            // A call that must not come may come later.
            ExpectationStatus::Complete => self
                .expectation
                .counts
                .iter()
                .all(|count| count.at_most.is_none()),
        }
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
        for (sequence, call) in self.cursor.new_calls(memory) {
            for counter in &mut self.counters {
                counter.counted += u64::from(counter.covers(self.journal, call));
            }
            let method = method::short(&call.method);
            let volume = self.volume.as_ref();
            let about = volume.is_none_or(|volume| volume.matches(call.volume()));
            if let Some(end) = call.end().filter(|_| about && is_tracked(method)) {
                let call = (sequence, method, code::name(end.outcome.code));
                expectation::squash(&mut self.squashed, std::iter::once(call));
            }
        }
        let counted: Vec<u64> = self.counters.iter().map(|counter| counter.counted).collect();
        match self.cursor.gap() {
            Some(gap) => Err(gap),
            None => Ok(expectation::compare(self.expectation, &self.squashed, &counted)),
        }
    }
}
