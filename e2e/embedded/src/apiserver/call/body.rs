//! Decodes the body of a request.

use serde_json::Value;

use super::super::go_format;
use super::super::object::Object;
use super::super::patch::FieldValidation;
use super::super::request;
use super::super::resource::{self, Resource};
use super::super::status::Status;
use super::super::write::decode_object;
use super::Call;

// === impl Call ===

impl Call<'_> {
    /// The body as JSON.
    pub(crate) fn document(&self) -> Result<Value, String> {
        serde_json::from_slice(&self.body).map_err(|error| {
            if self.body.is_empty() || error.is_eof() {
                "unexpected end of JSON input".to_owned()
            } else {
                let at = error.column().saturating_sub(1);
                let found = self.body.get(at).map_or(' ', |byte| char::from(*byte));
                let expected = if error.to_string().starts_with("key must be a string") {
                    "object key string"
                } else {
                    "value"
                };
                format!("invalid character '{found}' looking for beginning of {expected}")
            }
        })
    }

    /// Decodes the body into an object of the resource.
    pub(crate) fn object(&mut self, validation: FieldValidation) -> Result<Object, Status> {
        let resource = self.location.resource;
        request::accepts_body(self.headers)?;
        let unrecognized = |why: String| {
            Status::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse \
                 error: {why} ({})",
                resource.kind_name,
                summary(&self.body)
            ))
        };
        let document = match self.document() {
            Ok(Value::Object(document)) => document,
            Ok(other) => {
                let found = go_format::kind(&other);
                return Err(unrecognized(format!(
                    "json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \
                     \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
                )));
            }
            Err(why) => return Err(unrecognized(why)),
        };
        let text = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion").to_owned(), text("kind").to_owned());
        let expected = resource.api_version();
        let kind = if kind.is_empty() {
            resource.kind_name
        } else {
            &kind
        };
        let version = if version.is_empty() {
            expected.clone()
        } else {
            version
        };
        let short = version.rsplit('/').next().unwrap_or_default();
        let mishandled = |why: &str| {
            let name = resource.kind_name;
            Status::bad_request(format!(
                "{kind} in version {short:?} cannot be handled as a {name}: {why}"
            ))
        };
        let is_registered =
            |resource: &Resource| resource.kind_name == kind && resource.api_version() == version;
        let registered = resource::all().iter().find(|resource| is_registered(resource));
        let Some(registered) = registered else {
            let why = format!(
                "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
            );
            return Err(mishandled(&why));
        };
        if registered.kind != resource.kind {
            let group = match resource.group.split('.').next() {
                None | Some("" | "events") => "core",
                Some(group) => group,
            };
            let why = format!(
                "converting (v1.{kind}) to ({group}.{}): unknown conversion",
                resource.kind_name
            );
            return Err(mishandled(&why));
        }
        if version != expected {
            return Err(Status::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({expected})"
            )));
        }
        let (object, unknown) =
            decode_object(resource, document).map_err(|error| mishandled(&error.of_decoder))?;
        match validation {
            FieldValidation::Strict if !unknown.is_empty() => Err(mishandled(&format!(
                "strict decoding error: {}",
                unknown.join(", ")
            ))),
            FieldValidation::Warn => {
                self.warnings.extend(unknown);
                Ok(object)
            }
            FieldValidation::Strict | FieldValidation::Ignore => Ok(object),
        }
    }
}

/// The beginning of a body that is no object, as errors show it.
fn summary(body: &[u8]) -> String {
    const LIMIT: usize = 30;
    let shown = &body[..body.len().min(LIMIT)];
    let dots = if body.len() > LIMIT { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{dots}", String::from_utf8_lossy(shown)),
        Some(_) => {
            let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{dots}")
        }
    }
}
