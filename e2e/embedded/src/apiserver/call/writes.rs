//! Executes writes.

use http::{StatusCode, header};

use super::super::DEFAULT_SERVICE_ACCOUNT;
use super::super::delete::Deleted;
use super::super::list::Read;
use super::super::list_options::ListOptions;
use super::super::object::{self, Object};
use super::super::patch::{Patch, PatchType};
use super::super::reply::Reply;
use super::super::request::{self, Location};
use super::super::resource::Kind;
use super::super::status::Status;
use super::super::strategy::Part;
use super::super::write::Writer;
use super::super::write_options::DeleteOptions;
use super::Call;

/// Limit of the lists with which kube-apiserver deletes a collection. Only its presence matters: a paginated list with a
/// version reads exactly that version.
const COLLECTION_PAGE: usize = 500;

// === impl Call ===

impl Call<'_> {
    /// Runs a write.
    pub(crate) fn write<T>(&self, dry_run: bool, write: impl FnOnce(&mut Writer<'_>) -> T) -> T {
        let location = self.location;
        self.server
            .write(location.resource, &location.namespace, dry_run, write)
    }

    pub(super) fn create(&mut self) -> Result<Reply, Status> {
        let encoder = self.encoder()?;
        request::accepts_body(self.headers)?;
        let (dry_run, validation) = self.query.write_options("CreateOptions")?;
        let object = self.object(validation)?;
        let written = self.write(dry_run, |writer| writer.create(object))?;
        if self.location.resource.kind == Kind::Namespace && !dry_run {
            self.server
                .create_default_service_account(object::name(&written.object()));
        }
        Ok(Reply::json(StatusCode::CREATED, encoder.object(&written)))
    }

    pub(crate) fn update(&mut self, part: Part) -> Result<Reply, Status> {
        let encoder = self.encoder()?;
        let (dry_run, validation) = self.query.write_options("UpdateOptions")?;
        let object = self.object(validation)?;
        let location = self.location;
        check_name(location, &object)?;
        let uid = object::text(&object, "/metadata/uid").to_owned();
        let name = self.location.name.as_str();
        let (written, created) = self.write(dry_run, |writer| {
            writer.update(name, part, Some(&uid), |_| Ok(object))
        })?;
        let code = if created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        Ok(Reply::json(code, encoder.object(&written)))
    }

    pub(crate) fn patch(&mut self, part: Part) -> Result<Reply, Status> {
        let kind = PatchType::of_content_type(
            request::header_text(self.headers, &header::CONTENT_TYPE),
            !self.query.get("fieldManager").is_empty(),
        )?;
        let encoder = self.encoder()?;
        let (dry_run, validation) = self.query.write_options("PatchOptions")?;
        let document = self
            .document()
            .map_err(|why| Status::bad_request(format!("the patch is not JSON: {why}")))?;
        let location = self.location;
        let (resource, name) = (location.resource, location.name.as_str());
        let mut warnings = Vec::new();
        let result = self.write(dry_run, |writer| {
            writer.update(name, part, None, |old| {
                if old.is_empty() {
                    return Err(Status::not_found(resource, name));
                }
                let patch = Patch {
                    kind,
                    document,
                    validation,
                };
                let (object, unknown) = patch.apply(resource, old)?;
                warnings = unknown;
                check_name(location, &object)?;
                Ok(object)
            })
        });
        self.warnings.splice(..0, warnings);
        let (written, _) = result?;
        Ok(Reply::json(StatusCode::OK, encoder.object(&written)))
    }

    fn delete_options(&self) -> Result<DeleteOptions, Status> {
        let options = if self.body.is_empty() {
            self.query.delete_options()?
        } else {
            request::accepts_body(self.headers)?;
            let document = self.typed_document("v1", "DeleteOptions");
            DeleteOptions::decode(document.map_err(Status::bad_request)?)?
        };
        options.validate()?;
        Ok(options)
    }

    pub(super) fn delete(&mut self) -> Result<Reply, Status> {
        let encoder = self.encoder()?;
        let options = self.delete_options()?;
        let dry_run = !options.dry_run.is_empty();
        let location = self.location;
        let name = location.name.as_str();
        let deleted = self.write(dry_run, |writer| writer.delete(name, options))?;
        if location.resource.kind == Kind::ServiceAccount && name == DEFAULT_SERVICE_ACCOUNT {
            self.server.create_default_service_account(&location.namespace);
        }
        match deleted {
            Deleted::Object(object) => Ok(Reply::json(StatusCode::OK, encoder.object(&object))),
            Deleted::Status(status) => Ok(Reply::json(StatusCode::OK, status.to_string())),
        }
    }

    pub(super) async fn delete_collection(&mut self) -> Result<Reply, Status> {
        if self.location.resource.kind == Kind::Namespace {
            return Err(Status::method_not_allowed());
        }
        let encoder = self.encoder()?;
        let mut list_options = ListOptions::of(self.query, self.location)?;
        let options = self.delete_options()?;
        let dry_run = !options.dry_run.is_empty();
        let location = self.location;
        let is_whole = list_options.limit == 0;
        if is_whole {
            list_options.limit = COLLECTION_PAGE;
        }
        let mut read = Read::of(location.resource, &location.namespace, &list_options)?;
        if is_whole {
            read = read.without_pages();
        }
        let page = self.page(&read).await?;
        for stored in &page.items {
            let object = stored.object();
            let (name, namespace) = (object::name(&object), object::namespace(&object));
            let delete = |writer: &mut Writer<'_>| writer.delete(name, options.clone());
            match self.server.write(location.resource, namespace, dry_run, delete) {
                Err(status) if status.code != StatusCode::NOT_FOUND => return Err(status),
                _ => {}
            }
        }
        Ok(Reply::json(StatusCode::OK, encoder.list(&page)))
    }
}

/// Namespace and name in the body must be those in the path.
fn check_name(location: &Location, object: &Object) -> Result<(), Status> {
    location.check_namespace(object::namespace(object))?;
    let (given, name) = (object::name(object), location.name.as_str());
    if given.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if given != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}
