//! Creates and updates objects (`Store.Create` and `Store.Update` of `k8s.io/apiserver`'s generic registry).

use std::sync::Arc;

use fastrand::Rng;
use serde_json::Value;

use super::admission;
use super::field::{FieldError, Path};
use super::names;
use super::object::{self, Object, set, text};
use super::resource::{Kind, Resource};
use super::schema;
use super::status::Status;
use super::storage::Store;
use super::stored::{Stored, key};
use super::strategy::{self, Part};
use super::validate;
use super::write_options::FailedPrecondition;
use super::{defaults, event_view, list};

/// Maximum number of attempts to generate an unused name.
const NAME_ATTEMPTS: usize = 8;

/// One write.
pub(crate) struct Writer<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) rng: &'a mut Rng,
    /// `metav1.Time` of the write.
    pub(crate) now: String,
    pub(crate) resource: &'static Resource,
    /// Namespace of the request; empty for cluster-scoped objects.
    pub(crate) namespace: &'a str,
    /// Whether the write is a dry run, which stores nothing.
    pub(crate) dry_run: bool,
}

/// The object after a write.
pub(crate) type Written = Arc<Stored>;

/// A random UUID.
fn new_uid(rng: &mut Rng) -> String {
    let random = rng.u128(..);
    let version = (random & !(0xf << 76)) | (4 << 76);
    let uuid = (version & !(0b11 << 62)) | (0b10 << 62);
    let hex = format!("{uuid:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

// === impl Writer ===

impl Writer<'_> {
    /// Creates a decoded and defaulted object.
    pub(crate) fn create(&mut self, mut object: Object) -> Result<Written, Status> {
        let resource = self.resource;
        for name in [
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "uid",
            "selfLink",
            "managedFields",
        ] {
            set(&mut object, &format!("/metadata/{name}"), Value::Null);
        }
        self.match_namespace(&mut object)?;
        admission::create(self.store, resource, &mut object, self.namespace)?;
        let generates = object::name(&object).is_empty() && object::has(&object, "/metadata/generateName");
        let attempts = if generates { NAME_ATTEMPTS } else { 1 };
        for _ in 1..attempts {
            match self.create_once(object.clone()) {
                Err(status) if status.reason == "AlreadyExists" => {}
                result => return result,
            }
        }
        self.create_once(object)
    }

    fn create_once(&mut self, mut object: Object) -> Result<Written, Status> {
        let resource = self.resource;
        set(&mut object, "/metadata/creationTimestamp", self.now.clone());
        let uid = new_uid(self.rng);
        set(&mut object, "/metadata/uid", uid);
        let prefix = text(&object, "/metadata/generateName").to_owned();
        if !prefix.is_empty() && object::name(&object).is_empty() {
            set(&mut object, "/metadata/name", names::generate(&prefix, self.rng));
        }
        strategy::prepare_for_create(resource.kind, &mut object, &self.now);
        let name = object::name(&object).to_owned();
        invalid(resource, &name, &validate::create(resource, &object))?;
        self.canonicalize(&mut object);
        if !self.dry_run && parse_version(&object).is_ok_and(|version| version != 0) {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(Status::unclassified(why));
        }
        let key = key(self.namespace, &name);
        if let Some(existing) = self.store.table(resource.table()).get(&key) {
            let mut status = if prefix.is_empty() {
                Status::already_exists(resource, &name)
            } else {
                Status::generated_name_exists(resource, &name)
            };
            if object::is_deleting(&existing.object()) {
                status.message = format!("object is being deleted: {}", status.message);
            }
            return Err(status);
        }
        Ok(self.put(&key, object))
    }

    /// Replaces an object by the result of `updated`.
    ///
    /// `uid` is the UID that the stored object must have. The boolean tells whether the object was created.
    pub(crate) fn update(
        &mut self,
        name: &str,
        part: Part,
        uid: Option<&str>,
        updated: impl FnOnce(&Object) -> Result<Object, Status>,
    ) -> Result<(Written, bool), Status> {
        let resource = self.resource;
        let key = key(self.namespace, name);
        let may_create = resource.allows_create_on_update() && part == Part::Main;
        let existing = self.store.table(resource.table()).get(&key).cloned();
        if existing.is_none() && !may_create {
            return Err(Status::not_found(resource, name));
        }
        if let Some(uid) = uid.filter(|uid| !uid.is_empty()) {
            let found = existing.as_ref().map_or_else(String::new, |stored| {
                text(&stored.object(), "/metadata/uid").to_owned()
            });
            if uid != found {
                let failed = FailedPrecondition {
                    what: "UID",
                    wanted: uid,
                    found: &found,
                };
                return Err(self.precondition_failed(&key, name, failed));
            }
        }
        let Some(existing) = existing else {
            let mut object = updated(&Object::new())?;
            admission::namespace_exists(self.store, resource, name, self.namespace)?;
            parse_version(&object)?;
            // A dry run shows it as it was sent.
            if !self.dry_run {
                set(&mut object, "/metadata/resourceVersion", Value::Null);
            }
            return self.create(object).map(|written| (written, true));
        };
        let before = existing.object();
        let mut object = updated(&before)?;
        self.check_version(&mut object, &existing, name)?;
        self.before_update(&mut object, &before, part)?;
        // A namespace also has finalizers in its spec.
        let finalized = object::list(&object, "/spec/finalizers").is_empty();
        if finalized && should_delete(&object, &before) {
            return Ok((self.delete_finalized(&key, object, existing.revision), false));
        }
        // A new claim is stored without a phase, which defaulting adds on reads, so the first update always
        // writes.
        let is_stored = !(existing.is_first && resource.kind == Kind::PersistentVolumeClaim);
        if object == *before && is_stored {
            return Ok((existing, false));
        }
        Ok((self.put(&key, object), false))
    }

    pub(crate) fn precondition_failed(
        &self,
        key: &str,
        name: &str,
        failed: FailedPrecondition<'_>,
    ) -> Status {
        // A dry run does not reach the store, which adds the prefix.
        let registry = if self.dry_run { "" } else { "/registry" };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {registry}/{}/{key}, ResourceVersion: 0, AdditionalErrorMsg: \
             {failed}",
            self.resource.storage_prefix()
        );
        Status::conflict(self.resource, name, &why)
    }

    /// Optimistic locking.
    fn check_version(&self, object: &mut Object, existing: &Stored, name: &str) -> Result<(), Status> {
        let resource = self.resource;
        let version = parse_version(object)?;
        if version == 0 && resource.allows_unconditional_update() {
            set(object, "/metadata/resourceVersion", existing.revision.to_string());
            return Ok(());
        }
        if version == 0 {
            let path = Path::new("metadata").child("resourceVersion");
            let error = FieldError::invalid(&path, 0, "must be specified for an update");
            return Err(Status::invalid(resource.group, resource.plural, name, &[error]));
        }
        if version != existing.revision {
            return Err(Status::modified(resource, name));
        }
        Ok(())
    }

    /// Admission, then `rest.BeforeUpdate`.
    fn before_update(&mut self, object: &mut Object, old: &Object, part: Part) -> Result<(), Status> {
        let resource = self.resource;
        self.match_namespace(object)?;
        set(object, "/metadata/managedFields", Value::Null);
        object::copy(object, old, "/metadata/generation");
        if part == Part::Main {
            admission::mutate_update(resource, object);
        }
        let schema = super::resource::of_kind(resource.kind).schema;
        strategy::prepare_for_update(resource.kind, part, schema, object, old, &self.now);
        if text(object, "/metadata/uid").is_empty() {
            object::copy(object, old, "/metadata/uid");
        }
        object::copy(object, old, "/metadata/creationTimestamp");
        if object::is_deleting(old) {
            object::copy(object, old, "/metadata/deletionTimestamp");
        }
        if !object::has(object, "/metadata/deletionGracePeriodSeconds") {
            object::copy(object, old, "/metadata/deletionGracePeriodSeconds");
        }
        self.canonicalize(object);
        let errors = validate::update(resource, part, object, old);
        invalid(resource, object::name(object), &errors)?;
        admission::validate_update(self.store, resource, part, object, old)
    }

    /// `EnsureObjectNamespaceMatchesRequestNamespace`.
    fn match_namespace(&self, object: &mut Object) -> Result<(), Status> {
        let given = object::namespace(object);
        if given == self.namespace {
            Ok(())
        } else if given.is_empty() {
            set(object, "/metadata/namespace", self.namespace);
            Ok(())
        } else if self.namespace.is_empty() {
            set(object, "/metadata/namespace", Value::Null);
            Ok(())
        } else {
            Err(Status::namespace_mismatch())
        }
    }

    /// Converts the object to its stored form.
    fn canonicalize(&self, object: &mut Object) {
        if self.resource.kind == Kind::Namespace {
            defaults::apply(self.resource.kind, object);
        }
        let schema = super::resource::of_kind(self.resource.kind).schema;
        schema.normalize(object);
        if self.resource.kind == Kind::Node {
            // An empty map is not stored, and defaulting adds it on reads.
            defaults::apply(self.resource.kind, object);
            schema.normalize(object);
        }
    }

    /// Stores the object; in a dry run only returns it.
    pub(crate) fn put(&mut self, key: &str, object: Object) -> Written {
        if self.dry_run {
            return Arc::new(Stored::unsaved(object));
        }
        self.store.put(self.resource.table(), key, object)
    }

    /// Deletes an object after an update removed its last finalizer; returns the updated object.
    fn delete_finalized(&mut self, key: &str, object: Object, revision: u64) -> Written {
        if !self.dry_run {
            self.store.delete(self.resource.table(), key);
        }
        let mut object = object;
        set(&mut object, "/metadata/resourceVersion", revision.to_string());
        Arc::new(Stored::unsaved(object))
    }
}

/// 422 if there are errors; events are core events in both event APIs.
fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    let group = super::resource::of_kind(resource.kind).group;
    Err(Status::invalid(group, resource.kind_name, name, errors))
}

/// The resource version of an object, 0 if it has none.
fn parse_version(object: &Object) -> Result<u64, Status> {
    list::version_of_read(text(object, "/metadata/resourceVersion"))
}

/// Whether an update of a terminating object completes its deletion.
fn should_delete(object: &Object, old: &Object) -> bool {
    let grace = object::at(old, "/metadata/deletionGracePeriodSeconds").as_i64();
    object::list(object, "/metadata/finalizers").is_empty()
        && object::is_deleting(old)
        && grace.is_none_or(|grace| grace == 0)
}

/// Decodes a JSON document into an object of the resource in its stored form, and defaults it.
///
/// # Errors
/// If a field has the wrong type. Unknown fields are returned beside the object.
pub(crate) fn decode_object(resource: &Resource, document: Object) -> Result<(Object, Vec<String>), String> {
    let (mut object, unknown) = schema::decode(resource.schema, document)?;
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
        metadata.remove("selfLink");
    }
    if resource.is_events_view() {
        object = event_view::to_core(object);
    }
    defaults::apply(resource.kind, &mut object);
    super::resource::of_kind(resource.kind)
        .schema
        .normalize(&mut object);
    Ok((object, unknown))
}
