//! Normalizes values that differ between two servers: times, generated names, and UIDs and resource versions (by their order
//! of appearance). Removes `managedFields`, which only kube-apiserver has.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Requests contain only earlier times.
const FIRST_YEAR_OF_SERVERS: i16 = 2025;
/// Prefixes of generated names.
const GENERATED: [&str; 2] = [NUMBERED, "Not Valid-"];
/// This one is followed by a number and a hyphen.
const NUMBERED: &str = "$ns-g";
const NUMBER_LENGTH: usize = 4;
/// Letters that servers append to a prefix.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const UID_LENGTH: usize = 36;
/// The longest time in a response, with microseconds.
const TIME_LENGTHS: [usize; 2] = [27, 20];

/// The namespace of kube-apiserver's own Lease.
const CLUSTER_NAMESPACE: &str = "kube-system";

/// The values that have appeared in a server's responses.
pub(crate) struct Symbols {
    namespace: String,
    versions: HashMap<String, usize>,
    uids: HashMap<String, usize>,
}

// === impl Symbols ===

impl Symbols {
    pub(crate) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            versions: HashMap::new(),
            uids: HashMap::new(),
        }
    }

    pub(crate) fn normalize(&mut self, value: &mut Value) {
        match value {
            Value::Object(object) => self.normalize_object(object),
            Value::Array(items) => {
                items.retain(|item| !is_of_cluster(item));
                items.iter_mut().for_each(|item| self.normalize(item));
            }
            Value::String(text) => *text = self.text(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn normalize_object(&mut self, object: &mut Map<String, Value>) {
        object.remove("managedFields");
        // kubectl computes it.
        object.remove("qosClass");
        let is_object = object.contains_key("uid") || object.contains_key("name");
        if let Some(Value::String(token)) = object.get_mut("continue")
            && !is_object
        {
            *token = self.token(token);
        }
        if let Some(Value::String(version)) = object.get_mut("resourceVersion")
            && !version.is_empty()
        {
            // The version of a list is that of the whole store, to which other clients write, too.
            *version = if is_object {
                let next = self.versions.len();
                format!(
                    "<version {}>",
                    self.versions.entry(version.clone()).or_insert(next)
                )
            } else {
                "<version of the list>".to_owned()
            };
        }
        for (name, value) in object.iter_mut() {
            match (name.as_str(), &mut *value) {
                ("token", Value::String(token)) => "<token>".clone_into(token),
                ("cells", Value::Array(cells)) => {
                    for cell in cells {
                        if cell.as_str().is_some_and(is_age) {
                            *cell = "<age>".into();
                        }
                        self.normalize(cell);
                    }
                }
                ("resourceVersion", _) => {}
                _ => self.normalize(value),
            }
        }
    }

    /// The content of a continue token: the key from which the list continues, and the version of the list, or -1 for the
    /// newest one. Keys of the watch cache begin with a slash.
    fn token(&mut self, token: &str) -> String {
        let bytes = URL_SAFE_NO_PAD.decode(token).unwrap_or_default();
        let Ok(mut content) = serde_json::from_slice::<Value>(&bytes) else {
            return token.to_owned();
        };
        if content["rv"].as_u64().is_some() {
            content["rv"] = "<version of the list>".into();
        }
        if let Value::String(start) = &mut content["start"] {
            *start = start.trim_start_matches('/').to_owned();
        }
        self.normalize(&mut content);
        content.sort_all_objects();
        format!("<continue {content}>")
    }

    /// Replaces the values in a text.
    pub(crate) fn text(&mut self, text: &str) -> String {
        let mut text = text.replace(&self.namespace, "$ns");
        for prefix in GENERATED {
            text = without_suffixes(&text, prefix);
        }
        if let Some(document) = Document::find(&text) {
            let mut value = document.value;
            self.normalize(&mut value);
            value.sort_all_objects();
            text = format!("{}{value}{}", document.before, document.after);
        }
        for before in [
            "ResourceVersion in the precondition (",
            "ResourceVersion in record (",
            "ResourceVersion in precondition: ",
            "ResourceVersion in object meta: ",
            "Too large resource version: 1000000000, current: ",
            "too old resource version: ",
            "too old resource version: <number> (",
        ] {
            text = without_digits(text, before);
        }
        let mut normalized = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            if let Some(uid) = rest.get(..UID_LENGTH).filter(|text| is_uid(text)) {
                let next = self.uids.len();
                let number = *self.uids.entry(uid.to_owned()).or_insert(next);
                normalized.push_str(&format!("<uid {number}>"));
                rest = &rest[UID_LENGTH..];
            } else if let Some(length) = TIME_LENGTHS
                .into_iter()
                .find(|length| is_server_time(rest, *length))
            {
                normalized.push_str(if length == TIME_LENGTHS[0] {
                    "<micro time>"
                } else {
                    "<time>"
                });
                rest = &rest[length..];
            } else {
                normalized.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        normalized
    }
}

/// Whether an item of a list, a row of a table or an event of a watch is about an object that only kube-apiserver has, and
/// must not get a number.
fn is_of_cluster(item: &Value) -> bool {
    ["/metadata/namespace", "/object/metadata/namespace"]
        .into_iter()
        .any(|pointer| {
            item.pointer(pointer)
                .is_some_and(|namespace| namespace == CLUSTER_NAMESPACE)
        })
}

fn is_age(cell: &str) -> bool {
    let number = cell.strip_suffix(['s', 'm']);
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'm')
    })
}

fn is_uid(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

fn is_server_time(text: &str, length: usize) -> bool {
    let Some(text) = text.get(..length).filter(|text| text.ends_with('Z')) else {
        return false;
    };
    let year: Option<i16> = text.get(..4).and_then(|year| year.parse().ok());
    year.is_some_and(|year| year >= FIRST_YEAR_OF_SERVERS) && text.parse::<Timestamp>().is_ok()
}

/// Replaces the number after `before`.
fn without_digits(text: String, before: &str) -> String {
    match text.split_once(before) {
        Some((start, rest)) => {
            let rest = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
            format!("{start}{before}<number>{rest}")
        }
        None => text,
    }
}

/// Replaces the suffix that the server appended to a generated name.
fn without_suffixes(text: &str, prefix: &str) -> String {
    let mut parts = text.split(prefix);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        replaced.push_str(prefix);
        let number = if prefix == NUMBERED { NUMBER_LENGTH } else { 0 };
        let rest = part.get(number..).unwrap_or_default();
        let suffix = rest.get(..SUFFIX_LENGTH);
        if suffix.is_some_and(|suffix| suffix.bytes().all(|letter| SUFFIX_LETTERS.contains(&letter))) {
            replaced.push_str(&part[..part.len() - rest.len()]);
            replaced.push_str("<generated>");
            replaced.push_str(&rest[SUFFIX_LENGTH..]);
        } else {
            replaced.push_str(part);
        }
    }
    replaced
}

/// An object in a message: the servers write its members in different orders.
struct Document {
    before: String,
    value: Value,
    after: String,
}

impl Document {
    fn find(text: &str) -> Option<Self> {
        const START: &str = "Invalid value: \"{";
        let at = text.find(START)? + START.len() - 2;
        let mut quoted = serde_json::Deserializer::from_str(&text[at..]).into_iter::<String>();
        let document = quoted.next()?.ok()?;
        Some(Self {
            before: text[..at].to_owned(),
            value: serde_json::from_str(&document).ok()?,
            after: text[at + quoted.byte_offset()..].to_owned(),
        })
    }
}
