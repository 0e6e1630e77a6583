//! What backend faults make of the array and of devices, for those who ask.

use std::time::Duration;

use super::backend_fault::{Loses, Scope};

/// A listing that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// Tells it from others: when it began.
    pub since: Duration,
    /// How far it is behind; none if it stays as it was when it began.
    pub age: Option<Duration>,
}

/// What an array has lost when it comes back the next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Tells it from others: when the backend fault began.
    pub since: Duration,
    /// What.
    pub loses: Loses,
}

/// How ListVolumes answers.
#[derive(Clone, Debug, Default)]
pub struct ListOverlay {
    /// The state of so long ago, or of when the backend fault began; none for the state of now.
    pub frozen: Option<Option<Duration>>,
    /// Volumes to leave out.
    pub lacks: Vec<Scope>,
    /// Volumes to put on a node.
    pub adds: Vec<(Scope, String)>,
}

/// The device that shows up for an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOverlay {
    /// The right one.
    Right,
    /// None.
    Absent,
    /// Another one, by its path.
    Wrong(String),
}

/// What staging finds on the device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOverlay {
    /// What is there.
    Right,
    /// A filesystem with errors.
    Dirty,
    /// A filesystem with errors that are not repaired without asking.
    Damaged,
    /// Foreign data, and what it looks like.
    Foreign(&'static str),
}
