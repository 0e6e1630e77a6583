//! Injected bugs, to test that the simulation finds them (mutation testing).

use embedded_cluster::injected_bug::InjectedBug;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method};
use hyper::body::Bytes;
use serde_json::{Value, json};

/// A bug to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// In the controllers or kubelets.
    Kubernetes(InjectedBug),
    /// In the attacher, by a change of its requests.
    Sidecar(SidecarBug),
    /// [kubernetes#121937], which Kubernetes has: volumes that a restarted kubelet has forgotten count as mounted.
    ///
    /// [kubernetes#121937]: https://github.com/kubernetes/kubernetes/issues/121937
    StagedVolumesCount,
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
            Self::Sidecar(_) | Self::StagedVolumesCount => None,
        }
    }

    pub(crate) fn of_sidecar(self) -> Option<SidecarBug> {
        match self {
            Self::Kubernetes(_) | Self::StagedVolumesCount => None,
            Self::Sidecar(bug) => Some(bug),
        }
    }
}

// === impl SidecarBug ===

impl SidecarBug {
    /// Changes the request to that of an attacher with this bug.
    pub(crate) fn inject_into(self, parts: &mut Parts, body: Bytes) -> Bytes {
        let changed = (parts.method == Method::PATCH).then(|| self.changed(parts.uri.path(), &body));
        let Some((changed, content_type)) = changed.flatten() else {
            return body;
        };
        if let Some(content_type) = content_type {
            let value = HeaderValue::from_static(content_type);
            parts.headers.insert(CONTENT_TYPE, value);
        }
        changed
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
