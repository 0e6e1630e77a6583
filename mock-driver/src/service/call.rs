//! The pipeline of every call; [`Driver::run_stages`] shows its stages in order.
//!
//! - A malformed request is refused first.
//! - A call that changes a volume holds the volume's lock until its response is ready, also during injected delays.
//! - An operation of the array that has begun completes even if the client disconnects, as in a real array: an attach whose
//!   call timed out may succeed later.

use std::cell::OnceCell;
use std::sync::Arc;

use csi_proto::Secrets;
use prost::Message;
use tokio::time;
use tonic::{Code, Request, Response, Status};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode, Scope};
use crate::fault::ActiveFault;
use crate::journal::{CallRecord, Journal, Outcome};
use crate::rpc::method::Kind;
use crate::service::dispatch::Arrival;
use crate::socket::ConnectionInfo;

pub(crate) use self::inject::Injection;
pub(crate) use self::rpc::{Rpc, RpcRequest};
use self::typed_call::TypedCall;

mod inject;
mod rpc;
mod stream;
mod typed_call;

struct Call {
    driver: Arc<Driver>,
    record: Option<CallRecord>,
    connection: Option<ConnectionInfo>,
    /// A rule that acts on the messages of a stream, after the pipeline.
    pending: Option<ActiveFault>,
}

// === impl Call ===

impl Call {
    fn set_fault(&mut self, active: &ActiveFault) {
        if let Some(record) = &mut self.record {
            record.set_fault(&active.rule().id);
        }
    }

    /// Stage 7: journal, end.
    fn end<R: Message + Secrets + Clone>(mut self, result: Result<R, Error>) -> Result<Response<R>, Status> {
        let outcome = outcome(&result);
        let status = Status::new(outcome.code, outcome.message.as_str());
        if let (Some(record), Some(journal)) = (&mut self.record, &self.driver.journal) {
            let reply = result.as_ref().ok().filter(|_| journal.shows_messages());
            record.end(outcome, reply.map(|reply| journal.renderer.keep(reply)));
        }
        result.map(Response::new).map_err(|_| status)
    }
}

// === impl Driver ===

impl Driver {
    /// Handles a call.
    ///
    /// # Cancellation
    /// Dropped when the client disconnects; the journal records that, and an operation that has begun continues.
    pub(crate) async fn answer<Q: Rpc>(
        self: &Arc<Self>,
        request: Request<Q>,
    ) -> Result<Response<Q::Reply>, Status> {
        let (call, result) = self.run_stages(request).await;
        call.end(result)
    }

    /// Handles a call with a message of another version, converted from the reply. The call fails if the conversion fails; the
    /// journal records the converted message.
    ///
    /// # Cancellation
    /// That of [`Driver::answer`].
    pub(crate) async fn answer_as<Q: Rpc, O: Message + Secrets + Clone, F>(
        self: &Arc<Self>,
        request: Request<Q>,
        remake: impl FnOnce(Q::Reply) -> F,
    ) -> Result<Response<O>, Status>
    where
        F: Future<Output = Result<O, Error>>,
    {
        let (call, result) = self.run_stages(request).await;
        call.end(match result {
            Ok(reply) => remake(reply).await,
            Err(error) => Err(error),
        })
    }

    /// All stages but the end of the journal's record.
    async fn run_stages<Q: Rpc>(self: &Arc<Self>, request: Request<Q>) -> (Call, Result<Q::Reply, Error>) {
        // Stage 1: journal, begin.
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        Arrival::note(request.extensions());
        let request = &request.into_inner();
        let peer = connection.as_ref().and_then(|connection| connection.peer);
        let begin =
            |journal: &Arc<Journal>| journal.begin(Q::PATH.into(), peer, journal.renderer.keep(request));
        let mut call = Call {
            driver: self.clone(),
            record: self.journal.as_ref().map(begin),
            connection,
            pending: None,
        };
        let result = async {
            // Stage 2: validate.
            let mut needed = Q::METHOD.needs().iter();
            if !needed.all(|needed| self.capabilities.has(*needed)) {
                return Err(Error::NotOffered { path: Q::PATH });
            }
            let params = request.validate()?;
            self.config.secrets.check(Q::METHOD, request)?;

            // Stage 3: lock the objects that the call changes, until the response is ready.
            let keys = request.keys();
            let locked = self.locks.lock(Scope::Call, keys.clone()).await?;

            // Stage 4: faults before the array, of rules and of the backend.
            let mut decision = self.faults.decide(&TypedCall {
                request,
                driver: self,
                here: OnceCell::new(),
            });
            let after = decision.take_after();
            if let Some(active) = decision.rule.as_ref().or(decision.backend.as_ref()) {
                call.set_fault(active);
            }
            if let Some(mut active) = decision.rule.take_if(|active| active.rule().replaces_effect()) {
                drop(decision);
                let injection = self.apply_fault(&mut active, call.connection.as_ref()).await;
                return self.pretend::<Q>(injection, params).await;
            }
            let early_answer = match decision.background_answer() {
                None => None,
                Some(injection) => Some(self.pretend::<Q>(injection, request.validate()?).await),
            };

            // Stage 5: the durable operation of the array, and the node's devices and mounts. It completes although the
            // client disconnects, unless it only reads. The decision's reservation lives until the array has the capacity.
            let driver = self.clone();
            let operation = async move {
                if let Err(refusal) = decision.pause().await {
                    // Volumes that count towards a limit may not be durable yet.
                    driver.store.read(|_| Ok(())).await?;
                    return Err(refusal);
                }
                if Q::KIND == Kind::Publish && !driver.latency.is_zero() {
                    time::sleep(driver.latency).await;
                }
                driver.execute::<Q>(params, keys).await
            };
            let (result, _locked) = if Q::KIND == Kind::Read && early_answer.is_none() {
                (operation.await, locked)
            } else {
                let record = call.record.as_ref().map(|record| record.operation.clone());
                // Without a receiver this drops the locks.
                let work = self.spawn_work(async move {
                    let result = operation.await;
                    if let Some(record) = record {
                        record.done(outcome(&result));
                    }
                    (result, locked)
                });
                if let Some(answer) = early_answer {
                    if let Some(record) = &mut call.record {
                        record.is_background = true;
                    }
                    return answer;
                }
                let ended = work.await.ok().flatten();
                ended.unwrap_or((Err(Error::Broken), Vec::new()))
            };

            // Stage 6: faults after the array, which apply to successful operations only.
            let reply = result?;
            match after {
                None => Ok(reply),
                Some(active) => self.apply_fault_after::<Q>(active, &mut call, reply).await,
            }
        }
        .await;
        (call, result)
    }

    /// Applies a rule whose fault comes after the array, unless another call has ended the rule meanwhile. A rule that acts on
    /// the messages of a stream is left to the stream.
    async fn apply_fault_after<Q: Rpc>(
        &self,
        active: ActiveFault,
        call: &mut Call,
        reply: Q::Reply,
    ) -> Result<Q::Reply, Error> {
        if active.rule().action.after_messages.is_some() {
            call.pending = Some(active);
            return Ok(reply);
        }
        let Some(mut active) = self.faults.apply(active) else {
            return Ok(reply);
        };
        call.set_fault(&active);
        match self.apply_fault(&mut active, call.connection.as_ref()).await {
            Injection::Fail(error) => Err(error),
            Injection::Continue | Injection::Succeed => Ok(active.edited(Q::PATH, reply)),
        }
    }

    /// Responds to a call whose operation does not happen now. The reply of a success is that of a copy of the array, empty if
    /// the operation would fail.
    async fn pretend<Q: Rpc>(&self, injection: Injection, params: Q::Params) -> Result<Q::Reply, Error> {
        match injection {
            Injection::Fail(error) => return Err(error),
            Injection::Continue => return Err(Error::Broken),
            Injection::Succeed => {}
        }
        let replied = match Q::KIND {
            Kind::Read => Q::execute(params, self).await,
            Kind::OnNode => Ok(Q::Reply::default()),
            Kind::Change | Kind::Publish => Q::execute(params, &self.with_copied_array()).await,
        };
        Ok(replied.unwrap_or_default())
    }

    /// The operation itself, serialized with other operations on the same objects, also those of the admin API, which does not
    /// wait for calls that a fault delays.
    pub(crate) async fn execute<Q: Rpc>(
        &self,
        params: Q::Params,
        keys: Vec<(Key, LockMode)>,
    ) -> Result<Q::Reply, Error> {
        let _locked = self.locks.lock(Scope::Operation, keys).await?;
        Q::execute(params, self).await
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
