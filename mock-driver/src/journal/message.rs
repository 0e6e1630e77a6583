//! CSI messages as JSON, with nothing secret in it.

use csi_proto::Secrets;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;
use siphasher::sip::SipHasher24;

/// Turns messages into JSON with the field names of the proto file.
#[derive(Debug)]
pub(super) struct Renderer {
    pool: DescriptorPool,
    options: SerializeOptions,
    key: [u8; 16],
}

// === impl Renderer ===

impl Renderer {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self {
            pool: DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET)
                .expect("the built-in descriptors must decode"),
            options: SerializeOptions::new()
                .use_proto_field_name(true)
                .stringify_64_bit_integers(false),
            key,
        }
    }

    /// The message as JSON. Fields at their default value are left out.
    pub(super) fn json<M: Message + Secrets + Clone>(&self, message: &M) -> Value {
        let mut shown = message.clone();
        for (_, secrets) in shown.secrets_mut() {
            for value in secrets.values_mut() {
                *value = self.hide(value);
            }
        }
        let descriptor = self
            .pool
            .get_message_by_name(M::MESSAGE)
            .expect("every CSI message must be in the descriptors");
        let dynamic = DynamicMessage::decode(descriptor, shown.encode_to_vec().as_slice())
            .expect("an encoded message must decode by its own descriptor");
        dynamic
            .serialize_with_options(serde_json::value::Serializer, &self.options)
            .expect("a CSI message must be representable as JSON")
    }

    /// A keyed hash: whoever has the journal but not the key cannot try out values.
    fn hide(&self, secret: &str) -> String {
        format!(
            "hash:{:016x}",
            SipHasher24::new_with_key(&self.key).hash(secret.as_bytes())
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use csi_proto::v1::ControllerPublishVolumeRequest;
    use serde_json::json;

    use super::*;

    fn mk_request(secrets: &[(&str, &str)]) -> ControllerPublishVolumeRequest {
        let secrets: HashMap<String, String> = secrets
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect();
        ControllerPublishVolumeRequest {
            volume_id: "vol-0".into(),
            node_id: "node-0".into(),
            secrets,
            ..Default::default()
        }
    }

    #[test]
    fn secrets_are_hashed_and_the_rest_is_shown() {
        let renderer = Renderer::new([7; 16]);
        let shown = renderer.json(&mk_request(&[
            ("user", "root"),
            ("same", "root"),
            ("password", "hunter2"),
        ]));
        let text = shown.to_string();
        assert!(!text.contains("hunter2") && !text.contains("root"), "{text}");
        assert_eq!(shown["volume_id"], json!("vol-0"));
        assert_eq!(shown["secrets"]["user"], shown["secrets"]["same"]);
        assert_ne!(shown["secrets"]["user"], shown["secrets"]["password"]);
        assert_eq!(shown.get("readonly"), None, "defaults are left out");
    }

    #[test]
    fn another_key_makes_another_hash() {
        let request = mk_request(&[("password", "hunter2")]);
        let (one, other) = (
            Renderer::new([1; 16]).json(&request),
            Renderer::new([2; 16]).json(&request),
        );
        assert_ne!(one["secrets"]["password"], other["secrets"]["password"]);
    }
}
