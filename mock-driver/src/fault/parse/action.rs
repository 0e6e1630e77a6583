//! `action`: the fault of a call.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::field_error::FieldError;
use super::value::ErrorCode;
use crate::fault::duration::Time;
use crate::fault::edit::Edits;
use crate::fault::random::DelayDistribution;
use crate::fault::rule::{Action, End, Exit, Hang, Methods, Phase, State};
use crate::rpc::method::Method;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawAction {
    code: Option<ErrorCode>,
    message: Option<String>,
    delay: Option<DelayDistribution>,
    hang: Option<Hang>,
    #[serde(default)]
    drop_connection: bool,
    socket_away: Option<Time>,
    exit: Option<Exit>,
    edit: Option<Map<String, Value>>,
    set_state: Option<State>,
    after_messages: Option<u64>,
}

// === impl RawAction ===

impl RawAction {
    pub(super) fn read(self, phase: Phase, method: Option<&Methods>) -> Result<Action, FieldError> {
        let (delay, hang, after_messages) = (self.delay, self.hang, self.after_messages);
        let set_state = self.set_state.clone();
        let is_reversed = matches!(delay, Some(DelayDistribution::Uniform { from, to }) if from > to);
        let end = self.end(phase, method)?;
        let waits = delay.is_some() || hang.is_some();
        let does_something = end.is_some() || waits;
        let is_given_up = hang == Some(Hang::ClientCancel);
        let in_background = phase == Phase::Background;
        FieldError::first([
            (
                is_reversed,
                "action.delay.uniform",
                "the first time must not be longer than the second",
            ),
            (
                !does_something && set_state.is_none(),
                "action",
                "must have a code, a delay, a hang, an edit, drop-connection, socket-away, exit or set-state",
            ),
            (
                !does_something && after_messages.is_some(),
                "action.after-messages",
                "says when something happens, so there must be something: a code, a delay, a hang, ...",
            ),
        ])?;
        if after_messages.is_some() {
            check_streams(phase, method)?;
        }
        if let Some(end) = end.as_ref().filter(|_| is_given_up) {
            let unseen = "has no effect after hang: client-cancel, because the client has cancelled the call: use another hang";
            let (field, reason) = match end {
                End::Answer { .. } => ("action.code", unseen),
                End::Edit(_) => ("action.edit", unseen),
                End::DropConnection | End::SocketAway(_) | End::Exit(_) => (
                    "action.hang",
                    "client-cancel waits until the client cancels the call, so no action can follow: use a duration",
                ),
            };
            return Err(FieldError::new(field, reason));
        }
        FieldError::first([
            (
                in_background && !waits,
                "action",
                "must have a delay or a hang in phase background: it says when the effect comes",
            ),
            (
                in_background && is_given_up,
                "action.hang",
                "must be a time or release in phase background: the client is gone",
            ),
            (
                in_background && !matches!(end, None | Some(End::Answer { .. })),
                "action",
                "can only have a code, a delay and a hang in phase background",
            ),
        ])?;
        Ok(Action {
            delay,
            queue: None,
            hang,
            end,
            set_state,
            after_messages,
        })
    }

    fn end(self, phase: Phase, method: Option<&Methods>) -> Result<Option<End>, FieldError> {
        let message = self.message;
        FieldError::first([
            (
                message.is_some() && self.code.is_none(),
                "action.message",
                "is never seen without a code",
            ),
            (
                message.as_deref() == Some(""),
                "action.message",
                "must not be empty: CSI asks for a text",
            ),
        ])?;
        let edits = self
            .edit
            .map(|edit| read_edit(&edit, phase, method))
            .transpose()?;
        let ends = [
            (
                "action.code",
                self.code.map(|ErrorCode(code)| End::Answer { code, message }),
            ),
            ("action.edit", edits.map(End::Edit)),
            (
                "action.drop-connection",
                self.drop_connection.then_some(End::DropConnection),
            ),
            (
                "action.socket-away",
                self.socket_away.map(|time| End::SocketAway(time.into())),
            ),
            ("action.exit", self.exit.map(End::Exit)),
        ];
        let mut ends = ends.into_iter().filter_map(|(field, end)| Some((field, end?)));
        match (ends.next(), ends.next()) {
            (Some((one, _)), Some((other, _))) => {
                let reason = format!("contradicts {one}: a call ends once, make two rules of it");
                Err(FieldError::new(other, reason))
            }
            (first, _) => Ok(first.map(|(_, end)| end)),
        }
    }
}

/// `after-messages` requires a method whose reply is a stream.
fn check_streams(phase: Phase, method: Option<&Methods>) -> Result<(), FieldError> {
    let error = |reason: String| Err(FieldError::new("action.after-messages", reason));
    if phase != Phase::After {
        return error("counts messages of the answer, so there must be one: write phase: after".into());
    }
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

fn read_edit(edit: &Map<String, Value>, phase: Phase, method: Option<&Methods>) -> Result<Edits, FieldError> {
    let error = |reason: &str| Err(FieldError::new("action.edit", reason));
    if phase != Phase::After {
        return error("changes a reply, so there must be one: write phase: after");
    }
    let known = method.map(Methods::known).unwrap_or_default();
    let ([rpc], Some(Methods::One(_))) = (known.as_slice(), method) else {
        return error("needs match.method with one method of CSI, whose reply it changes");
    };
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
