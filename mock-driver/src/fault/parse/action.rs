//! `action`: the fault of a call.
//!
//! `fields!` has the table of actions, from which the errors about phases and combinations follow. The cookbook has a row for each.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use tonic::Code;

use super::field_error::FieldError;
use super::value::{AnyCode, Effect};
use crate::fault::duration::Time;
use crate::fault::edit::Edits;
use crate::fault::io::{Bytes, IoEnd, IoError, IoKind, IoKinds, NEEDS_BYTES};
use crate::fault::random::DelayDistribution;
use crate::fault::response::Response;
use crate::fault::rule::{Action, CallEnd, Exit, Hang, Match, Methods, Phase, State};
use crate::rpc::capabilities::Capability;
use crate::rpc::method::Method;

#[derive(Debug, PartialEq, Eq)]
pub(in crate::fault) struct Field {
    pub(in crate::fault) name: &'static str,
    role: Role,
    phases: &'static [Phase],
    /// The phases of a device fault; empty if it has no such field.
    io_phases: &'static [Phase],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It ends the call; an action has at most one.
    End,
    /// It delays the call.
    Wait,
    /// It changes the state of the rules.
    State,
    /// It says more about the others.
    Detail,
}

const ALL: &[Phase] = &[Phase::Before, Phase::After, Phase::Background];
const BEFORE: &[Phase] = &[Phase::Before];
const AROUND: &[Phase] = &[Phase::Before, Phase::After];
const AFTER: &[Phase] = &[Phase::After];
const NEVER: &[Phase] = &[];

/// Makes the table of fields, and the struct that reads them.
macro_rules! fields {
    ($($name:literal $field:ident: $type:ty, $role:ident, $phases:ident, $io_phases:ident;)+) => {
        /// All fields, in the order of the cookbook.
        pub(in crate::fault) const FIELDS: &[Field] = &[$(Field {
            name: $name,
            role: Role::$role,
            phases: $phases,
            io_phases: $io_phases,
        }),+];

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct RawAction {
            $(#[serde(rename = $name, default)] pub(super) $field: $type,)+
        }
    };
}

// Name, type, role, phases for calls, phases for device faults.
fields! {
    "delay" delay: Option<DelayDistribution>, Wait, ALL, BEFORE;
    "hang" hang: Option<Hang>, Wait, ALL, BEFORE;
    "code" code: Option<AnyCode>, End, ALL, NEVER;
    "message" message: Option<String>, Detail, ALL, NEVER;
    "pretend" pretend: Option<AnyCode>, End, BEFORE, NEVER;
    "effect" effect: Option<Effect>, Detail, ALL, AROUND;
    "edit" edit: Option<Map<String, Value>>, End, AFTER, NEVER;
    "response" response: Option<Value>, End, BEFORE, NEVER;
    "drop-connection" drop_connection: bool, End, AROUND, NEVER;
    "socket-away" socket_away: Option<Time>, End, AROUND, NEVER;
    "exit" exit: Option<Exit>, End, AROUND, NEVER;
    "capabilities" capabilities: Option<BTreeMap<String, bool>>, End, AFTER, NEVER;
    "after-messages" after_messages: Option<u64>, Detail, AFTER, NEVER;
    "set-state" set_state: Option<State>, State, ALL, BEFORE;
    "errno" errno: Option<IoError>, End, NEVER, AROUND;
    "torn" torn: Option<Bytes>, End, NEVER, BEFORE;
    "lose-unsynced" lose_unsynced: bool, End, NEVER, BEFORE;
    "bandwidth" bandwidth: Option<Bytes>, Wait, NEVER, BEFORE;
}

// === impl Field ===

impl Field {
    fn phases(&self, is_io: bool) -> &'static [Phase] {
        if is_io { self.io_phases } else { self.phases }
    }
}

/// The names of the fields with a role, of calls or of device faults.
fn names(role: Role, is_io: bool) -> String {
    let fields = FIELDS
        .iter()
        .filter(|field| field.role == role && !field.phases(is_io).is_empty());
    fields.map(|field| field.name).collect::<Vec<_>>().join(", ")
}

// === impl RawAction ===

impl RawAction {
    /// Checks the action of a rule, whose source is `text`.
    pub(super) fn read(self, text: &Value, phase: Phase, matches: &Match) -> Result<Action, FieldError> {
        let (method, io) = (matches.method.as_ref(), matches.io.as_ref());
        let is_set = |field: &&Field| {
            !matches!(
                text.get(field.name),
                None | Some(Value::Null | Value::Bool(false))
            )
        };
        let set: Vec<&Field> = FIELDS.iter().filter(is_set).collect();
        check_fields(&set, phase, io.is_some())?;
        self.check_io(io)?;
        let has = |role| set.iter().any(|field| field.role == role);
        let is_reversed = matches!(self.delay, Some(DelayDistribution::Uniform { from, to }) if from > to);
        let is_given_up = self.hang == Some(Hang::ClientCancel);
        let in_background = phase == Phase::Background;
        let code = self.code.or(self.pretend).map(|AnyCode(code)| code);
        // (whether it is wrong, field, reason)
        FieldError::first([
            (
                self.message.is_some() && code.is_none_or(|code| code == Code::Ok),
                "action.message",
                "is never seen without a code that is an error",
            ),
            (
                self.message.as_deref() == Some(""),
                "action.message",
                "must not be empty: CSI asks for a text",
            ),
            (
                code == Some(Code::Ok) && phase == Phase::After,
                "action.code",
                "OK has no effect in phase after, where the call has succeeded: use an error",
            ),
            (
                matches!(self.effect, Some(Effect::Now(false))) && !has(Role::End) && !is_given_up,
                "action.effect",
                "false needs a field that ends the call, such as code or pretend: the array acts after a delay or a hang alone",
            ),
            (
                is_reversed,
                "action.delay.uniform",
                "the first time must not be longer than the second",
            ),
            (
                in_background && !has(Role::Wait),
                "action",
                "must have a delay or a hang in phase background: it says when the effect comes",
            ),
            (
                in_background && is_given_up,
                "action.hang",
                "must be a time or release in phase background: the client is gone",
            ),
        ])?;
        if self.after_messages.is_some() {
            check_streams(method)?;
        }
        let edits = self.edit.as_ref().map(|edit| read_edit(edit, method));
        let capabilities = self.capabilities.as_ref().map(read_capabilities);
        let response = self
            .response
            .clone()
            .map(|response| read_response(response, method));
        if let Some(end) = set.iter().find(|field| field.role == Role::End && is_given_up) {
            let reason = "has no effect after hang: client-cancel, because the client has cancelled the call: use a duration";
            return Err(FieldError(format!("action.{}", end.name), reason.to_owned()));
        }
        Ok(Action {
            delay: self.delay,
            queue: None,
            hang: self.hang,
            bandwidth: self.bandwidth,
            set_state: self.set_state.clone(),
            after_messages: self.after_messages,
            end: self.end(
                code,
                edits.transpose()?,
                capabilities.transpose()?,
                response.transpose()?,
            ),
        })
    }

    fn end(
        self,
        code: Option<Code>,
        edits: Option<Edits>,
        capabilities: Option<Vec<(Capability, bool)>>,
        response: Option<Response>,
    ) -> Option<CallEnd> {
        let message = self.message;
        code.map(|code| CallEnd::Status { code, message })
            .or_else(|| edits.map(CallEnd::Edit))
            .or_else(|| capabilities.map(CallEnd::Capabilities))
            .or_else(|| response.map(CallEnd::Respond))
            .or_else(|| self.drop_connection.then_some(CallEnd::DropConnection))
            .or_else(|| self.socket_away.map(|time| CallEnd::SocketAway(time.into())))
            .or_else(|| self.exit.map(CallEnd::Exit))
            .or_else(|| self.errno.map(|error| CallEnd::Io(IoEnd::Fail(error))))
            .or_else(|| self.torn.map(|Bytes(kept)| CallEnd::Io(IoEnd::Torn(kept))))
            .or_else(|| self.lose_unsynced.then_some(CallEnd::Io(IoEnd::LoseUnsynced)))
    }

    /// Checks that a device fault has an effect on each operation.
    fn check_io(&self, io: Option<&IoKinds>) -> Result<(), FieldError> {
        let Some(IoKinds(kinds)) = io else { return Ok(()) };
        let all = |kind| kinds.iter().all(|other| *other == kind);
        let transfer_bytes = kinds.iter().all(|kind| kind.has_bytes());
        FieldError::first([
            (
                self.hang == Some(Hang::ClientCancel),
                "action.hang",
                "must be a time or release: a process cannot cancel its I/O",
            ),
            (
                self.torn.is_some() && !all(IoKind::Write),
                "action.torn",
                "needs match.io: write",
            ),
            (
                self.bandwidth.is_some() && !transfer_bytes,
                "action.bandwidth",
                NEEDS_BYTES,
            ),
            (
                self.bandwidth == Some(Bytes(0)),
                "action.bandwidth",
                "must be above 0; hang: release stops all I/O",
            ),
            (
                kinds.contains(&IoKind::Detach) && !self.lose_unsynced,
                "match.io",
                "detach is for lose-unsynced only: no process waits for it",
            ),
        ])
    }
}

/// Checks phases and combinations according to the table.
fn check_fields(set: &[&Field], phase: Phase, is_io: bool) -> Result<(), FieldError> {
    if let Some(field) = set.iter().find(|field| field.phases(is_io).is_empty()) {
        let reason = match is_io {
            true => "has no effect on I/O: remove it, or match.io",
            false => "is a device fault: write match: {io: write}, or another operation",
        };
        return Err(FieldError(format!("action.{}", field.name), reason.to_owned()));
    }
    if let Some(field) = set.iter().find(|field| !field.phases(is_io).contains(&phase)) {
        let phases: Vec<&str> = field.phases(is_io).iter().map(|phase| phase.name()).collect();
        let reason = format!(
            "has no effect in phase {}: write phase: {}",
            phase.name(),
            phases.join(" or ")
        );
        return Err(FieldError(format!("action.{}", field.name), reason));
    }
    let mut ends = set.iter().filter(|field| field.role == Role::End);
    if let (Some(one), Some(other)) = (ends.next(), ends.next()) {
        let reason = format!(
            "contradicts action.{}: a call ends once, so an action has at most one of {}; make two rules of it",
            one.name,
            names(Role::End, is_io)
        );
        return Err(FieldError(format!("action.{}", other.name), reason));
    }
    let acts = set
        .iter()
        .any(|field| matches!(field.role, Role::End | Role::Wait));
    let has_state = set.iter().any(|field| field.role == Role::State);
    let reason = format!(
        "must have one of {}, {} or {}",
        names(Role::End, is_io),
        names(Role::Wait, is_io),
        names(Role::State, is_io)
    );
    FieldError::first([
        (!acts && !has_state, "action", &reason),
        (
            !acts && set.iter().any(|field| field.name == "after-messages"),
            "action.after-messages",
            "says when something happens, so there must be something: a code, a delay, a hang, ...",
        ),
    ])
}

/// `after-messages` requires a method whose reply is a stream.
fn check_streams(method: Option<&Methods>) -> Result<(), FieldError> {
    let error = |reason: String| Err(FieldError::new("action.after-messages", reason));
    let Some(method) = method else {
        let streams = Method::ALL.into_iter().filter(|method| method.streams());
        let streams = streams.map(Method::name).collect::<Vec<_>>().join(", ");
        return error(format!(
            "needs match.method with methods that answer with a stream: {streams}"
        ));
    };
    // A method unknown to the driver may stream.
    match method.known().into_iter().find(|rpc| !rpc.streams()) {
        Some(rpc) => error(format!(
            "{} answers with one message, not with a stream",
            rpc.name()
        )),
        None => Ok(()),
    }
}

fn read_edit(edit: &Map<String, Value>, method: Option<&Methods>) -> Result<Edits, FieldError> {
    let error = |reason: &str| Err(FieldError::new("action.edit", reason));
    let rpc = one_method("action.edit", method)?;
    if rpc.streams() {
        let name = rpc.name();
        return error(&format!(
            "{name} answers with a stream: only single replies can be changed"
        ));
    }
    if edit.is_empty() {
        return error("must name a field, as in {publish_context.device: /dev/null}");
    }
    Edits::read(edit, &rpc.reply())
        .map_err(|(path, reason)| FieldError(format!("action.edit.{path}"), reason))
}

fn read_capabilities(changes: &BTreeMap<String, bool>) -> Result<Vec<(Capability, bool)>, FieldError> {
    let read = |(name, enabled): (&String, &bool)| match name.parse::<Capability>() {
        Ok(capability) => Ok((capability, *enabled)),
        Err(error) => Err(FieldError(
            format!("action.capabilities.{name}"),
            error.to_string(),
        )),
    };
    changes.iter().map(read).collect()
}

fn read_response(response: Value, method: Option<&Methods>) -> Result<Response, FieldError> {
    let rpc = one_method("action.response", method)?;
    Response::read(response, rpc).map_err(|reason| FieldError::new("action.response", reason))
}

fn one_method(field: &str, method: Option<&Methods>) -> Result<Method, FieldError> {
    match (method.map(Methods::known).unwrap_or_default().as_slice(), method) {
        ([rpc], Some(Methods::One(_))) => Ok(*rpc),
        _ => Err(FieldError::new(
            field,
            "needs match.method with one method of CSI, whose reply it is",
        )),
    }
}
