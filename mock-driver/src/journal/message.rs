//! CSI messages in their stored form and as JSON, without secrets.

use csi_proto::Secrets;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_reflect::{
    DynamicMessage, MapKey, MessageDescriptor, ReflectMessage, SerializeOptions, Value as Field,
};
use serde_json::{Value, json};
use siphasher::sip::SipHasher24;

use crate::rpc::method::{self, DESCRIPTORS, Method};
use crate::rpc::validate::TOKENS;

/// Request fields with the volume of a call, or with the other object that it is about.
const VOLUME_FIELDS: [&str; 5] = [
    "volume_id",
    "source_volume_id",
    "snapshot_id",
    "group_snapshot_id",
    "name",
];

/// Whether calls of a method have a volume in the journal.
pub(crate) fn has_volume(method: Method) -> bool {
    VOLUME_FIELDS.iter().any(|field| method.takes(field))
}

const SECRET_OPTION: &str = "csi.v1.csi_secret";

/// Field with kubelet's attributes of the pod, and with the pod's tokens for drivers that request tokens without
/// `serviceAccountTokenInSecrets`. CSI does not mark it as secret.
const CONTEXT: &str = "volume_context";

/// Redacts messages and converts them to JSON with the field names of the proto file.
#[derive(Debug)]
pub(crate) struct Renderer {
    options: SerializeOptions,
    /// `None` to show secrets.
    key: Option<[u8; 16]>,
}

/// A message without its secrets.
#[derive(Clone, Debug)]
pub(crate) enum RedactedMessage {
    Csi {
        message: MessageDescriptor,
        wire: Box<[u8]>,
    },
    /// Any other message; only its length is known.
    Foreign { bytes: usize },
    /// A message that could not be decoded, and is not kept.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Response,
}

/// The subject of a request. An absent field is an empty text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) volume: String,
    pub(super) node: String,
}

// === impl Renderer ===

impl Renderer {
    pub(super) fn new(key: Option<[u8; 16]>) -> Self {
        Self {
            options: SerializeOptions::new()
                .use_proto_field_name(true)
                .stringify_64_bit_integers(false),
            key,
        }
    }

    pub(crate) fn keep<M: Message + Secrets + Clone>(&self, message: &M) -> RedactedMessage {
        let descriptor = DESCRIPTORS
            .get_message_by_name(M::MESSAGE)
            .expect("every CSI message must be in the descriptors");
        let mut wire = match &self.key {
            Some(key) if !M::SECRET_FIELDS.is_empty() => {
                let mut shown = message.clone();
                for (_, secrets) in shown.secrets_mut() {
                    for value in secrets.values_mut() {
                        *value = hide(key, value);
                    }
                }
                shown.encode_to_vec()
            }
            Some(_) | None => message.encode_to_vec(),
        };
        // Few messages may contain a pod's tokens, so only those that have their key are decoded.
        if let Some(key) = &self.key
            && descriptor.get_field_by_name(CONTEXT).is_some()
            && wire
                .windows(TOKENS.len())
                .any(|window| window == TOKENS.as_bytes())
        {
            let mut content = DynamicMessage::decode(descriptor.clone(), wire.as_slice())
                .expect("an encoded message must decode by its own descriptor");
            hide_tokens(&mut content, key);
            wire = content.encode_to_vec();
        }
        RedactedMessage::Csi {
            message: descriptor,
            wire: wire.into(),
        }
    }

    /// The hash that replaces a secret; equal to that of an equal secret in a call.
    pub(crate) fn redact(&self, secret: &str) -> String {
        match &self.key {
            Some(key) => hide(key, secret),
            None => secret.to_owned(),
        }
    }

    /// The stored form of an encoded message of a method. Fields without a descriptor are removed, because they may be secret.
    pub(crate) fn keep_wire(&self, path: &str, side: Direction, wire: &[u8]) -> RedactedMessage {
        let known = || {
            let method = Method::at(path)?;
            let message = match side {
                Direction::Request => method.request(),
                Direction::Response => method.reply(),
            };
            let mut content = DynamicMessage::decode(message.clone(), wire).ok()?;
            if let Some(key) = &self.key {
                hide_secrets(&mut content, key);
                hide_tokens(&mut content, key);
            }
            content.take_unknown_fields().for_each(drop);
            let wire = content.encode_to_vec().into();
            Some(RedactedMessage::Csi { message, wire })
        };
        known().unwrap_or(RedactedMessage::Foreign { bytes: wire.len() })
    }

    /// The message as JSON. Fields at their default value are left out.
    pub(super) fn json(&self, kept: &RedactedMessage) -> Value {
        match kept {
            RedactedMessage::Foreign { bytes } => json!({"bytes": bytes}),
            RedactedMessage::Unreadable => Value::Null,
            RedactedMessage::Csi { message, wire } => {
                match DynamicMessage::decode(message.clone(), wire.as_ref()) {
                    Ok(message) => self.json_of(&message),
                    Err(_) => json!({"bytes": wire.len()}),
                }
            }
        }
    }

    pub(super) fn full_json(&self, kept: &RedactedMessage) -> Value {
        let RedactedMessage::Csi { message, wire } = kept else {
            return self.json(kept);
        };
        let message = DynamicMessage::decode(message.clone(), wire.as_ref());
        let options = self.options.clone().skip_default_fields(false);
        let json = |message: DynamicMessage| {
            let json = message.serialize_with_options(serde_json::value::Serializer, &options);
            json.unwrap_or_else(|_| self.json_of(&message))
        };
        message.map_or(Value::Null, json)
    }

    /// A driver may send what has no JSON, such as a timestamp beyond the year 9999: those fields are shown raw.
    fn json_of(&self, message: &DynamicMessage) -> Value {
        let json = |message: &DynamicMessage| {
            message.serialize_with_options(serde_json::value::Serializer, &self.options)
        };
        json(message).unwrap_or_else(|_| {
            let fields = message.fields().map(|(field, value)| {
                let mut alone = DynamicMessage::new(message.descriptor());
                alone.set_field(&field, value.clone());
                let shown = json(&alone).ok();
                let shown = shown.and_then(|shown| shown.get(field.name()).cloned());
                (field.name().to_owned(), shown.unwrap_or_else(|| self.raw(value)))
            });
            Value::Object(fields.collect())
        })
    }

    /// Of CSI's fields, only timestamps can lack JSON: the value is a part of one, or a message or list with one.
    fn raw(&self, value: &Field) -> Value {
        if let Some(message) = value.as_message() {
            self.json_of(message)
        } else if let Some(values) = value.as_list() {
            values.iter().map(|value| self.raw(value)).collect()
        } else {
            json!(value.as_i64().or_else(|| value.as_i32().map(i64::from)))
        }
    }
}

// === impl RedactedMessage ===

impl RedactedMessage {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Csi { wire, .. } => wire.len(),
            Self::Foreign { .. } | Self::Unreadable => 0,
        }
    }

    /// The subject of a request, without decoding all of it.
    pub(super) fn subject(&self) -> Subject {
        let mut subject = Subject::default();
        if let Self::Csi { message, wire } = self {
            // The driver's own encoding is well-formed; otherwise the fields read so far suffice.
            subject.read(message, wire).ok();
        }
        subject
    }
}

// === impl Subject ===

impl Subject {
    fn read(&mut self, message: &MessageDescriptor, mut wire: &[u8]) -> Result<(), prost::DecodeError> {
        let number = |names: &[&str]| {
            let field = names.iter().find_map(|name| message.get_field_by_name(name))?;
            let is_text = field.kind() == prost_reflect::Kind::String && !field.is_list();
            is_text.then(|| field.number())
        };
        let volume = number(&VOLUME_FIELDS);
        let node = number(&method::NODE);
        while !wire.is_empty() {
            let (number, wire_type) = decode_key(&mut wire)?;
            let wanted = if Some(number) == volume {
                &mut self.volume
            } else if Some(number) == node {
                &mut self.node
            } else {
                skip_field(wire_type, number, &mut wire, DecodeContext::default())?;
                continue;
            };
            if wire_type != WireType::LengthDelimited {
                return Ok(());
            }
            let length = usize::try_from(decode_varint(&mut wire)?).unwrap_or(usize::MAX);
            let Some((text, rest)) = wire.split_at_checked(length) else {
                return Ok(());
            };
            *wanted = String::from_utf8_lossy(text).into_owned();
            wire = rest;
        }
        Ok(())
    }
}

fn hide_secrets(message: &mut DynamicMessage, key: &[u8; 16]) {
    let option = DESCRIPTORS
        .get_extension_by_name(SECRET_OPTION)
        .expect("the option that marks secrets must be in the descriptors");
    for field in message.descriptor().fields() {
        let marked = field.options().get_extension(&option).as_bool() == Some(true);
        if !marked {
            continue;
        }
        // The build of csi-proto refuses a secret field of any other type.
        if let Some(secrets) = message.get_field_mut(&field).as_map_mut() {
            for value in secrets.values_mut() {
                let hidden = hide(key, value.as_str().unwrap_or_default());
                *value = Field::String(hidden);
            }
        }
    }
}

fn hide_tokens(message: &mut DynamicMessage, key: &[u8; 16]) {
    let Some(field) = message.descriptor().get_field_by_name(CONTEXT) else {
        return;
    };
    let tokens = MapKey::String(TOKENS.to_owned());
    if let Some(value) = message
        .get_field_mut(&field)
        .as_map_mut()
        .and_then(|context| context.get_mut(&tokens))
    {
        let hidden = hide(key, value.as_str().unwrap_or_default());
        *value = Field::String(hidden);
    }
}

/// A keyed hash: without the key, a reader of the journal cannot guess secrets.
fn hide(key: &[u8; 16], secret: &str) -> String {
    format!(
        "hash:{:016x}",
        SipHasher24::new_with_key(key).hash(secret.as_bytes())
    )
}

#[cfg(test)]
mod tests;
