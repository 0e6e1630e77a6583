//! Decodes the body of a request.

use serde_json::Value;

use super::super::object::Object;
use super::super::patch::FieldValidation;
use super::super::request;
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
                format!("invalid character '{found}' looking for beginning of value")
            }
        })
    }

    /// Decodes the body into an object of the resource.
    pub(crate) fn object(&mut self, validation: FieldValidation) -> Result<Object, Status> {
        let resource = self.location.resource;
        request::accepts_body(self.headers)?;
        let unrecognized = |why: &str| {
            let start = String::from_utf8_lossy(&self.body[..self.body.len().min(30)]).into_owned();
            let dots = if self.body.len() > 30 { " ..." } else { "" };
            Status::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): {why} ({start:?}{dots})",
                resource.kind_name
            ))
        };
        let document = match self.document() {
            Ok(Value::Object(document)) => document,
            Ok(_) => {
                let why = "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of \
                           type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
                           \"json:\\\"kind,omitempty\\\"\" }";
                return Err(unrecognized(why));
            }
            Err(why) => {
                return Err(unrecognized(&format!(
                    "couldn't get version/kind; json parse error: {why}"
                )));
            }
        };
        let text = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion").to_owned(), text("kind").to_owned());
        let expected = resource.api_version();
        let kind = if kind.is_empty() {
            resource.kind_name
        } else {
            &kind
        };
        let short = version
            .rsplit('/')
            .next()
            .filter(|version| !version.is_empty())
            .unwrap_or("v1");
        let mishandled = |why: &str| {
            let name = resource.kind_name;
            Status::bad_request(format!(
                "{kind} in version {short:?} cannot be handled as a {name}: {why}"
            ))
        };
        if kind != resource.kind_name {
            let shown = if version.is_empty() { &expected } else { &version };
            let why = format!(
                "no kind {kind:?} is registered for version {shown:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
            );
            return Err(mishandled(&why));
        }
        if !version.is_empty() && version != expected {
            return Err(Status::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({expected})"
            )));
        }
        let (object, unknown) = decode_object(resource, document).map_err(|why| mishandled(&why))?;
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
