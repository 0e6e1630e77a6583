//! Calls whose answer is a stream of messages, and rules that break it off on its way.

use std::sync::Arc;

use csi_proto::Secrets;
use futures::{StreamExt, stream};
use prost::Message;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{Answer, Rpc, conclude, set_fault};
use crate::driver::Driver;
use crate::fault::Fired;
use crate::journal::CallRecord;
use crate::socket::ConnectionInfo;

/// A stream that a rule waits for.
struct Doomed<R> {
    driver: Arc<Driver>,
    fired: Fired,
    connection: Option<ConnectionInfo>,
    record: Option<CallRecord>,
    /// All messages in one, for the journal.
    whole: R,
}

// === impl Driver ===

impl Driver {
    /// Answers a call with a stream of messages, which are made of the whole answer.
    ///
    /// # Cancellation
    /// As for [`Driver::answer`]. A client that leaves a stream for which a rule waits is journalled, too.
    pub(crate) async fn answer_in_messages<Q: Rpc, M: Send + 'static>(
        self: &Arc<Self>,
        request: Request<Q>,
        messages: impl FnOnce(&Q::Reply) -> Vec<M>,
    ) -> Result<Response<BoxStream<M>>, Status> {
        let Answer {
            result,
            record,
            connection,
            pending,
        } = self.take_in(request).await;
        let (whole, fired) = match (result, pending) {
            (Ok(whole), Some(fired)) => (whole, fired),
            (result, _) => {
                let messages = conclude(record, result)?.map(|whole| messages(&whole));
                return Ok(messages.map(|all| Box::pin(stream::iter(all).map(Ok)) as BoxStream<M>));
            }
        };
        let mut messages = messages(&whole);
        let count = fired.rule().action.after_messages.unwrap_or(u64::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(messages.len());
        let rest = messages.split_off(count);
        let doomed = Doomed {
            driver: self.clone(),
            fired,
            connection,
            record,
            whole,
        };
        let rest = stream::once(doomed.go(rest)).flat_map(stream::iter);
        let all = stream::iter(messages).map(Ok).chain(rest);
        Ok(Response::new(Box::pin(all)))
    }
}

// === impl Doomed ===

impl<R: Message + Secrets + Clone> Doomed<R> {
    /// Lets the rule act, and gives what comes after that: the other messages, or an error.
    async fn go<M>(mut self, rest: Vec<M>) -> Vec<Result<M, Status>> {
        let error = match self.driver.faults.act(self.fired) {
            Some(mut fired) => {
                set_fault(&mut self.record, Some(&fired));
                fired.let_arrive().await;
                self.driver.suffer(&mut fired, self.connection.as_ref()).await
            }
            None => None,
        };
        let result = match error {
            Some(error) => Err(error),
            None => Ok(self.whole),
        };
        match conclude(self.record, result) {
            Ok(_) => rest.into_iter().map(Ok).collect(),
            Err(status) => vec![Err(status)],
        }
    }
}
