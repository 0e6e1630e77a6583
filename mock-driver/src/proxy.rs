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
use std::time::Duration;

use bytes::Bytes;
use csi_proto::v1::NodeGetInfoRequest;
use csi_proto::v1::node_client::NodeClient;
use futures::{StreamExt, stream};
use http_body_util::{Full, StreamBody};
use hyper::body::Frame;
use tokio::sync::OnceCell;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::{Code, Status};

use self::deadline::Deadline;
use self::forwarded_call::{Forwarded, ForwardedCall, Refused};
use self::forwarded_request::ForwardedRequest;
use self::interrupted_stream::end;
use self::known_attachments::KnownAttachments;
use self::message::{Reply, collected, message_in, until_cancelled};
use self::remote::{Remote, is_reset};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::CallInfo;
use crate::journal::Direction;
use crate::rpc::method::Method;
use crate::socket::ConnectionInfo;

mod deadline;
mod forwarded_call;
mod forwarded_request;
mod interrupted_stream;
mod known_attachments;
mod message;
mod remote;

pub mod relay;

/// Maximum time of a call of the proxy's own.
const OWN_CALL: Duration = Duration::from_secs(1);

/// A server that forwards calls to another driver.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    driver: Arc<Driver>,
    remote: Remote,
    attachments: Arc<KnownAttachments>,
    /// Set when the proxy's own NodeGetInfo has ended, also with an error or at [`OWN_CALL`], unless it found no driver.
    is_fetched: Arc<OnceCell<()>>,
}

// === impl Proxy ===

impl Proxy {
    /// Forwards to the driver at a socket, with the rules and the journal of `driver`.
    pub(crate) fn new(driver: Arc<Driver>, to: PathBuf) -> Self {
        let clients = driver.socket_control.clone();
        Self {
            driver,
            remote: Remote::at(to, clients),
            attachments: Arc::default(),
            is_fetched: Arc::default(),
        }
    }

    /// Asks the driver for its node if no NodeGetInfo has passed: rules and the journal have the node of a call that runs on it.
    async fn fetch_node_id(&self) {
        let is_used = self.driver.journal.is_some() || self.driver.faults.names_node();
        if !is_used || !self.attachments.here().is_empty() {
            return;
        }
        let fetch = || async {
            let mut client = NodeClient::new(self.remote.channel());
            match time::timeout(OWN_CALL, client.node_get_info(NodeGetInfoRequest {})).await {
                Ok(Ok(info)) => self.attachments.set_here(info.into_inner().node_id),
                // The call itself fails, too.
                Ok(Err(status)) if status.code() == Code::Unavailable => return Err(()),
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(
                        "NodeGetInfo of the driver behind the proxy failed: rules with a node match its calls after NodeGetInfo"
                    );
                }
            }
            Ok(())
        };
        self.is_fetched.get_or_try_init(fetch).await.ok();
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
        Box::pin(async move { Ok(proxy.forward(request).await) })
    }
}

impl Proxy {
    async fn forward(self, request: http::Request<Body>) -> http::Response<Body> {
        let (parts, body) = request.into_parts();
        let deadline = Deadline::of(&parts.headers);
        let path = parts.uri.path().to_owned();
        let connection = parts.extensions.get::<ConnectionInfo>().cloned();
        let rpc = Method::at(&path);
        // The requests of CSI have one message. The server of an unknown method may send first, so the proxy does not wait for one.
        let read = match rpc {
            Some(_) => collected(body, "request").await.map(|read| {
                let read = read.to_bytes();
                (read.clone(), Body::new(Full::new(read)))
            }),
            None => Ok((Bytes::new(), body)),
        };
        let peer = connection.as_ref().and_then(|connection| connection.peer);
        let begin = |node: &str, path: &str, message: &[u8]| {
            let journal = self.driver.journal.as_ref()?;
            let request = journal.renderer.keep_wire(path, Direction::Request, message);
            Some(journal.begin_on(node.to_owned(), path.to_owned().into(), peer, request))
        };
        let (read, body) = match read {
            Ok(read) => read,
            Err(status) => {
                let mut record = begin("", &path, &[]);
                end(&mut record, &status);
                return status.into_http();
            }
        };
        if rpc.is_some_and(|rpc| rpc.is_on_node() && rpc != Method::NodeGetInfo) {
            self.fetch_node_id().await;
        }
        let message = message_in(&read);
        let mut forwarded = ForwardedRequest::new(path, rpc, message, self.attachments.clone());
        let record = begin(forwarded.node(), forwarded.path(), message.unwrap_or_default());
        forwarded.headers = parts.headers.clone();
        forwarded.peer = peer;
        let driver = self.driver.clone();
        let entered = driver.reset_scope.enter();
        let mut call = ForwardedCall {
            connection,
            record,
            deadline,
            forwarded: Arc::new(forwarded),
            request: Some(http::Request::from_parts(parts, body)),
            proxy: self,
        };
        let result = entered.call(driver.execute_with_faults(&mut call)).await;
        call.into_response(result, entered.cancelled.clone())
    }
}

// === impl ForwardedCall ===

impl ForwardedCall {
    /// Ends the record, with a stream when that ends.
    fn into_response(
        self,
        result: Result<Forwarded, Refused>,
        cancelled: CancellationToken,
    ) -> http::Response<Body> {
        match result {
            Ok(Forwarded::Whole(reply)) => self.reply(reply),
            Err(Refused::Reply(reply)) => self.reply(*reply),
            Ok(Forwarded::Stream(response)) => self.stream(response, cancelled),
            Err(Refused::Status(status)) => self.refuse(status),
        }
    }

    fn reply(mut self, reply: Reply) -> http::Response<Body> {
        if let Some(mut record) = self.record.take() {
            record.end_wire(reply.status(), reply.message());
        }
        reply.into_http()
    }

    /// Forwards a stream as it arrives, and records its end. A reset does not wait for the client to read it.
    fn stream(
        mut self,
        response: http::Response<Body>,
        cancelled: CancellationToken,
    ) -> http::Response<Body> {
        let mut record = self.record.take();
        // A trailers-only response has its status in the headers.
        if let Some(status) = Status::from_header_map(response.headers()) {
            end(&mut record, &status);
        }
        response.map(|body| {
            let reset = Status::new(Error::Interrupted.code(), Error::Interrupted.message());
            let frames = until_cancelled(body, cancelled, reset).map(move |frame| {
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

    /// Ends a call without the driver's response. If the driver reset the stream, the proxy resets it, too, with the same
    /// error code, from which the client derives the status: grpc-go takes CANCEL for DEADLINE_EXCEEDED after its deadline.
    fn refuse(mut self, status: Status) -> http::Response<Body> {
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
