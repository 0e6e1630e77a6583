//! Encodes objects in the representation that a client accepts: in full, as `PartialObjectMetadata`, or as
//! rows of a `Table`.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Map, Value, json};

use super::clock::Clock;
use super::event_view;
use super::list::Page;
use super::object::Object;
use super::request::{IncludeObject, View};
use super::resource::{Kind, Resource};
use super::stored::{Stored, to_json};
use super::table;

/// Encodes objects of a resource.
#[derive(Clone, Debug)]
pub(crate) struct ResponseEncoder {
    resource: &'static Resource,
    view: View,
    /// `{"apiVersion":..,"kind":..,`
    head: Bytes,
    clock: Clock,
    /// Whether tables have columns; in a watch only the first has them.
    has_columns: bool,
}

// === impl ResponseEncoder ===

impl ResponseEncoder {
    pub(crate) fn new(resource: &'static Resource, view: View, clock: Clock) -> Self {
        let head = format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",",
            resource.kind_name,
            resource.api_version()
        );
        Self {
            resource,
            view,
            head: head.into(),
            clock,
            has_columns: true,
        }
    }

    /// The object as JSON without `apiVersion` and `kind`.
    fn body(&self, stored: &Stored) -> Bytes {
        if self.resource.is_events_view() {
            return to_json(&event_view::from_core(
                self.resource,
                Object::clone(&stored.object()),
            ));
        }
        stored.json().clone()
    }

    fn table(&self, metadata: Value, objects: &[Arc<Object>], include: IncludeObject) -> Value {
        let shown = |object: &Object| match include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_metadata(object),
            IncludeObject::Object => {
                let body = if self.resource.is_events_view() {
                    event_view::from_core(self.resource, object.clone())
                } else {
                    object.clone()
                };
                let mut shown = Map::new();
                shown.insert("kind".into(), self.resource.kind_name.into());
                shown.insert("apiVersion".into(), self.resource.api_version().into());
                shown.extend(body);
                Value::Object(shown)
            }
        };
        table::table(self.resource, &self.clock, metadata, objects, shown)
    }

    /// Omits the columns from all further tables.
    pub(crate) fn omit_columns(&mut self) {
        self.has_columns = false;
    }

    /// Writes an object.
    pub(crate) fn write_object(&self, out: &mut BytesMut, stored: &Stored) {
        match self.view {
            View::Full => {
                out.put_slice(&self.head);
                out.put_slice(&self.body(stored)[1..]);
            }
            View::Metadata => out.put_slice(partial_metadata(&stored.object()).to_string().as_bytes()),
            View::Table(include) => {
                let metadata = list_metadata(stored);
                let mut table = self.table(metadata, &[stored.object()], include);
                if !self.has_columns {
                    table["columnDefinitions"] = Value::Null;
                }
                out.put_slice(table.to_string().as_bytes());
            }
        }
    }

    /// An object as a response body.
    pub(crate) fn object(&self, stored: &Stored) -> Bytes {
        let mut out = BytesMut::new();
        self.write_object(&mut out, stored);
        out.freeze()
    }

    /// A list as a response body.
    pub(crate) fn list(&self, page: &Page) -> Bytes {
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".into(), page.revision.to_string().into());
        if !page.continue_token.is_empty() {
            metadata.insert("continue".into(), page.continue_token.clone().into());
        }
        if let Some(remaining) = page.remaining {
            metadata.insert("remainingItemCount".into(), remaining.into());
        }
        let metadata = Value::Object(metadata);
        match self.view {
            View::Table(include) => {
                let objects: Vec<_> = page.items.iter().map(|stored| stored.object()).collect();
                let mut table = self.table(metadata, &objects, include);
                if self.resource.kind == Kind::StorageClass {
                    table::mark_default_class(&mut table, &objects);
                }
                table.to_string().into()
            }
            View::Metadata => {
                let items: Vec<Value> = page
                    .items
                    .iter()
                    .map(|stored| partial_metadata(&stored.object()))
                    .collect();
                // An empty list is a nil slice in Go.
                let items = if items.is_empty() {
                    Value::Null
                } else {
                    items.into()
                };
                json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                    "items": items,
                })
                .to_string()
                .into()
            }
            View::Full => {
                let mut out = BytesMut::with_capacity(page.items.len() * 1024 + 256);
                out.put_slice(
                    format!(
                        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
                        self.resource.kind_name,
                        self.resource.api_version()
                    )
                    .as_bytes(),
                );
                for (index, stored) in page.items.iter().enumerate() {
                    if index > 0 {
                        out.put_u8(b',');
                    }
                    out.put_slice(&self.body(stored));
                }
                out.put_slice(b"]}");
                out.freeze()
            }
        }
    }
}

/// `PartialObjectMetadata` of an object.
fn partial_metadata(object: &Object) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
}

fn list_metadata(stored: &Stored) -> Value {
    let object = stored.object();
    let version = super::object::text(&object, "/metadata/resourceVersion");
    json!({ "resourceVersion": version })
}
