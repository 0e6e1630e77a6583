//! The pipeline of every call; [`Driver::run_stages`] shows its stages in order.
//!
//! - A malformed request is refused first.
//! - A call that changes a volume holds the volume's lock until its response is ready, also during injected delays.
//! - An operation of the array that has begun completes even if the client has left, as in a real array: an attach whose
//!   call timed out may succeed later.

use std::sync::Arc;

use prost::Message;
use tokio::sync::oneshot;
use tokio::time;
use tonic::{Code, Request, Response, Status};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Guard, Key, LockMode, Scope};
use crate::fault::{ActiveFault, Decision, Phase};
use crate::journal::{CallRecord, Journal, Outcome, Peer, WorkRecord};
use crate::rpc::method::Kind;
use crate::socket::ConnectionInfo;

pub(crate) use self::rpc::Rpc;
use self::typed_call::TypedCall;
pub(crate) use self::typed_call::{continues, map_entry, requested_size};

mod inject;
mod rpc;
mod stream;
mod typed_call;

/// A call in the pipeline.
struct Call {
    record: Option<CallRecord>,
    connection: Option<ConnectionInfo>,
    /// A rule that acts on the messages of a stream, after the pipeline.
    pending: Option<ActiveFault>,
}

// === impl Call ===

impl Call {
    fn set_fault(&mut self, fired: &ActiveFault) {
        if let Some(record) = &mut self.record {
            record.set_fault(&fired.rule().id);
        }
    }

    /// Stage 7: journal, end. `end` completes the record with the response.
    fn end<R>(
        self,
        result: Result<R, Error>,
        end: impl FnOnce(CallRecord, Outcome, Option<&R>),
    ) -> Result<Response<R>, Status> {
        let outcome = outcome(&result);
        let status = Status::new(outcome.code, outcome.message.as_str());
        if let Some(record) = self.record {
            end(record, outcome, result.as_ref().ok());
        }
        result.map(Response::new).map_err(|_| status)
    }
}

// === impl Driver ===

impl Driver {
    /// Handles a call.
    ///
    /// # Cancellation
    /// Dropped when the client leaves; the journal records that, and an operation that has begun continues.
    pub(crate) async fn answer<Q: Rpc>(
        self: &Arc<Self>,
        request: Request<Q>,
    ) -> Result<Response<Q::Reply>, Status> {
        let mut call = self.begin(&request);
        let result = self.run_stages(&request.into_inner(), &mut call).await;
        call.end(result, CallRecord::end)
    }

    /// Handles a call with a message of another version, converted from the reply. The call fails if the conversion fails; the
    /// journal records the converted message.
    ///
    /// # Cancellation
    /// That of [`Driver::answer`].
    pub(crate) async fn answer_as<Q: Rpc, O: Message, F>(
        self: &Arc<Self>,
        request: Request<Q>,
        remake: impl FnOnce(Q::Reply) -> F,
    ) -> Result<Response<O>, Status>
    where
        F: Future<Output = Result<O, Error>>,
    {
        let mut call = self.begin(&request);
        let result = self.run_stages(&request.into_inner(), &mut call).await;
        let result = match result {
            Ok(reply) => remake(reply).await,
            Err(error) => Err(error),
        };
        call.end(result, |record, outcome, reply| {
            let wire = reply.map(Message::encode_to_vec);
            record.end_wire(outcome, wire.as_deref());
        })
    }

    /// All stages between the begin and the end of the journal's record.
    async fn run_stages<Q: Rpc>(self: &Arc<Self>, request: &Q, call: &mut Call) -> Result<Q::Reply, Error> {
        // Stage 2: validate.
        if !self.capabilities.serves(Q::METHOD) {
            let path = Q::METHOD.path();
            return Err(Error::NotOffered { path });
        }
        let params = request.validate()?;
        self.config.secrets.check(Q::METHOD, request)?;

        // Stage 3: lock what the call changes, until the response is ready.
        let keys = request.keys();
        let locked = self.locks.lock_all(Scope::Call, keys.clone()).await?;

        // Stage 4: faults before the array, of rules and of the backend.
        let mut decision = self.faults.decide(&TypedCall::new(request, self));
        let after = decision.take_after();
        if let Some(fired) = decision.named() {
            call.set_fault(fired);
        }
        match decision.rule.take() {
            Some(mut fired) if fired.rule().replaces_effect() => {
                drop(decision);
                let error = self.apply_fault(&mut fired, call.connection.as_ref()).await;
                return Err(error.unwrap_or(Error::Broken));
            }
            Some(fired) if fired.rule().phase == Phase::Background => {
                let answer = fired.background_answer();
                decision.rule = Some(fired);
                let operation = self.clone().operate::<Q>(params, keys, decision);
                // The result is not needed.
                drop(self.spawn_operation(operation, locked, call.record.as_mut().map(CallRecord::part)));
                return Err(answer);
            }
            before => decision.rule = before,
        }

        // Stage 5: the durable operation of the array, and the node's devices and mounts.
        let operation = self.clone().operate::<Q>(params, keys, decision);
        let (result, _locked) = match Q::KIND {
            Kind::Read => (operation.await, locked),
            Kind::Change | Kind::Move | Kind::OnNode => {
                let record = call.record.as_ref().map(CallRecord::work);
                let ended = self.spawn_operation(operation, locked, record).await;
                ended.unwrap_or((Err(Error::Broken), Vec::new()))
            }
        };
        // Faults after the array apply to successful operations only.
        let reply = result?;

        // Stage 6: faults after the array.
        match after {
            None => Ok(reply),
            Some(fired) if fired.rule().action.after_messages.is_some() => {
                call.pending = Some(fired);
                Ok(reply)
            }
            Some(fired) => self.apply_fault_after::<Q>(fired, call, reply).await,
        }
    }

    /// Stage 1: journal, begin.
    fn begin<Q: Rpc>(&self, request: &Request<Q>) -> Call {
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        let peer = connection.as_ref().and_then(|connection| connection.peer);
        let peer = peer.map(|peer| Peer {
            pid: peer.pid(),
            uid: peer.uid(),
        });
        let begin = |journal: &Arc<_>| Journal::begin(journal, Q::METHOD.path(), peer, request.get_ref());
        Call {
            record: self.journal.as_ref().map(begin),
            connection,
            pending: None,
        }
    }

    /// Applies a rule whose fault comes after the array, unless another call has ended the rule meanwhile.
    async fn apply_fault_after<Q: Rpc>(
        &self,
        fired: ActiveFault,
        call: &mut Call,
        reply: Q::Reply,
    ) -> Result<Q::Reply, Error> {
        let Some(mut fired) = self.faults.act(fired) else {
            return Ok(reply);
        };
        call.set_fault(&fired);
        match self.apply_fault(&mut fired, call.connection.as_ref()).await {
            Some(error) => Err(error),
            None => Ok(fired.edited(Q::METHOD.path(), reply)),
        }
    }

    /// The array's operation, delayed by faults. The decision's reservation lives until the array has allocated the capacity.
    async fn operate<Q: Rpc>(
        self: Arc<Self>,
        params: Q::Params,
        keys: Vec<(Key, LockMode)>,
        mut decision: Decision,
    ) -> Result<Q::Reply, Error> {
        if let Err(refusal) = decision.pause().await {
            // Volumes that count towards a limit may not be durable yet.
            self.store.read(|_| Ok(())).await?;
            return Err(refusal);
        }
        if Q::KIND == Kind::Move && !self.latency.is_zero() {
            time::sleep(self.latency).await;
        }
        self.execute::<Q>(params, keys).await
    }

    /// The operation itself, serialized with other operations on the same objects, also those of the admin API, which does not
    /// wait for calls that a fault delays.
    pub(crate) async fn execute<Q: Rpc>(
        &self,
        params: Q::Params,
        keys: Vec<(Key, LockMode)>,
    ) -> Result<Q::Reply, Error> {
        let _locked = self.locks.lock_all(Scope::Operation, keys).await?;
        Q::execute(params, self).await
    }

    /// Runs an operation that no client can interrupt. If the receiver is dropped, the volume stays locked until the
    /// operation has ended, and the journal records its result.
    fn spawn_operation<R: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<R, Error>> + Send + 'static,
        locked: Vec<Guard>,
        record: Option<WorkRecord>,
    ) -> oneshot::Receiver<(Result<R, Error>, Vec<Guard>)> {
        let (ended_tx, ended) = oneshot::channel();
        self.spawn_work(async move {
            let result = operation.await;
            if let Some(record) = record {
                record.done(outcome(&result));
            }
            // Without a receiver this drops the guards.
            drop(ended_tx.send((result, locked)));
        });
        ended
    }
}

fn outcome<R>(result: &Result<R, Error>) -> Outcome {
    match result {
        Ok(_) => Outcome {
            code: Code::Ok,
            message: String::new(),
        },
        Err(error) => Outcome {
            code: error.code(),
            message: error.message(),
        },
    }
}

#[cfg(test)]
mod tests;
