//! Options of lists and watches.

use super::field::{FieldError, Path};
use super::request::{Location, Query};
use super::resource::{self, Resource};
use super::selector::{FieldSelector, LabelSelector};
use super::status::Status;
use super::stored::Stored;

/// `metav1.ListOptions`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListOptions {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) resource_version: String,
    pub(crate) version_match: String,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    pub(crate) send_initial_events: Option<bool>,
}

// === impl ListOptions ===

impl ListOptions {
    /// Whether the selectors match an object.
    pub(crate) fn selects(&self, stored: &Stored) -> bool {
        if self.labels.is_empty() && self.fields.is_empty() {
            return true;
        }
        let object = stored.object();
        self.labels.matches(&object) && self.fields.matches(&object)
    }

    /// Options of a list or a watch.
    pub(crate) fn of(query: &Query, location: &Location) -> Result<Self, Status> {
        // The query is decoded before the selectors are parsed.
        let timeout_seconds = query.number("timeoutSeconds")?;
        let limit = query.number("limit")?;
        let labels = LabelSelector::parse(query.get("labelSelector")).map_err(Status::bad_request)?;
        let fields = FieldSelector::parse(query.get("fieldSelector")).map_err(Status::bad_request)?;
        let mut options = Self {
            labels,
            fields,
            watch: location.watches || query.flag("watch"),
            bookmarks: query.flag("allowWatchBookmarks"),
            resource_version: query.get("resourceVersion").to_owned(),
            version_match: query.get("resourceVersionMatch").to_owned(),
            timeout_seconds: timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok()),
            limit: limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0),
            continue_token: query.get("continue").to_owned(),
            send_initial_events: query
                .has("sendInitialEvents")
                .then(|| query.flag("sendInitialEvents")),
        };
        options.default_initial_events();
        let errors = options.validate();
        if !errors.is_empty() {
            return Err(Status::invalid_options("ListOptions", &errors));
        }
        selectable(location.resource, &mut options.fields)?;
        if !location.name.is_empty() {
            options.select_name(&location.name)?;
        }
        Ok(options)
    }

    /// A watch with resourceVersion 0 or without one starts with events for the existing objects.
    fn default_initial_events(&mut self) {
        let legacy = matches!(self.resource_version.as_str(), "" | "0");
        if self.watch && legacy && self.send_initial_events.is_none() && self.version_match.is_empty() {
            self.send_initial_events = Some(true);
            self.version_match = "NotOlderThan".to_owned();
        }
    }

    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let field = Path::new("resourceVersionMatch");
        let given = self.version_match.as_str();
        let mut forbid = |why: &str| errors.push(FieldError::forbidden(&field, why));
        if self.watch {
            if self.send_initial_events.is_some() && given != "NotOlderThan" {
                forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
            }
            if !given.is_empty() && self.send_initial_events.is_none() {
                forbid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
            }
            if !given.is_empty() && given != "NotOlderThan" {
                errors.push(FieldError::not_supported(&field, given, &["NotOlderThan"]));
            }
            if !given.is_empty() && !self.continue_token.is_empty() {
                let why = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(FieldError::forbidden(&field, why));
            }
            return errors;
        }
        if !given.is_empty() {
            if self.resource_version.is_empty() {
                forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if !self.continue_token.is_empty() {
                forbid("resourceVersionMatch is forbidden when continue is provided");
            }
            if !matches!(given, "Exact" | "NotOlderThan") {
                let supported = ["Exact", "NotOlderThan", ""];
                errors.push(FieldError::not_supported(&field, given, &supported));
            }
            if given == "Exact" && self.resource_version == "0" {
                let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(FieldError::forbidden(&field, why));
            }
        }
        if self.send_initial_events.is_some() {
            let why = "sendInitialEvents is forbidden for list";
            errors.push(FieldError::forbidden(&Path::new("sendInitialEvents"), why));
        }
        errors
    }

    /// A name in the path acts as a field selector.
    fn select_name(&mut self, name: &str) -> Result<(), Status> {
        if self.fields.is_empty() {
            self.fields.require("metadata.name", name);
            return Ok(());
        }
        if self.fields.required("metadata.name") == Some(name) {
            return Ok(());
        }
        let why = "fieldSelector metadata.name doesn't match requested name";
        Err(Status::bad_request(why))
    }
}

/// Checks that the fields are selectable, and converts the field names of `events.k8s.io`.
fn selectable(resource: &Resource, fields: &mut FieldSelector) -> Result<(), Status> {
    let own = resource.selectable;
    fields
        .terms_mut()
        .retain(|term| !term.field.is_empty() || !term.value.is_empty());
    for term in fields.terms_mut() {
        if resource.kind == resource::Kind::Pod && term.field == "spec.host" {
            term.field = "spec.nodeName".to_owned();
        }
        let name = term.field.as_str();
        let metadata = name == "metadata.name" || name == "metadata.namespace";
        let namespace_of_none = name == "metadata.namespace" && !resource.namespaced && !own.is_empty();
        if own.contains(&name) || (metadata && !namespace_of_none) {
            // The store has core events.
            if let Some(field) = name.strip_prefix("regarding.") {
                term.field = format!("involvedObject.{field}");
            } else if name == "reportingController" {
                term.field = "reportingComponent".to_owned();
            }
            continue;
        }
        if own.is_empty() {
            let why = format!(
                "{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            );
            return Err(Status::bad_request(why));
        }
        return Err(Status::bad_request(format!("field label not supported: {name}")));
    }
    Ok(())
}
