//! Options of writes, in queries and in bodies.

use super::field::{FieldError, Path};
use super::object::{self, Object, at, text};
use super::request::Query;
use super::schema;
use super::status::Status;

/// The `fieldValidation` of a request: how the server handles unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// They are dropped.
    Ignore,
    /// They are dropped, and the response has a warning for each.
    Warn,
    /// They are an error.
    Strict,
}

/// `metav1.Preconditions`: what a write requires of the object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

/// A precondition that an object does not meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedPrecondition<'a> {
    pub(crate) what: &'static str,
    pub(crate) wanted: &'a str,
    pub(crate) found: &'a str,
}

/// `metav1.DeleteOptions`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) preconditions: Preconditions,
    pub(crate) propagation_policy: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) dry_run: Vec<String>,
}

// === impl Preconditions ===

impl Preconditions {
    /// The same without empty values.
    pub(crate) fn without_empty(&self) -> Self {
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        Self {
            uid: given(&self.uid),
            resource_version: given(&self.resource_version),
        }
    }

    /// The first precondition that the object does not meet.
    pub(crate) fn failed<'a>(&'a self, object: &'a Object) -> Option<FailedPrecondition<'a>> {
        let checks = [
            ("UID", &self.uid, "/metadata/uid"),
            (
                "ResourceVersion",
                &self.resource_version,
                "/metadata/resourceVersion",
            ),
        ];
        checks.into_iter().find_map(|(what, wanted, pointer)| {
            let (wanted, found) = (wanted.as_deref()?, text(object, pointer));
            (wanted != found).then_some(FailedPrecondition { what, wanted, found })
        })
    }
}

// === impl FailedPrecondition ===

impl FailedPrecondition<'_> {
    /// The error of `rest.BeforeDelete`.
    pub(crate) fn before_delete(&self) -> String {
        let Self { what, wanted, found } = self;
        let hint = match *what {
            "UID" => "deleted and then recreated",
            _ => "modified",
        };
        format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might \
             have been {hint}"
        )
    }
}

impl std::fmt::Display for FailedPrecondition<'_> {
    /// The error of `storage.Preconditions.Check`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, wanted, found } = self;
        write!(
            f,
            "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
        )
    }
}

// === impl DeleteOptions ===

impl DeleteOptions {
    /// # Errors
    /// 400 if a field has the wrong type, or if the document is of another kind.
    pub(crate) fn decode(document: Object) -> Result<Self, Status> {
        let kind = text(&document, "/kind");
        if !kind.is_empty() && kind != "DeleteOptions" {
            return Err(Status::bad_request(format!(
                "the body must be DeleteOptions, but is {kind}"
            )));
        }
        let schema = schema::of("", "DeleteOptions");
        let (options, _) = schema::decode(schema, document).map_err(Status::bad_request)?;
        let given =
            |pointer: &str| object::has(&options, pointer).then(|| text(&options, pointer).to_owned());
        let dry_run = object::list(&options, "/dryRun").iter();
        Ok(Self {
            grace_period_seconds: at(&options, "/gracePeriodSeconds").as_i64(),
            preconditions: Preconditions {
                uid: given("/preconditions/uid"),
                resource_version: given("/preconditions/resourceVersion"),
            },
            propagation_policy: given("/propagationPolicy"),
            orphan_dependents: at(&options, "/orphanDependents").as_bool(),
            dry_run: dry_run
                .filter_map(|value| value.as_str().map(str::to_owned))
                .collect(),
        })
    }

    /// # Errors
    /// 422 for invalid values; 501 for deletions that need the garbage collector's finalizers.
    pub(crate) fn validate(&self) -> Result<(), Status> {
        let mut errors: Vec<FieldError> = invalid_dry_run(&self.dry_run).into_iter().collect();
        let path = Path::new("propagationPolicy");
        let policy = self.propagation_policy.as_deref();
        if policy.is_some() && self.orphan_dependents.is_some() {
            let why = "orphanDependents and propagationPolicy cannot be both set";
            errors.push(FieldError::invalid(&path, policy, why));
        }
        let supported = ["Foreground", "Background", "Orphan"];
        if let Some(policy) = policy.filter(|policy| !supported.contains(policy)) {
            errors.push(FieldError::not_supported(&path, policy, &supported));
        }
        if !errors.is_empty() {
            return Err(Status::invalid_options("DeleteOptions", &errors));
        }
        if self.orphan_dependents == Some(true) || matches!(policy, Some("Foreground" | "Orphan")) {
            return Err(Status::not_implemented(
                "a propagationPolicy other than Background",
            ));
        }
        Ok(())
    }
}

// === impl Query ===

impl Query {
    /// Options of a write.
    ///
    /// # Errors
    /// 422 for invalid values; `kind` is the options' kind.
    pub(crate) fn write_options(&self, kind: &str) -> Result<(bool, FieldValidation), Status> {
        let mut errors = Vec::new();
        if self.get("fieldManager").len() > 128 {
            errors.push(FieldError::too_long(&Path::new("fieldManager"), 128));
        }
        let dry_run = self.all("dryRun");
        errors.extend(invalid_dry_run(&dry_run));
        let validation = match self.get("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let path = Path::new("fieldValidation");
                let supported = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported(&path, other, &supported));
                FieldValidation::Warn
            }
        };
        if errors.is_empty() {
            Ok((!dry_run.is_empty(), validation))
        } else {
            Err(Status::invalid_options(kind, &errors))
        }
    }

    /// Options of a deletion without a body.
    pub(crate) fn delete_options(&self) -> Result<DeleteOptions, Status> {
        let text = |name: &str| self.has(name).then(|| self.get(name).to_owned());
        Ok(DeleteOptions {
            grace_period_seconds: self.number("gracePeriodSeconds")?,
            preconditions: Preconditions::default(),
            propagation_policy: text("propagationPolicy"),
            orphan_dependents: self
                .has("orphanDependents")
                .then(|| self.flag("orphanDependents")),
            dry_run: self.all("dryRun"),
        })
    }
}

// === functions ===

fn invalid_dry_run(values: &[String]) -> Option<FieldError> {
    let is_valid = values.iter().all(|value| value == "All");
    (!is_valid).then(|| FieldError::not_supported(&Path::new("dryRun"), values.to_vec(), &["All"]))
}
