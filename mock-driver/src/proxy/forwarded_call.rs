use std::sync::Arc;

use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Code, Status};

use super::Proxy;
use super::deadline::Deadline;
use super::forwarded_request::ForwardedRequest;
use super::interrupted_stream::InterruptedStream;
use super::message::Reply;
use crate::driver::error::Error;
use crate::fault::{ActiveFault, Decision};
use crate::journal::CallRecord;
use crate::service::call::Execute;
use crate::socket::ConnectionInfo;

pub(super) struct ForwardedCall {
    pub(super) proxy: Proxy,
    pub(super) connection: Option<ConnectionInfo>,
    pub(super) record: Option<CallRecord>,
    pub(super) deadline: Option<Deadline>,
    pub(super) forwarded: Arc<ForwardedRequest>,
    /// Taken by the operation.
    pub(super) request: Option<http::Request<Body>>,
}

pub(super) enum Forwarded {
    Whole(Reply),
    /// It passes as it arrives.
    Stream(http::Response<Body>),
}

pub(super) enum Refused {
    Status(Status),
    /// The driver's, with its details.
    Reply(Box<Reply>),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Status(Status::new(error.code(), error.message()))
    }
}

impl Execute for ForwardedCall {
    type Reply = Forwarded;
    type Error = Refused;

    fn decide(&self) -> Decision {
        self.proxy.driver.faults.decide(self.forwarded.as_ref())
    }

    fn record(&mut self) -> Option<&mut CallRecord> {
        self.record.as_mut()
    }

    fn connection(&self) -> Option<&ConnectionInfo> {
        self.connection.as_ref()
    }

    /// The decision's reservation lives until the result is known.
    async fn execute(
        &mut self,
        mut decision: Decision,
        after: Option<&ActiveFault>,
    ) -> Result<Forwarded, Refused> {
        decision.pause().await?;
        let mut request = self.request.take().ok_or(Error::Broken)?;
        if let Some(deadline) = self.deadline {
            deadline.set(request.headers_mut()).map_err(Refused::Status)?;
        }
        let response = self.proxy.remote.call(request).await.map_err(Refused::Status)?;
        let streams = self.forwarded.rpc.is_none_or(|rpc| rpc.streams());
        let is_whole = after.is_some_and(|active| active.rule().action.after_messages.is_none());
        if streams && !is_whole {
            return Ok(Forwarded::Stream(response));
        }
        let reply = Reply::read(response).await.map_err(Refused::Status)?;
        if reply.status().code() != Code::Ok {
            return Err(Refused::Reply(Box::new(reply)));
        }
        self.proxy.attachments.learn(self.forwarded.as_ref());
        self.proxy
            .attachments
            .learn_here(self.forwarded.as_ref(), reply.message());
        Ok(Forwarded::Whole(reply))
    }

    fn start(&mut self, mut decision: Decision) {
        let Some(mut request) = self.request.take() else {
            return;
        };
        // The deadline is the client's, which does not wait for the call.
        request.headers_mut().remove("grpc-timeout");
        let work = self.record.as_mut().map(|record| {
            record.is_background = true;
            record.operation.clone()
        });
        let (remote, attachments) = (self.proxy.remote.clone(), self.proxy.attachments.clone());
        let forwarded = self.forwarded.clone();
        drop(self.proxy.driver.spawn_work(async move {
            let called = async {
                decision.pause().await?;
                Ok::<_, Status>(Reply::read(remote.call(request).await?).await?.status())
            };
            let status = called.await.unwrap_or_else(|status: Status| status);
            if status.code() == Code::Ok {
                attachments.learn(forwarded.as_ref());
            }
            if let Some(work) = work {
                work.done(status);
            }
        }));
    }

    /// The proxy cannot know a reply, so it is empty.
    async fn pretended(&mut self) -> Forwarded {
        Forwarded::Whole(Reply::of(&[Vec::new()]))
    }

    fn reply_of(&mut self, messages: &[Vec<u8>]) -> Result<Forwarded, Error> {
        Ok(Forwarded::Whole(Reply::of(messages)))
    }

    fn edit(&self, active: &ActiveFault, reply: Forwarded) -> Forwarded {
        match reply {
            Forwarded::Whole(mut reply) => {
                reply.edit(active, &self.forwarded.path);
                Forwarded::Whole(reply)
            }
            Forwarded::Stream(response) => Forwarded::Stream(response),
        }
    }

    fn interrupt(&mut self, active: ActiveFault, reply: Forwarded) -> Forwarded {
        let Forwarded::Stream(response) = reply else {
            return reply;
        };
        let stream = InterruptedStream {
            driver: self.proxy.driver.clone(),
            connection: self.connection.take(),
            record: self.record.take(),
            active: Some(active),
        };
        Forwarded::Stream(stream.forward(response))
    }
}
