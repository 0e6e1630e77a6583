//! The contract of an external-attacher, as one executable model.
//!
//! A harness hands its observations to a [`Contract`], in order: versions of objects, calls and answers of the driver, what the
//! array has published, ends of processes. The contract answers with [`Violation`]s, each with its [`Clause`], the observations
//! that prove it and the source of the rule. It has no I/O, no clock and no client, so that a search through millions of histories
//! can use it as well as a scenario on real kubelets.
//!
//! Clauses of strength [`Strength::Contract`] are what every external-attacher must keep, [`Strength::Promise`] what csi-attacher
//! promises in addition, and [`Strength::Path`] what the controllers and kubelets around an attacher must keep.

pub mod clause;
pub mod observation;
pub mod world;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

pub use clause::{CLAUSES, Clause, Rule, Strength};
pub use observation::Observation;
use world::World;

/// What a harness observes, and what the attacher promises.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether the observations are in the order in which they happened.
    pub order: Order,
    /// What the attacher stores before it publishes.
    pub record: Record,
    /// What may happen besides faults that end.
    pub environment: Environment,
    /// The attacher's flag `--assume-unpublished-after`; `None`: never.
    pub assume_unpublished_after: Option<Duration>,
    /// Bounds of an uneventful attach and detach.
    pub bounds: Bounds,
    /// Values that must not be written anywhere.
    pub secrets: Vec<String>,
    /// Clauses that are not checked.
    pub off: BTreeSet<Clause>,
}

/// The order of the observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That in which they happened.
    Exact,
    /// States of objects come from a watch, after they were stored. Clauses that would need the exact time accept what may have
    /// been right.
    Watched,
}

/// What may happen besides faults that end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// The driver's OK is true, only calls change the array, and nothing outlasts the faults.
    Honest,
    /// The driver may answer OK without an effect, the array may change out of band, and obstacles may outlast the faults.
    Adverse,
}

/// What an attacher stores on the VolumeAttachment before it publishes, besides its finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The node ID, as the Go sidecar does.
    NodeId,
    /// Node ID and volume ID.
    Target,
}

/// How many calls and writes of an uneventful attach and detach are in order.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// ControllerPublishVolume calls.
    pub publishes: usize,
    /// ControllerUnpublishVolume calls.
    pub unpublishes: usize,
    /// Changes of the VolumeAttachment until it is attached.
    pub attach_writes: usize,
    /// Changes of the VolumeAttachment from the request for its deletion on, without the last one, which deletes it.
    pub detach_writes: usize,
}

/// The contract, with the observations so far.
#[derive(Debug)]
pub struct Contract {
    settings: Settings,
    world: World,
    history: Vec<(Duration, Observation)>,
    violations: Vec<Violation>,
    /// Clauses and subjects of the violations: each is reported once.
    reported: BTreeSet<(Clause, String)>,
    deferred: clause::Deferred,
}

/// A broken clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The clause.
    pub clause: Clause,
    /// When the last of the observations was made.
    pub at: Duration,
    /// The object or target.
    pub subject: String,
    /// What is wrong.
    pub text: String,
    /// The observations that prove it, one per line.
    pub evidence: Vec<String>,
}

// === impl Settings ===

impl Settings {
    /// csi-attacher, observed in the exact order.
    pub fn exact() -> Self {
        Self {
            order: Order::Exact,
            record: Record::Target,
            environment: Environment::Adverse,
            assume_unpublished_after: None,
            bounds: Bounds::OURS,
            secrets: Vec::new(),
            off: BTreeSet::new(),
        }
    }

    /// The whole path, in which the driver's OK is true and nothing outlasts the faults.
    pub fn honest() -> Self {
        Self {
            environment: Environment::Honest,
            ..Self::exact()
        }
    }

    /// csi-attacher, observed by watches.
    pub fn watched() -> Self {
        Self {
            order: Order::Watched,
            ..Self::exact()
        }
    }

    /// Any external-attacher: without csi-attacher's promises.
    #[must_use]
    pub fn without_promises(mut self) -> Self {
        let promises = CLAUSES.iter().filter(|rule| rule.strength == Strength::Promise);
        self.off.extend(promises.map(|rule| rule.clause));
        self.record = Record::NodeId;
        self.bounds = Bounds::ANY;
        self
    }

    /// Without a clause.
    #[must_use]
    pub fn without(mut self, clause: Clause) -> Self {
        self.off.insert(clause);
        self
    }
}

// === impl Bounds ===

impl Bounds {
    /// csi-attacher's.
    pub const OURS: Self = Self {
        publishes: 1,
        unpublishes: 1,
        attach_writes: 2,
        detach_writes: 1,
    };
    /// Of any attacher. The Go sidecar publishes once more if its cache lags, which is idempotent.
    pub const ANY: Self = Self {
        publishes: 2,
        unpublishes: 2,
        attach_writes: 3,
        detach_writes: 2,
    };
}

// === impl Contract ===

impl Contract {
    /// A history without observations.
    pub fn new(settings: Settings) -> Self {
        Self {
            world: World::new(settings.assume_unpublished_after),
            settings,
            history: Vec::new(),
            violations: Vec::new(),
            reported: BTreeSet::new(),
            deferred: clause::Deferred::default(),
        }
    }

    /// Adds an observation; returns the violations that it proves. `at`: the time since the history's start, which never decreases.
    pub fn observe(&mut self, at: Duration, seen: Observation) -> &[Violation] {
        let (number, known) = (self.history.len(), self.violations.len());
        let mut deferred = std::mem::take(&mut self.deferred);
        let found = self.check(at, &seen, &mut deferred);
        self.deferred = deferred;
        self.deferred
            .note(number, at, &seen, &self.world, self.settings.order);
        self.world.apply(number, at, &seen);
        self.history.push((at, seen));
        for finding in found {
            self.report(number, at, finding);
        }
        &self.violations[known..]
    }

    /// The violations that the observation would prove, such as that the attacher has not settled yet.
    pub fn preview(&self, at: Duration, seen: &Observation) -> Vec<Violation> {
        let found = self.check(at, seen, &mut self.deferred.clone());
        found
            .into_iter()
            .map(|finding| self.violation(at, finding))
            .collect()
    }

    fn check(
        &self,
        at: Duration,
        seen: &Observation,
        deferred: &mut clause::Deferred,
    ) -> Vec<clause::Finding> {
        let mut found = Vec::new();
        for rule in CLAUSES {
            if self.settings.off.contains(&rule.clause) {
                continue;
            }
            let mut findings = clause::Findings::new(rule.clause, &mut found);
            let now = clause::Now {
                world: &self.world,
                settings: &self.settings,
                at,
            };
            (rule.check)(now, seen, deferred, &mut findings);
        }
        found
    }

    /// All violations so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// The state that follows from the observations.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The observations so far.
    pub fn history(&self) -> &[(Duration, Observation)] {
        &self.history
    }

    fn report(&mut self, number: usize, at: Duration, mut finding: clause::Finding) {
        if self.reported.insert((finding.clause, finding.subject.clone())) {
            finding.evidence.push(number);
            self.violations.push(self.violation(at, finding));
        }
    }

    fn violation(&self, at: Duration, finding: clause::Finding) -> Violation {
        let clause::Finding {
            clause,
            subject,
            text,
            mut evidence,
        } = finding;
        evidence.sort_unstable();
        evidence.dedup();
        let line = |number: usize| {
            let (at, seen) = self.history.get(number)?;
            Some(format!("{:.3} s: {seen}", at.as_secs_f64()))
        };
        Violation {
            clause,
            at,
            subject,
            text,
            evidence: evidence.into_iter().filter_map(line).collect(),
        }
    }
}

// === impl Violation ===

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.clause.rule();
        write!(
            f,
            "{}: {}: {} ({})",
            rule.name, self.subject, self.text, rule.source
        )?;
        for line in &self.evidence {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
