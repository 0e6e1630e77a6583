use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tonic::Code;
use utoipa::ToSchema;

use super::condition::{Asked, ConditionState};
use super::injected::InjectedTotals;
use super::{CallEnd, CallInfo, DelayDistribution, Reservations, Rule, Seed};

/// The origin of a rule, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Set while the driver runs.
    Admin,
    File,
    Scenario,
}

/// A fault rule with its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FaultRule)]
pub struct Report {
    /// Its id.
    pub id: String,
    /// Where it comes from: `admin`, `file` or `scenario`.
    #[schema(value_type = String)]
    pub origin: Origin,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Number of calls that it matched.
    pub seen: u64,
    /// Number of calls that it affected.
    pub fired: u64,
    /// Maximum number of calls that it affects; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Number of calls that it blocks now.
    pub blocked_calls: u64,
    /// The definition, as in the fault file.
    #[schema(value_type = Object)]
    pub rule: Value,
}

/// A firing for a call. Until it is dropped, the rule counts the call as held. If it is dropped before the rule acted, the
/// firing does not count, and the next call gets it.
#[derive(Debug)]
pub(crate) struct ActiveFault {
    rule_state: Arc<RuleState>,
    method: String,
    position: FiringPosition,
    pub(super) is_applied: bool,
    pub(crate) delay: Duration,
    /// The text of the error, if the rule's condition gives it.
    refusal: Option<String>,
    /// The encoded messages of the reply, if the rule gives it, or why there are none.
    pub(crate) response: Result<Vec<Vec<u8>>, String>,
    released: watch::Receiver<u64>,
}

/// The numbers that a firing took from the rule's counts.
#[derive(Clone, Copy, Debug)]
struct FiringPosition {
    /// The number of the call among those that matched the rule.
    call_number: u64,
    /// The subject and number of the random draw, if there was one.
    draw: Option<(u64, u64)>,
    /// Number of resets before the firing.
    era: u64,
}

#[derive(Debug)]
pub(super) struct RuleState {
    pub(super) rule: Rule,
    pub(super) origin: Origin,
    enabled: AtomicBool,
    blocked_calls: AtomicU64,
    releases: watch::Sender<u64>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    call_numbers: NumberPool,
    era: u64,
    firings: u64,
    /// One for each random draw, by subject: see [`random`](super::random).
    draws: Draws,
    condition_state: ConditionState,
}

/// The number of random draws by subject, for the latest subjects.
#[derive(Debug, Default)]
struct Draws {
    counts: HashMap<u64, NumberPool>,
    /// The subjects in the order of their first draw.
    order: VecDeque<u64>,
    /// Maximum number of draws of a removed subject. New subjects begin after it, so that no subject repeats draws.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct NumberPool {
    /// How many were taken, returned ones included.
    handed_out: u64,
    /// Returned numbers, which are taken first.
    returned: BTreeSet<u64>,
}

// === impl Origin ===

impl Origin {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::File => "file",
            Self::Scenario => "scenario",
        }
    }
}

// === impl ActiveFault ===

impl ActiveFault {
    pub(crate) fn rule(&self) -> &Rule {
        &self.rule_state.rule
    }

    /// Waits until the rule is released; returns at once if it was released after the firing.
    pub(crate) async fn released(&mut self) {
        // The sender lives in the rule, which this keeps alive.
        if self.released.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The error of the rule, if it fails the call.
    pub(crate) fn status(&self) -> Option<(Code, String)> {
        let (code, message) = self.rule().status()?;
        Some((code, self.refusal.clone().unwrap_or(message)))
    }

    /// Counts the firing and sets the rules' state.
    pub(super) fn apply(&mut self, state: &mut Arc<str>, injected: &Mutex<InjectedTotals>) {
        self.is_applied = true;
        let rule = self.rule();
        let mut injected = crate::lock(injected);
        injected.add(rule.kind, &rule.id, &self.method, rule.code());
        drop(injected);
        if let Some(next) = &rule.action.set_state {
            *state = next.0.clone();
        }
    }
}

impl Drop for ActiveFault {
    fn drop(&mut self) {
        self.rule_state.blocked_calls.fetch_sub(1, Ordering::Relaxed);
        if !self.is_applied {
            self.rule_state.counts().put_back(self.position);
        }
    }
}

// === impl NumberPool ===

impl NumberPool {
    fn next(&mut self) -> u64 {
        self.returned.pop_first().unwrap_or_else(|| {
            self.handed_out += 1;
            self.handed_out
        })
    }

    fn put_back(&mut self, number: u64) {
        self.returned.insert(number);
    }

    fn len(&self) -> u64 {
        self.handed_out - u64::try_from(self.returned.len()).unwrap_or(self.handed_out)
    }
}

// === impl Draws ===

impl Draws {
    /// Limit of subjects. Up to it, each one's draws do not depend on the others.
    const SUBJECTS: usize = 10_000;

    fn next(&mut self, whom: u64) -> u64 {
        if let Some(count) = self.counts.get_mut(&whom) {
            return count.next();
        }
        if self.order.len() >= Self::SUBJECTS
            && let Some(count) = self
                .order
                .pop_front()
                .and_then(|oldest| self.counts.remove(&oldest))
        {
            self.forgotten = self.forgotten.max(count.handed_out);
        }
        self.order.push_back(whom);
        let mut count = NumberPool {
            handed_out: self.forgotten,
            returned: BTreeSet::new(),
        };
        let first = count.next();
        self.counts.insert(whom, count);
        first
    }

    fn put_back(&mut self, whom: u64, number: u64) {
        if let Some(count) = self.counts.get_mut(&whom)
            && number <= count.handed_out
        {
            count.put_back(number);
        }
    }
}

// === impl Counts ===

impl Counts {
    fn put_back(&mut self, position: FiringPosition) {
        if position.era != self.era {
            return;
        }
        self.call_numbers.put_back(position.call_number);
        self.firings = self.firings.saturating_sub(1);
        if let Some((subject, number)) = position.draw {
            self.draws.put_back(subject, number);
        }
    }
}

// === impl RuleState ===

impl RuleState {
    pub(super) fn new(rule: Rule, origin: Origin, now: Duration) -> Arc<Self> {
        Arc::new(Self {
            enabled: AtomicBool::new(rule.enabled),
            rule,
            origin,
            blocked_calls: AtomicU64::new(0),
            releases: watch::Sender::new(0),
            counts: Mutex::new(Counts {
                condition_state: ConditionState::started_at(now),
                ..Counts::default()
            }),
        })
    }

    /// Counts a call that matches the rule, and a firing if the rule applies to this call.
    pub(super) fn take(
        self: &Arc<Self>,
        call: &dyn CallInfo,
        seed: Seed,
        reserved: &Reservations,
        now: Duration,
    ) -> Option<ActiveFault> {
        let Rule {
            matches,
            action,
            times,
            ..
        } = &self.rule;
        let mut counts = self.counts();
        if times.is_some_and(|times| counts.firings >= times) {
            return None;
        }
        let refusal = match &matches.condition {
            Some(condition) => Some((condition.0)(&mut Asked {
                call,
                state: &mut counts.condition_state,
                reserved,
                now,
            })?),
            None => None,
        };
        let call_number = counts.call_numbers.next();
        if !matches.selects(call_number) {
            return None;
        }
        let seed = matches.seed.map_or(seed, Seed);
        let is_drawn = matches.probability.is_some()
            || !matches!(action.delay, None | Some(DelayDistribution::Fixed(_)));
        let drawn = is_drawn.then(|| {
            let subject = [call.path(), call.volume(), call.node(), call.name()].join("\n");
            let subject = seed.keyed_hash(subject.as_bytes());
            (subject, counts.draws.next(subject))
        });
        let draw = |what: &str| {
            let (subject, count) = drawn.unwrap_or_default();
            seed.unit(&format!("{what}/{}", self.rule.id), subject, count)
        };
        if matches.probability.is_some_and(|chance| draw("fire") >= chance) {
            return None;
        }
        counts.firings += 1;
        self.blocked_calls.fetch_add(1, Ordering::Relaxed);
        let delay = match (action.queue, action.delay) {
            (Some(time), _) => counts.condition_state.enqueue(call.node(), time, now),
            (None, Some(DelayDistribution::Fixed(time))) => time,
            (None, Some(distribution)) => distribution.at(draw("delay")),
            (None, None) => Duration::ZERO,
        };
        let transfer = action.bandwidth.map(|rate| rate.time_of(call.size()));
        let transfer = transfer.map(|time| counts.condition_state.enqueue(call.volume(), time, now));
        Some(ActiveFault {
            rule_state: self.clone(),
            method: call.path().to_owned(),
            position: FiringPosition {
                call_number,
                draw: drawn,
                era: counts.era,
            },
            is_applied: false,
            delay: delay + transfer.unwrap_or_default(),
            refusal,
            response: match &action.end {
                Some(CallEnd::Respond(response)) => response.render(call),
                Some(_) | None => Ok(Vec::new()),
            },
            released: self.releases.subscribe(),
        })
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Enables or disables it. Disabling releases its calls.
    pub(super) fn set_enabled(&self, enabled: bool, now: Duration) {
        if self.enabled.swap(enabled, Ordering::Relaxed) != enabled {
            self.counts().condition_state = ConditionState::started_at(now);
        }
        if !enabled {
            self.release();
        }
    }

    pub(super) fn reset(&self) {
        let mut counts = self.counts();
        *counts = Counts {
            era: counts.era + 1,
            condition_state: std::mem::take(&mut counts.condition_state),
            ..Counts::default()
        };
        drop(counts);
        self.enabled.store(self.rule.enabled, Ordering::Relaxed);
    }

    /// Ends the delays and hangs of its calls, and returns the number of calls that it was acting on.
    pub(super) fn release(&self) -> u64 {
        self.releases.send_modify(|count| *count += 1);
        self.blocked_calls.load(Ordering::Relaxed)
    }

    /// Its start since the driver's start.
    pub(super) fn since(&self) -> Duration {
        self.counts().condition_state.since
    }

    pub(super) fn report(&self) -> Report {
        let counts = self.counts();
        Report {
            id: self.rule.id.clone(),
            origin: self.origin,
            enabled: self.enabled.load(Ordering::Relaxed),
            seen: counts.call_numbers.len(),
            fired: counts.firings,
            times: self.rule.times,
            blocked_calls: self.blocked_calls.load(Ordering::Relaxed),
            rule: self.rule.text.clone(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        crate::lock(&self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_remembered_for_a_bounded_number_of_subjects() {
        let mut draws = Draws::default();
        let subjects = u64::try_from(Draws::SUBJECTS).unwrap();
        assert_eq!((draws.next(0), draws.next(0), draws.next(1)), (1, 2, 1));
        for subject in 0..3 * subjects {
            draws.next(subject);
            assert!(draws.counts.len() <= Draws::SUBJECTS && draws.order.len() == draws.counts.len());
        }
        let again = draws.next(0);
        assert!(
            again > 3,
            "a subject that was forgotten gets new draws, got number {again}"
        );
        // For a call that arrived before its subject was removed.
        draws.put_back(0, again + 7);
        assert_eq!(draws.next(0), again + 1);
    }
}
