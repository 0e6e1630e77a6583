//! Invariants of every scenario.
//!
//! 1. A single-node volume is never published to two nodes at the same time, and never unpublished from a node that uses it,
//!    unless the attach/detach controller force-detached it.
//! 2. The volume of an attachment with `attached: true` is published to the node at the driver.
//! 3. No leaks: no published volume without an attachment, no remaining finalizer of the attacher, no remaining process.
//! 4. Every attachment converges: attached, deleted, or with an error that names the cause.
//! 5. No log, journal, event or object contains a Secret's value.
//!
//! The checkers are pure: a [`VaRecorder`](va_recorder::VaRecorder) collects [`Observations`] during the scenario, and each
//! checker derives [`Violation`]s from them. The code that stops attacher and driver checks for remaining processes.

pub mod attached;
pub mod exclusive;
pub mod leak;
pub mod observations;
pub mod secret;
pub mod settled;
pub mod va_recorder;

use std::fmt;

use anyhow::{Result, bail};

pub use observations::Observations;

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant.
    pub invariant: u8,
    /// Description.
    pub seen: String,
}

// === impl Violation ===

impl Violation {
    pub(crate) fn new(invariant: u8, seen: String) -> Self {
        Self { invariant, seen }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.seen)
    }
}

/// Fails with all violations, one per line.
pub fn enforce(violations: &[Violation]) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = violations.iter().map(Violation::to_string).collect();
    bail!("{}", lines.join("\n"))
}

/// Checks the invariants that hold while attachments exist.
pub fn check_running(observations: &Observations) -> Vec<Violation> {
    let mut violations = exclusive::check(observations);
    violations.extend(attached::check(observations));
    violations.extend(settled::check(observations));
    violations.extend(leak::check_running(observations));
    violations.extend(secret::check(observations));
    violations
}

/// Checks the invariants that hold after all objects were deleted.
pub fn check_cleaned_up(observations: &Observations) -> Vec<Violation> {
    let mut violations = exclusive::check(observations);
    violations.extend(attached::check(observations));
    violations.extend(leak::check_cleaned_up(observations));
    violations.extend(secret::check(observations));
    violations
}
