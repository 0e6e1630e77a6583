//! Reads the fields of a struct that is validated, and collects the errors about them.

use std::cell::RefCell;
use std::ops::RangeBounds;

use serde_json::Value;

use super::super::field::{Errors, FieldError, IMMUTABLE, Path};
use super::super::object::{self, NULL, Object};
use crate::quantity::Quantity;

/// A struct, its path, and the errors found so far.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    pub(super) object: &'a Object,
    path: Path,
    errors: &'a RefCell<Errors>,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// The fields of a whole object.
    pub(super) fn of(object: &'a Object, errors: &'a RefCell<Errors>) -> Self {
        Self {
            object,
            path: Path::default(),
            errors,
        }
    }

    /// A struct in a field; an empty one if the field is missing.
    pub(super) fn child(&self, name: &str) -> Self {
        Self {
            object: object::struct_at(self.object, name),
            path: self.path(name),
            errors: self.errors,
        }
    }

    /// A struct in a field, if there is one.
    pub(super) fn given(&self, name: &str) -> Option<Self> {
        self.has(name).then(|| self.child(name))
    }

    /// The structs of a list.
    pub(super) fn structs(&self, name: &str) -> impl Iterator<Item = Self> + use<'a> {
        let (path, errors) = (self.path(name), self.errors);
        let items = self.list(name).iter().enumerate();
        items.filter_map(move |(index, item)| {
            Some(Self {
                object: item.as_object()?,
                path: path.index(index),
                errors,
            })
        })
    }

    /// The path of a field.
    pub(super) fn path(&self, name: &str) -> Path {
        self.path.child(name)
    }

    /// The path of the struct.
    pub(super) fn own_path(&self) -> &Path {
        &self.path
    }

    pub(super) fn get(&self, name: &str) -> &'a Value {
        self.object.get(name).unwrap_or(&NULL)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        !self.get(name).is_null()
    }

    /// A text, empty if missing.
    pub(super) fn text(&self, name: &str) -> &'a str {
        self.get(name).as_str().unwrap_or_default()
    }

    pub(super) fn integer(&self, name: &str) -> Option<i64> {
        self.get(name).as_i64()
    }

    pub(super) fn quantity(&self, name: &str) -> Option<Quantity> {
        amount(self.get(name))
    }

    /// A list, empty if missing.
    pub(super) fn list(&self, name: &str) -> &'a [Value] {
        self.get(name).as_array().map_or(&[], Vec::as_slice)
    }

    /// The texts of a list.
    pub(super) fn texts(&self, name: &str) -> impl ExactSizeIterator<Item = &'a str> + use<'a> {
        let items = self.list(name).iter();
        items.map(|item| item.as_str().unwrap_or_default())
    }

    /// The entries of a map, none if missing.
    pub(super) fn entries(&self, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.get(name).as_object().into_iter().flatten()
    }

    pub(super) fn push(&self, error: FieldError) {
        self.errors.borrow_mut().push(error);
    }

    pub(super) fn required(&self, name: &str, why: &str) {
        self.push(FieldError::required(&self.path(name), why));
    }

    pub(super) fn forbidden(&self, name: &str, why: impl Into<String>) {
        self.push(FieldError::forbidden(&self.path(name), why));
    }

    pub(super) fn invalid(&self, name: &str, value: impl Into<Value>, why: impl Into<String>) {
        self.push(FieldError::invalid(&self.path(name), value, why));
    }

    pub(super) fn duplicate(&self, name: &str, value: &str) {
        self.push(FieldError::duplicate(&self.path(name), value));
    }

    pub(super) fn too_long(&self, name: &str, limit: usize) {
        self.push(FieldError::too_long(&self.path(name), limit));
    }

    /// The text of a field that must not be empty.
    pub(super) fn require(&self, name: &str) -> &'a str {
        let text = self.text(name);
        if text.is_empty() {
            self.required(name, "");
        }
        text
    }

    /// Adds an error for each message of a check.
    pub(super) fn found(&self, name: &str, value: &str, found: Vec<String>) {
        for why in found {
            self.invalid(name, value, why);
        }
    }

    /// Checks a text.
    pub(super) fn check(&self, name: &str, check: impl FnOnce(&str) -> Vec<String>) {
        let text = self.text(name);
        self.found(name, text, check(text));
    }

    /// Checks a text that is not empty.
    pub(super) fn check_given(&self, name: &str, check: impl FnOnce(&str) -> Vec<String>) {
        if !self.text(name).is_empty() {
            self.check(name, check);
        }
    }

    /// Checks a text that must not be empty.
    pub(super) fn check_required(&self, name: &str, check: impl FnOnce(&str) -> Vec<String>) {
        if !self.require(name).is_empty() {
            self.check(name, check);
        }
    }

    /// Checks each text of a list.
    pub(super) fn check_items(&self, name: &str, check: impl Fn(&str) -> Vec<String>) {
        for (index, value) in self.texts(name).enumerate() {
            for why in check(value) {
                self.push(FieldError::invalid(&self.path(name).index(index), value, why));
            }
        }
    }

    /// Adds an error if the number is set and out of range.
    pub(super) fn in_range(&self, name: &str, range: impl RangeBounds<i64>, why: &str) {
        if let Some(number) = self.integer(name).filter(|number| !range.contains(number)) {
            self.invalid(name, number, why);
        }
    }

    /// Adds an error if the text is not in `supported`.
    pub(super) fn one_of(&self, name: &str, supported: &[&str]) {
        self.supported(name, self.text(name), supported);
    }

    /// Adds an error if the value is not in `supported`.
    pub(super) fn supported(&self, name: &str, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.push(FieldError::not_supported(&self.path(name), value, supported));
        }
    }

    /// Adds an error if the field differs from the old version.
    pub(super) fn immutable(&self, old: &Object, name: &str) {
        let value = self.get(name);
        if value != old.get(name).unwrap_or(&NULL) {
            self.invalid(name, sorted(value), IMMUTABLE);
        }
    }
}

/// A map as Go shows it: with sorted keys.
pub(super) fn sorted(value: &Value) -> Value {
    let mut value = value.clone();
    if let Value::Object(entries) = &mut value {
        entries.sort_keys();
    }
    value
}

/// The quantity in a field.
pub(super) fn amount(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(Quantity::parse)
}
