//! Generates reads and deletions, and the options of requests.

use http::Method;
use serde_json::json;

use super::super::kinds::Kind;
use super::super::request::{BOOKMARKS, Body, Request};
use super::{Generator, JSON, request, set_label};

pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
pub(crate) const METADATA: &str =
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";

/// Watches end at the last object of a sequence, or after this time.
const WATCH_SECONDS: &str = "2";
/// Longer than kube-apiserver waits for a version.
const FRESHNESS_SECONDS: &str = "5";
/// A version that no server reaches.
const FUTURE_VERSION: &str = "1000000000";
/// kube-apiserver sends a bookmark two seconds before the timeout if there was a change since the watch began; it checks
/// that about every second.
const BOOKMARK_SECONDS: &str = "4";

const LABEL_SELECTORS: [&str; 13] = [
    "app=x",
    "app!=x",
    "app in (x,y),tier",
    "app notin (x)",
    "!app",
    "app==y",
    "tier",
    "app=",
    "app in ()",
    "-a=x",
    "app=not valid",
    "app in (x",
    "a>5",
];

/// A watch of all changes of a kind in the sequence.
pub(super) fn watch(kind: &Kind) -> Request {
    let path = kind.collection("$ns");
    let mut request = request(kind, "WATCH", Method::GET, path.clone());
    request.query = vec![
        ("watch", "true".to_owned()),
        ("timeoutSeconds", WATCH_SECONDS.to_owned()),
        ("resourceVersion", format!("$list:{path}$$")),
    ];
    request
}

// === impl Generator ===

impl Generator {
    pub(super) fn get(&mut self, kind: &Kind) -> Request {
        let (path, _) = self.object_path(kind);
        let status = kind.has_status && self.chance(20);
        let (action, path) = super::with_status(status, "GET", "GET status", path);
        let mut request = request(kind, action, Method::GET, path);
        match self.rng.u8(..12) {
            0 => request.query.push(("resourceVersion", "0".to_owned())),
            1 => request.query.push(("resourceVersion", "x".to_owned())),
            _ => {}
        }
        self.accept(&mut request, METADATA);
        request
    }

    pub(super) fn list(&mut self, kind: &Kind) -> Request {
        // Other kinds have objects of the cluster in other namespaces.
        let all_namespaces = kind.name == "Lease" && self.chance(30);
        let path = kind.collection(if all_namespaces { "" } else { "$ns" });
        let mut request = request(kind, "LIST", Method::GET, path);
        self.accept(&mut request, METADATA_LIST);
        self.selectors(kind, &mut request);
        self.paging(&mut request);
        request
    }

    /// A watch with a selector, another output format or another version; each selector also matches the last object.
    pub(super) fn watch(&mut self, kind: &Kind) -> Request {
        let mut request = watch(kind);
        match self.rng.u8(..16) {
            12..16 | 0..3 => {
                let selector = ["app=x", "app in (x,y)", "app", "app!=y,!tier"][self.rng.usize(..4)];
                request.query.push(("labelSelector", selector.to_owned()));
            }
            3 => request
                .query
                .push(("fieldSelector", "metadata.name!=a".to_owned())),
            4 => {
                let field = kind
                    .selectable
                    .get(self.rng.usize(..kind.selectable.len().max(1)));
                let field = field.copied().unwrap_or("metadata.name");
                request.query.push(("fieldSelector", format!("{field}!=a")));
            }
            5 => request.accept = TABLE,
            6 => request.accept = METADATA,
            7 => request.query[2].1 = ["", "0"][self.rng.usize(..2)].to_owned(),
            8 => {
                request.query[2].1 = String::new();
                // Events are not cached, so kube-apiserver does not wait for the version.
                if kind.name != "Event" && self.chance(30) {
                    FRESHNESS_SECONDS.clone_into(&mut request.query[1].1);
                    FUTURE_VERSION.clone_into(&mut request.query[2].1);
                }
                request.query.push(("sendInitialEvents", "true".to_owned()));
                request
                    .query
                    .push(("resourceVersionMatch", "NotOlderThan".to_owned()));
            }
            9 => request.query.push(("sendInitialEvents", "true".to_owned())),
            10 => request.query[2].1 = ["x", FUTURE_VERSION][self.rng.usize(..2)].to_owned(),
            _ => request.accept = "text/html",
        }
        request
    }

    /// A list in pages: those after a write still show the version of the first one.
    pub(super) fn pages(&mut self, kind: &Kind) -> Vec<Request> {
        let path = kind.collection("$ns");
        let mut first = request(kind, "LIST", Method::GET, path.clone());
        let limit = ["1", "2"][self.rng.usize(..2)];
        first.query.push(("limit", limit.to_owned()));
        if self.chance(30) {
            first.query.push(("labelSelector", "app!=y".to_owned()));
        }
        let mut next = first.clone();
        next.query.push(("continue", format!("$continue:{path}$$")));
        let write = set_label(kind, json!("paged"));
        vec![first, next.clone(), write, next.clone(), next]
    }

    /// A watch that is read up to its first bookmark, which follows the initial events, or to its timeout. There are no writes
    /// meanwhile, so that the bookmark before the timeout is not sent.
    pub(super) fn bookmark(&mut self, kind: &Kind) -> Request {
        let mut request = watch(kind);
        request.action = BOOKMARKS;
        request.query.push((
            "allowWatchBookmarks",
            ["true", "1"][self.rng.usize(..2)].to_owned(),
        ));
        if self.chance(75) {
            request.query[2].1 = String::new();
            request.query.push(("sendInitialEvents", "true".to_owned()));
            request
                .query
                .push(("resourceVersionMatch", "NotOlderThan".to_owned()));
        } else {
            request.query[1].1 = BOOKMARK_SECONDS.to_owned();
        }
        request.accept = ["", TABLE, METADATA][self.rng.usize(..3)];
        request
    }

    /// A request to which the embedded API server responds with 501.
    pub(super) fn not_implemented(&mut self, kind: &Kind) -> Request {
        let (path, name) = self.object_path(kind);
        let mut request = request(kind, "not implemented", Method::GET, path);
        match self.rng.u8(..17) {
            0 => {
                request.method = Method::PATCH;
                request.content_type = "application/apply-patch+yaml";
                request.query.push(("fieldManager", "m".to_owned()));
                let metadata = json!({ "name": name });
                request.body = Body::Json(
                    json!({ "apiVersion": kind.api_version(), "kind": kind.name, "metadata": metadata }),
                );
            }
            1 => {
                request.method = Method::PUT;
                request.content_type = "application/yaml";
                request.body = Body::Text("metadata: {}\n".to_owned());
            }
            2 => request.accept = "application/yaml",
            3 => request.accept = "application/vnd.kubernetes.protobuf",
            4 => "/api/v1/namespaces/$ns/pods/a/log".clone_into(&mut request.path),
            5 => "/api/v1/namespaces/$ns/pods/a/resize".clone_into(&mut request.path),
            6 => "/api/v1/nodes/a/proxy".clone_into(&mut request.path),
            7 => "/api/v1/namespaces/$ns/configmaps".clone_into(&mut request.path),
            8 => "/apis/storage.k8s.io/v1/volumeattributesclasses".clone_into(&mut request.path),
            9 => "/api/v1/nodes/a/proxy/healthz".clone_into(&mut request.path),
            10 => "/api/v1/namespaces/$ns/pods/a/proxy/metrics/cadvisor".clone_into(&mut request.path),
            11 => "/readyz/ping".clone_into(&mut request.path),
            12 => "/openid/v1/jwks".clone_into(&mut request.path),
            14 => "/api/v1/namespaces/$ns/pods/a/ephemeralcontainers".clone_into(&mut request.path),
            15 => {
                request.method = Method::DELETE;
                request.query.push(("propagationPolicy", "Orphan".to_owned()));
            }
            13 => "/.well-known/openid-configuration".clone_into(&mut request.path),
            _ => "/apis/apps/v1/namespaces/$ns/deployments".clone_into(&mut request.path),
        }
        request
    }

    fn selectors(&mut self, kind: &Kind, request: &mut Request) {
        if self.chance(35) {
            let selector = LABEL_SELECTORS[self.rng.usize(..LABEL_SELECTORS.len())];
            request.query.push(("labelSelector", selector.to_owned()));
        }
        if self.chance(35) {
            let field = match self.rng.u8(..8) {
                0..2 => "metadata.name",
                2 => "metadata.namespace",
                3 => "unknown.field",
                _ => {
                    let field = kind
                        .selectable
                        .get(self.rng.usize(..kind.selectable.len().max(1)));
                    field.copied().unwrap_or("spec.unknown")
                }
            };
            let value = ["a", "b", "", "true", "Running", "Opaque", "Active", "x\\", "a,b"];
            let value = value[self.rng.usize(..value.len())];
            let operator = ["=", "!=", "==", ">", ""][self.rng.usize(..5)];
            request
                .query
                .push(("fieldSelector", format!("{field}{operator}{value}")));
        }
    }

    fn paging(&mut self, request: &mut Request) {
        let path = request.path.clone();
        match self.rng.u8(..10) {
            0..3 => {
                let limit = ["1", "2", "0", "-1", "x", "99999999999999999999"][self.rng.usize(..6)];
                request.query.push(("limit", limit.to_owned()));
            }
            3 => {
                request.query.push(("limit", "1".to_owned()));
                request.query.push(("continue", format!("$continue:{path}$$")));
            }
            4 => request.query.push(("continue", "not a token".to_owned())),
            5 => {
                let version = ["0", "x", "-1", "99999999999999999999"][self.rng.usize(..4)];
                request.query.push(("resourceVersion", version.to_owned()));
                if self.rng.bool() {
                    let kind = ["Exact", "NotOlderThan", "Other"][self.rng.usize(..3)];
                    request.query.push(("resourceVersionMatch", kind.to_owned()));
                }
            }
            6 => {
                let version = format!("$rv:{path}/a$$");
                request.query.push(("resourceVersion", version));
                let kind = ["NotOlderThan", "Other", ""][self.rng.usize(..3)];
                request.query.push(("resourceVersionMatch", kind.to_owned()));
            }
            8 if self.chance(50) => {
                let version = format!("$old:{path}/a$$");
                request.query.push(("resourceVersion", version));
                request.query.push(("resourceVersionMatch", "Exact".to_owned()));
            }
            7 if self.chance(30) => request.query.push(("sendInitialEvents", "true".to_owned())),
            7 if self.chance(30) => request.query.push(("resourceVersionMatch", "Exact".to_owned())),
            _ => {}
        }
    }

    fn accept(&mut self, request: &mut Request, metadata: &'static str) {
        request.accept = match self.rng.u8(..12) {
            0 => TABLE,
            1 => metadata,
            2 => JSON,
            3 => "text/html",
            4 => "application/json;as=Table;v=v2;g=meta.k8s.io",
            _ => "",
        };
        if request.accept == TABLE && self.rng.bool() {
            // An unknown value hides the changes of a write.
            let values = if request.method == Method::GET { 4 } else { 3 };
            let include = ["None", "Object", "Metadata", "Other"][self.rng.usize(..values)];
            request.query.push(("includeObject", include.to_owned()));
        }
    }

    pub(super) fn delete(&mut self, kind: &Kind) -> Request {
        let (path, _) = self.object_path(kind);
        let mut request = request(kind, "DELETE", Method::DELETE, path.clone());
        match self.rng.u8(..12) {
            0 => request.query.push(("gracePeriodSeconds", "0".to_owned())),
            1 => request.query.push(("dryRun", "All".to_owned())),
            2 => {
                let policy = ["Background", "Other"][self.rng.usize(..2)];
                request.query.push(("propagationPolicy", policy.to_owned()));
            }
            3 => request.query.push(("gracePeriodSeconds", "x".to_owned())),
            4..8 => {
                let bodies = [
                    json!({ "preconditions": { "uid": format!("$uid:{path}$$") } }),
                    json!({ "preconditions": { "uid": "00000000-0000-4000-8000-000000000009" } }),
                    json!({ "preconditions": { "resourceVersion": format!("$rv:{path}$$") } }),
                    json!({ "preconditions": { "resourceVersion": format!("$old:{path}$$") } }),
                    json!({ "gracePeriodSeconds": 0 }),
                    json!({ "gracePeriodSeconds": 10 }),
                    json!({ "gracePeriodSeconds": -1 }),
                    json!({ "gracePeriodSeconds": "x" }),
                    json!({ "propagationPolicy": "Background", "kind": "DeleteOptions", "apiVersion": "v1" }),
                    json!({ "propagationPolicy": "Other" }),
                    json!({ "propagationPolicy": "Orphan", "orphanDependents": true }),
                    json!({ "dryRun": ["All"] }),
                    json!({ "dryRun": ["Some"] }),
                    json!({ "kind": "Pod", "apiVersion": "v1" }),
                    json!({ "unknown": 1 }),
                ];
                request.content_type = JSON;
                request.body = Body::Json(self.rng.choice(bodies).expect("the list must not be empty"));
                self.damage(&mut request);
            }
            _ => {}
        }
        self.accept(&mut request, METADATA);
        request
    }

    pub(super) fn delete_collection(&mut self, kind: &Kind) -> Request {
        let path = kind.collection("$ns");
        let mut request = request(kind, "DELETE collection", Method::DELETE, path);
        self.selectors(kind, &mut request);
        if kind.plural == "namespaces" || request.query.is_empty() {
            request.query.push(("labelSelector", "app=x".to_owned()));
        }
        request
    }

    /// A method that the path does not have.
    pub(super) fn odd(&mut self, kind: &Kind) -> Request {
        let (path, name) = self.object_path(kind);
        let collection = path.trim_end_matches(&format!("/{name}")).to_owned();
        let (method, path) = match self.rng.u8(..6) {
            0 => (Method::PUT, collection),
            1 => (Method::PATCH, collection),
            2 => (Method::POST, path),
            3 => (Method::OPTIONS, path),
            4 => (Method::POST, format!("{path}/status")),
            _ => (Method::DELETE, format!("{path}/status")),
        };
        let mut request = request(kind, "other", method, path);
        request.content_type = JSON;
        request.body = Body::Json(json!({ "metadata": { "name": "a" } }));
        request
    }

    pub(super) fn write_options(&mut self, request: &mut Request) {
        match self.rng.u8(..30) {
            0..3 => request.query.push(("dryRun", "All".to_owned())),
            3 => request.query.push(("dryRun", "Some".to_owned())),
            4..8 => {
                let value = ["Strict", "Warn", "Ignore", "Other"][self.rng.usize(..4)];
                request.query.push(("fieldValidation", value.to_owned()));
            }
            8 => request.query.push(("fieldManager", "m".repeat(130))),
            10 => self.accept(request, METADATA),
            _ => {}
        }
    }
}
