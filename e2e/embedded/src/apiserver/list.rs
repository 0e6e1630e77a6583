//! Lists by namespace and selectors, with pagination, at the current or at an old resource version.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use super::field::{FieldError, Path};
use super::list_options::ListOptions;
use super::resource::Resource;
use super::selector::FieldSelector;
use super::status::Status;
use super::storage::Store;
use super::stored::{Key, Stored};

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) items: Vec<Arc<Stored>>,
    pub(crate) revision: u64,
    /// Token for the next page, empty on the last one.
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<usize>,
}

/// The read that the options of a list describe.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    resource: &'a Resource,
    options: &'a ListOptions,
    prefix: String,
    /// The key of the only object that a field selector can select.
    single: Option<String>,
    /// First key of the page.
    start: String,
    /// The version that the store must have reached.
    pub(crate) version: u64,
    /// The revision that the list shows, if it is not the newest one.
    exact: Option<u64>,
    /// Maximum number of objects of the page; 0 = unlimited.
    limit: usize,
    /// Whether kube-apiserver reads from its watch cache, which waits for a future version, and not from etcd.
    pub(crate) is_cached: bool,
}

// === impl Read ===

impl<'a> Read<'a> {
    /// Interprets the options as `storage.ValidateListOptions` does.
    pub(crate) fn of(
        resource: &'a Resource,
        namespace: &str,
        options: &'a ListOptions,
    ) -> Result<Self, Status> {
        let prefix = prefix(resource, namespace, &options.fields);
        let mut read = Self {
            resource,
            options,
            single: single_key(&prefix, resource, options),
            start: String::new(),
            version: 0,
            exact: None,
            limit: options.limit,
            is_cached: resource.is_cached(),
            prefix,
        };
        let text = options.resource_version.as_str();
        let has_version = !matches!(text, "" | "0");
        if !options.continue_token.is_empty() {
            let (start, revision) = decode_token(&options.continue_token)?;
            if has_version {
                let why = "specifying resource version is not allowed when using continue";
                return Err(Status::bad_request(why));
            }
            read.start = format!("{}{start}", read.prefix);
            read.version = revision.unwrap_or_default();
            read.exact = revision;
        } else {
            let version = parse_version(text)?;
            read.version = version;
            let is_exact = options.version_match == "Exact";
            // A page of a version is of exactly that version.
            let is_page = options.version_match.is_empty() && options.limit > 0 && has_version;
            let is_single = read.single.is_some();
            read.is_cached &= !(is_single && (is_exact || is_page));
            read.exact = (is_exact || (is_page && !is_single)).then_some(version);
        }
        // A list with resourceVersion 0 comes from the cache, which does not paginate.
        if text == "0" && resource.is_cached() {
            read.limit = 0;
        }
        Ok(read)
    }

    /// The same list without pagination.
    pub(crate) fn without_pages(self) -> Self {
        Self { limit: 0, ..self }
    }

    /// The objects that the options select.
    pub(crate) fn page(&self, store: &Store) -> Result<Page, Status> {
        let table = store.table(self.resource.table());
        // A key sorts before all other keys that begin with it, so the first one is the object's. `range_with` may find a
        // longer key, which the field selector rejects.
        let (from, most) = match &self.single {
            Some(key) => (key.as_str(), 1),
            None => (self.prefix.as_str(), usize::MAX),
        };
        match self.exact.filter(|revision| !table.is_unchanged_since(*revision)) {
            None => {
                let revision = self.exact.unwrap_or(store.revision());
                // With a full page, the token depends on objects outside the index, too.
                let is_whole = |value: &&str| self.limit == 0 || table.count_with(value) < self.limit;
                let field = table.indexed_field();
                let value = field.and_then(|field| self.options.fields.required(field));
                Ok(match value.filter(is_whole) {
                    Some(value) => {
                        self.page_of(table.range_with(value, from, &self.start).take(most), revision)
                    }
                    None => self.page_of(table.range(from, &self.start).take(most), revision),
                })
            }
            Some(revision) => {
                let objects = table.range_at(revision, from, &self.start);
                let objects = objects.map_err(|_| self.too_old())?;
                Ok(self.page_of(objects.take(most), revision))
            }
        }
    }

    fn page_of<'b>(&self, objects: impl Iterator<Item = (&'b Key, &'b Arc<Stored>)>, revision: u64) -> Page {
        let options = self.options;
        let mut page = Page {
            items: Vec::new(),
            revision,
            continue_token: String::new(),
            remaining: None,
        };
        let mut objects = objects.peekable();
        while let Some((key, stored)) = objects.next() {
            if options.selects(stored) {
                page.items.push(Arc::clone(stored));
            }
            if self.limit > 0
                && page.items.len() >= self.limit
                && self.single.is_none()
                && objects.peek().is_some()
            {
                let key = key.strip_prefix(&self.prefix).unwrap_or(key);
                page.continue_token = encode_token(&format!("{key}\0"), Some(revision));
                let everything = options.labels.is_empty() && options.fields.is_empty();
                page.remaining = everything.then(|| objects.count());
                break;
            }
        }
        page
    }

    /// The error for a compacted revision.
    fn too_old(&self) -> Status {
        if self.options.continue_token.is_empty() {
            return Status::expired("The resourceVersion for the provided list is too old.");
        }
        let mut status = Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        let start = self.start.strip_prefix(&self.prefix).unwrap_or_default();
        status.continue_token = encode_token(start, None);
        status
    }
}

/// The key of the only object that a list can have, as a field selector names it (`SelectionPredicate.MatchesSingle`).
fn single_key(prefix: &str, resource: &Resource, options: &ListOptions) -> Option<String> {
    let name = options.fields.required("metadata.name")?;
    let has_key = !resource.namespaced || !prefix.is_empty();
    (has_key && options.continue_token.is_empty()).then(|| format!("{prefix}{name}"))
}

/// Beginning of the keys of a namespace.
fn prefix(resource: &Resource, namespace: &str, fields: &FieldSelector) -> String {
    let namespace = match (namespace, fields.required("metadata.namespace")) {
        ("", Some(selected)) if resource.namespaced => selected,
        (namespace, _) => namespace,
    };
    if namespace.is_empty() {
        String::new()
    } else {
        format!("{namespace}/")
    }
}

/// A resource version in a request.
pub(crate) fn parse_version(text: &str) -> Result<u64, Status> {
    version_of_read(text)
        .map_err(|status| Status::bad_request(format!("invalid resource version: {}", status.message)))
}

/// The resource version of a read of one object or of a watch.
pub(crate) fn version_of_read(text: &str) -> Result<u64, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let version = text.parse().ok().filter(|_| is_number);
    version.ok_or_else(|| {
        let error = FieldError::invalid(&Path::new("resourceVersion"), text, "must be a number");
        Status::unclassified(error.to_string())
    })
}

/// A token that continues from `start`, at a revision or at the newest one, whose number then is -1.
fn encode_token(start: &str, revision: Option<u64>) -> String {
    let revision = revision.map_or(json!(-1), |revision| json!(revision));
    let token = json!({ "v": "meta.k8s.io/v1", "rv": revision, "start": start });
    URL_SAFE_NO_PAD.encode(token.to_string())
}

/// The key and the revision of a token; none for the newest revision (`storage.DecodeContinue`).
fn decode_token(token: &str) -> Result<(String, Option<u64>), Status> {
    let decoded = URL_SAFE_NO_PAD.decode(token).ok();
    let value: serde_json::Value = decoded
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let revision = value["rv"].as_i64().unwrap_or_default();
    let start = value["start"].as_str().unwrap_or_default();
    let key = start.strip_prefix('/').unwrap_or(start);
    let is_key = !key.split('/').any(|part| matches!(part, "" | "." | ".."));
    if value["v"] != "meta.k8s.io/v1" || revision == 0 || !is_key {
        return Err(Status::bad_request(
            "invalid continue token: it is not one of this server",
        ));
    }
    Ok((key.to_owned(), u64::try_from(revision).ok()))
}
