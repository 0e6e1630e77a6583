//! One of the two API servers: sends requests with its versions and UIDs, and normalizes its responses.

use std::collections::HashMap;
use std::fmt;

use anyhow::{Context as _, Result};
use http::{StatusCode, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body as ClientBody;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::kinds::LAST_NAME;
use super::normalize::Symbols;
use super::request::{Body, Request};

/// Version and UID of an object that was in no response.
const UNKNOWN_VERSION: &str = "1";
const UNKNOWN_UID: &str = "00000000-0000-4000-8000-000000000000";

/// An API server, and the values from its responses in a sequence.
pub(crate) struct Server {
    client: Client,
    namespace: String,
    /// The last returned objects, by path.
    objects: HashMap<String, Value>,
    first_versions: HashMap<String, String>,
    continue_tokens: HashMap<String, String>,
    /// Continue tokens of responses with 410 Gone, by path.
    inconsistent_tokens: HashMap<String, String>,
    /// Versions of the first lists, by path.
    list_versions: HashMap<String, String>,
    symbols: Symbols,
}

/// A normalized response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServerResponse {
    pub(crate) code: StatusCode,
    pub(crate) content_type: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Value,
}

// === impl Server ===

impl Server {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            objects: HashMap::new(),
            first_versions: HashMap::new(),
            continue_tokens: HashMap::new(),
            inconsistent_tokens: HashMap::new(),
            list_versions: HashMap::new(),
            symbols: Symbols::new(namespace),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Sends the request and returns the normalized response.
    pub(crate) async fn send(&mut self, request: &Request) -> Result<ServerResponse> {
        let (code, headers, bytes) = self.exchange(request).await?;
        let text = |name: &header::HeaderName| {
            let values = headers.get_all(name).into_iter();
            let texts = values.filter_map(|value| value.to_str().ok().map(str::to_owned));
            texts.collect::<Vec<String>>()
        };
        let mut body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        if code.is_success() {
            self.remember(request, &body);
        } else if let Some(token) = body["metadata"]["continue"].as_str() {
            let path = request.path.clone();
            self.inconsistent_tokens.insert(path, token.to_owned());
        }
        self.symbols.normalize(&mut body);
        reduce_invalid(&mut body);
        let mut warnings = text(&header::WARNING);
        // The kernel only warns about unknown fields.
        warnings.retain(|warning| warning.contains("unknown field"));
        Ok(ServerResponse {
            code,
            content_type: text(&header::CONTENT_TYPE).concat(),
            warnings,
            body,
        })
    }

    async fn exchange(&self, request: &Request) -> Result<(StatusCode, http::HeaderMap, Vec<u8>)> {
        let http_request = self.http_request(request)?;
        let response = self.client.send(http_request).await.context("send a request")?;
        let (parts, mut body) = response.into_parts();
        if request.is_watch() && parts.status.is_success() {
            let events = events(&mut body, request.reads_to_bookmark())
                .await
                .context("read a watch")?;
            return Ok((
                parts.status,
                parts.headers,
                Value::Array(events).to_string().into_bytes(),
            ));
        }
        let bytes = body
            .collect()
            .await
            .context("read a response")?
            .to_bytes()
            .to_vec();
        Ok((parts.status, parts.headers, bytes))
    }

    /// The request with this server's versions and UIDs.
    pub(crate) fn http_request(&self, request: &Request) -> Result<http::Request<ClientBody>> {
        let mut uri = self.path(&request.path);
        for (number, (name, value)) in request.query.iter().enumerate() {
            let value = self.text(value);
            let value = encoded(&value);
            uri.push_str(&format!("{}{name}={value}", if number == 0 { '?' } else { '&' }));
        }
        let body = match &request.body {
            Body::None => Vec::new(),
            Body::Text(text) => self.text(text).into_bytes(),
            Body::Json(value) => self.value(value).to_string().into_bytes(),
            Body::Protobuf(object) => object.bytes(&self.text(&object.name)),
            Body::Stored { fallback, edits } => {
                let mut object = match self.objects.get(without_subresource(&request.path)) {
                    Some(object) => object.clone(),
                    None => self.value(fallback),
                };
                for edit in edits {
                    edit.apply(&mut object);
                }
                // Decoders report the first error of a document.
                let mut object = self.value(&object);
                object.sort_all_objects();
                object.to_string().into_bytes()
            }
        };
        let mut built = http::Request::builder()
            .method(request.method.clone())
            .uri(uri)
            .header(header::USER_AGENT, "differential");
        if !request.content_type.is_empty() {
            built = built.header(header::CONTENT_TYPE, request.content_type);
        }
        if !request.accept.is_empty() {
            built = built.header(header::ACCEPT, request.accept);
        }
        built.body(ClientBody::from(body)).context("build a request")
    }

    /// Remembers the objects of a response.
    fn remember(&mut self, request: &Request, body: &Value) {
        let path = without_subresource(&request.path);
        if let Some(items) = body["items"].as_array() {
            for item in items {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                let name = name.replace(&self.namespace, "$ns");
                self.remember_object(format!("{path}/{name}"), item);
            }
            if let Some(version) = body["metadata"]["resourceVersion"].as_str() {
                let first = self.list_versions.entry(path.to_owned());
                first.or_insert_with(|| version.to_owned());
            }
            if let Some(token) = body["metadata"]["continue"].as_str() {
                self.continue_tokens.insert(path.to_owned(), token.to_owned());
            }
            return;
        }
        let Some(name) = body["metadata"]["name"].as_str() else {
            return;
        };
        if request.method != http::Method::POST {
            return self.remember_object(path.to_owned(), body);
        }
        if body["metadata"]["generateName"].is_string()
            && let Body::Json(sent) = &request.body
            && sent["metadata"]["name"].is_null()
        {
            self.remember_object(format!("{path}/$gen"), body);
        }
        let name = name.replace(&self.namespace, "$ns");
        self.remember_object(format!("{path}/{name}"), body);
    }

    fn remember_object(&mut self, key: String, object: &Value) {
        if !object["metadata"]["uid"].is_string()
            || object
                .get("kind")
                .is_some_and(|kind| kind == "PartialObjectMetadata")
        {
            return;
        }
        let version = object["metadata"]["resourceVersion"].as_str();
        if let Some(version) = version {
            self.first_versions
                .entry(key.clone())
                .or_insert_with(|| version.to_owned());
        }
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        self.objects.insert(key, object);
    }

    /// A path with the names that this server has generated.
    pub(crate) fn path(&self, path: &str) -> String {
        let path = match path.find("/$gen") {
            Some(at) => {
                let key = &path[..at + "/$gen".len()];
                let object = self.objects.get(key);
                let name = object.and_then(|object| object["metadata"]["name"].as_str());
                let name = encoded(name.unwrap_or("none"));
                format!("{}/{name}{}", &path[..at], &path[key.len()..])
            }
            None => path.to_owned(),
        };
        path.replace("$ns", &self.namespace)
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(object) => object
                .iter()
                .map(|(name, value)| (name.clone(), self.value(value)))
                .collect(),
            other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other.clone(),
        }
    }

    /// Replaces the symbols in a text.
    fn text(&self, text: &str) -> String {
        let replaced = ["rv", "old", "uid", "continue", "inconsistent", "list"]
            .iter()
            .find_map(|symbol| {
                let (before, rest) = text.split_once(&format!("${symbol}:"))?;
                let (key, after) = rest.split_once("$$")?;
                Some(format!("{before}{}{after}", self.symbol(symbol, key)))
            });
        replaced
            .unwrap_or_else(|| text.to_owned())
            .replace("$ns", &self.namespace)
    }

    fn symbol(&self, symbol: &str, key: &str) -> &str {
        let known = self.objects.get(key).map(|object| &object["metadata"]);
        match symbol {
            "rv" => known
                .and_then(|metadata| metadata["resourceVersion"].as_str())
                .unwrap_or(UNKNOWN_VERSION),
            "uid" => known
                .and_then(|metadata| metadata["uid"].as_str())
                .unwrap_or(UNKNOWN_UID),
            "old" => self
                .first_versions
                .get(key)
                .map_or(UNKNOWN_VERSION, String::as_str),
            "list" => self
                .list_versions
                .get(key)
                .map_or(UNKNOWN_VERSION, String::as_str),
            "inconsistent" => self.inconsistent_tokens.get(key).map_or("", String::as_str),
            _ => self.continue_tokens.get(key).map_or("", String::as_str),
        }
    }
}

/// The path of an object, without a subresource that reads and writes the object.
fn without_subresource(path: &str) -> &str {
    let subresources = ["/status", "/ephemeralcontainers"].into_iter();
    let mut shorter = subresources.filter_map(|subresource| path.strip_suffix(subresource));
    shorter.next().unwrap_or(path)
}

/// A text as a part of a path or of a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The events of a watch up to the one of the last object, or to the first bookmark, or to the end of the watch.
async fn events(body: &mut ClientBody, to_bookmark: bool) -> Result<Vec<Value>> {
    let mut events = Vec::new();
    let mut unread = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context("read a frame")?.into_data() else {
            continue;
        };
        unread.extend_from_slice(&data);
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).context("an event must be JSON")?;
            let is_last = if to_bookmark {
                event["type"] == "BOOKMARK"
            } else {
                is_last_object(&event["object"])
            };
            events.push(event);
            if is_last {
                return Ok(events);
            }
        }
    }
    Ok(events)
}

/// Whether an event is about the object that the sequence creates last; of a table, if its row is about it.
fn is_last_object(object: &Value) -> bool {
    let name = object
        .pointer("/metadata/name")
        .or_else(|| object.pointer("/rows/0/object/metadata/name"));
    name.and_then(Value::as_str)
        .is_some_and(|name| name == LAST_NAME || name.ends_with(&format!("-{LAST_NAME}")))
}

// === impl ServerResponse ===

impl fmt::Display for ServerResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.code.as_u16(), self.content_type, self.body)?;
        if !self.warnings.is_empty() {
            write!(f, " warnings {:?}", self.warnings)?;
        }
        Ok(())
    }
}

/// Reduces a refusal of an invalid request to what clients act on: code, reason and object, without the texts.
fn reduce_invalid(body: &mut Value) {
    let is_invalid = matches!(
        body["reason"].as_str(),
        Some("BadRequest" | "Invalid" | "NotAcceptable")
    );
    if body["kind"] != "Status" || !is_invalid && body["code"] != 500 {
        return;
    }
    if let Some(status) = body.as_object_mut() {
        status.remove("message");
        if let Some(details) = status.get_mut("details").and_then(Value::as_object_mut) {
            details.remove("causes");
        }
    }
}
