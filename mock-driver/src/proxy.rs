//! The fault proxy: fault rules and the journal in front of any other CSI driver.
//!
//! Calls pass as bytes, so unknown methods and fields pass, too, with their metadata, deadlines, cancellations and status
//! details. The proxy decodes requests of CSI for the rules, and a reply only if a rule edits it.
//!
//! - A call whose client disconnects is cancelled at the driver, too, unless a rule of phase `background` holds it.
//! - Rules of phase `after` for streams and for methods other than CSI's hold back the whole reply, unless they have
//!   `after_messages`.
//! - When the driver's connection ends, so do those of the clients.
//! - The driver's deadline is what a rule's delay has left of the client's.
//! - The proxy knows a volume's location from the attaches and detaches that passed through it.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Frame;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::{Code, Status};

use self::cut::{Cut, end};
use self::deadline::Deadline;
use self::message::{Envelope, Passing, Reply, outcome};
use self::remote::{Remote, is_reset};
use self::seen::Seen;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::{ActiveFault, Decision};
use crate::journal::{CallRecord, Direction, Outcome};
use crate::rpc::method::Method;
use crate::service::call::Injection;
use crate::socket::ConnectionInfo;

mod cut;
mod deadline;
mod message;
mod remote;
mod seen;

pub mod relay;

/// A server that forwards calls to another driver.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    driver: Arc<Driver>,
    remote: Remote,
    seen: Arc<Seen>,
}

/// A forwarded call.
struct Journey {
    proxy: Proxy,
    connection: Option<ConnectionInfo>,
    record: Option<CallRecord>,
    deadline: Option<Deadline>,
}

// === impl Proxy ===

impl Proxy {
    /// Forwards to the driver at a socket, with the rules and the journal of `driver`.
    pub(crate) fn new(driver: Arc<Driver>, to: PathBuf) -> Self {
        let clients = driver.socket_control.clone();
        Self {
            driver,
            remote: Remote::at(to, clients),
            seen: Arc::default(),
        }
    }
}

impl Service<http::Request<Body>> for Proxy {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.pass(request).await) })
    }
}

impl Proxy {
    async fn pass(self, request: http::Request<Body>) -> http::Response<Body> {
        let (parts, body) = request.into_parts();
        let deadline = Deadline::of(&parts.headers);
        let path = parts.uri.path().to_owned();
        let connection = parts.extensions.get::<ConnectionInfo>().cloned();
        let rpc = Method::at(&path);
        // The server of an unknown method may send first, so the proxy does not wait for a message.
        let envelope = match rpc {
            Some(_) => Envelope::open(body).await,
            None => Ok(Envelope::closed(body)),
        };
        let peer = connection.as_ref().and_then(|connection| connection.peer);
        let begin = |path: &str, message: &[u8]| {
            let journal = self.driver.journal.as_ref()?;
            let request = journal.renderer.keep_wire(path, Direction::Request, message);
            Some(journal.begin(path.to_owned().into(), peer, request))
        };
        let envelope = match envelope {
            Ok(envelope) => envelope,
            Err(status) => {
                let mut record = begin(&path, &[]);
                end(&mut record, &status);
                return status.into_http();
            }
        };
        let passing = Passing::new(path, rpc, envelope.message(), self.seen.clone());
        let record = begin(&passing.path, envelope.message().unwrap_or_default());
        let mut journey = Journey {
            connection,
            record,
            deadline,
            proxy: self,
        };
        let request = http::Request::from_parts(parts, envelope.close());
        journey.go(request, passing).await
    }
}

// === impl Journey ===

impl Journey {
    async fn go(&mut self, mut request: http::Request<Body>, passing: Passing) -> http::Response<Body> {
        let driver = self.proxy.driver.clone();
        // Its reservation lives until the result of the call is known.
        let mut decision = driver.faults.decide(&passing);
        let after = decision.take_after();
        if let Some(active) = decision.rule.as_ref().or(decision.backend.as_ref()) {
            self.set_fault(active);
        }
        if let Some(mut active) = decision.rule.take_if(|active| active.rule().replaces_effect()) {
            drop(decision);
            let injection = driver.apply_fault(&mut active, self.connection.as_ref()).await;
            return self.answer(injection);
        }
        if let Some(answer) = decision.background_answer() {
            return self.answer_early(answer, decision, request, passing);
        }
        if let Err(error) = decision.pause().await {
            return self.fail(&error);
        }
        if let Some(deadline) = self.deadline
            && let Err(expired) = deadline.set(request.headers_mut())
        {
            return self.refuse(expired);
        }
        let response = match self.proxy.remote.call(request).await {
            Ok(response) => response,
            Err(status) => return self.refuse(status),
        };
        let is_single = passing.rpc.is_some_and(|rpc| !rpc.streams());
        match after {
            Some(active) if !is_single && active.rule().action.after_messages.is_some() => {
                let cut = Cut {
                    driver,
                    connection: self.connection.take(),
                    record: self.record.take(),
                    active: Some(active),
                };
                cut.stream(response)
            }
            None if !is_single => self.stream(response),
            after => self.finish(response, after, &passing).await,
        }
    }

    /// Responds at once and continues the call without its caller.
    fn answer_early(
        &mut self,
        answer: Injection,
        mut decision: Decision,
        mut request: http::Request<Body>,
        passing: Passing,
    ) -> http::Response<Body> {
        // The deadline is the client's, which does not wait for the call.
        request.headers_mut().remove("grpc-timeout");
        let work = self.record.as_mut().map(|record| {
            record.is_background = true;
            record.operation.clone()
        });
        let remote = self.proxy.remote.clone();
        let seen = self.proxy.seen.clone();
        self.proxy.driver.work.spawn(async move {
            let outcome = match decision.pause().await {
                Err(error) => Outcome {
                    code: error.code(),
                    message: error.message(),
                },
                Ok(()) => match remote.call(request).await {
                    Ok(response) => match Reply::read(response).await {
                        Ok(reply) => reply.outcome(),
                        Err(status) => outcome(&status),
                    },
                    Err(status) => outcome(&status),
                },
            };
            if outcome.code == Code::Ok {
                seen.learn(&passing);
            }
            if let Some(work) = work {
                work.done(outcome);
            }
        });
        self.answer(answer)
    }

    /// Reads the whole reply, applies a rule, and forwards it.
    async fn finish(
        &mut self,
        response: http::Response<Body>,
        after: Option<ActiveFault>,
        passing: &Passing,
    ) -> http::Response<Body> {
        let mut reply = match Reply::read(response).await {
            Ok(reply) => reply,
            Err(status) => return self.refuse(status),
        };
        let is_ok = reply.outcome().code == Code::Ok;
        if is_ok {
            self.proxy.seen.learn(passing);
            self.proxy.seen.learn_here(passing, reply.message());
        }
        let driver = self.proxy.driver.clone();
        let active = after
            .filter(|_| is_ok)
            .and_then(|active| driver.faults.apply(active));
        if let Some(mut active) = active {
            self.set_fault(&active);
            if let Injection::Fail(error) = driver.apply_fault(&mut active, self.connection.as_ref()).await {
                return self.fail(&error);
            }
            reply.edit(&active, &passing.path);
        }
        if let Some(mut record) = self.record.take() {
            record.end_wire(reply.outcome(), reply.message());
        }
        reply.into_http()
    }

    /// Forwards a stream as it arrives, and records its end.
    fn stream(&mut self, response: http::Response<Body>) -> http::Response<Body> {
        let mut record = self.record.take();
        // A trailers-only response has its status in the headers.
        if let Some(status) = Status::from_header_map(response.headers()) {
            end(&mut record, &status);
        }
        response.map(|body| {
            let frames = BodyStream::new(body).map(move |frame| {
                match &frame {
                    Ok(frame) => {
                        if let Some(status) = frame.trailers_ref().and_then(Status::from_header_map) {
                            end(&mut record, &status);
                        }
                    }
                    Err(status) => end(&mut record, status),
                }
                frame
            });
            Body::new(StreamBody::new(frames))
        })
    }

    fn set_fault(&mut self, active: &ActiveFault) {
        if let Some(record) = &mut self.record {
            record.set_fault(&active.rule().id);
        }
    }

    /// Ends a call without the driver. The proxy cannot know a reply, so that of a success is empty.
    fn answer(&mut self, injection: Injection) -> http::Response<Body> {
        match injection {
            Injection::Fail(error) => self.fail(&error),
            Injection::Continue => self.fail(&Error::Broken),
            Injection::Succeed => {
                let reply = Reply::empty();
                if let Some(mut record) = self.record.take() {
                    record.end_wire(reply.outcome(), reply.message());
                }
                reply.into_http()
            }
        }
    }

    fn fail(&mut self, error: &Error) -> http::Response<Body> {
        self.refuse(Status::new(error.code(), error.message()))
    }

    /// Ends a call without the driver's response. If the driver reset the stream, the proxy resets it, too, with the same
    /// error code, from which the client derives the status: grpc-go takes CANCEL for DEADLINE_EXCEEDED after its deadline.
    fn refuse(&mut self, status: Status) -> http::Response<Body> {
        end(&mut self.record, &status);
        if !is_reset(&status) {
            return status.into_http();
        }
        // The server finds the error code among the causes of the status.
        let reset = stream::iter([Err::<Frame<Bytes>, _>(status)]);
        let mut response = http::Response::new(Body::new(StreamBody::new(reset)));
        response
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, tonic::metadata::GRPC_CONTENT_TYPE);
        response
    }
}
