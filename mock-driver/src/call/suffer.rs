//! What a call goes through that a rule fired for.

use std::time::Duration;

use prost::Message;
use prost_reflect::DynamicMessage;
use tokio::time;
use tonic::Code;

use super::arrival::Arrival;
use super::{Kind, Rpc};
use crate::driver::Driver;
use crate::error::Error;
use crate::fault::{End, Fired, Hang, Obstacle, Occasion, Stock};
use crate::journal::CallRecord;
use crate::schema;
use crate::socket::ConnectionInfo;

/// How long a message takes at most from the handler to the socket, unless the reader is slow.
const ARRIVES_WITHIN: Duration = Duration::from_millis(50);

// === impl Driver ===

impl Driver {
    /// Does what a rule says up to and with its end, and gives the error to answer with, if any.
    ///
    /// # Cancellation
    /// May be dropped at any time: that is how a call ends whose connection broke.
    pub(crate) async fn suffer(
        &self,
        fired: &mut Fired,
        connection: Option<&ConnectionInfo>,
    ) -> Option<Error> {
        fired.pause().await;
        match &fired.rule().action.end {
            None | Some(End::Edit(_)) => None,
            Some(End::Answer { .. }) => {
                let (code, message) = fired.rule().answer()?;
                Some(Error::Injected { code, message })
            }
            Some(End::DropConnection) => match connection {
                Some(connection) => {
                    connection.wire.cut();
                    std::future::pending().await
                }
                None => Some(fired.lost_connection()),
            },
            Some(End::SocketAway(time)) => {
                self.door.take_away(Some(*time));
                std::future::pending().await
            }
            Some(End::Exit(how)) => {
                tracing::warn!(rule = fired.rule().id, ?how, "ending, as a fault rule says");
                self.exit.order(*how);
                std::future::pending().await
            }
        }
    }
}

impl Driver {
    /// What the array's troubles put in a call's way; named in the journal unless a rule is.
    pub(super) fn obstacle<Q: Rpc>(
        &self,
        request: &Q,
        is_named: bool,
        record: &mut Option<CallRecord>,
    ) -> Option<Obstacle> {
        let arrival = Arrival {
            request,
            driver: self,
        };
        let stock = || self.stock(&arrival);
        let troubles = self.faults.troubles();
        let (id, obstacle) = troubles.meet(&arrival, Q::KIND != Kind::Look, &stock)?;
        if let Some(record) = record.as_mut().filter(|_| is_named) {
            record.set_fault(Some(&id));
        }
        Some(obstacle)
    }

    fn stock(&self, call: &dyn Occasion) -> Stock {
        self.store.peek(|array| {
            let mut stock = Stock {
                asked: call.size(),
                ..Stock::default()
            };
            for volume in array.volumes() {
                stock.volumes += 1;
                stock.bytes += volume.spec.capacity_bytes;
                let is_here = volume.attachments.keys().any(|node| node.as_str() == call.node());
                stock.on_node += u64::from(is_here);
                stock.is_repeat |= match call.volume() {
                    "" => volume.spec.name == call.name(),
                    id => is_here && volume.spec.id.as_str() == id,
                };
            }
            stock
        })
    }
}

// === impl Fired ===

impl Fired {
    /// Waits, before a rule that takes the connection away, for what was sent over it to leave the process:
    /// a message that was handed over is written by another task, which tells nobody.
    pub(crate) async fn let_arrive(&self) {
        if matches!(
            self.rule().action.end,
            Some(End::DropConnection | End::SocketAway(_) | End::Exit(_))
        ) {
            time::sleep(ARRIVES_WITHIN).await;
        }
    }

    /// The delay and the hang.
    pub(crate) async fn pause(&mut self) {
        if !self.delay().is_zero() {
            time::sleep(self.delay()).await;
        }
        match self.rule().action.hang {
            Some(Hang::ClientCancel) => std::future::pending().await,
            Some(Hang::Release) => self.released().await,
            Some(Hang::For(time)) => time::sleep(time).await,
            None => {}
        }
    }

    /// What the caller hears whose call goes on behind its back.
    pub(crate) fn background_answer(&self) -> Error {
        let late = || {
            let text = format!(
                "fault rule \"{}\": the work goes on after this answer",
                self.rule().id
            );
            (Code::DeadlineExceeded, text)
        };
        let (code, message) = self.rule().answer().unwrap_or_else(late);
        Error::Injected { code, message }
    }

    /// The reply, with the rule's changes if it makes any.
    pub(crate) fn edited<R: Message + Default>(&self, path: &str, reply: R) -> R {
        match self.edit_reply(path, &reply.encode_to_vec()) {
            Some(bytes) => {
                R::decode(bytes.as_slice()).expect("an edited reply must decode: its fields were checked")
            }
            None => reply,
        }
    }

    /// A reply on the wire with the rule's changes; none if it makes none, or the reply cannot be read.
    pub fn edit_reply(&self, path: &str, reply: &[u8]) -> Option<Vec<u8>> {
        let Some(End::Edit(edits)) = &self.rule().action.end else {
            return None;
        };
        let descriptor = schema::Rpc::at(path)?.reply();
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
