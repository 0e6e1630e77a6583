//! Calls whose response is a stream of messages, and rules that interrupt the stream.

use std::sync::Arc;

use csi_proto::Secrets;
use futures::{StreamExt, stream};
use prost::Message;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{Call, Rpc};
use crate::driver::Driver;
use crate::fault::ActiveFault;

/// A stream that a rule interrupts.
struct InterruptedStream<R> {
    fired: ActiveFault,
    call: Call,
    /// All messages as one, for the journal.
    whole: R,
}

// === impl Driver ===

impl Driver {
    /// Handles a call with a stream of messages, which are split from the whole reply one by one as the client reads them.
    ///
    /// # Cancellation
    /// That of [`Driver::answer`]. The journal also records that a client disconnects during an interrupted stream.
    pub(crate) async fn answer_in_messages<Q, M, I>(
        self: &Arc<Self>,
        request: Request<Q>,
        messages: impl FnOnce(&Q::Reply) -> I,
    ) -> Result<Response<BoxStream<M>>, Status>
    where
        Q: Rpc,
        M: Send + 'static,
        I: Iterator<Item = M> + Send + 'static,
    {
        let (mut call, result) = self.run_stages(request).await;
        let (whole, fired) = match (result, call.pending.take()) {
            (Ok(whole), Some(fired)) => (whole, fired),
            (result, _) => {
                let ended = call.end(result, |journal, whole| journal.renderer.keep(whole))?;
                let messages = ended.map(|whole| messages(&whole));
                return Ok(messages.map(|all| Box::pin(stream::iter(all).map(Ok)) as BoxStream<M>));
            }
        };
        let count = fired.rule().action.after_messages.unwrap_or(u64::MAX);
        let messages = messages(&whole);
        let interrupted = InterruptedStream { fired, call, whole };
        let begin = Some((messages, Some((count, interrupted))));
        let all = stream::unfold(begin, |state| async move {
            let (mut messages, interrupted) = state?;
            let ended = match interrupted {
                Some((left, interrupted)) if left > 0 => match messages.next() {
                    Some(message) => {
                        return Some((Ok(message), Some((messages, Some((left - 1, interrupted))))));
                    }
                    None => interrupted.apply_fault().await,
                },
                Some((_, interrupted)) => interrupted.apply_fault().await,
                None => Ok(()),
            };
            match ended {
                Ok(()) => messages
                    .next()
                    .map(|message| (Ok(message), Some((messages, None)))),
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
        let error = match driver.faults.act(self.fired) {
            Some(mut fired) => {
                self.call.set_fault(&fired);
                fired.flush_before().await;
                driver
                    .apply_fault(&mut fired, self.call.connection.as_ref())
                    .await
            }
            None => None,
        };
        let result = match error {
            Some(error) => Err(error),
            None => Ok(self.whole),
        };
        let ended = self
            .call
            .end(result, |journal, whole| journal.renderer.keep(whole));
        ended.map(drop)
    }
}
