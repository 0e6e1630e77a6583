//! What must be true of every scenario, whatever it was about.
//!
//! 1. A volume for one node is never at two nodes at once, and is never taken from a node that still uses it,
//!    unless the attach/detach controller force-detached it.
//! 2. An attachment that says `attached: true` has its volume on that node at the driver.
//! 3. Nothing leaks: no published volume without an attachment, no finalizer of ours left, no process.
//! 4. Every attachment settles: attached, gone, or with an error that names its cause.
//! 5. No secret value is in any log, journal, event or object.
//!
//! The checkers are pure: a [`VaRecorder`](va_recorder::VaRecorder) collects [`Observations`] while the scenario runs and
//! each checker turns it into [`Violation`]s. Whether no process is left is checked where processes are
//! ended, by the attacher and the driver.

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

/// Something that must never be, and was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant.
    pub invariant: u8,
    /// What was seen.
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

/// Fails with all violations, one a line.
pub fn enforce(violations: &[Violation]) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = violations.iter().map(Violation::to_string).collect();
    bail!("{}", lines.join("\n"))
}

/// The invariants that hold at any time, also while attachments exist.
pub fn check_running(observations: &Observations) -> Vec<Violation> {
    let mut violations = exclusive::check(observations);
    violations.extend(attached::check(observations));
    violations.extend(settled::check(observations));
    violations.extend(leak::check_running(observations));
    violations.extend(secret::check(observations));
    violations
}

/// The invariants that hold once everything was deleted.
pub fn check_cleaned_up(observations: &Observations) -> Vec<Violation> {
    let mut violations = exclusive::check(observations);
    violations.extend(attached::check(observations));
    violations.extend(leak::check_cleaned_up(observations));
    violations.extend(secret::check(observations));
    violations
}
