//! Generates sequences of requests from a seed; some requests are intentionally invalid.

mod documents;
mod options;
pub(crate) mod subresources;

use fastrand::Rng;
use http::Method;
use serde_json::{Value, json};

use super::kinds::{self, Kind, LAST_NAME, NAMES};
use super::request::{Body, Edit, Request};
use documents::Documents;
use options::watch;
pub(crate) use options::{METADATA, TABLE};

/// Kinds whose requests are combined in a sequence.
const GROUPS: &[&[(&str, &str)]] = &[
    &[
        ("", "persistentvolumes"),
        ("", "persistentvolumeclaims"),
        ("storage.k8s.io", "storageclasses"),
    ],
    &[
        ("storage.k8s.io", "volumeattachments"),
        ("", "persistentvolumes"),
        ("", "nodes"),
    ],
    &[("", "pods"), ("", "serviceaccounts"), ("", "nodes")],
    &[("", "pods"), ("", "persistentvolumeclaims")],
    &[
        ("storage.k8s.io", "csinodes"),
        ("storage.k8s.io", "csidrivers"),
        ("storage.k8s.io", "csistoragecapacities"),
        ("coordination.k8s.io", "leases"),
    ],
    &[("", "events"), ("events.k8s.io", "events")],
    &[("", "secrets"), ("", "serviceaccounts"), ("", "namespaces")],
];
/// Requests of a sequence.
const LENGTH: std::ops::RangeInclusive<usize> = 30..=70;

pub(crate) const JSON: &str = "application/json";

/// The requests of a sequence.
pub(crate) struct Sequence {
    pub(crate) kinds: Vec<&'static Kind>,
    pub(crate) requests: Vec<Request>,
}

struct Generator {
    rng: Rng,
    /// Number of requests that create objects.
    created: usize,
}

/// The sequence of a seed.
pub(crate) fn sequence(seed: u64) -> Sequence {
    let mut rng = Rng::with_seed(seed);
    let group = rng.choice(GROUPS).expect("there must be groups");
    let kinds: Vec<&Kind> = group
        .iter()
        .map(|(group, plural)| kinds::find(group, plural))
        .collect();
    let length = rng.usize(LENGTH);
    let mut generator = Generator { rng, created: 0 };
    let list = |kind: &&'static Kind| request(kind, "LIST", Method::GET, kind.collection("$ns"));
    let mut requests: Vec<Request> = kinds.iter().map(list).collect();
    for kind in &kinds {
        requests.extend(["a", "b"].map(|name| generator.create_valid(kind, name)));
    }
    requests.extend((0..length).map(|_| {
        let kind = kinds[generator.rng.usize(..kinds.len())];
        generator.request(kind)
    }));
    // Read the final state.
    requests.extend(kinds.iter().map(list));
    // Watches with selectors return an object's creation and deletion.
    for kind in &kinds {
        requests.extend([json!("x"), json!(null)].map(|label| set_label(kind, label)));
    }
    requests.extend(kinds.iter().map(|kind| generator.create_last(kind)));
    for kind in &kinds {
        requests.push(watch(kind));
        requests.push(generator.watch(kind));
    }
    let kind = kinds[generator.rng.usize(..kinds.len())];
    requests.extend(generator.pages(kind));
    if generator.chance(40) {
        requests.push(generator.bookmark(kind));
    }
    requests.push(generator.not_implemented(kind));
    Sequence { kinds, requests }
}

/// A request without body and options.
pub(crate) fn request(kind: &Kind, action: &'static str, method: Method, path: String) -> Request {
    Request {
        kind: kind.shown_name().to_owned(),
        action,
        method,
        path,
        query: Vec::new(),
        content_type: "",
        accept: "",
        body: Body::None,
    }
}

// === impl Generator ===

impl Generator {
    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(..100) < percent
    }

    fn request(&mut self, kind: &'static Kind) -> Request {
        let mut request = match self.rng.u8(..100) {
            0..28 => self.create(kind),
            28..46 => self.update(kind),
            46..72 => self.patch(kind),
            72..78 => self.get(kind),
            78..87 => self.list(kind),
            87..97 => self.delete(kind),
            97..98 => self.delete_collection(kind),
            _ => self.odd(kind),
        };
        if self.chance(8)
            && let Some(subresource) = self.subresource(kind)
        {
            request = subresource;
        }
        if self.chance(4)
            && let Some(protobuf) = self.protobuf(kind)
        {
            request = protobuf;
        }
        if self.chance(3) {
            request.path = self.misplaced(&request.path);
        }
        request
    }

    /// Name of an object that may exist.
    fn name(&mut self) -> String {
        match self.rng.u8(..20) {
            0 => "$gen".to_owned(),
            1 => "missing".to_owned(),
            2..12 => "a".to_owned(),
            _ => self.rng.choice(NAMES).expect("there must be names").to_owned(),
        }
    }

    fn object_path(&mut self, kind: &Kind) -> (String, String) {
        let name = unique_name(kind, &self.name());
        (format!("{}/{name}", kind.collection("$ns")), name)
    }

    /// A valid creation on which later requests depend; the object may exist already.
    fn create_valid(&mut self, kind: &Kind, name: &str) -> Request {
        let name = unique_name(kind, name);
        let mut document = Documents::valid(&mut self.rng, kind).create();
        Edit::set("/metadata/name", name).apply(&mut document);
        let mut request = request(kind, "POST", Method::POST, kind.collection("$ns"));
        request.content_type = JSON;
        request.body = Body::Json(document);
        request
    }

    /// Creates the object at which watches end.
    fn create_last(&mut self, kind: &Kind) -> Request {
        let mut request = self.create_valid(kind, LAST_NAME);
        if let Body::Json(document) = &mut request.body {
            *document = kind.base.clone();
            Edit::set("/metadata/name", unique_name(kind, LAST_NAME)).apply(document);
            Edit::set("/metadata/labels", json!({ "app": "x" })).apply(document);
        }
        request
    }

    fn create(&mut self, kind: &Kind) -> Request {
        let (path, name) = self.object_path(kind);
        let mut document = Documents::new(&mut self.rng, kind).create();
        self.created += 1;
        let generates = name == "$gen" || self.rng.u8(..100) < 6;
        if generates {
            // The order of generated names is that of their numbers.
            let number = self.created;
            let prefix = if self.rng.u8(..10) == 0 {
                "Not Valid-".to_owned()
            } else {
                format!("$ns-g{number:03}-")
            };
            Edit::set("/metadata/generateName", prefix).apply(&mut document);
        } else if document.pointer("/metadata/name").is_none() && self.rng.u8(..100) < 97 {
            Edit::set("/metadata/name", name).apply(&mut document);
        }
        let path = path
            .rsplit_once('/')
            .map_or("", |(collection, _)| collection)
            .to_owned();
        let mut request = request(kind, "POST", Method::POST, path);
        request.content_type = JSON;
        request.body = Body::Json(document);
        self.write_options(&mut request);
        self.damage(&mut request);
        request
    }

    fn update(&mut self, kind: &Kind) -> Request {
        let (path, name) = self.object_path(kind);
        let status = kind.has_status && self.chance(40);
        let mut documents = Documents::new(&mut self.rng, kind);
        let mut fallback = documents.create();
        Edit::set("/metadata/name", name).apply(&mut fallback);
        let mut edits = documents.edits(status);
        if self.chance(25) {
            edits.push(self.precondition(&path));
        }
        let (action, path) = with_status(status, "PUT", "PUT status", path);
        let mut request = request(kind, action, Method::PUT, path);
        request.content_type = JSON;
        request.body = Body::Stored { fallback, edits };
        self.write_options(&mut request);
        self.damage(&mut request);
        request
    }

    /// A resource version or UID in the metadata of a write.
    fn precondition(&mut self, path: &str) -> Edit {
        let version = "/metadata/resourceVersion";
        match self.rng.u8(..7) {
            0 => Edit::remove(version),
            1 => Edit::set(version, format!("$old:{path}$$")),
            2 => Edit::set(version, "0"),
            3 => Edit::set(version, "x"),
            4 => Edit::set("/metadata/uid", "00000000-0000-4000-8000-000000000001"),
            5 => Edit::remove("/metadata/uid"),
            _ => Edit::set(version, 7),
        }
    }

    fn patch(&mut self, kind: &Kind) -> Request {
        let (path, _) = self.object_path(kind);
        let status = kind.has_status && self.chance(40);
        let mut edits = Documents::new(&mut self.rng, kind).edits(status);
        if self.chance(15) {
            edits.push(self.precondition(&path));
        }
        let (merge, json, strategic) = if status {
            (
                "PATCH merge status",
                "PATCH json status",
                "PATCH strategic status",
            )
        } else {
            ("PATCH merge", "PATCH json", "PATCH strategic")
        };
        let (action, content_type, body) = match self.rng.u8(..3) {
            0 => (merge, "application/merge-patch+json", merge_document(&edits)),
            1 => {
                let operations = self.operations(&edits);
                (json, "application/json-patch+json", operations)
            }
            _ => {
                let document = self.strategic_document(&edits);
                (strategic, "application/strategic-merge-patch+json", document)
            }
        };
        let (_, path) = with_status(status, "", "", path);
        let mut request = request(kind, action, Method::PATCH, path);
        request.content_type = content_type;
        request.body = Body::Json(body);
        self.write_options(&mut request);
        self.damage(&mut request);
        request
    }

    /// A JSON patch with the edits.
    fn operations(&mut self, edits: &[Edit]) -> Value {
        let mut operations = Vec::new();
        for edit in edits {
            let path = &edit.pointer;
            let operation = match (&edit.value, self.rng.u8(..10)) {
                (None, _) | (_, 0) => json!({ "op": "remove", "path": path }),
                (Some(value), 1) => json!({ "op": "test", "path": path, "value": value }),
                (Some(_), 2) => json!({ "op": "copy", "from": "/metadata/labels", "path": path }),
                (Some(value), 3..6) => json!({ "op": "replace", "path": path, "value": value }),
                (Some(value), _) => json!({ "op": "add", "path": path, "value": value }),
            };
            operations.push(operation);
        }
        if self.chance(6) {
            let odd = [
                json!({ "op": "add", "path": "/metadata/labels/x~1y", "value": "z" }),
                json!({ "op": "add", "path": "/metadata/finalizers/-", "value": "example.com/c" }),
                json!({ "op": "remove", "path": "/metadata/finalizers/0" }),
                json!({ "op": "move", "from": "/metadata/labels", "path": "/metadata/annotations" }),
                json!({ "op": "test", "path": "/metadata/name", "value": "a" }),
                json!({ "op": "replace", "path": "/metadata/name", "value": "z" }),
            ];
            operations.push(self.rng.choice(odd).expect("the list must not be empty"));
        }
        Value::Array(operations)
    }

    fn strategic_document(&mut self, edits: &[Edit]) -> Value {
        let mut document = merge_document(edits);
        if self.chance(15) {
            let directives = [
                (
                    "/metadata/$deleteFromPrimitiveList~1finalizers",
                    json!(["example.com/a"]),
                ),
                (
                    "/metadata/$setElementOrder~1finalizers",
                    json!(["example.com/b", "example.com/a"]),
                ),
                ("/metadata/labels", json!({ "$patch": "delete" })),
                ("/metadata/labels", json!({ "$patch": "replace", "app": "z" })),
                ("/spec/containers", json!([{ "name": "c", "$patch": "delete" }])),
                (
                    "/status/conditions",
                    json!([{ "type": "Ready", "status": "False" }]),
                ),
                (
                    "/status/conditions",
                    json!([{ "type": "Ready", "$patch": "delete" }]),
                ),
            ];
            let (pointer, value) = self.rng.choice(directives).expect("the list must not be empty");
            Edit::set(pointer, value).apply(&mut document);
        }
        document
    }

    /// A misspelt or misplaced path.
    fn misplaced(&mut self, path: &str) -> String {
        match self.rng.u8(..6) {
            0 => path.replace("/v1", "/v2"),
            1 => format!("{path}/unknown"),
            2 => path.replace("/namespaces/$ns", ""),
            3 => path.replace("/namespaces/$ns", "/namespaces/missing"),
            4 => path.replace("s/a", "s/Not_Valid"),
            _ => format!("{path}/status"),
        }
    }

    /// Replaces the body by something that is not a document of the kind.
    fn damage(&mut self, request: &mut Request) {
        if !self.chance(5) {
            return;
        }
        match self.rng.u8(..8) {
            0 => request.body = Body::None,
            1 => request.body = Body::Text("{".to_owned()),
            2 => request.body = Body::Text("[]".to_owned()),
            3 => request.body = Body::Text("\"text\"".to_owned()),
            4 => request.content_type = "text/plain",
            5 => request.content_type = "application/merge-patch+json",
            6 => request.body = Body::Text("{\"metadata\":{\"name\":\"a\"},}".to_owned()),
            _ => request.body = Body::Text("null".to_owned()),
        }
    }
}

pub(crate) fn set_label(kind: &Kind, label: Value) -> Request {
    let path = format!("{}/{}", kind.collection("$ns"), unique_name(kind, "a"));
    let mut request = request(kind, "PATCH merge", Method::PATCH, path);
    request.content_type = "application/merge-patch+json";
    request.body = Body::Json(json!({ "metadata": { "labels": { "app": label } } }));
    request
}

/// Namespaces of a sequence have names that no other has.
pub(crate) fn unique_name(kind: &Kind, name: &str) -> String {
    if kind.plural == "namespaces" && name != "$gen" {
        format!("$ns-{name}").replace('.', "-")
    } else {
        name.to_owned()
    }
}

/// Action and path of a request for the object or for its status.
fn with_status(
    status: bool,
    main: &'static str,
    of_status: &'static str,
    path: String,
) -> (&'static str, String) {
    if status {
        (of_status, format!("{path}/status"))
    } else {
        (main, path)
    }
}

/// A merge patch with the edits.
fn merge_document(edits: &[Edit]) -> Value {
    let mut document = json!({});
    let is_index = |name: &str| name.parse::<usize>().is_ok();
    for edit in edits.iter().filter(|edit| !edit.pointer.split('/').any(is_index)) {
        // In a merge patch, null removes a field.
        let edit = Edit {
            pointer: edit.pointer.clone(),
            value: Some(edit.value.clone().unwrap_or_default()),
        };
        edit.apply(&mut document);
    }
    document
}
