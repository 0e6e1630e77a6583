//! Counts requests and collects differences.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::generator::Sequence;
use super::generator::subresources::{NAMED_ONLY, PROTOBUF, SUBRESOURCES};
use super::kinds::{self, Kind};
use super::request::{BOOKMARKS, Request};
use super::server::ServerResponse;
use super::session::Compared;

/// Minimum percentage of refused requests.
const INVALID_SHARE: u64 = 30;
/// From this number of requests on, no cell of the table may be empty.
const COMPLETE_REQUESTS: u64 = 100_000;
/// Actions of every kind.
const ACTIONS: [&str; 11] = [
    "POST",
    "PUT",
    "PATCH merge",
    "PATCH json",
    "PATCH strategic",
    "GET",
    "LIST",
    "WATCH",
    BOOKMARKS,
    "DELETE",
    COLLECTION,
];
const COLLECTION: &str = "DELETE collection";
/// Actions of kinds with a status.
const STATUS_ACTIONS: [&str; 5] = [
    "PUT status",
    "PATCH merge status",
    "PATCH json status",
    "PATCH strategic status",
    "GET status",
];

pub(crate) struct Report {
    /// Number of responses by kind, action and code.
    counts: BTreeMap<(String, &'static str), BTreeMap<u16, u64>>,
    explained: BTreeMap<&'static str, u64>,
    /// Number of differences by signature.
    signatures: BTreeMap<String, u64>,
    shown: Vec<String>,
}

/// Different responses to one request.
pub(crate) struct Difference {
    pub(crate) index: usize,
    pub(crate) ours: ServerResponse,
    pub(crate) real: ServerResponse,
}

// === impl Report ===

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            counts: BTreeMap::new(),
            explained: BTreeMap::new(),
            signatures: BTreeMap::new(),
            shown: Vec::new(),
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.counts.values().flat_map(BTreeMap::values).sum()
    }

    pub(crate) fn differences(&self) -> usize {
        self.signatures.len()
    }

    pub(crate) fn add(&mut self, sequence: &Sequence, compared: &Compared) {
        for (request, code) in sequence.requests.iter().zip(&compared.codes) {
            let row = self
                .counts
                .entry((request.kind.clone(), request.action))
                .or_default();
            *row.entry(*code).or_default() += 1;
        }
        for reason in &compared.explained {
            *self.explained.entry(reason).or_default() += 1;
        }
    }

    /// Counts a difference; returns whether it is the first of its kind.
    pub(crate) fn count(&mut self, request: &Request, difference: &Difference) -> bool {
        let count = self.signatures.entry(difference.signature(request)).or_default();
        *count += 1;
        *count == 1
    }

    /// Adds a difference, with the requests before it that it needs, and returns it as text.
    pub(crate) fn add_difference(
        &mut self,
        seed: u64,
        request: &Request,
        difference: &Difference,
        before: &[Request],
    ) -> &str {
        let title = format!("DIFFERENTIAL_SEED={seed} request {}", difference.index);
        self.shown.push(difference.shown(&title, request, before));
        self.shown.last().map_or("", String::as_str)
    }

    /// The cells of the table, kind and action with success or refusal, that no request reached.
    fn empty_cells(&self) -> Vec<String> {
        let mut empty = Vec::new();
        for (kind, action) in kinds::ALL.iter().flat_map(rows) {
            let codes = self.counts.get(&(kind.clone(), action));
            let has =
                |wanted: fn(u16) -> bool| codes.is_some_and(|codes| codes.keys().any(|code| wanted(*code)));
            // A sequence ends with valid reads up to a bookmark.
            if action != BOOKMARKS && !has(|code| code >= 400) {
                empty.push(format!("{kind} {action} refused"));
            }
            // Namespaces cannot be deleted as a collection.
            let impossible = kind == "Namespace" && action == COLLECTION;
            if !impossible && !has(|code| code < 300) {
                empty.push(format!("{kind} {action} accepted"));
            }
        }
        empty
    }

    /// # Errors
    /// The servers differ, too few requests were invalid, or a long run left a cell of the table empty.
    pub(crate) fn verify(&self) -> Result<()> {
        ensure!(
            self.shown.is_empty(),
            "{} differences, of {} kinds:\n{}",
            self.signatures.values().sum::<u64>(),
            self.shown.len(),
            self.shown.join("\n")
        );
        let refused = self.refused();
        ensure!(
            refused * 100 >= self.requests() * INVALID_SHARE,
            "only {refused} of {} requests were refused",
            self.requests()
        );
        let empty = self.empty_cells();
        ensure!(
            empty.is_empty() || self.requests() < COMPLETE_REQUESTS,
            "no request reached {}",
            empty.join(", ")
        );
        Ok(())
    }

    fn refused(&self) -> u64 {
        let counts = self.counts.values().flatten();
        counts
            .filter(|(code, _)| **code >= 400)
            .map(|(_, count)| count)
            .sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((kind, action), codes) in &self.counts {
            let codes: Vec<String> = codes
                .iter()
                .map(|(code, count)| format!("{code}: {count}"))
                .collect();
            writeln!(f, "{kind:<24}{action:<24}{}", codes.join("  "))?;
        }
        writeln!(
            f,
            "{} requests, {} of them refused",
            self.requests(),
            self.refused()
        )?;
        for cell in self.empty_cells() {
            writeln!(f, "no request reached {cell}")?;
        }
        for (reason, count) in &self.explained {
            writeln!(f, "explained: {count} times: {reason}")?;
        }
        write!(f, "{} kinds of differences", self.differences())
    }
}

/// The rows of a kind in the table.
fn rows(kind: &Kind) -> Vec<(String, &'static str)> {
    let mut actions = ACTIONS.to_vec();
    if kind.has_status {
        actions.extend(STATUS_ACTIONS);
    }
    if NAMED_ONLY.contains(&kind.plural) {
        actions.push(PROTOBUF);
    }
    let subresources = SUBRESOURCES.iter().filter(|(plural, _)| *plural == kind.plural);
    actions.extend(subresources.map(|(_, action)| *action));
    let name = kind.shown_name();
    actions
        .into_iter()
        .map(|action| (name.to_owned(), action))
        .collect()
}

// === impl Difference ===

impl Difference {
    /// The same for differences that probably have the same cause.
    fn signature(&self, request: &Request) -> String {
        let paths = differing(&self.ours, &self.real).join("; ");
        let text = format!("{} {} {paths}", request.kind, request.action);
        text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
    }

    /// The difference as text, with the requests before it that it needs.
    pub(crate) fn shown(&self, title: &str, request: &Request, before: &[Request]) -> String {
        let mut text = format!("{title}\n");
        for request in before {
            text.push_str(&format!("  after {request}\n"));
        }
        let Self { ours, real, .. } = self;
        let paths = differing(ours, real).join("\n    ");
        text.push_str(&format!(
            "  {request}\n    {paths}\n  embedded: {ours}\n  real:     {real}\n"
        ));
        text
    }
}

/// The differences of the responses, as `pointer: ours != real`.
fn differing(ours: &ServerResponse, real: &ServerResponse) -> Vec<String> {
    let mut found = Vec::new();
    if ours.code != real.code {
        found.push(format!("code: {} != {}", ours.code, real.code));
    }
    if ours.content_type != real.content_type {
        found.push(format!(
            "content type: {} != {}",
            ours.content_type, real.content_type
        ));
    }
    if ours.warnings != real.warnings {
        found.push(format!("warnings: {:?} != {:?}", ours.warnings, real.warnings));
    }
    if let (Some(ours), Some(real)) = (ours.body.as_str(), real.body.as_str())
        && ours != real
    {
        found.push(format!("body: {ours} != {real}"));
    }
    differing_values("", &ours.body, &real.body, &mut found);
    found
}

/// Collects the differences of two documents.
pub(crate) fn differing_values(pointer: &str, ours: &Value, real: &Value, found: &mut Vec<String>) {
    match (ours, real) {
        (Value::Object(ours), Value::Object(real)) => {
            for (name, value) in ours {
                differing_values(
                    &format!("{pointer}/{name}"),
                    value,
                    real.get(name).unwrap_or(&Value::Null),
                    found,
                );
            }
            for (name, value) in real {
                if !ours.contains_key(name) {
                    differing_values(&format!("{pointer}/{name}"), &Value::Null, value, found);
                }
            }
        }
        (Value::Array(ours), Value::Array(real)) if ours.len() == real.len() => {
            for (at, (ours, real)) in ours.iter().zip(real).enumerate() {
                differing_values(&format!("{pointer}/{at}"), ours, real, found);
            }
        }
        (ours, real) if ours != real => found.push(format!("{pointer}: {ours} != {real}")),
        _ => {}
    }
}
