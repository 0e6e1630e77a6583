//! One fault rule: which calls, when, what goes wrong and how often. Pure data and its meaning; [`parse`](super::parse)
//! reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tonic::Code;
use wildmatch::WildMatch;

use super::call_info::{CallInfo, VolumeLocation};
use super::condition::Condition;
use super::edit::Edits;
use super::overlay::Overlay;
use super::random::DelayDistribution;
use crate::rpc::method::Method;

/// Fault rule or backend fault.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name in the journal.
    pub id: String,
    /// Whether it was written as a rule, or as a fault of the array.
    pub(crate) kind: RuleKind,
    /// Whether it is in force from the start.
    pub enabled: bool,
    /// The calls it is for.
    pub matches: Match,
    /// When it acts.
    pub phase: Phase,
    /// What goes wrong.
    pub action: Action,
    /// How often; none for every time.
    pub times: Option<u64>,
    /// What the array reports while the fault is active; set only for backend faults, which then match no call.
    pub(super) overlay: Option<Overlay>,
    /// As it was written. Two rules are the same if they were written the same.
    pub(super) text: Value,
}

/// The lists a fault file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// Rules.
    Rule,
    /// Backend faults.
    BackendFault,
}

/// Which calls a rule is for. What is absent matches every call.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// The RPCs.
    pub method: Option<Methods>,
    /// Pattern of the volume's id (`*` any text, `?` any character).
    pub volume: Option<WildMatch>,
    /// Pattern of the node's id.
    pub node: Option<WildMatch>,
    /// Pattern of the name of a volume, snapshot or group to be created.
    pub name: Option<WildMatch>,
    /// Entries that the secrets must have.
    pub secrets: BTreeMap<String, String>,
    /// Entries that the parameters must have.
    pub parameters: BTreeMap<String, String>,
    /// The call must ask for more bytes than this.
    pub(crate) bytes_above: Option<u64>,
    /// Where the volume must be.
    pub(crate) place: Option<LocationMatch>,
    /// Which state the rules themselves must be in.
    pub(crate) state: Option<String>,
    /// Condition on the array's state; set only for backend faults.
    pub(super) condition: Option<Condition>,
    /// Which of the calls that come to the rule, by number.
    pub(crate) turn: CallNumbers,
    /// How likely it fires for each of those; none for always.
    pub(crate) probability: Option<f64>,
    /// Its own seed; none for the driver's.
    pub seed: Option<u64>,
}

/// A choice of RPCs.
#[derive(Clone, Debug, PartialEq)]
pub enum Methods {
    /// One, by its path.
    One(String),
    /// All of CSI whose name or path fits.
    Like(WildMatch),
}

/// A choice of calls by number, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallNumbers {
    /// The first call, or the only one.
    pub(crate) call: Option<u64>,
    /// Every nth call, from the first one on.
    pub(crate) every: Option<u64>,
}

/// A condition on a volume's location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocationMatch {
    /// Attached to a node.
    Attached,
    /// Attached to the node the call names.
    AttachedHere,
    /// Attached to another node.
    AttachedElsewhere,
    /// There, and attached to no node.
    Detached,
    /// Not on the array.
    Absent,
}

/// When a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Before the effect. If the call ends there, there is no effect.
    #[default]
    Before,
    /// After the effect, and only if there was one: a call that fails by itself keeps its error.
    After,
    /// The caller is answered at once, and the effect comes when delay and hang are over.
    Background,
}

/// What goes wrong: first the delay, then the hang, then the end.
#[derive(Clone, Debug, Default)]
pub struct Action {
    /// How long the call is slowed down.
    pub delay: Option<DelayDistribution>,
    /// Per-node queue: service time of each call; set only for backend faults.
    pub(super) queue: Option<Duration>,
    /// How long it hangs after that.
    pub(crate) hang: Option<Hang>,
    /// How it ends; none to let it go on.
    pub(crate) end: Option<End>,
    /// The state the rules go into when this one fires.
    pub(crate) set_state: Option<String>,
    /// After how many messages of a stream all this happens; none for before the first one. A stream with
    /// fewer messages is broken off in place of its end.
    pub(crate) after_messages: Option<u64>,
}

/// How long a call hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hang {
    /// Until the client gives up.
    ClientCancel,
    /// Until the rule is released.
    Release,
    /// For a time.
    For(Duration),
}

/// How a call ends.
#[derive(Clone, Debug)]
pub enum End {
    /// With an error.
    Answer {
        /// Its code.
        code: Code,
        /// Its text; none for one that names the rule.
        message: Option<String>,
    },
    /// With the reply of the effect, changed.
    Edit(Edits),
    /// With the loss of the connection it came over.
    DropConnection,
    /// With the loss of the socket and of all connections; the socket is back after the time.
    SocketAway(Duration),
    /// With the end of the driver's process.
    Exit(Exit),
}

/// How the driver's process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// At once, with this status; the socket is removed.
    Status(u8),
    /// As if killed: nothing is tidied up.
    Kill,
}

// === impl Rule ===

impl Rule {
    /// The error the rule answers with, if it answers.
    pub fn answer(&self) -> Option<(Code, String)> {
        match &self.action.end {
            Some(End::Answer { code, message }) => {
                let text = || format!("injected by fault rule \"{}\"", self.id);
                Some((*code, message.clone().unwrap_or_else(text)))
            }
            None | Some(End::Edit(_) | End::DropConnection | End::SocketAway(_) | End::Exit(_)) => None,
        }
    }

    /// The code of the error that callers get from it; none if it does something else to them.
    pub fn code(&self) -> Option<Code> {
        match (&self.action.end, self.phase) {
            (Some(End::Answer { code, .. }), _) => Some(*code),
            (None, Phase::Background) => Some(Code::DeadlineExceeded),
            _ => None,
        }
    }

    /// Whether the rule keeps the call from having any effect.
    pub(crate) fn replaces_effect(&self) -> bool {
        let never_goes_on = self.action.end.is_some() || self.action.hang == Some(Hang::ClientCancel);
        self.phase == Phase::Before && never_goes_on
    }

    /// As it was written.
    pub fn text(&self) -> &Value {
        &self.text
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
        let fits = |pattern: &Option<WildMatch>, text: &str| match pattern {
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
            && fits(&self.volume, occasion.volume())
            && fits(&self.node, occasion.node())
            && fits(&self.name, occasion.name())
            && self.state.as_ref().is_none_or(|wanted| wanted == state)
            && has("secrets", &self.secrets)
            && (has("parameters", &self.parameters) || has("volume_context", &self.parameters))
            && self.bytes_above.is_none_or(|bytes| occasion.size() > bytes)
            && self
                .place
                .is_none_or(|wanted| occasion.place().is_some_and(|place| wanted.fits(place)))
    }
}

// === impl Methods ===

impl Methods {
    /// The known RPCs meant; empty for one that only a proxy can meet.
    pub(crate) fn known(&self) -> Vec<Method> {
        match self {
            Self::One(path) => Method::at(path).into_iter().collect(),
            Self::Like(pattern) => Method::ALL
                .into_iter()
                .filter(|method| method.matches(pattern))
                .collect(),
        }
    }

    /// Whether the RPC of this path is meant.
    pub(super) fn has(&self, path: &str) -> bool {
        match self {
            Self::One(own) => own == path,
            Self::Like(pattern) => {
                let name = path.rsplit('/').next().unwrap_or(path);
                pattern.matches(path) || pattern.matches(name)
            }
        }
    }
}

// === impl CallNumbers ===

impl CallNumbers {
    /// Whether the `number`th call is meant.
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
    fn fits(self, place: VolumeLocation) -> bool {
        match self {
            Self::Attached => place.here || place.elsewhere,
            Self::AttachedHere => place.here,
            Self::AttachedElsewhere => place.elsewhere,
            Self::Detached => place.exists && !place.here && !place.elsewhere,
            Self::Absent => !place.exists,
        }
    }
}
