//! The API server as one replica of the attacher sees it, with recorded writes.

use std::sync::{Arc, Mutex};

use attacher_contract::Observation;
use attacher_contract::observation::Write;
use csi_attacher::kube_api::Access;
use csi_attacher::leader_election::Fenced;
use embedded_cluster::apiserver::{ApiServer, ResponseBody};
use futures::future::BoxFuture;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use kube::client::Body;
use tower::{BoxError, Service as _, service_fn};

use crate::observer::Observer;

/// The resources of which each write of the attacher is observed.
const OBSERVED: [&str; 2] = ["volumeattachments", "persistentvolumes"];

/// The access of the replica with this name.
pub(crate) fn access(server: &ApiServer, observer: &Observer, name: &'static str) -> Access {
    let (server, observer) = (server.clone(), observer.clone());
    let service = service_fn(move |request: Request<Fenced<Body>>| -> BoxFuture<'static, _> {
        Box::pin(send(server.clone(), observer.clone(), name, request))
    });
    Access::in_process(service).expect("an in-process server needs no settings")
}

/// Sends a request, and observes the write when the API server has executed it.
async fn send(
    server: ApiServer,
    observer: Observer,
    name: &'static str,
    request: Request<Fenced<Body>>,
) -> Result<Response<ResponseBody>, BoxError> {
    let (parts, body) = request.into_parts();
    let object = written(&parts);
    // The server reads the body immediately before it executes the request: its revision then, and whether the body is empty.
    let read = Arc::new(Mutex::new(None));
    let body = {
        let (server, read) = (server.clone(), read.clone());
        body.map_frame(move |frame| {
            let is_empty = frame.data_ref().is_some_and(|data: &Bytes| **data == *b"{}");
            *read.lock().expect("no holder panics") = Some((server.revision(), is_empty));
            frame
        })
    };
    let execution = server.clone().call(Request::from_parts(parts, body));
    let response = execution.await;
    let read = *read.lock().expect("no holder panics");
    let is_refused = response
        .as_ref()
        .is_ok_and(|response| !response.status().is_success());
    if let (Some(object), Some((before, empty)), false) = (object, read, is_refused) {
        // The attacher repeats a write whose response was lost.
        let changed = observer.has_faults() || server.revision() != before;
        observer.observe(Observation::Write(Write {
            by: Some(name.into()),
            object,
            empty,
            changed,
        }));
    }
    response
}

/// The object that the request writes, if its writes are observed.
fn written(parts: &Parts) -> Option<String> {
    let mut segments = parts.uri.path().split('/');
    let resource = segments.find(|segment| OBSERVED.contains(segment))?;
    (parts.method != Method::GET).then(|| format!("{resource} {}", segments.next().unwrap_or_default()))
}
