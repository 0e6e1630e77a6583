//! `action`: what goes wrong with a call.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tonic::Code;

use super::field_error::FieldError;
use super::matching::read_state;
use crate::fault::duration;
use crate::fault::edit::Edits;
use crate::fault::random::DelayDistribution;
use crate::fault::rule::{Action, End, Exit, Hang, Methods, Phase};
use crate::rpc::code;
use crate::rpc::method::Method;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawAction {
    code: Option<String>,
    message: Option<String>,
    delay: Option<Value>,
    hang: Option<String>,
    #[serde(default)]
    drop_connection: bool,
    socket_away: Option<String>,
    exit: Option<Value>,
    edit: Option<Map<String, Value>>,
    set_state: Option<String>,
    after_messages: Option<u64>,
}

// === impl RawAction ===

impl RawAction {
    pub(super) fn read(self, phase: Phase, method: Option<&Methods>) -> Result<Action, FieldError> {
        let hang = self.hang.as_deref().map(read_hang).transpose()?;
        let delay = self.delay.as_ref().map(read_spread).transpose()?;
        let set_state = read_state("action.set-state", self.set_state.clone())?;
        let after_messages = self.after_messages;
        let end = read_end(self, phase, method)?;
        if end.is_none() && delay.is_none() && hang.is_none() && set_state.is_none() {
            let reason =
                "must have a code, a delay, a hang, an edit, drop-connection, socket-away, exit or set-state";
            return Err(FieldError::new("action", reason));
        }
        if after_messages.is_some() {
            if end.is_none() && delay.is_none() && hang.is_none() {
                let reason =
                    "says when something happens, so there must be something: a code, a delay, a hang, ...";
                return Err(FieldError::new("action.after-messages", reason));
            }
            check_streams(phase, method)?;
        }
        if hang == Some(Hang::ClientCancel) {
            if matches!(end, Some(End::Answer { .. } | End::Edit(_))) {
                let field = if matches!(end, Some(End::Edit(_))) {
                    "action.edit"
                } else {
                    "action.code"
                };
                return Err(FieldError::new(
                    field,
                    "is never seen by a client that has given up: take another hang",
                ));
            }
            if end.is_some() {
                return Err(FieldError::new(
                    "action.hang",
                    "client-cancel never ends, so nothing can come after it: take a time",
                ));
            }
        }
        if phase == Phase::Background {
            if delay.is_none() && hang.is_none() {
                let reason = "must have a delay or a hang in phase background: it says when the effect comes";
                return Err(FieldError::new("action", reason));
            }
            if hang == Some(Hang::ClientCancel) {
                return Err(FieldError::new(
                    "action.hang",
                    "must be a time or release in phase background: the client is gone",
                ));
            }
            if !matches!(end, None | Some(End::Answer { .. })) {
                return Err(FieldError::new(
                    "action",
                    "can only have a code, a delay and a hang in phase background",
                ));
            }
        }
        Ok(Action {
            delay,
            queue: None,
            hang,
            end,
            set_state,
            after_messages,
        })
    }
}

/// Only answers that are streams have messages to count.
fn check_streams(phase: Phase, method: Option<&Methods>) -> Result<(), FieldError> {
    let at = "action.after-messages";
    if phase != Phase::After {
        return Err(FieldError::new(
            at,
            "counts messages of the answer, so there must be one: write phase: after",
        ));
    }
    let known = method.map(Methods::known).unwrap_or_default();
    // A method unknown to the driver may stream.
    let is_any = known.is_empty();
    let is_foreign = method.is_some() && is_any;
    match known.into_iter().find(|rpc| !rpc.streams()) {
        Some(rpc) => {
            let reason = format!("{} answers with one message, not with a stream", rpc.name());
            Err(FieldError::new(at, reason))
        }
        None if is_any && !is_foreign => {
            let streams = Method::ALL.into_iter().filter(|method| method.streams());
            let streams: Vec<&str> = streams.map(Method::name).collect();
            let reason = format!(
                "needs match.method with methods that answer with a stream: {}",
                streams.join(", ")
            );
            Err(FieldError::new(at, reason))
        }
        None => Ok(()),
    }
}

fn read_end(written: RawAction, phase: Phase, method: Option<&Methods>) -> Result<Option<End>, FieldError> {
    if written.message.is_some() && written.code.is_none() {
        return Err(FieldError::new("action.message", "is never seen without a code"));
    }
    if written.message.as_ref().is_some_and(String::is_empty) {
        return Err(FieldError::new(
            "action.message",
            "must not be empty: CSI asks for a text",
        ));
    }
    let mut ends: Vec<(&str, End)> = Vec::new();
    if let Some(name) = written.code {
        let code = error_code(&name)?;
        let message = written.message;
        ends.push(("action.code", End::Answer { code, message }));
    }
    if let Some(edit) = &written.edit {
        ends.push(("action.edit", End::Edit(read_edit(edit, phase, method)?)));
    }
    if written.drop_connection {
        ends.push(("action.drop-connection", End::DropConnection));
    }
    if let Some(text) = &written.socket_away {
        let time = duration::parse(text)
            .map_err(|error| FieldError::new("action.socket-away", error.to_string()))?;
        ends.push(("action.socket-away", End::SocketAway(time)));
    }
    if let Some(exit) = &written.exit {
        ends.push(("action.exit", End::Exit(read_exit(exit)?)));
    }
    let mut ends = ends.into_iter();
    let first = ends.next();
    match (&first, ends.next()) {
        (Some((one, _)), Some((other, _))) => Err(FieldError::new(
            other,
            format!("contradicts {one}: a call ends once, make two rules of it"),
        )),
        _ => Ok(first.map(|(_, end)| end)),
    }
}

fn read_edit(edit: &Map<String, Value>, phase: Phase, method: Option<&Methods>) -> Result<Edits, FieldError> {
    if phase != Phase::After {
        return Err(FieldError::new(
            "action.edit",
            "changes a reply, so there must be one: write phase: after",
        ));
    }
    let known = method.map(Methods::known).unwrap_or_default();
    let ([rpc], Some(Methods::One(_))) = (known.as_slice(), method) else {
        return Err(FieldError::new(
            "action.edit",
            "needs match.method with one method of CSI, whose reply it changes",
        ));
    };
    if rpc.streams() {
        let reason = format!(
            "{} answers with a stream: only single replies can be changed",
            rpc.name()
        );
        return Err(FieldError::new("action.edit", reason));
    }
    if edit.is_empty() {
        return Err(FieldError::new(
            "action.edit",
            "must name a field, as in {publish_context.device: /dev/null}",
        ));
    }
    Edits::read(edit, &rpc.reply())
        .map_err(|(path, reason)| FieldError(format!("action.edit.{path}"), reason))
}

fn read_exit(value: &Value) -> Result<Exit, FieldError> {
    let status = value.as_u64().and_then(|status| u8::try_from(status).ok());
    match (value.as_str(), status) {
        (Some("kill"), _) => Ok(Exit::Kill),
        (None, Some(status)) => Ok(Exit::Status(status)),
        _ => Err(FieldError::new(
            "action.exit",
            "must be a status from 0 to 255, or kill",
        )),
    }
}

fn read_hang(text: &str) -> Result<Hang, FieldError> {
    match text {
        "client-cancel" => Ok(Hang::ClientCancel),
        "release" => Ok(Hang::Release),
        text => duration::parse(text)
            .map(Hang::For)
            .map_err(|error| FieldError::new("action.hang", format!("{error}, or client-cancel or release"))),
    }
}

fn read_spread(value: &Value) -> Result<DelayDistribution, FieldError> {
    let at = "action.delay";
    let wrong = || {
        FieldError::new(
            at,
            "must be a duration in a string like 250ms, {uniform: [100ms, 2s]} or {exponential: 500ms, max: 10s}",
        )
    };
    let time = |value: &Value| -> Result<Duration, FieldError> {
        let text = value.as_str().ok_or_else(wrong)?;
        duration::parse(text).map_err(|error| FieldError::new(at, error.to_string()))
    };
    let Some(fields) = value.as_object() else {
        return time(value).map(DelayDistribution::Fixed);
    };
    if let Some(odd) = fields
        .keys()
        .find(|key| !["uniform", "exponential", "max"].contains(&key.as_str()))
    {
        return Err(FieldError(
            format!("{at}.{odd}"),
            "unknown field: there are uniform, exponential and max".into(),
        ));
    }
    match (
        fields.get("uniform"),
        fields.get("exponential"),
        fields.get("max"),
    ) {
        (Some(Value::Array(bounds)), None, None) if bounds.len() == 2 => {
            let (from, to) = (time(&bounds[0])?, time(&bounds[1])?);
            if from > to {
                return Err(FieldError::new(
                    "action.delay.uniform",
                    "the first time must not be longer than the second",
                ));
            }
            Ok(DelayDistribution::Uniform { from, to })
        }
        (None, Some(mean), max) => Ok(DelayDistribution::Exponential {
            mean: time(mean)?,
            max: max.map(time).transpose()?,
        }),
        _ => Err(wrong()),
    }
}

pub(super) fn error_code(name: &str) -> Result<Code, FieldError> {
    code::named(name).ok_or_else(|| {
        FieldError::new(
            "action.code",
            format!("unknown code \"{name}\": use one of {}", code::names()),
        )
    })
}
