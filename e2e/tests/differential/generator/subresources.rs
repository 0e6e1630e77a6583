//! Generates requests for the subresources `binding`, `eviction`, `token` and `finalize`, and bodies in protobuf.

use http::Method;
use serde_json::{Value, json};

use super::super::kinds::Kind;
use super::super::request::{Body, Edit, Protobuf, Request};
use super::{Generator, JSON, request, unique_name};

/// Actions of subresources by the resource that has them.
pub(crate) const SUBRESOURCES: [(&str, &str); 4] = [
    ("pods", "POST binding"),
    ("pods", "POST eviction"),
    ("serviceaccounts", "POST token"),
    ("namespaces", "PUT finalize"),
];
/// Action of creations in protobuf.
pub(crate) const PROTOBUF: &str = "POST protobuf";
/// Kinds that are valid with only a name.
pub(crate) const NAMED_ONLY: [&str; 4] = ["namespaces", "nodes", "serviceaccounts", "secrets"];

// === impl Generator ===

impl Generator {
    pub(super) fn subresource(&mut self, kind: &Kind) -> Option<Request> {
        let actions = SUBRESOURCES.iter().filter(|(plural, _)| *plural == kind.plural);
        let actions: Vec<&'static str> = actions.map(|(_, action)| *action).collect();
        let action = self.rng.choice(actions)?;
        let (path, name) = self.object_path(kind);
        let (method, subresource) = action.split_once(' ')?;
        let method: Method = method.parse().ok()?;
        let mut request = request(kind, action, method.clone(), format!("{path}/{subresource}"));
        request.content_type = JSON;
        let mut document = match subresource {
            "binding" => self.binding(&path),
            "eviction" => self.eviction(&path),
            "token" => self.token(),
            _ => {
                let finalizers = [
                    json!([]),
                    json!(["kubernetes"]),
                    json!(["example.com/x"]),
                    json!(["x y"]),
                ];
                let finalizers = self.rng.choice(finalizers)?;
                json!({ "spec": { "finalizers": finalizers } })
            }
        };
        let given = if self.chance(85) { name } else { "other".to_owned() };
        Edit::set("/metadata/name", given).apply(&mut document);
        if method == Method::POST && self.chance(25) {
            self.mistyped().apply(&mut document);
        }
        request.body = Body::Json(document);
        if self.chance(10) {
            let validation = ["Strict", "Warn", "Ignore", "All"][self.rng.usize(..4)];
            request.query.push(("fieldValidation", validation.to_owned()));
        }
        Some(request)
    }

    /// Another type of the body, a field of the wrong type, or an unknown field.
    fn mistyped(&mut self) -> Edit {
        match self.rng.u8(..10) {
            0 => Edit::set("/kind", "Pod"),
            1 => Edit::set("/kind", "Binding"),
            2 => Edit::set("/kind", 7),
            3 => Edit::set("/apiVersion", "v2"),
            4 => Edit::set("/apiVersion", "policy/v1"),
            5 => Edit::set("/metadata/name", 7),
            6 => Edit::set("/metadata/labels", "a"),
            7 => Edit::set("/spec", "a"),
            8 => Edit::set("/target", 7),
            _ => Edit::set(
                "/deleteOptions",
                json!({ "gracePeriodSeconds": "x", "unknown": 1 }),
            ),
        }
    }

    fn binding(&mut self, path: &str) -> Value {
        let mut binding = json!({ "target": { "kind": "Node", "name": "a" } });
        let edit = match self.rng.u8(..16) {
            0 => Edit::set("/metadata/uid", format!("$uid:{path}$$")),
            1 => Edit::set("/metadata/uid", "00000000-0000-4000-8000-000000000001"),
            2 => Edit::set("/metadata/resourceVersion", format!("$rv:{path}$$")),
            3 => Edit::set("/metadata/resourceVersion", format!("$old:{path}$$")),
            4 => Edit::set("/metadata/labels", json!({ "app": "x", "bound": "yes" })),
            5 => Edit::set("/metadata/annotations", json!({ "note": "bound" })),
            6 => Edit::set("/target/kind", "Pod"),
            7 => Edit::remove("/target/kind"),
            8 => Edit::remove("/target/name"),
            9 => Edit::set("/target", json!({ "kind": "Pod" })),
            _ => return binding,
        };
        edit.apply(&mut binding);
        binding
    }

    fn eviction(&mut self, path: &str) -> Value {
        let options = [
            json!(null),
            json!({}),
            json!({ "gracePeriodSeconds": 0 }),
            json!({ "dryRun": ["All"] }),
            json!({ "preconditions": { "uid": format!("$uid:{path}$$") } }),
            json!({ "preconditions": { "uid": "00000000-0000-4000-8000-000000000001" } }),
            json!({ "preconditions": { "resourceVersion": format!("$rv:{path}$$") } }),
            json!({ "preconditions": { "resourceVersion": format!("$old:{path}$$") } }),
        ];
        json!({ "deleteOptions": self.rng.choice(options) })
    }

    fn token(&mut self) -> Value {
        let seconds = [json!(null), json!(600), json!(7200)];
        json!({ "spec": { "audiences": ["a"], "expirationSeconds": self.rng.choice(seconds) } })
    }

    /// Creates an object that has only a name.
    pub(super) fn protobuf(&mut self, kind: &Kind) -> Option<Request> {
        NAMED_ONLY.contains(&kind.plural).then_some(())?;
        let (path, name) = self.object_path(kind);
        let collection = path.strip_suffix(&format!("/{name}"))?.to_owned();
        let mut request = request(kind, PROTOBUF, Method::POST, collection);
        request.content_type = "application/vnd.kubernetes.protobuf";
        let sent_kind = if self.chance(10) { "Pod" } else { kind.name };
        let name = match self.rng.u8(..8) {
            0 => "Not_Valid".to_owned(),
            1 => String::new(),
            _ if name == "$gen" => unique_name(kind, "b"),
            _ => name,
        };
        request.body = Body::Protobuf(Protobuf {
            kind: sent_kind,
            name,
            has_prefix: !self.chance(10),
        });
        Some(request)
    }
}
