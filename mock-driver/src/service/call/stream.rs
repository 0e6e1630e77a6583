//! Calls whose response is a stream of messages, and rules that interrupt the stream.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{Call, Injection, Rpc};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::ActiveFault;
use crate::journal::CallRecord;
use crate::socket::ConnectionInfo;

/// The messages of a call, whose record ends with them.
struct MessageStream<M, R> {
    messages: Pin<Box<dyn Stream<Item = Result<M, Error>> + Send>>,
    call: Call,
    /// By a reset, which does not wait for the client to read.
    cancelled: CancellationToken,
    /// The first messages as one, for the journal.
    first: R,
    /// A rule that acts after this number of messages.
    fault: Option<(u64, ActiveFault)>,
}

// === impl Driver ===

impl Driver {
    /// Handles a call with a stream of messages, which are made as the client reads them. The reply in the pipeline has the
    /// first ones.
    ///
    /// # Cancellation
    /// That of [`Driver::answer`], also during the stream.
    pub(crate) async fn answer_in_messages<Q, M, S>(
        self: &Arc<Self>,
        request: Request<Q>,
        messages: impl FnOnce(&Q::Reply) -> S,
    ) -> Result<Response<BoxStream<M>>, Status>
    where
        Q: Rpc,
        M: Message + Default + 'static,
        S: Stream<Item = Result<M, Error>> + Send + 'static,
    {
        let entered = self.reset_scope.enter();
        let mut call = Call::begin(self, &request);
        let result = entered.call(self.run_stages(&mut call, &request)).await;
        let first = match result {
            Ok(first) => first,
            Err(error) => return Err(call.fail(error)),
        };
        let messages: Pin<Box<dyn Stream<Item = _> + Send>> = match call.stub.take() {
            Some(stub) => Box::pin(stream::iter(stub.into_iter().map(decoded))),
            None => Box::pin(messages(&first).fuse()),
        };
        let fault = call.pending.take();
        let all = MessageStream {
            messages,
            call,
            cancelled: entered.cancelled.clone(),
            first,
            fault: fault.map(|active| (active.rule().action.after_messages.unwrap_or(u64::MAX), active)),
        };
        let all = stream::unfold(Some(all), |all| async move {
            let mut all = all?;
            let cancelled = all.cancelled.clone();
            let next = cancelled.run_until_cancelled(all.next()).await;
            match next.unwrap_or(Err(Error::Interrupted)) {
                Ok(Some(message)) => Some((Ok(message), Some(all))),
                Ok(None) => {
                    all.call.succeed(&all.first);
                    None
                }
                Err(error) => Some((Err(all.call.fail(error)), None)),
            }
        });
        Ok(Response::new(Box::pin(all)))
    }
}

impl Driver {
    /// Applies a rule to the messages of a stream. Afterwards the stream continues.
    ///
    /// # Errors
    /// The rule ends the stream.
    pub(crate) async fn apply_to_stream(
        &self,
        active: Option<ActiveFault>,
        record: Option<&mut CallRecord>,
        connection: Option<&ConnectionInfo>,
    ) -> Result<(), Error> {
        let Some(mut active) = active.and_then(|active| self.faults.apply(active)) else {
            return Ok(());
        };
        if let Some(record) = record {
            record.set_fault(&active.rule().id);
        }
        active.flush_before().await;
        match self.apply_fault(&mut active, connection).await {
            Injection::Fail(error) => Err(error),
            Injection::Continue | Injection::Succeed | Injection::Respond(_) => Ok(()),
        }
    }
}

// === impl MessageStream ===

impl<M, R> MessageStream<M, R> {
    /// The next message; `None` at the end.
    async fn next(&mut self) -> Result<Option<M>, Error> {
        if let Some((left, _)) = &mut self.fault {
            let message = match left.checked_sub(1) {
                Some(fewer) => {
                    *left = fewer;
                    self.messages.next().await.transpose()?
                }
                None => None,
            };
            if message.is_some() {
                return Ok(message);
            }
            self.apply_fault().await?;
        }
        self.messages.next().await.transpose()
    }

    async fn apply_fault(&mut self) -> Result<(), Error> {
        let active = self.fault.take().map(|(_, active)| active);
        let Call {
            driver,
            record,
            connection,
            ..
        } = &mut self.call;
        driver
            .apply_to_stream(active, record.as_mut(), connection.as_ref())
            .await
    }
}

fn decoded<M: Message + Default>(message: Vec<u8>) -> Result<M, Error> {
    M::decode(message.as_slice()).map_err(|error| Error::Injected {
        code: tonic::Code::Internal,
        message: format!("the message of a fault rule cannot be decoded: {error}"),
    })
}
