//! Lists by namespace and selectors, with pagination, at the current or at an old resource version.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::json;

use super::go_format;
use super::list_options::ListOptions;
use super::resource::Resource;
use super::selector::Fields;
use super::status::Status;
use super::storage::{Key, Store, Stored};

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) items: Vec<Arc<Stored>>,
    pub(crate) revision: u64,
    /// Token for the next page, empty on the last one.
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<usize>,
}

/// Start of a page.
struct Start {
    key: String,
    revision: Option<u64>,
}

/// Lists the objects that the options select.
pub(crate) fn list(
    store: &Store,
    resource: &Resource,
    namespace: &str,
    options: &ListOptions,
) -> Result<Page, Status> {
    let prefix = prefix(resource, namespace, &options.fields);
    let start = start(options, &prefix)?;
    let table = store.table(resource.table());
    // A list with resourceVersion 0 comes from the cache, which does not paginate.
    let limit = if options.resource_version == "0" {
        0
    } else {
        options.limit
    };
    let selected =
        |stored: &Stored| options.labels.matches(&stored.object) && options.fields.matches(&stored.object);
    // A key sorts before all other keys that begin with it, so the first one is the object's.
    let single = single_key(&prefix, resource, &options.fields);
    let (from, most) = match &single {
        Some(key) => (key.as_str(), 1),
        None => (prefix.as_str(), usize::MAX),
    };
    match start
        .revision
        .filter(|revision| !table.is_unchanged_since(*revision))
    {
        None => {
            let revision = start.revision.unwrap_or(store.revision());
            let objects = table.range(from, &start.key).take(most);
            Ok(page(objects, limit, revision, &prefix, options, selected))
        }
        Some(revision) => {
            let objects = table.range_at(revision, from, &start.key);
            let objects = objects.map_err(|_| too_old(options, start.key.strip_prefix(&prefix)))?;
            Ok(page(
                objects.take(most),
                limit,
                revision,
                &prefix,
                options,
                selected,
            ))
        }
    }
}

/// The key of the only object that a list can have, as a field selector names it.
fn single_key(prefix: &str, resource: &Resource, fields: &Fields) -> Option<String> {
    let name = fields.required("metadata.name")?;
    (!resource.namespaced || !prefix.is_empty()).then(|| format!("{prefix}{name}"))
}

/// Beginning of the keys of a namespace.
fn prefix(resource: &Resource, namespace: &str, fields: &Fields) -> String {
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

fn start(options: &ListOptions, prefix: &str) -> Result<Start, Status> {
    if !options.continue_token.is_empty() {
        if !options.resource_version.is_empty() && options.resource_version != "0" {
            let why = "specifying resource version is not allowed when using continue";
            return Err(Status::bad_request(why));
        }
        let (key, revision) = decode_token(&options.continue_token)?;
        return Ok(Start {
            key: format!("{prefix}{key}"),
            revision,
        });
    }
    let exact = options.version_match == "Exact"
        || (options.version_match.is_empty()
            && options.limit > 0
            && !matches!(options.resource_version.as_str(), "" | "0"));
    let revision = if exact {
        Some(parse_version(&options.resource_version)?)
    } else {
        None
    };
    Ok(Start {
        key: String::new(),
        revision,
    })
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
    text.parse().map_err(|_| {
        let field = super::field::Path::new("resourceVersion");
        let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        let error = super::field::FieldError::invalid(&field, text, why);
        Status::unclassified(error.to_string())
    })
}

fn page<'a>(
    objects: impl Iterator<Item = (&'a Key, &'a Arc<Stored>)>,
    limit: usize,
    revision: u64,
    prefix: &str,
    options: &ListOptions,
    selected: impl Fn(&Stored) -> bool,
) -> Page {
    let mut page = Page {
        items: Vec::new(),
        revision,
        continue_token: String::new(),
        remaining: None,
    };
    let mut objects = objects.peekable();
    while let Some((key, stored)) = objects.next() {
        if selected(stored) {
            page.items.push(Arc::clone(stored));
        }
        // A list that selects one name reads one key.
        let is_single = options.fields.required("metadata.name").is_some();
        if limit > 0 && page.items.len() >= limit && objects.peek().is_some() && !is_single {
            let key = key.strip_prefix(prefix).unwrap_or(key);
            page.continue_token = encode_token(&format!("{key}\0"), Some(revision));
            let everything = options.labels.is_empty() && options.fields.is_empty();
            page.remaining = everything.then(|| objects.count());
            break;
        }
    }
    page
}

/// A token that continues from `start`, at a revision or at the newest one, whose number then is -1.
fn encode_token(start: &str, revision: Option<u64>) -> String {
    let revision = revision.map_or(json!(-1), |revision| json!(revision));
    let token = json!({ "v": "meta.k8s.io/v1", "rv": revision, "start": start });
    URL_SAFE_NO_PAD.encode(token.to_string())
}

fn decode_token(token: &str) -> Result<(String, Option<u64>), Status> {
    let invalid =
        |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid{why}"));
    let bytes = URL_SAFE_NO_PAD
        .decode(token)
        .or_else(|error| STANDARD_NO_PAD.decode(token).map_err(|_| error))
        .map_err(|error| {
            let at = go_format::base64_offset(&error, token);
            invalid(&format!(": illegal base64 data at input byte {at}"))
        })?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|_| invalid(": invalid character"))?;
    let version = value["v"].as_str().unwrap_or_default();
    if version != "meta.k8s.io/v1" {
        return Err(invalid(&format!(
            ": server does not recognize this encoded version {version}"
        )));
    }
    let revision = value["rv"].as_u64().filter(|revision| *revision > 0);
    if revision.is_none() && value["rv"] != -1 {
        return Err(invalid(
            ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ));
    }
    let start = value["start"].as_str().unwrap_or_default();
    if start.is_empty() {
        return Err(invalid(": encoded start key empty (version meta.k8s.io/v1)"));
    }
    Ok((start.trim_start_matches('/').to_owned(), revision))
}

fn too_old(options: &ListOptions, start: Option<&str>) -> Status {
    if options.continue_token.is_empty() {
        return Status::expired(format!(
            "The resourceVersion for the provided list is too old: {}",
            options.resource_version
        ));
    }
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of \
         the results. Continuing with the provided token results in an inconsistent list - objects that were \
         created, modified, or deleted between the time the first chunk was returned and now may show up in the \
         list.",
    );
    status.continue_token = encode_token(start.unwrap_or_default(), None);
    status
}
