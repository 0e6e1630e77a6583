//! Applies the fault of a rule to its call.

use std::time::Duration;

use prost::Message;
use prost_reflect::DynamicMessage;
use tokio::time;
use tonic::Code;

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::{ActiveFault, CallEnd, Decision, Phase};
use crate::rpc::method::Method;
use crate::socket::ConnectionInfo;

/// Maximum time of a message from the handler to the socket, unless the reader is slow.
const ARRIVES_WITHIN: Duration = Duration::from_millis(50);

/// What a rule's action leaves of its call.
#[derive(Debug)]
pub(crate) enum Injection {
    Continue,
    Fail(Error),
    /// The call succeeds, although its operation does not happen now.
    Succeed,
    /// The call succeeds with these encoded messages.
    Respond(Vec<Vec<u8>>),
}

// === impl Injection ===

impl Injection {
    fn of((code, message): (Code, String)) -> Self {
        if code == Code::Ok {
            return Self::Succeed;
        }
        Self::Fail(Error::Injected { code, message })
    }
}

// === impl Driver ===

impl Driver {
    /// Applies a rule's action.
    ///
    /// # Cancellation
    /// May be dropped at any time, for example when the call's connection is closed.
    pub(crate) async fn apply_fault(
        &self,
        active: &mut ActiveFault,
        connection: Option<&ConnectionInfo>,
    ) -> Injection {
        active.pause().await;
        match &active.rule().action.end {
            None | Some(CallEnd::Edit(_) | CallEnd::Io(_)) => Injection::Continue,
            Some(CallEnd::Status { .. }) => active.status().map_or(Injection::Continue, Injection::of),
            Some(CallEnd::Capabilities(changes)) => {
                for (capability, enabled) in changes {
                    self.capabilities.write().set(*capability, *enabled);
                }
                Injection::Continue
            }
            Some(CallEnd::Respond(_)) => match &active.response {
                Ok(messages) => Injection::Respond(messages.clone()),
                Err(reason) => Injection::of((
                    Code::Internal,
                    format!("fault rule \"{}\": response: {reason}", active.rule().id),
                )),
            },
            Some(CallEnd::DropConnection) => match connection {
                Some(connection) => {
                    connection.handle.cut();
                    std::future::pending().await
                }
                None => Injection::Fail(active.lost_connection()),
            },
            Some(CallEnd::SocketAway(time)) => {
                self.socket_control.take_away(Some(*time));
                std::future::pending().await
            }
            Some(CallEnd::Exit(how)) => {
                tracing::warn!(rule = active.rule().id, exit = %how, "exiting, as a fault rule requires");
                self.exit.request(*how);
                std::future::pending().await
            }
        }
    }
}

// === impl Decision ===

impl Decision {
    /// Takes a rule that acts after the operation.
    pub(crate) fn take_after(&mut self) -> Option<ActiveFault> {
        self.rule.take_if(|active| active.rule().phase == Phase::After)
    }

    /// The answer of a call whose operation continues in the background.
    pub(crate) fn background_answer(&self) -> Option<Injection> {
        let active = self.rule.as_ref()?;
        (active.rule().phase == Phase::Background).then(|| active.background_answer())
    }

    /// Delays the call by a rule and a backend fault, and returns the error if the backend fault refuses it.
    pub(crate) async fn pause(&mut self) -> Result<(), Error> {
        if let Some(mut active) = self.rule.take() {
            active.pause().await;
        }
        if let Some(mut active) = self.backend.take() {
            active.pause().await;
            if let Some((code, message)) = active.status() {
                return Err(Error::Injected { code, message });
            }
        }
        Ok(())
    }
}

// === impl ActiveFault ===

impl ActiveFault {
    /// Waits, before a rule closes the connection, until sent messages have left the process: another task writes them, without
    /// a notification.
    pub(crate) async fn flush_before(&self) {
        if matches!(
            self.rule().action.end,
            Some(CallEnd::DropConnection | CallEnd::SocketAway(_) | CallEnd::Exit(_))
        ) {
            time::sleep(ARRIVES_WITHIN).await;
        }
    }

    /// The response of a call whose operation continues in the background.
    fn background_answer(&self) -> Injection {
        let late = || {
            let text = format!(
                "fault rule \"{}\": the work goes on after this answer",
                self.rule().id
            );
            (Code::DeadlineExceeded, text)
        };
        Injection::of(self.rule().status().unwrap_or_else(late))
    }

    /// The reply with the rule's edits.
    pub(crate) fn edited<R: Message + Default>(&self, path: &str, reply: R) -> R {
        match self.edit_reply(path, &reply.encode_to_vec()) {
            Some(bytes) => {
                R::decode(bytes.as_slice()).expect("an edited reply must decode: its fields were checked")
            }
            None => reply,
        }
    }

    /// An encoded reply with the rule's edits; `None` without edits, or if the reply cannot be decoded.
    pub(crate) fn edit_reply(&self, path: &str, reply: &[u8]) -> Option<Vec<u8>> {
        let Some(CallEnd::Edit(edits)) = &self.rule().action.end else {
            return None;
        };
        let descriptor = Method::at(path)?.reply();
        match DynamicMessage::decode(descriptor, reply) {
            Ok(mut message) => {
                edits.apply(&mut message);
                Some(message.encode_to_vec())
            }
            Err(error) => {
                tracing::warn!(rule = self.rule().id, %error, "reply cannot be read, so it is not changed");
                None
            }
        }
    }

    fn lost_connection(&self) -> Error {
        Error::Injected {
            code: Code::Unavailable,
            message: format!("fault rule \"{}\": the connection is lost", self.rule().id),
        }
    }
}
