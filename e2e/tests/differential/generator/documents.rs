//! Generates objects and changes of objects.

use fastrand::Rng;
use serde_json::{Value, json};

use super::super::kinds::{Field, Kind, METADATA};
use super::super::request::Edit;

/// Percentage of documents with something invalid.
const INVALID: u8 = 25;

pub(super) struct Documents<'a> {
    rng: &'a mut Rng,
    kind: &'a Kind,
    is_valid: bool,
}

// === impl Documents ===

impl<'a> Documents<'a> {
    pub(super) fn new(rng: &'a mut Rng, kind: &'a Kind) -> Self {
        let is_valid = rng.u8(..100) >= INVALID;
        Self { rng, kind, is_valid }
    }

    /// Generates nothing invalid.
    pub(super) fn valid(rng: &'a mut Rng, kind: &'a Kind) -> Self {
        Self {
            rng,
            kind,
            is_valid: true,
        }
    }

    /// An object without a name.
    pub(super) fn create(&mut self) -> Value {
        let mut document = self.kind.base.clone();
        document["apiVersion"] = self.kind.api_version().into();
        document["kind"] = self.kind.name.into();
        document["metadata"] = json!({});
        let kind = self.kind;
        for field in &kind.fields {
            if self.rng.u8(..100) < 30 {
                self.valid_edit(field).apply(&mut document);
            }
        }
        for field in METADATA.iter().take(3) {
            if self.rng.u8(..100) < 20 {
                self.valid_edit(field).apply(&mut document);
            }
        }
        if !self.is_valid {
            self.invalid(&document).apply(&mut document);
        }
        document
    }

    /// Changes of an object, or of its status.
    pub(super) fn edits(&mut self, status: bool) -> Vec<Edit> {
        let kind = self.kind;
        let of_part: Vec<&Field> = kind
            .fields
            .iter()
            .filter(|field| field.pointer.starts_with("/status") == status || self.rng.u8(..100) < 5)
            .collect();
        let mut edits: Vec<Edit> = (0..self.rng.usize(1..=2))
            .map(|_| {
                if of_part.is_empty() || self.rng.u8(..100) < 35 {
                    // Labels most of all: they decide what watches select.
                    let field = &METADATA[self.rng.usize(..8).saturating_sub(4)];
                    return self.valid_edit(field);
                }
                let field = of_part[self.rng.usize(..of_part.len())];
                self.valid_edit(field)
            })
            .collect();
        if !self.is_valid {
            let document = kind.base.clone();
            edits.push(self.invalid(&document));
        }
        edits
    }

    fn valid_edit(&mut self, field: &Field) -> Edit {
        match self.rng.usize(..=field.valid.len()) {
            0 if field.valid.len() > 1 && self.rng.bool() => Edit::remove(field.pointer),
            at => {
                let at = at.min(field.valid.len() - 1);
                Edit::set(field.pointer, field.valid[at].clone())
            }
        }
    }

    /// Makes `document` invalid, or at least unusual.
    fn invalid(&mut self, document: &Value) -> Edit {
        let kind = self.kind;
        match self.rng.u8(..20) {
            0..9 => {
                let field = &kind.fields.get(self.rng.usize(..kind.fields.len().max(1)));
                match field {
                    Some(field) if !field.invalid.is_empty() => {
                        let at = self.rng.usize(..field.invalid.len());
                        Edit::set(field.pointer, field.invalid[at].clone())
                    }
                    _ => Edit::set("/spec", 7),
                }
            }
            9..12 => {
                let field = &METADATA[self.rng.usize(..METADATA.len())];
                let at = self.rng.usize(..field.invalid.len());
                Edit::set(field.pointer, field.invalid[at].clone())
            }
            12 => {
                let unknown = [
                    "/unknown",
                    "/spec/unknown",
                    "/metadata/unknown",
                    "/status/unknown",
                    "/Spec",
                ];
                Edit::set(unknown[self.rng.usize(..unknown.len())], "x")
            }
            13 => self.wrong_identity(),
            14..17 => {
                let mut leaves = Vec::new();
                collect(document, String::new(), &mut leaves);
                let at = self.rng.usize(..leaves.len().max(1));
                let pointer = leaves.get(at).map_or("/spec", String::as_str);
                match self.rng.u8(..9) {
                    0 => Edit::remove(pointer),
                    1 => Edit::set(pointer, Value::Null),
                    2 => Edit::set(pointer, 7),
                    3 => Edit::set(pointer, "Not Valid"),
                    4 => Edit::set(pointer, ""),
                    5 => Edit::set(pointer, json!([])),
                    6 => Edit::set(pointer, json!({})),
                    7 => Edit::set(pointer, true),
                    _ => Edit::set(pointer, "x".repeat(300)),
                }
            }
            17 => Edit::set(
                "/metadata/resourceVersion",
                // Neither server reaches the first version.
                ["1000000000", "0", "x", "+5", "99999999999999999999"][self.rng.usize(..5)],
            ),
            18 => Edit::set("/metadata/namespace", "default"),
            _ => {
                let names = ["Not_Valid", "", "-a", "a/b", "..", "a b"];
                Edit::set("/metadata/name", names[self.rng.usize(..names.len())])
            }
        }
    }

    fn wrong_identity(&mut self) -> Edit {
        match self.rng.u8(..6) {
            0 => Edit::set("/kind", "Other"),
            1 => Edit::set("/kind", "Pod"),
            2 => Edit::set("/apiVersion", "v2"),
            3 => Edit::set("/apiVersion", "example.com/v1"),
            4 => Edit::set("/kind", 7),
            _ => Edit::set("/metadata", "x"),
        }
    }
}

/// Pointers to everything in a document.
fn collect(value: &Value, pointer: String, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect(value, format!("{pointer}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                collect(value, format!("{pointer}/{at}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    if !pointer.is_empty() {
        found.push(pointer);
    }
}
