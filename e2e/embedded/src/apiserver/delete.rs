//! Deletes objects: preconditions, grace periods of pods, finalizers, and the phases of a namespace
//! (`Store.Delete` of `k8s.io/apiserver`'s generic registry and `rest.BeforeDelete`).

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::admission;
use super::clock;
use super::object::{self, Object, at, set, text};
use super::resource::Kind;
use super::status::Status;
use super::stored::key;
use super::write::{Writer, Written};
use super::write_options::DeleteOptions;

/// The response to a deletion.
pub(crate) enum Deleted {
    /// The object, deleted or terminating.
    Object(Written),
    /// A `Status` that names the object.
    Status(Value),
}

/// How a deletion proceeds.
enum Grace {
    /// No grace period: remove the object unless it has finalizers.
    None,
    /// This request set the object's deletion timestamp.
    Started(i64),
    /// An earlier deletion is still in its grace period.
    Pending,
}

// === impl Writer ===

impl Writer<'_> {
    /// Deletes an object, or marks it as terminating.
    pub(crate) fn delete(&mut self, name: &str, mut options: DeleteOptions) -> Result<Deleted, Status> {
        let resource = self.resource;
        let key = key(self.namespace, name);
        let existing = self.store.existing(resource, self.namespace, name)?;
        let current = existing.object();
        if resource.kind == Kind::Namespace {
            if let Some(object) = self.delete_namespace(&key, &existing, &options)? {
                return Ok(Deleted::Object(object));
            }
        } else {
            self.check_preconditions(&current, &options)?;
        }
        admission::delete(resource, name)?;
        let mut object = Object::clone(&current);
        let grace = self.grace(&mut object, &mut options)?;
        if matches!(grace, Grace::Pending) {
            return Ok(self.response(existing));
        }
        let has_finalizers = !object::list(&object, "/metadata/finalizers").is_empty();
        match grace {
            Grace::Started(seconds) if seconds > 0 || has_finalizers => {
                return Ok(Deleted::Object(self.put_changed(&key, object, &existing)));
            }
            Grace::None if has_finalizers => {
                self.mark_as_deleting(&mut object)?;
                return Ok(Deleted::Object(self.put_changed(&key, object, &existing)));
            }
            Grace::Started(_) | Grace::None | Grace::Pending => {}
        }
        let last = match grace {
            Grace::Started(_) => self.put_changed(&key, object, &existing),
            Grace::None | Grace::Pending => existing,
        };
        let deleted = if self.dry_run {
            None
        } else {
            self.store.delete(resource.table(), &key)
        };
        Ok(self.response(deleted.unwrap_or(last)))
    }

    /// Stores the object, unless nothing has changed.
    pub(crate) fn put_changed(&mut self, key: &str, mut object: Object, existing: &Written) -> Written {
        let schema = super::resource::of_kind(self.resource.kind).schema;
        schema.normalize(&mut object);
        if object == *existing.object() {
            return Written::clone(existing);
        }
        self.put(key, object)
    }

    fn response(&self, object: Written) -> Deleted {
        let resource = self.resource;
        if resource.returns_deleted_object() {
            return Deleted::Object(object);
        }
        let object = object.object();
        let mut details = json!({
            "name": object::name(&object),
            "kind": resource.plural,
            "uid": text(&object, "/metadata/uid"),
        });
        if !resource.group.is_empty() {
            details["group"] = resource.group.into();
        }
        Deleted::Status(json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }))
    }

    fn check_preconditions(&self, object: &Object, options: &DeleteOptions) -> Result<(), Status> {
        let Some(failed) = options.preconditions.failed(object) else {
            return Ok(());
        };
        // Kubernetes names the kind here where it names the resource elsewhere.
        let resource = super::resource::of_kind(self.resource.kind);
        let mut status = Status::conflict(resource, object::name(object), &failed.before_delete());
        let kind = super::resource::qualified(resource.kind_name, resource.group);
        status.message = status.message.replacen(&resource.group_resource(), &kind, 1);
        status.details["kind"] = resource.kind_name.into();
        Err(status)
    }

    /// Sets the deletion timestamp of a pod that is deleted gracefully.
    fn grace(&self, object: &mut Object, options: &mut DeleteOptions) -> Result<Grace, Status> {
        if let Some(seconds) = &mut options.grace_period_seconds
            && *seconds < 0
        {
            *seconds = 1;
        }
        if self.resource.kind != Kind::Pod {
            return Ok(Grace::None);
        }
        if object::is_deleting(object) {
            return self.shorten_grace(object, options);
        }
        let own = at(object, "/spec/terminationGracePeriodSeconds").as_i64();
        let mut seconds = options.grace_period_seconds.or(own).unwrap_or(0);
        let finished = matches!(text(object, "/status/phase"), "Failed" | "Succeeded");
        if text(object, "/spec/nodeName").is_empty() || finished {
            seconds = 0;
        }
        if seconds < 0 {
            seconds = 1;
        }
        let at = self.time(&self.now)? + SignedDuration::from_secs(seconds);
        set(object, "/metadata/deletionTimestamp", clock::format_time(at));
        set(object, "/metadata/deletionGracePeriodSeconds", seconds);
        increase_generation(object);
        Ok(Grace::Started(seconds))
    }

    fn shorten_grace(&self, object: &mut Object, options: &DeleteOptions) -> Result<Grace, Status> {
        let current = at(object, "/metadata/deletionGracePeriodSeconds")
            .as_i64()
            .unwrap_or(0);
        if current == 0 {
            return Ok(Grace::None);
        }
        let Some(mut seconds) = options.grace_period_seconds.filter(|seconds| *seconds < current) else {
            return Ok(Grace::Pending);
        };
        let until = self.time(text(object, "/metadata/deletionTimestamp"))?;
        let now = self.time(&self.now)?;
        let mut until = until - SignedDuration::from_secs(current) + SignedDuration::from_secs(seconds);
        if until < now {
            until = now;
            if seconds != 0 {
                seconds = 1;
            }
        }
        set(object, "/metadata/deletionTimestamp", clock::format_time(until));
        set(object, "/metadata/deletionGracePeriodSeconds", seconds);
        Ok(Grace::Started(seconds))
    }

    fn time(&self, text: &str) -> Result<Timestamp, Status> {
        let parsed = text.parse();
        parsed.map_err(|error: jiff::Error| Status::internal(error.to_string()))
    }

    /// Sets the deletion timestamp of an object that has finalizers.
    fn mark_as_deleting(&self, object: &mut Object) -> Result<(), Status> {
        if !object::is_deleting(object) {
            increase_generation(object);
        }
        let now = self.time(&self.now)?;
        let later = match text(object, "/metadata/deletionTimestamp") {
            "" => true,
            given => self.time(given)? > now,
        };
        if later {
            set(object, "/metadata/deletionTimestamp", self.now.clone());
        }
        set(object, "/metadata/deletionGracePeriodSeconds", 0);
        Ok(())
    }

    /// The first deletion of a namespace starts its termination; the namespace is removed when its finalizers
    /// are gone.
    fn delete_namespace(
        &mut self,
        key: &str,
        existing: &Written,
        options: &DeleteOptions,
    ) -> Result<Option<Written>, Status> {
        let before = existing.object();
        if let Some(failed) = options.preconditions.failed(&before) {
            return Err(Status::conflict(self.resource, key, &failed.to_string()));
        }
        if !object::is_deleting(&before) {
            admission::delete(self.resource, key)?;
            let mut object = Object::clone(&before);
            set(&mut object, "/metadata/deletionTimestamp", self.now.clone());
            set(&mut object, "/status/phase", "Terminating");
            return Ok(Some(self.put_changed(key, object, existing)));
        }
        let waits = !object::list(&before, "/spec/finalizers").is_empty();
        Ok(waits.then(|| Written::clone(existing)))
    }
}

fn increase_generation(object: &mut Object) {
    let generation = at(object, "/metadata/generation").as_i64().unwrap_or_default();
    if generation > 0 {
        set(object, "/metadata/generation", generation + 1);
    }
}
