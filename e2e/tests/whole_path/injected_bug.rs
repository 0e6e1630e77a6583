//! Injected bugs, to test that the simulation finds them (mutation testing).

use csi_attacher::leader_election::Fenced;
use embedded_cluster::apiserver::{ApiServer, ResponseBody};
use embedded_cluster::injected_bug::InjectedBug;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use kube::client::Body;
use serde_json::{Value, json};
use tower::{BoxError, Service, ServiceExt as _, service_fn};

/// A bug to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// In the controllers or kubelets.
    Kubernetes(InjectedBug),
    /// In the attacher, by a wrapper around its API server.
    Sidecar(SidecarBug),
}

/// A known issue of the Go sidecar (docs/go-sidecar.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SidecarBug {
    /// Issue 3: writes do not carry the UID, so they reach a re-created object of the same name.
    WritesWithoutUid,
    /// Issue 4: the finalizer of a PersistentVolume is appended without a test.
    PvFinalizerAppended,
    /// Issue 12: a detach uses the present node id, and not the recorded one.
    UnpublishesFromPresentNodeId,
}

// === impl Bug ===

impl Bug {
    pub(crate) fn of_kubernetes(self) -> Option<InjectedBug> {
        match self {
            Self::Kubernetes(bug) => Some(bug),
            Self::Sidecar(_) => None,
        }
    }

    pub(crate) fn of_sidecar(self) -> Option<SidecarBug> {
        match self {
            Self::Kubernetes(_) => None,
            Self::Sidecar(bug) => Some(bug),
        }
    }
}

// === impl SidecarBug ===

impl SidecarBug {
    /// Wraps the API server so that the attacher behaves as with this bug.
    pub(crate) fn inject_into(
        self,
        server: ApiServer,
    ) -> impl Service<
        Request<Fenced<Body>>,
        Response = Response<ResponseBody>,
        Error = BoxError,
        Future = BoxFuture<'static, Result<Response<ResponseBody>, BoxError>>,
    > + Clone
    + Send
    + Sync
    + 'static {
        service_fn(move |request: Request<Fenced<Body>>| -> BoxFuture<'static, _> {
            let server = server.clone();
            Box::pin(async move {
                let (mut parts, body) = request.into_parts();
                let mut bytes = body.collect().await?.to_bytes();
                if parts.method == Method::PATCH
                    && let Some((changed, content_type)) = self.changed(parts.uri.path(), &bytes)
                {
                    bytes = changed;
                    if let Some(content_type) = content_type {
                        let value = http::HeaderValue::from_static(content_type);
                        parts.headers.insert(http::header::CONTENT_TYPE, value);
                    }
                }
                server.oneshot(Request::from_parts(parts, Full::new(bytes))).await
            })
        })
    }

    /// The patch of an attacher with this bug, and its content type if it differs.
    fn changed(self, path: &str, patch: &[u8]) -> Option<(Bytes, Option<&'static str>)> {
        let mut patch: Value = serde_json::from_slice(patch).ok()?;
        match self {
            Self::WritesWithoutUid => {
                patch.get_mut("metadata")?.as_object_mut()?.remove("uid");
                Some((patch.to_string().into(), None))
            }
            Self::PvFinalizerAppended => {
                let added = patch.get("metadata")?.get("finalizers")?.get(0)?;
                let is_volume = path.contains("/persistentvolumes/");
                let append = json!([{"op": "add", "path": "/metadata/finalizers/-", "value": added}]);
                is_volume.then(|| (append.to_string().into(), Some("application/json-patch+json")))
            }
            Self::UnpublishesFromPresentNodeId => None,
        }
    }
}
