//! A fault rule: its calls, its phase, its action and its limit. Pure data; [`parse`](super::parse) parses it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tonic::Code;
use wildmatch::WildMatch;

use super::call_info::{CallInfo, VolumeLocation};
use super::condition::Condition;
use super::edit::Edits;
use super::overlay::Overlay;
use super::random::DelayDistribution;
use crate::rpc::method::{self, Method};

/// Fault rule or backend fault.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its id in the journal.
    pub id: String,
    /// Fault rule or backend fault.
    pub(crate) kind: RuleKind,
    /// Whether it is enabled at the start.
    pub enabled: bool,
    /// The calls that it matches.
    pub matches: Match,
    /// Its phase.
    pub phase: Phase,
    /// Its action.
    pub action: Action,
    /// Maximum number of firings; `None` for no limit.
    pub times: Option<u64>,
    /// What the array reports while the fault is active; set only for backend faults, which then match no call.
    pub(super) overlay: Option<Overlay>,
    /// Its source. Rules with the same source are equal.
    pub text: Value,
}

/// The lists of a fault file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleKind {
    /// Rules.
    Rule,
    /// Backend faults.
    BackendFault,
}

/// The calls that a rule matches. Absent fields match every call.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// The RPCs.
    pub method: Option<Methods>,
    /// Pattern of the volume id (`*` any text, `?` any character).
    pub volume: Option<WildMatch>,
    /// Pattern of the node id.
    pub node: Option<WildMatch>,
    /// Pattern of the name of a volume, snapshot or group to create.
    pub name: Option<WildMatch>,
    /// Entries that the secrets must have.
    pub secrets: BTreeMap<String, String>,
    /// Entries that the parameters must have.
    pub parameters: BTreeMap<String, String>,
    /// Requests of more bytes than this.
    pub(crate) bytes_above: Option<u64>,
    pub(crate) location: Option<LocationMatch>,
    pub(crate) state: Option<String>,
    /// Condition on the array's state; set only for backend faults.
    pub(super) condition: Option<Condition>,
    /// Numbers of the matching calls to which the rule applies.
    pub(crate) turn: CallNumbers,
    /// Probability of firing for these calls; `None` for 1.
    pub(crate) probability: Option<f64>,
    /// Its own seed; `None` for the driver's.
    pub seed: Option<u64>,
}

/// A selection of RPCs.
#[derive(Clone, Debug, PartialEq)]
pub enum Methods {
    /// An RPC by its path.
    One(String),
    /// CSI's RPCs whose name or path matches.
    Like(WildMatch),
}

/// A selection of calls by number, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallNumbers {
    pub(crate) call: Option<u64>,
    /// Every nth call, from the first one on.
    pub(crate) every: Option<u64>,
}

/// A condition on a volume's location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LocationMatch {
    Attached,
    /// Attached to the call's node.
    AttachedHere,
    /// Attached to another node.
    AttachedElsewhere,
    /// Existing, and attached to no node.
    Detached,
    /// Not existing.
    Absent,
}

/// The phase in which a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Before the operation. An action with an end replaces it.
    #[default]
    Before,
    /// After a successful operation; a failed call keeps its error.
    After,
    /// The call gets a response at once, and the operation runs after delay and hang.
    Background,
}

/// An action: delay, then hang, then end.
#[derive(Clone, Debug, Default)]
pub struct Action {
    /// The delay.
    pub delay: Option<DelayDistribution>,
    /// Per-node queue: service time of each call; set only for backend faults.
    pub(super) queue: Option<Duration>,
    /// The hang after the delay.
    pub(crate) hang: Option<Hang>,
    /// The end; `None` to let the call continue.
    pub(crate) end: Option<End>,
    /// The state that a firing sets.
    pub(crate) set_state: Option<String>,
    /// Number of messages of a stream before the action; `None` for none. A shorter stream is interrupted at its end.
    pub(crate) after_messages: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hang {
    /// Until the client cancels the call.
    ClientCancel,
    /// Until the rule is released.
    Release,
    For(Duration),
}

/// The end of a call.
#[derive(Clone, Debug)]
pub enum End {
    /// An error.
    Answer {
        /// Its code.
        code: Code,
        /// Its message; `None` for one that names the rule.
        message: Option<String>,
    },
    /// The edited reply.
    Edit(Edits),
    /// The call's connection is closed.
    DropConnection,
    /// The socket and all connections are closed; the socket is opened again after this duration.
    SocketAway(Duration),
    /// The driver's process exits.
    Exit(Exit),
}

/// The exit of the driver's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// At once, with this exit code; the socket is removed.
    Status(u8),
    /// SIGKILL: nothing is cleaned up.
    Kill,
}

// === impl Rule ===

impl Rule {
    /// The error of the rule, if it fails the call.
    pub fn answer(&self) -> Option<(Code, String)> {
        match &self.action.end {
            Some(End::Answer { code, message }) => {
                let text = || format!("injected by fault rule \"{}\"", self.id);
                Some((*code, message.clone().unwrap_or_else(text)))
            }
            None | Some(End::Edit(_) | End::DropConnection | End::SocketAway(_) | End::Exit(_)) => None,
        }
    }

    /// The code that callers get; `None` if the rule does not fail calls.
    pub fn code(&self) -> Option<Code> {
        match (&self.action.end, self.phase) {
            (Some(End::Answer { code, .. }), _) => Some(*code),
            (None, Phase::Background) => Some(Code::DeadlineExceeded),
            _ => None,
        }
    }

    /// Whether the rule replaces the operation.
    pub(crate) fn replaces_effect(&self) -> bool {
        let never_goes_on = self.action.end.is_some() || self.action.hang == Some(Hang::ClientCancel);
        self.phase == Phase::Before && never_goes_on
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

// === impl RuleKind ===

impl RuleKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::BackendFault => "backend fault",
        }
    }
}

// === impl Match ===

impl Match {
    /// Whether a call matches, apart from counts and probability.
    pub(super) fn covers(&self, occasion: &dyn CallInfo, state: &str) -> bool {
        let matches = |pattern: &Option<WildMatch>, text: &str| match pattern {
            None => true,
            Some(pattern) => !text.is_empty() && pattern.matches(text),
        };
        let has = |field: &str, wanted: &BTreeMap<String, String>| {
            wanted
                .iter()
                .all(|(key, value)| occasion.entry(field, key).as_ref() == Some(value))
        };
        self.method
            .as_ref()
            .is_none_or(|method| method.has(occasion.path()))
            && matches(&self.volume, occasion.volume())
            && matches(&self.node, occasion.node())
            && matches(&self.name, occasion.name())
            && self.state.as_ref().is_none_or(|wanted| wanted == state)
            && has("secrets", &self.secrets)
            && (has("parameters", &self.parameters) || has("volume_context", &self.parameters))
            && self.bytes_above.is_none_or(|bytes| occasion.size() > bytes)
            && self.location.is_none_or(|wanted| {
                occasion
                    .location()
                    .is_some_and(|location| wanted.matches(location))
            })
    }
}

// === impl Methods ===

impl Methods {
    /// The selected RPCs of CSI; empty for one that only a proxy can receive.
    pub(crate) fn known(&self) -> Vec<Method> {
        match self {
            Self::One(path) => Method::at(path).into_iter().collect(),
            Self::Like(pattern) => Method::ALL
                .into_iter()
                .filter(|method| method.matches(pattern))
                .collect(),
        }
    }

    /// Whether the RPC of this path is selected.
    pub(super) fn has(&self, path: &str) -> bool {
        match self {
            Self::One(own) => own == path,
            Self::Like(pattern) => pattern.matches(path) || pattern.matches(method::short(path)),
        }
    }
}

// === impl CallNumbers ===

impl CallNumbers {
    /// Whether the `number`th call is selected.
    pub(super) fn has(self, number: u64) -> bool {
        match (self.call, self.every) {
            (None, None) => true,
            (Some(call), None) => number == call,
            (None, Some(every)) => number.is_multiple_of(every),
            (Some(call), Some(every)) => number >= call && (number - call).is_multiple_of(every),
        }
    }
}

// === impl LocationMatch ===

impl LocationMatch {
    fn matches(self, location: VolumeLocation) -> bool {
        match self {
            Self::Attached => location.here || location.elsewhere,
            Self::AttachedHere => location.here,
            Self::AttachedElsewhere => location.elsewhere,
            Self::Detached => location.exists && !location.here && !location.elsewhere,
            Self::Absent => !location.exists,
        }
    }
}
