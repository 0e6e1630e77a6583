use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use prost_reflect::DynamicMessage;
use serde_json::Value;
use tonic::codegen::http::HeaderMap;

use super::known_attachments::KnownAttachments;
use crate::fault::{ArrayUsage, CallInfo, Reservations, VolumeLocation, field_path};
use crate::journal::Peer;
use crate::rpc::method::{self, Method};

pub(super) struct ForwardedRequest {
    pub(super) path: String,
    pub(super) rpc: Option<Method>,
    message: Option<DynamicMessage>,
    /// Converted once: a replay has many rules with conditions on it.
    json: OnceLock<Value>,
    volume: String,
    node: String,
    name: String,
    attachments: Arc<KnownAttachments>,
    pub(super) headers: HeaderMap,
    pub(super) peer: Option<Peer>,
}

// === impl ForwardedRequest ===

impl ForwardedRequest {
    pub(super) fn new(
        path: String,
        rpc: Option<Method>,
        message: Option<&[u8]>,
        attachments: Arc<KnownAttachments>,
    ) -> Self {
        let message = rpc
            .zip(message)
            .and_then(|(rpc, bytes)| DynamicMessage::decode(rpc.request(), bytes).ok());
        let text = |fields: &[&str]| {
            let message = message.as_ref()?;
            let values = fields.iter().filter_map(|field| message.get_field_by_name(field));
            let mut texts = values.filter_map(|value| value.as_str().map(str::to_owned));
            texts.find(|text| !text.is_empty())
        };
        let here = || match rpc {
            Some(rpc) if rpc.is_on_node() => attachments.here(),
            _ => String::new(),
        };
        Self {
            volume: text(&method::VOLUME).unwrap_or_default(),
            node: text(&method::NODE).unwrap_or_else(here),
            name: text(&method::NAME).unwrap_or_default(),
            path,
            rpc,
            message,
            json: OnceLock::new(),
            attachments,
            headers: HeaderMap::new(),
            peer: None,
        }
    }
}

impl CallInfo for ForwardedRequest {
    fn path(&self) -> &str {
        &self.path
    }

    fn volume(&self) -> &str {
        &self.volume
    }

    fn node(&self) -> &str {
        &self.node
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn message(&self) -> Option<Cow<'_, DynamicMessage>> {
        self.message.as_ref().map(Cow::Borrowed)
    }

    fn json(&self) -> Cow<'_, Value> {
        let json = || self.message.as_ref().map(field_path::json);
        Cow::Borrowed(self.json.get_or_init(|| json().unwrap_or_default()))
    }

    fn headers(&self) -> Option<&HeaderMap> {
        Some(&self.headers)
    }

    fn peer(&self) -> Option<Peer> {
        self.peer
    }

    fn usage(&self, reserved: &Reservations) -> ArrayUsage {
        ArrayUsage {
            on_node: self.attachments.on_node(self, reserved),
            is_repeat: self.location().is_some_and(|location| location.here),
            ..ArrayUsage::default()
        }
    }

    fn location(&self) -> Option<VolumeLocation> {
        (!self.volume.is_empty()).then(|| self.attachments.location(&self.volume, &self.node))
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::{NodeGetInfoRequest, NodeGetInfoResponse};
    use prost::Message;
    use prost_reflect::Value;

    use super::*;
    use crate::rpc::method::Kind;

    #[test]
    fn read_methods_do_not_change_the_array() {
        let changing = |method: &Method| {
            let call = ForwardedRequest::new(method.path().to_owned(), Some(*method), None, Arc::default());
            call.changes()
        };
        let found: Vec<&str> = Method::ALL
            .iter()
            .filter(|method| changing(method))
            .map(|method| method.name())
            .collect();
        for reads in [
            "GroupControllerGetCapabilities",
            "NodeStageVolume",
            "NodeExpandVolume",
        ] {
            assert!(!found.contains(&reads), "{found:?}");
        }
        let expected = Method::ALL
            .into_iter()
            .filter(|method| method.kind() != Kind::Read && !method.is_on_node());
        assert_eq!(found.len(), expected.count(), "{found:?}");
        let foreign = ForwardedRequest::new("/vendor.v1.Copy/Start".to_owned(), None, None, Arc::default());
        assert!(!foreign.changes());
    }

    #[test]
    fn rules_can_match_every_field_of_each_method() {
        let attachments = Arc::new(KnownAttachments::default());
        let info = NodeGetInfoResponse {
            node_id: "node-1".to_owned(),
            ..Default::default()
        };
        let path = "/csi.v1.Node/NodeGetInfo";
        let asked = NodeGetInfoRequest {}.encode_to_vec();
        let asked = ForwardedRequest::new(path.into(), Method::at(path), Some(&asked), attachments.clone());
        attachments.learn_here(&asked, Some(&info.encode_to_vec()));
        for rpc in Method::ALL {
            let mut message = DynamicMessage::new(rpc.request());
            for field in [&method::VOLUME[..], &method::NODE, &method::NAME].concat() {
                if rpc.takes(field) {
                    message.set_field_by_name(field, Value::String("x".to_owned()));
                }
            }
            let bytes = message.encode_to_vec();
            let call = ForwardedRequest::new(
                rpc.path().to_owned(),
                Some(rpc),
                Some(&bytes),
                attachments.clone(),
            );
            let name = rpc.name();
            assert_eq!(!call.volume().is_empty(), rpc.has_volume(), "{name}");
            assert_eq!(!call.node().is_empty(), rpc.has_node(), "{name}");
            assert_eq!(!call.name().is_empty(), rpc.has_name(), "{name}");
            assert_eq!(call.location().is_some(), rpc.has_volume(), "{name}");
            assert_eq!(call.node() == "node-1", rpc.is_on_node(), "{name}");
        }
    }
}
