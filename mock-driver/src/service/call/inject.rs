//! What a rule that fired does to its call.

use std::time::Duration;

use prost::Message;
use prost_reflect::DynamicMessage;
use tokio::time;
use tonic::Code;

use super::typed_call::TypedCall;
use super::{Kind, Rpc};
use crate::array::Array;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::{ActiveFault, ArrayUsage, CallInfo, End, FaultDecision, Hang, Reservations};
use crate::journal::CallRecord;
use crate::rpc::schema;
use crate::socket::ConnectionInfo;

/// How long a message takes at most from the handler to the socket, unless the reader is slow.
const ARRIVES_WITHIN: Duration = Duration::from_millis(50);

// === impl Driver ===

impl Driver {
    /// Does what a rule says up to and with its end, and gives the error to answer with, if any.
    ///
    /// # Cancellation
    /// May be dropped at any time: that is how a call ends whose connection broke.
    pub(crate) async fn apply_fault(
        &self,
        fired: &mut ActiveFault,
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
                self.socket_control.take_away(Some(*time));
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
    /// What the array's backend faults put in a call's way; named in the journal unless a rule is.
    pub(super) fn decide_faults<Q: Rpc>(
        &self,
        request: &Q,
        is_named: bool,
        record: &mut Option<CallRecord>,
    ) -> FaultDecision {
        let arrival = TypedCall::new(request, self);
        let stock = |claims: &Reservations| self.stock(&arrival, claims);
        let troubles = self.faults.backend_faults();
        let met = troubles.decide(&arrival, Q::KIND != Kind::Look, &stock);
        if let (Some((id, _)), Some(record)) = (&met.obstacle, record.as_mut().filter(|_| is_named)) {
            record.set_fault(id);
        }
        met
    }

    fn stock(&self, call: &dyn CallInfo, claims: &Reservations) -> ArrayUsage {
        self.store.peek(|array| match call.volume() {
            "" => stock_of_all(array, call, claims),
            volume => stock_of_node(array, call.node(), volume, claims),
        })
    }
}

/// All volumes, and those that others are about to make.
fn stock_of_all(array: &Array, call: &dyn CallInfo, claims: &Reservations) -> ArrayUsage {
    let is_new = |name: &str| name != call.name() && array.volume_named(name).is_none();
    let (mut count, mut bytes) = (array.volumes().len(), 0_u64);
    for volume in array.volumes() {
        bytes = bytes.saturating_add(volume.spec.capacity_bytes);
    }
    for (_, more) in claims.creating().filter(|(name, _)| is_new(name)) {
        count += 1;
        bytes = bytes.saturating_add(more);
    }
    ArrayUsage {
        volumes: u64::try_from(count).unwrap_or(u64::MAX),
        bytes,
        asked: call.size(),
        is_repeat: array.volume_named(call.name()).is_some(),
        ..ArrayUsage::default()
    }
}

/// The volumes of a node, and those that others are about to attach to it.
fn stock_of_node(array: &Array, node: &str, volume: &str, claims: &Reservations) -> ArrayUsage {
    let is_here = |volume: &str| {
        let found = array.volume(volume).ok();
        found.is_some_and(|found| found.attachments.contains_key(node))
    };
    let others = claims.attaching(node);
    let coming = others.filter(|other| *other != volume && !is_here(other)).count();
    ArrayUsage {
        on_node: u64::try_from(array.attached_to(node).count() + coming).unwrap_or(u64::MAX),
        is_repeat: is_here(volume),
        ..ArrayUsage::default()
    }
}

// === impl Fired ===

impl ActiveFault {
    /// Waits, before a rule that takes the connection away, for what was sent over it to leave the process:
    /// a message that was handed over is written by another task, without a notification.
    pub(crate) async fn flush_before(&self) {
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
