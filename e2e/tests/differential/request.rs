//! A request to an API server, before a server's versions, UIDs and generated names are filled in.

use std::fmt;

use http::Method;
use serde_json::{Map, Value};

/// Action of a watch that is read up to its first bookmark.
pub(crate) const BOOKMARKS: &str = "WATCH bookmarks";

/// A request. Strings may hold symbols, which [`super::server::Server`] replaces:
/// - `$ns`: the namespace of the sequence,
/// - `$rv:KEY$$`, `$old:KEY$$`, `$uid:KEY$$`: newest and first known resource version, and UID, of the object at `KEY`,
/// - `$continue:KEY$$`: the last continue token of the list at `KEY`,
/// - `$inconsistent:KEY$$`: that of the last response with 410 Gone, which continues at the newest version,
/// - `$list:KEY$$`: the version of the first list at `KEY`,
/// - a path that ends in `/$gen`: the object whose name was generated last in its collection.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Kind of the objects, and group of an event.
    pub(crate) kind: String,
    /// Verb, patch type and subresource, for the table of results.
    pub(crate) action: &'static str,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) content_type: &'static str,
    pub(crate) accept: &'static str,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    None,
    Text(String),
    Json(Value),
    Protobuf(Protobuf),
    /// The object as last returned by the server, or `fallback`, with edits.
    Stored {
        fallback: Value,
        edits: Vec<Edit>,
    },
}

/// An object of the core group with only a name, in protobuf.
#[derive(Clone, Debug)]
pub(crate) struct Protobuf {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    /// Whether the envelope has Kubernetes' magic prefix.
    pub(crate) has_prefix: bool,
}

/// Sets a field of a document, or removes it.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) pointer: String,
    pub(crate) value: Option<Value>,
}

// === impl Protobuf ===

impl Protobuf {
    /// The bytes of the envelope, with `name` as the object's name.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let field = |number: u8, content: &[u8]| {
            let length = u8::try_from(content.len()).ok().filter(|length| *length < 128);
            let length = length.expect("a length must fit in one byte");
            [&[number << 3 | 2, length], content].concat()
        };
        let metadata = field(1, &field(1, name.as_bytes()));
        let types = [field(1, b"v1"), field(2, self.kind.as_bytes())].concat();
        let prefix: &[u8] = if self.has_prefix { b"k8s\0" } else { b"" };
        [prefix, &field(1, &types), &field(2, &metadata)].concat()
    }
}

// === impl Edit ===

impl Edit {
    pub(crate) fn set(pointer: impl Into<String>, value: impl Into<Value>) -> Self {
        Self {
            pointer: pointer.into(),
            value: Some(value.into()),
        }
    }

    pub(crate) fn remove(pointer: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            value: None,
        }
    }

    /// Changes `document`; a pointer through something other than an object or a list has no effect.
    pub(crate) fn apply(&self, document: &mut Value) {
        let mut names: Vec<&str> = self.pointer.split('/').skip(1).collect();
        let Some(last) = names.pop() else { return };
        let mut at = document;
        for name in names {
            let name = unescaped(name);
            at = match at {
                Value::Object(object) => object
                    .entry(name)
                    .and_modify(|value| {
                        if value.is_null() {
                            *value = Value::Object(Map::new());
                        }
                    })
                    .or_insert_with(|| Value::Object(Map::new())),
                Value::Array(items) => match name.parse().ok().and_then(|at: usize| items.get_mut(at)) {
                    Some(item) => item,
                    None => return,
                },
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return,
            };
        }
        let last = unescaped(last);
        match (at, &self.value) {
            (Value::Object(object), Some(value)) => {
                object.insert(last, value.clone());
            }
            (Value::Object(object), None) => {
                object.remove(&last);
            }
            (Value::Array(items), value) => {
                let Some(at) = last.parse().ok().filter(|at: &usize| *at < items.len()) else {
                    return;
                };
                match value {
                    Some(value) => items[at] = value.clone(),
                    None => drop(items.remove(at)),
                }
            }
            _ => {}
        }
    }
}

/// A reference token of a JSON pointer as text.
fn unescaped(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

// === impl Request ===

impl Request {
    /// Whether the response is a stream of events.
    pub(crate) fn is_watch(&self) -> bool {
        self.action == "WATCH" || self.reads_to_bookmark()
    }

    /// Whether the stream is read up to its first bookmark, and not to the last object of the sequence.
    pub(crate) fn reads_to_bookmark(&self) -> bool {
        self.action == BOOKMARKS
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let query: Vec<String> = self
            .query
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mark = if query.is_empty() { "" } else { "?" };
        write!(f, "{} {}{mark}{}", self.method, self.path, query.join("&"))?;
        if !self.content_type.is_empty() {
            write!(f, " [{}]", self.content_type)?;
        }
        if !self.accept.is_empty() {
            write!(f, " accept {}", self.accept)?;
        }
        match &self.body {
            Body::None => Ok(()),
            Body::Text(text) => write!(f, " {text:?}"),
            Body::Json(value) => write!(f, " {value}"),
            Body::Protobuf(object) => write!(f, " {object:?}"),
            Body::Stored { fallback, edits } => {
                write!(f, " the object (or {fallback})")?;
                edits.iter().try_for_each(|edit| match &edit.value {
                    Some(value) => write!(f, ", {} = {value}", edit.pointer),
                    None => write!(f, ", without {}", edit.pointer),
                })
            }
        }
    }
}
