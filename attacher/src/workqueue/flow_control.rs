//! Which calls may begin now: limits per node and for the driver, learned from its refusals, and its outages.
//!
//! Contention is not failure. A call that is refused while another one of its node was in flight, or has just ended, lowers
//! the node's limit; refusals of several nodes lower the driver's. Such a call is repeated in its turn. A call that fails
//! alone says nothing about limits, and is retried with backoff.
//!
//! The driver is down after some failures in a row without any success. Then one call at a time probes it, and the first
//! success lets everything go on, with a slow start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::failure::{FIRST_TURNS, Failures, MAX_TURNS, Outcome};
use super::limiter::{CallId, Limiter};
use super::metrics::FlowMetrics;

#[derive(Debug)]
pub(crate) struct FlowControl {
    adaptive: bool,
    nodes: HashMap<Arc<str>, Node>,
    driver: Limiter,
    /// The last refusal that is not explained by calls of its node.
    stray: Option<(Arc<str>, Instant)>,
    /// Whether a key backs off since the last success because of calls for other nodes.
    fails: bool,
    /// Failures since the last success.
    failing: Option<Failing>,
    swept: Instant,
    pub(crate) metrics: FlowMetrics,
}

#[derive(Debug)]
struct Node {
    limiter: Limiter,
    /// When a call last made a key back off; `None` after a success.
    failed: Option<Instant>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    /// Those that show an outage: not answered, without a final code on another node than the one before, or the first one of its
    /// key. A volume may be broken, and a node full.
    evidence: u32,
    /// Whether the last call was not answered.
    hung: bool,
    /// Its node.
    node: Arc<str>,
    /// The next probe.
    probe: Instant,
    interval: Duration,
}

/// What follows from the end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was refused because of other calls.
    Contended,
    NodeRecovered,
    DriverRecovered,
    Other,
}

/// Why a call may not begin, and when that is worth checking again. `None`: when a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    Node(Option<Instant>),
    Driver(Option<Instant>),
}

const UNKNOWN: i32 = 2;
pub(super) const DEADLINE_EXCEEDED: i32 = 4;
pub(super) const ABORTED: i32 = 10;
const INTERNAL: i32 = 13;
/// The calls with which a rush begins, and those after an outage. Each accepted one lets another one begin.
const RUSH: usize = 10;
const RETURN: usize = 2;
/// A rush is over after this time without calls.
const RUSH_OVER: Duration = Duration::from_secs(10);
/// Failures in a row after which the driver counts as down.
const DOWN_AFTER: u32 = 3;
const FIRST_PROBE: Duration = Duration::from_millis(250);
const PROBES: Duration = Duration::from_secs(2);
/// The same if the failures have final codes. Three broken volumes may look like an outage, too.
const FINAL_PROBES: Duration = Duration::from_secs(5);
/// The period in which refusals of two nodes count as the driver's.
const ACROSS_NODES: Duration = Duration::from_secs(2);
/// Up to this factor, the intervals of two nodes count as equal.
const SIMILAR: f64 = 1.1;
/// How long limits are kept without calls.
const KEPT: Duration = Duration::from_secs(600);
const SWEEP: Duration = Duration::from_secs(60);

// === impl FlowControl ===

impl FlowControl {
    pub(super) fn new(adaptive: bool, now: Instant) -> Self {
        Self {
            adaptive,
            nodes: HashMap::new(),
            driver: Limiter::of_driver(),
            stray: None,
            fails: false,
            failing: None,
            swept: now,
            metrics: FlowMetrics::default(),
        }
    }

    pub(super) fn in_flight(&self, node: Option<&Arc<str>>) -> usize {
        let node = node.and_then(|node| self.nodes.get(node));
        node.map_or(0, |node| node.limiter.in_flight())
    }

    pub(super) fn permit(&mut self, node: &str, now: Instant) -> Result<(), Blocked> {
        if !self.adaptive {
            return Ok(());
        }
        match self.next_probe() {
            Some(probe) if self.only_probes() && probe > now => return Err(Blocked::Driver(Some(probe))),
            // A probe must not wait for a call of its node that hangs.
            Some(_) if self.only_probes() => return Ok(()),
            Some(_) => {}
            None => self.driver.permit(now).map_err(Blocked::Driver)?,
        }
        let node = self.nodes.get_mut(node);
        node.map_or(Ok(()), |node| node.limiter.permit(now).map_err(Blocked::Node))
    }

    /// When the call of an admitted sync may be sent, if that is limited.
    pub(super) fn call_at(&self, node: &str, id: CallId, now: Instant) -> Option<Instant> {
        if self.only_probes() {
            return None;
        }
        let node = self
            .nodes
            .get(node)
            .and_then(|node| node.limiter.call_at(id, now));
        node.max(self.driver.call_at(id, now))
    }

    pub(super) fn is_adaptive(&self) -> bool {
        self.adaptive
    }

    fn outage(&self) -> Option<&Failing> {
        self.failing
            .as_ref()
            .filter(|failing| failing.evidence >= DOWN_AFTER)
    }

    /// While the driver is down, when the next call probes it.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        Some(self.outage()?.probe)
    }

    /// Whether the driver is down, and gets nothing but probes. One that does not answer may be slow.
    pub(super) fn only_probes(&self) -> bool {
        self.outage().is_some_and(|failing| !failing.hung)
    }

    pub(crate) fn down_since(&self) -> Option<Instant> {
        Some(self.outage()?.since)
    }

    /// The learned limit of calls in flight for `node`, and the learned time between two begins.
    pub(crate) fn node_limit(&self, node: &str) -> Option<(usize, Option<Duration>)> {
        let limiter = &self.nodes.get(node)?.limiter;
        Some((limiter.window()?, limiter.interval()))
    }

    pub(crate) fn node_limits(&self) -> impl Iterator<Item = (&str, usize)> {
        self.nodes
            .iter()
            .filter_map(|(name, node)| Some((&**name, node.limiter.window()?)))
    }

    pub(crate) fn driver_limit(&self) -> Option<usize> {
        self.driver.window()
    }

    /// A sync that will call the driver starts (`sent` is false), or its call.
    pub(super) fn begin(&mut self, node: &Arc<str>, id: CallId, sent: bool, now: Instant) {
        if !self.adaptive {
            return;
        }
        if let Some(failing) = self
            .failing
            .as_mut()
            .filter(|failing| failing.evidence >= DOWN_AFTER)
        {
            self.metrics.outage_probes += u64::from(sent);
            // A call that hangs must not end the probing.
            failing.probe = now + PROBES;
        }
        let is_unlimited = self.driver.window().is_none();
        if self
            .driver
            .is_idle_for(if is_unlimited { RUSH_OVER } else { KEPT }, now)
        {
            self.driver.start_slowly(RUSH);
        }
        self.driver.begin(id, sent, now);
        let node = self.nodes.entry(node.clone()).or_insert_with(|| Node {
            limiter: Limiter::of_node(),
            failed: None,
        });
        node.limiter.begin(id, sent, now);
    }

    /// A call ended, or the sync did without one. `failures`: those of its key before.
    pub(super) fn end(
        &mut self,
        node: &Arc<str>,
        id: CallId,
        outcome: Outcome,
        failures: Option<&Failures>,
        now: Instant,
    ) -> Ended {
        let Some(limits) = self.nodes.get_mut(node) else {
            return Ended::Other;
        };
        match outcome {
            Outcome::Unrelated => {
                limits.limiter.forget(id);
                // It did not probe the driver.
                if self.driver.forget(id)
                    && let Some(failing) = &mut self.failing
                {
                    failing.probe = failing.probe.min(now);
                }
                Ended::Other
            }
            Outcome::Success => {
                // The end of an operation that an earlier call began teaches nothing.
                if failures.is_some_and(|failures| failures.executes) {
                    limits.limiter.forget(id);
                    self.driver.forget(id);
                } else {
                    limits.limiter.succeeded(id, now);
                    self.driver.succeeded(id, now);
                }
                let node_recovered = limits.failed.take().is_some();
                let failing = self.failing.take();
                if failing.is_some_and(|failing| failing.evidence >= DOWN_AFTER) {
                    self.recover();
                    return Ended::DriverRecovered;
                }
                if std::mem::take(&mut self.fails) {
                    return Ended::DriverRecovered;
                }
                if node_recovered {
                    Ended::NodeRecovered
                } else {
                    Ended::Other
                }
            }
            Outcome::Failed(code) => self.refused(node, id, code, failures, now),
        }
    }

    /// Whether the driver's limit explains the refusal of a call.
    pub(super) fn driver_explains(&self, id: CallId) -> bool {
        self.driver.window().is_some() && self.driver.is_contended(id, false) && self.driver.explains(id)
    }

    fn refused(
        &mut self,
        node: &Arc<str>,
        id: CallId,
        code: i32,
        failures: Option<&Failures>,
        now: Instant,
    ) -> Ended {
        let repeated = failures.is_some_and(|failures| failures.turns >= FIRST_TURNS);
        let is_first = failures.is_none_or(|failures| failures.times == 0);
        let is_final = matches!(code, UNKNOWN | INTERNAL);
        let hung = code == DEADLINE_EXCEEDED && !self.driver.succeeded_during(id);
        let is_down = self.outage().is_some();
        let is_alone = hung || !self.driver.is_contended(id, is_final);
        let shortest = self
            .nodes
            .values()
            .filter_map(|node| node.limiter.shortest())
            .min();
        let driver_explains = self.driver_explains(id);
        let Some(limits) = self.nodes.get_mut(node) else {
            return Ended::Other;
        };
        let is_shared = !is_down && !hung && self.driver.is_contended(id, is_final);
        let node_contended = !is_down && !hung && limits.limiter.is_contended(id, is_final);
        // The locks of nodes last equally long: an interval that another node accepted does not explain this node's first refusal.
        let is_new = limits.limiter.window().is_none();
        let is_accepted =
            is_new && shortest.is_some_and(|gap| limits.limiter.gap(id) >= Some(gap.mul_f64(SIMILAR)));
        let node_explains = node_contended && !is_accepted && limits.limiter.explains(id);
        // A refusal that the node's limit does not explain is the driver's if the driver's limit explains it, or if another node
        // had such a refusal recently.
        let driver_explains = driver_explains && (is_new || !node_explains);
        let stray = self.stray.as_ref().filter(|_| !hung && !node_explains);
        let has_other = stray.is_some_and(|(other, at)| other != node && *at + ACROSS_NODES >= now);
        let by_driver = is_shared && (driver_explains || has_other) && code != DEADLINE_EXCEEDED;
        if !hung && !node_explains {
            self.stray = Some((node.clone(), now));
        }
        let backs_off = failures.is_some_and(|failures| failures.turns >= MAX_TURNS);
        let counter = if by_driver {
            self.fails |= backs_off;
            limits.limiter.forget(id);
            // The nodes may have learned the driver's limit as their own.
            let is_first = self.driver.window().is_none();
            if self.driver.refused(id, repeated, now) {
                let nodes = self.nodes.values_mut().map(|node| &mut node.limiter);
                nodes
                    .filter(|node| is_first || node.outlasts_call())
                    .for_each(Limiter::doubt);
            }
            &mut self.metrics.refused_by_driver
        } else if node_contended {
            limits.failed = limits.failed.max(Some(now).filter(|_| backs_off));
            limits.limiter.refused(id, repeated, now);
            self.driver.failed(id);
            &mut self.metrics.refused_by_node
        } else {
            limits.limiter.forget(id);
            limits.failed = Some(now);
            self.driver.failed(id);
            &mut self.metrics.failed_alone
        };
        *counter += 1;
        if is_alone {
            self.failed_alone(node, hung, (is_first, is_final), now);
        }
        if node_contended || by_driver {
            Ended::Contended
        } else {
            Ended::Other
        }
    }

    /// Counts a failure that no other call explains. `is_first`: the key's first failure.
    fn failed_alone(
        &mut self,
        node: &Arc<str>,
        hung: bool,
        (is_first, is_final): (bool, bool),
        now: Instant,
    ) {
        let failing = self.failing.get_or_insert_with(|| Failing {
            since: now,
            evidence: 0,
            hung,
            node: node.clone(),
            probe: now,
            interval: FIRST_PROBE,
        });
        failing.hung = hung;
        let is_elsewhere = std::mem::replace(&mut failing.node, node.clone()) != *node;
        failing.evidence += u32::from(hung || is_first || !is_final && is_elsewhere);
        failing.probe = now + failing.interval;
        if failing.evidence >= DOWN_AFTER {
            failing.interval = (2 * failing.interval).min(if is_final { FINAL_PROBES } else { PROBES });
        }
    }

    pub(super) fn reconnected(&mut self) {
        self.failing = None;
        if self.driver.was_used() {
            self.recover();
        }
    }

    /// The driver works again: what its refusals taught in the outage is wrong.
    fn recover(&mut self) {
        self.driver.start_slowly(RETURN);
        self.stray = None;
        self.nodes.values_mut().for_each(|node| node.limiter.unlearn());
    }

    /// Forgets what is not used.
    pub(super) fn sweep(&mut self, now: Instant) {
        if now < self.swept + SWEEP {
            return;
        }
        self.swept = now;
        self.nodes.retain(|_, node| {
            let is_limited = node.limiter.window().is_some();
            let kept = if is_limited { KEPT } else { SWEEP };
            !node.limiter.is_idle_for(kept, now) || node.failed.is_some_and(|at| now < at + KEPT)
        });
    }
}
