//! Parses the paths and queries of requests.

use http::{HeaderMap, HeaderName, Method, Uri, header};
use percent_encoding::percent_decode_str;

use super::field::{FieldError, Path};
use super::resource::{self, Resource};
use super::status::Status;

/// The target of a path.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A resource, an object or a subresource.
    Resource(Location),
    /// Another path of the server.
    Other(String),
    /// A path of a served group and version that names no resource.
    Unknown,
    /// A path that kube-apiserver serves and this server does not.
    NotImplemented(String),
    /// A collection that this server lists as empty: plural and kind of the list.
    AlwaysEmpty(&'static str, &'static str),
}

/// The location of an object.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) resource: &'static Resource,
    /// Empty for objects without namespace, and for lists over all namespaces.
    pub(crate) namespace: String,
    /// Empty for collections.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
    /// Whether the path is a deprecated watch path.
    pub(crate) watches: bool,
}

/// A query, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

/// The representation of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
    Table(IncludeObject),
}

/// The object in the rows of a table (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    None,
    Metadata,
    Object,
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Accepted media types of bodies, as the error for another one lists them.
const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", PROTOBUF];

/// Resources of kube-apiserver in the served groups that this server does not have.
const NOT_IMPLEMENTED: [(&str, &str); 8] = [
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "configmaps"),
    ("", "endpoints"),
    ("", "podtemplates"),
    ("", "replicationcontrollers"),
    ("", "services"),
    ("storage.k8s.io", "volumeattributesclasses"),
];
/// Core resources that this server does not have but lists as empty, because `kubectl describe namespace` needs the lists:
/// plural and kind of the list.
const ALWAYS_EMPTY: [(&str, &str); 2] = [
    ("limitranges", "LimitRangeList"),
    ("resourcequotas", "ResourceQuotaList"),
];
/// Groups of kube-apiserver that this server does not have.
const GROUPS_NOT_IMPLEMENTED: [&str; 17] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "discovery.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
];

// === impl Target ===

impl Target {
    pub(crate) fn of(path: &str) -> Self {
        let decoded = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let parts: Vec<&str> = decoded.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] if !rest.is_empty() => ("", rest),
            ["apis", group, "v1", rest @ ..] if !rest.is_empty() && resource::GROUPS.contains(group) => {
                (*group, rest)
            }
            ["api", version, ..] if *version != "v1" => return Self::Unknown,
            ["apis", group, version, ..] if *version != "v1" && resource::GROUPS.contains(group) => {
                return Self::Unknown;
            }
            ["apis", group, ..] if GROUPS_NOT_IMPLEMENTED.contains(group) => {
                return Self::NotImplemented(format!("/apis/{group}"));
            }
            ["metrics" | "logs", ..]
            | ["healthz" | "livez" | "readyz", _, ..]
            | ["openid", "v1", "jwks"]
            | [".well-known", "openid-configuration"] => return Self::NotImplemented(decoded),
            _ => return Self::Other(decoded),
        };
        let (watches, rest) = match rest {
            ["watch", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (namespace, plural, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..]
                if !group.is_empty() || !matches!(*plural, "status" | "finalize") =>
            {
                (*namespace, *plural, rest)
            }
            [plural, rest @ ..] => ("", *plural, rest),
            [] => return Self::Unknown,
        };
        let Some(resource) = resource::find(group, plural) else {
            let mut empty = ALWAYS_EMPTY.into_iter().filter(|_| group.is_empty());
            if let Some((plural, list)) = empty.find(|(found, _)| *found == plural) {
                return match rest {
                    [] if !watches => Self::AlwaysEmpty(plural, list),
                    _ => Self::NotImplemented(plural.to_owned()),
                };
            }
            if NOT_IMPLEMENTED.contains(&(group, plural)) {
                return Self::NotImplemented(resource::qualified(plural, group));
            }
            return Self::Unknown;
        };
        let (name, subresource) = match rest {
            [] => ("", ""),
            [name] => (*name, ""),
            [name, subresource] => (*name, *subresource),
            [_, "proxy", ..] if group.is_empty() && matches!(plural, "pods" | "nodes") => {
                return Self::NotImplemented(format!("{plural}/proxy"));
            }
            _ => return Self::Unknown,
        };
        let misplaced = !resource.namespaced && !namespace.is_empty();
        let lacks_namespace = resource.namespaced && namespace.is_empty() && !name.is_empty();
        if misplaced || lacks_namespace {
            return Self::Unknown;
        }
        Self::Resource(Location {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            watches,
        })
    }
}

// === impl Location ===

impl Location {
    /// The namespaces in a document and in the path must be equal, if both are set.
    pub(crate) fn check_namespace(&self, given: &str) -> Result<(), Status> {
        if !self.namespace.is_empty() && !given.is_empty() && given != self.namespace {
            return Err(Status::namespace_mismatch());
        }
        Ok(())
    }

    /// The verb of a request, as RBAC and audit logs name it.
    pub(crate) fn verb(&self, method: &Method, query: &Query) -> &'static str {
        match (method.as_str(), self.name.is_empty()) {
            ("GET", _) if self.watches || query.flag("watch") => "watch",
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "deletecollection",
            ("DELETE", false) => "delete",
            _ => "",
        }
    }
}

// === impl Query ===

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
        let pairs = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty());
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let decoded = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(decoded.collect())
    }

    /// The first value of a parameter; empty if the parameter is missing.
    pub(crate) fn get(&self, name: &str) -> &str {
        let mut found = self.0.iter().filter(|(found, _)| found == name);
        found.next().map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let found = self.0.iter().filter(|(found, _)| found == name);
        found.map(|(_, value)| value.clone()).collect()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(found, _)| found == name)
    }

    /// A flag: any value but `false` and `0` sets it.
    pub(crate) fn flag(&self, name: &str) -> bool {
        let value = self.get(name);
        self.has(name) && !value.eq_ignore_ascii_case("false") && value != "0"
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        let value = self.get(name);
        if !self.has(name) || value.is_empty() {
            return Ok(None);
        }
        let number = value.parse().map(Some);
        number.map_err(|error| Status::bad_request(format!("{name}: {value:?} is not a number: {error}")))
    }
}

/// The value of `includeObject`.
///
/// # Errors
/// 400 for an unknown value.
pub(crate) fn include_object(query: &Query) -> Result<IncludeObject, Status> {
    match query.get("includeObject") {
        "" | "Metadata" => Ok(IncludeObject::Metadata),
        "None" => Ok(IncludeObject::None),
        "Object" => Ok(IncludeObject::Object),
        other => {
            let why = "must be 'Metadata', 'Object', 'None', or empty";
            let error = FieldError::invalid(&Path::new("includeObject"), other, why);
            Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: {error}"
            )))
        }
    }
}

/// The view that a client accepts.
///
/// # Errors
/// 406 if it accepts no media type of kube-apiserver's, 501 if it accepts only those that this server does
/// not write.
pub(crate) fn view(headers: &HeaderMap, query: &Query) -> Result<View, Status> {
    let accepted = header_text(headers, &header::ACCEPT);
    if accepted.trim().is_empty() {
        return Ok(View::Full);
    }
    let media = |clause: &str| clause.split(';').next().unwrap_or_default().trim().to_owned();
    let is_routed = |clause: &str| media(clause) == "*/*" || ACCEPTED.contains(&media(clause).as_str());
    if !accepted.split(',').any(is_routed) {
        return Err(Status::no_representation(&ACCEPTED));
    }
    let mut not_implemented = None;
    for clause in accepted.split(',') {
        let media = media(clause);
        if !matches!(media.as_str(), "application/json" | "*/*" | "application/*") {
            not_implemented = not_implemented.or(ACCEPTED.into_iter().find(|known| *known == media));
            continue;
        }
        let parameter = |name: &str| {
            let found = clause
                .split(';')
                .map(str::trim)
                .find_map(|part| part.strip_prefix(name));
            found.and_then(|value| value.strip_prefix('='))
        };
        match (parameter("as"), parameter("v")) {
            (None, _) => return Ok(View::Full),
            (Some("Table"), Some("v1")) => {
                // An unknown value causes an error when the response is converted, after the request was
                // executed.
                let include = include_object(query).unwrap_or(IncludeObject::Metadata);
                return Ok(View::Table(include));
            }
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("v1")) => {
                return Ok(View::Metadata);
            }
            _ => {}
        }
    }
    match not_implemented {
        Some(media) => Err(Status::not_implemented(media)),
        None => Err(Status::not_acceptable(&ACCEPTED)),
    }
}

/// Checks the content type of a body.
///
/// # Errors
/// 415 if kube-apiserver does not read such bodies, 501 if only this server does not.
pub(crate) fn accepts_body(headers: &HeaderMap) -> Result<(), Status> {
    match media_type(headers) {
        "" | "application/json" | "*/*" | PROTOBUF => Ok(()),
        media if ACCEPTED.contains(&media) => Err(Status::not_implemented(media)),
        _ => Err(Status::unsupported_media_type(&ACCEPTED)),
    }
}

/// Whether the body has Kubernetes' protobuf encoding.
pub(crate) fn is_protobuf(headers: &HeaderMap) -> bool {
    media_type(headers) == PROTOBUF
}

fn media_type(headers: &HeaderMap) -> &str {
    let content_type = header_text(headers, &header::CONTENT_TYPE);
    content_type.split(';').next().unwrap_or_default().trim()
}

/// A header, empty if it is missing or not a text.
pub(crate) fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}
