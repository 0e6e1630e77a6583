//! Calls whose response is a stream of messages, and rules that interrupt the stream.

use std::sync::Arc;

use csi_proto::Secrets;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{Call, Injection, Rpc};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::ActiveFault;

/// A stream that a rule interrupts.
struct InterruptedStream<R> {
    active: ActiveFault,
    call: Call,
    /// The first messages as one, for the journal.
    first: R,
}

// === impl Driver ===

impl Driver {
    /// Handles a call with a stream of messages, which are made as the client reads them. The reply in the pipeline has the
    /// first ones.
    ///
    /// # Cancellation
    /// That of [`Driver::answer`]. The journal also records that a client disconnects during an interrupted stream.
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
        let mut call = Call::begin(self, &request);
        let result = self.run_stages(&mut call, &request).await;
        if let (Ok(_), Some(stub)) = (&result, call.stub.take()) {
            let stub = stub
                .into_iter()
                .map(|message| M::decode(message.as_slice()).map_err(undecodable));
            let ended = call.end(result)?;
            return Ok(ended.map(|_| Box::pin(stream::iter(stub)) as BoxStream<M>));
        }
        let (first, active) = match (result, call.pending.take()) {
            (Ok(first), Some(active)) => (first, active),
            (result, _) => {
                let ended = call.end(result)?;
                let all = |first: Q::Reply| Box::pin(messages(&first).map_err(Status::from)) as BoxStream<M>;
                return Ok(ended.map(all));
            }
        };
        let count = active.rule().action.after_messages.unwrap_or(u64::MAX);
        let messages = Box::pin(messages(&first).fuse());
        let interrupted = InterruptedStream { active, call, first };
        let begin = Some((messages, Some((count, interrupted))));
        let all = stream::unfold(begin, |state| async move {
            let (mut messages, interrupted) = state?;
            let ended = match interrupted {
                Some((left, interrupted)) if left > 0 => match messages.next().await {
                    Some(Ok(message)) => {
                        return Some((Ok(message), Some((messages, Some((left - 1, interrupted))))));
                    }
                    Some(Err(error)) => interrupted.fail(error),
                    None => interrupted.apply_fault().await,
                },
                Some((_, interrupted)) => interrupted.apply_fault().await,
                None => Ok(()),
            };
            match ended {
                Ok(()) => messages
                    .next()
                    .await
                    .map(|message| (message.map_err(Status::from), Some((messages, None)))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(all)))
    }
}

// === impl InterruptedStream ===

impl<R: Message + Secrets + Clone> InterruptedStream<R> {
    /// Applies the rule. Afterwards the stream continues, or ends with the error.
    async fn apply_fault(mut self) -> Result<(), Status> {
        let driver = self.call.driver.clone();
        let injection = match driver.faults.apply(self.active) {
            Some(mut active) => {
                if let Some(record) = &mut self.call.record {
                    record.set_fault(&active.rule().id);
                }
                active.flush_before().await;
                driver
                    .apply_fault(&mut active, self.call.connection.as_ref())
                    .await
            }
            None => Injection::Continue,
        };
        let result = match injection {
            Injection::Fail(error) => Err(error),
            Injection::Continue | Injection::Succeed | Injection::Respond(_) => Ok(self.first),
        };
        self.call.end(result).map(drop)
    }

    /// Ends the call with an error of the stream, without the rule.
    fn fail(self, error: Error) -> Result<(), Status> {
        self.call.end(Err::<R, _>(error)).map(drop)
    }
}

fn undecodable(error: prost::DecodeError) -> Status {
    Status::internal(format!("the message of a fault rule cannot be decoded: {error}"))
}
