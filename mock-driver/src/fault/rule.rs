//! A fault rule: its calls, its phase, its action and its limit. Pure data; [`parse`](super::parse) parses it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tonic::Code;
use wildmatch::WildMatch;

use super::call_info::{CallInfo, VolumeLocation};
use super::call_match::{DeadlineMatch, PeerMatch, metadata};
use super::condition::Condition;
use super::edit::Edits;
use super::io::{Bytes, Io, IoEnd, IoKinds, Offsets};
use super::overlay::Overlay;
use super::pattern::Pattern;
use super::random::DelayDistribution;
use super::response::Response;
use super::value_match::ValueMatch;
use crate::rpc::capabilities::Capability;
use crate::rpc::method::{self, Method};

#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: String,
    pub(crate) kind: RuleKind,
    pub(super) enabled: bool,
    pub(crate) matches: Match,
    pub(crate) phase: Phase,
    pub(crate) action: Action,
    /// Maximum number of firings; `None` for no limit.
    pub(super) times: Option<u64>,
    /// The change to the array's reports while the fault is active; set only for backend faults, which then match no
    /// call.
    pub(super) overlay: Option<Overlay>,
    /// Whether its condition counts the volumes of the array.
    pub(super) counts_volumes: bool,
    /// Its source. Rules with the same source are equal.
    pub(crate) text: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleKind {
    /// `rules`
    Rule,
    /// `backend-faults`
    BackendFault,
}

/// The calls that a rule matches. Absent fields match every call.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Match {
    pub(crate) method: Option<Methods>,
    pub(super) volume: Option<Pattern>,
    pub(super) node: Option<Pattern>,
    /// Of a volume, snapshot or group to create.
    pub(super) name: Option<Pattern>,
    pub(super) secrets: BTreeMap<String, String>,
    pub(super) parameters: BTreeMap<String, String>,
    /// I/O on published volumes in place of calls: the rule is a device fault.
    pub(crate) io: Option<IoKinds>,
    /// Of the file of an I/O, below the root of the volume.
    pub(super) path: Option<Pattern>,
    pub(super) offset: Option<Offsets>,
    pub(super) bytes_above: Option<Bytes>,
    /// The call with this number among those that match, from 1.
    pub(super) call: Option<u64>,
    /// Every nth matching call: n, 2n and so on; with `call`, every nth from that call on.
    pub(super) every: Option<u64>,
    /// Probability of firing for these calls; `None` for 1.
    pub(super) probability: Option<f64>,
    /// Its own seed; `None` for the driver's.
    pub(super) seed: Option<u64>,
    /// Conditions on fields of the request, by their path.
    pub(super) request: BTreeMap<String, ValueMatch>,
    pub(super) metadata: BTreeMap<String, ValueMatch>,
    pub(super) peer: PeerMatch,
    pub(super) deadline: DeadlineMatch,
    pub(super) not: Option<Box<Self>>,
    pub(super) r#while: While,
    /// Condition on the array's state; set only for backend faults.
    #[serde(skip)]
    pub(super) condition: Option<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct While {
    pub(super) volume: Option<LocationMatch>,
    pub(super) state: Option<State>,
}

/// A state of the rules; not empty.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct State(pub(super) Arc<str>);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Methods {
    One(String),
    /// CSI's RPCs whose name or path matches.
    Like(WildMatch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LocationMatch {
    Attached,
    /// Attached to the call's node.
    AttachedHere,
    AttachedElsewhere,
    /// Existing, and attached to no node.
    Detached,
    Absent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
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
pub(crate) struct Action {
    pub(crate) delay: Option<DelayDistribution>,
    /// Per-node queue: service time of each call; set only for backend faults.
    pub(super) queue: Option<Duration>,
    pub(crate) hang: Option<Hang>,
    pub(super) bandwidth: Option<Bytes>,
    /// The end; `None` to let the call continue.
    pub(crate) end: Option<CallEnd>,
    pub(crate) set_state: Option<State>,
    /// Number of messages of a stream before the action; `None` for none. A shorter stream is interrupted at its end.
    pub(crate) after_messages: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Hang {
    /// Until the client cancels the call.
    ClientCancel,
    Release,
    For(Duration),
}

#[derive(Clone, Debug)]
pub(crate) enum CallEnd {
    Status {
        /// `Ok` to pretend that the operation succeeded.
        code: Code,
        /// `None` for one that names the rule.
        message: Option<String>,
    },
    Edit(Edits),
    /// The driver has these capabilities, or not, from now on. The call continues.
    Capabilities(Vec<(Capability, bool)>),
    /// The call succeeds with this reply, without the array.
    Respond(Response),
    DropConnection,
    /// The socket and all connections are closed; the socket is opened again after this duration.
    SocketAway(Duration),
    Exit(Exit),
    Io(IoEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// At once, with this exit code; the socket is removed.
    Status(u8),
    /// SIGKILL: nothing is cleaned up.
    Kill,
}

// === impl Rule ===

impl Rule {
    /// The code and message that the rule responds with, if it does.
    pub(crate) fn status(&self) -> Option<(Code, String)> {
        let Some(CallEnd::Status { code, message }) = &self.action.end else {
            return None;
        };
        let text = || format!("injected by fault rule \"{}\"", self.id);
        Some((*code, message.clone().unwrap_or_else(text)))
    }

    /// The code that callers get; `None` if the rule does not fail calls.
    pub(super) fn code(&self) -> Option<Code> {
        match (&self.action.end, self.phase) {
            (Some(CallEnd::Status { code, .. }), _) => Some(*code),
            (Some(CallEnd::Respond(_)), _) => Some(Code::Ok),
            (None, Phase::Background) => Some(Code::DeadlineExceeded),
            _ => None,
        }
    }

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

// === impl Exit ===

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Kill => f.write_str("SIGKILL"),
        }
    }
}

// === impl Phase ===

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Background => "background",
        }
    }
}

// === impl RuleKind ===

impl RuleKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::BackendFault => "backend fault",
        }
    }
}

// === impl Match ===

impl Match {
    /// Whether some I/O on the volume on a node may match.
    pub(super) fn names(&self, volume: &str, node: &str) -> bool {
        let matches =
            |pattern: &Option<Pattern>, id| pattern.as_ref().is_none_or(|pattern| pattern.matches(id));
        let excludes = |not: &Self| !not.selects_io() && not.names(volume, node);
        matches(&self.volume, volume)
            && matches(&self.node, node)
            && !self.not.as_deref().is_some_and(excludes)
    }

    /// Whether it depends on the node of a call, also through the location of the volume.
    pub(super) fn names_node(&self) -> bool {
        self.node.is_some()
            || self.r#while.volume.is_some()
            || self.not.as_deref().is_some_and(Self::names_node)
    }

    /// Whether it matches only some of the I/O on a volume.
    fn selects_io(&self) -> bool {
        self.io.is_some()
            || self.path.is_some()
            || self.offset.is_some()
            || self.bytes_above.is_some()
            || self.peer.is_set()
            || self.r#while.state.is_some()
    }

    /// Whether a call matches, apart from counts and probability.
    pub(super) fn covers(&self, call: &dyn CallInfo, state: &str) -> bool {
        let matches = |pattern: &Option<Pattern>, text: &str| match pattern {
            None => true,
            Some(pattern) => !text.is_empty() && pattern.matches(text),
        };
        let has = |field: &str, wanted: &BTreeMap<String, String>| {
            wanted
                .iter()
                .all(|(key, value)| call.entry(field, key).as_ref() == Some(value))
        };
        let While {
            volume,
            state: wanted,
        } = &self.r#while;
        self.method.as_ref().is_none_or(|method| method.has(call.path()))
            && matches(&self.volume, call.volume())
            && matches(&self.node, call.node())
            && matches(&self.name, call.name())
            && wanted.as_ref().is_none_or(|wanted| *wanted.0 == *state)
            && has("secrets", &self.secrets)
            && (has("parameters", &self.parameters) || has("volume_context", &self.parameters))
            && self.bytes_above.is_none_or(|bytes| call.size() > bytes.0)
            && volume.is_none_or(|wanted| call.location().is_some_and(|location| wanted.matches(location)))
            && (self.request.is_empty() || ValueMatch::all(&self.request, &call.json()))
            && self
                .metadata
                .iter()
                .all(|(key, wanted)| wanted.matches(&metadata(call, key)))
            && self.peer.matches(call.peer())
            && self.deadline.matches(call)
            && self.covers_io(call.io())
            && self.not.as_ref().is_none_or(|not| !not.covers(call, state))
    }

    /// Whether the operation matches; a call matches only without conditions.
    fn covers_io(&self, io: Option<Io<'_>>) -> bool {
        let Some(Io { kind, range, path }) = io else {
            return self.path.is_none() && self.offset.is_none();
        };
        let overlaps = |offset: Offsets| range.as_ref().is_some_and(|range| offset.overlaps(range));
        self.io.as_ref().is_none_or(|kinds| kinds.0.contains(&kind))
            && self.offset.is_none_or(overlaps)
            && self
                .path
                .as_ref()
                .is_none_or(|pattern| pattern.matches(&path.file_path()))
    }

    /// Whether the `number`th matching call is selected.
    pub(super) fn selects(&self, number: u64) -> bool {
        match (self.call, self.every) {
            (None, None) => true,
            (Some(call), None) => number == call,
            (None, Some(every)) => number.is_multiple_of(every),
            (Some(call), Some(every)) => number >= call && (number - call).is_multiple_of(every),
        }
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
