//! Decodes the body of a request.

use serde_json::Value;

use super::super::object::Object;
use super::super::protobuf;
use super::super::request;
use super::super::status::Status;
use super::super::type_meta::{self, ObjectType};
use super::super::write::decode_object;
use super::super::write_options::FieldValidation;
use super::Call;

// === impl Call ===

impl Call<'_> {
    /// The body as JSON.
    pub(crate) fn document(&self) -> Result<Value, String> {
        serde_json::from_slice(&self.body).map_err(|error| error.to_string())
    }

    /// The object in the body, in JSON or protobuf; a protobuf body without a type gets this one.
    ///
    /// # Errors
    /// Why the type of the object is unknown.
    pub(crate) fn typed_document(&self, api_version: &str, kind: &str) -> Result<Object, String> {
        let document = if request::is_protobuf(self.headers) {
            protobuf::decode(&self.body, api_version, kind)?
        } else {
            self.document()?
        };
        type_meta::object(document)
    }

    /// Decodes the body into an object of the resource.
    pub(crate) fn object(&mut self, validation: FieldValidation) -> Result<Object, Status> {
        let resource = self.location.resource;
        self.decode(&resource.into(), validation, |document| {
            decode_object(resource, document)
        })
    }

    /// Decodes the body into an object of a type; `decode` returns the object and strict decoding errors.
    pub(crate) fn decode(
        &mut self,
        expected: &ObjectType,
        validation: FieldValidation,
        decode: impl FnOnce(Object) -> Result<(Object, Vec<String>), String>,
    ) -> Result<Object, Status> {
        request::accepts_body(self.headers)?;
        let expected_version = expected.api_version();
        let document = self.typed_document(&expected_version, expected.kind);
        let document = document.map_err(|why| {
            let name = expected.kind;
            Status::bad_request(format!("the body is not an object of type {name}: {why}"))
        })?;
        let given = |name: &str, default: &str| {
            let text = document.get(name).and_then(Value::as_str).unwrap_or_default();
            if text.is_empty() { default } else { text }.to_owned()
        };
        let version = given("apiVersion", &expected_version);
        let kind = given("kind", expected.kind);
        let short = version.rsplit('/').next().unwrap_or_default();
        let mishandled = |why: &str| {
            let name = expected.kind;
            Status::bad_request(format!(
                "{kind} in version {short:?} cannot be handled as a {name}: {why}"
            ))
        };
        if let Some(why) = type_meta::conversion_error(expected, &kind, &version) {
            return Err(mishandled(&why));
        }
        if !expected.accepts(&version) {
            return Err(Status::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({expected_version})"
            )));
        }
        let (object, unknown) = decode(document).map_err(|error| mishandled(&error))?;
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
