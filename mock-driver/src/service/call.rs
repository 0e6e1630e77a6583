//! The pipeline of every call of this driver.
//!
//! - A malformed request is refused first.
//! - A call that changes a volume holds the volume's lock until its response is ready, also during injected delays.
//! - An operation of the array that has begun completes even if the client disconnects, as in a real array: an attach whose
//!   call timed out may succeed later.

use std::cell::OnceCell;
use std::sync::Arc;

use csi_proto::Secrets;
use prost::Message;
use tonic::{Request, Response, Status};

use self::driver_call::DriverCall;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode, Scope};
use crate::fault::ActiveFault;
use crate::journal::{CallRecord, Journal};
use crate::service::dispatch::Arrival;
use crate::socket::ConnectionInfo;

pub(crate) use self::inject::Injection;
pub(crate) use self::pipeline::Execute;
pub(crate) use self::rpc::{Rpc, RpcRequest};

mod call_info;
mod driver_call;
mod inject;
mod pipeline;
mod rpc;
mod stream;

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
    fn begin<Q: Rpc>(driver: &Arc<Driver>, request: &Request<Q>) -> Self {
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        Arrival::note(request.extensions());
        let peer = connection.as_ref().and_then(|connection| connection.peer);
        let begin = |journal: &Arc<Journal>| {
            let request = journal.renderer.keep(request.get_ref());
            journal.begin_on(driver.node_of(Q::METHOD), Q::PATH.into(), peer, request)
        };
        Self {
            driver: driver.clone(),
            record: driver.journal.as_ref().map(begin),
            connection,
            pending: None,
            stub: None,
        }
    }

    /// Ends the journal's record with a reply.
    fn succeed<R: Message + Secrets + Clone>(mut self, reply: &R) {
        if let (Some(record), Some(journal)) = (&mut self.record, &self.driver.journal) {
            let reply = journal.shows_messages().then(|| journal.renderer.keep(reply));
            record.end(Status::ok(""), reply);
        }
    }

    /// Ends the journal's record with an error.
    fn fail(mut self, error: Error) -> Status {
        let status = Status::from(error);
        if let Some(record) = &mut self.record {
            record.end(status.clone(), None);
        }
        status
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
        let entered = self.reset_scope.enter();
        let mut call = Call::begin(self, &request);
        let result = entered.call(self.run_stages(&mut call, &request)).await;
        match result {
            Ok(reply) => {
                call.succeed(&reply);
                Ok(Response::new(reply))
            }
            Err(error) => Err(call.fail(error)),
        }
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
        self.settings.config.secrets.check(Q::METHOD, request.get_ref())?;
        let locked = self.locks.lock(Scope::Call, request.get_ref().keys()).await?;
        let mut call = DriverCall {
            driver: self,
            request,
            params: Some(params),
            locked,
            call,
            here: OnceCell::new(),
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

fn status_of<R>(result: &Result<R, Error>) -> Status {
    match result {
        Ok(_) => Status::ok(""),
        Err(error) => Status::new(error.code(), error.message()),
    }
}

#[cfg(test)]
mod tests;
