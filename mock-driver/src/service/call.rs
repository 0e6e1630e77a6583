//! The pipeline of every call of this driver.
//!
//! - A malformed request is refused first.
//! - A call that changes a volume holds the volume's lock until its response is ready, also during injected delays.
//! - An operation of the array that has begun completes even if the client disconnects, as in a real array: an attach whose
//!   call timed out may succeed later.

use std::sync::Arc;

use csi_proto::Secrets;
use prost::Message;
use tonic::{Code, Request, Response, Status};

use self::driver_call::DriverCall;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode, Scope};
use crate::fault::ActiveFault;
use crate::journal::{CallRecord, Journal, Outcome};
use crate::service::dispatch::Arrival;
use crate::socket::ConnectionInfo;

pub(crate) use self::inject::Injection;
pub(crate) use self::pipeline::Execute;
pub(crate) use self::rpc::{Rpc, RpcRequest};

mod driver_call;
mod inject;
mod pipeline;
mod rpc;
mod stream;
mod typed_call;

struct Call {
    driver: Arc<Driver>,
    record: Option<CallRecord>,
    connection: Option<ConnectionInfo>,
    /// A rule that acts on the messages of a stream, after the pipeline.
    pending: Option<ActiveFault>,
    /// The encoded messages of a stream that a rule has given.
    stub: Option<Vec<Vec<u8>>>,
}

// === impl Call ===

impl Call {
    /// Begins the journal's record.
    fn begin<Q: Rpc>(driver: &Arc<Driver>, request: &Request<Q>) -> Self {
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        Arrival::note(request.extensions());
        let peer = connection.as_ref().and_then(|connection| connection.peer);
        let begin = |journal: &Arc<Journal>| {
            journal.begin(Q::PATH.into(), peer, journal.renderer.keep(request.get_ref()))
        };
        Self {
            driver: driver.clone(),
            record: driver.journal.as_ref().map(begin),
            connection,
            pending: None,
            stub: None,
        }
    }

    /// Ends the journal's record.
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
        let mut call = Call::begin(self, &request);
        let result = self.run_stages(&mut call, &request).await;
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
        let mut call = Call::begin(self, &request);
        let result = self.run_stages(&mut call, &request).await;
        call.end(match result {
            Ok(reply) => remake(reply).await,
            Err(error) => Err(error),
        })
    }

    /// Validates the request, locks the objects that the call changes until its response is ready, and executes it with its faults.
    async fn run_stages<Q: Rpc>(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<Q>,
    ) -> Result<Q::Reply, Error> {
        let mut needed = Q::METHOD.needs().iter();
        if !needed.all(|needed| self.capabilities.has(*needed)) {
            return Err(Error::NotOffered { path: Q::PATH });
        }
        let params = request.get_ref().validate()?;
        self.config.secrets.check(Q::METHOD, request.get_ref())?;
        let locked = self.locks.lock(Scope::Call, request.get_ref().keys()).await?;
        let mut call = DriverCall {
            driver: self,
            request,
            params: Some(params),
            locked,
            call,
        };
        self.execute_with_faults(&mut call).await
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
