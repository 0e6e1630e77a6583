use std::borrow::Cow;

use http::HeaderMap;
use prost_reflect::{DynamicMessage, MapKey};
use serde_json::Value;

use super::field_path;
use super::io::Io;
use super::reservation::{ReservationKey, Reservations};
use crate::journal::Peer;
use crate::rpc::method::Method;

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const CREATE: &str = "/csi.v1.Controller/CreateVolume";

/// A call in terms of fault rules. An absent field is an empty text.
pub(crate) trait CallInfo {
    fn path(&self) -> &str;
    fn volume(&self) -> &str;
    fn node(&self) -> &str {
        ""
    }
    /// The name of the object to create.
    fn name(&self) -> &str {
        ""
    }
    /// The request as a dynamic message. Implementations may decode it on each call, because few rules need it.
    fn message(&self) -> Option<Cow<'_, DynamicMessage>> {
        None
    }
    /// The request as JSON with all its fields.
    fn json(&self) -> Cow<'_, Value> {
        let message = self.message();
        Cow::Owned(
            message
                .map(|message| field_path::json(&message))
                .unwrap_or_default(),
        )
    }
    /// The metadata of the call, of which the deadline is a part.
    fn headers(&self) -> Option<&HeaderMap> {
        None
    }
    /// The I/O on a published volume; `None` for a call.
    fn io(&self) -> Option<Io<'_>> {
        None
    }
    fn peer(&self) -> Option<Peer> {
        None
    }
    /// An entry of one of the request's maps of strings.
    fn entry(&self, field: &str, key: &str) -> Option<String> {
        let message = self.message()?;
        let map = message.get_field_by_name(field)?;
        let value = map.as_map()?.get(&MapKey::String(key.to_owned()))?;
        value.as_str().map(str::to_owned)
    }
    fn continues(&self) -> bool {
        let has_token = |message: Cow<'_, DynamicMessage>| {
            let token = message.get_field_by_name("starting_token")?;
            token.as_str().map(|token| !token.is_empty())
        };
        self.message().and_then(has_token).unwrap_or(false)
    }
    /// Whether it changes the array. Methods other than CSI's count as reads.
    fn changes(&self) -> bool {
        Method::at(self.path()).is_some_and(|method| method.kind().changes_array())
    }
    /// The array's usage, including the capacity reserved by other calls.
    fn usage(&self, _reserved: &Reservations) -> ArrayUsage {
        ArrayUsage::default()
    }
    /// `required_bytes` of the request, or the length of an I/O, or 0.
    fn size(&self) -> u64 {
        let bytes = |message: Cow<'_, DynamicMessage>| {
            let range = message.get_field_by_name("capacity_range")?;
            range.as_message()?.get_field_by_name("required_bytes")?.as_i64()
        };
        let bytes = self.message().and_then(bytes);
        bytes
            .and_then(|bytes| u64::try_from(bytes).ok())
            .unwrap_or_default()
    }
    /// The location of the volume; `None` if unknown.
    fn location(&self) -> Option<VolumeLocation> {
        None
    }
}

/// The location of a volume from a call's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeLocation {
    pub(crate) exists: bool,
    /// It is attached to the call's node.
    pub(crate) here: bool,
    /// It is attached to another node, or to any if the call has no node id.
    pub(crate) elsewhere: bool,
}

/// The array's usage, including the capacity reserved by in-flight calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArrayUsage {
    pub(crate) volumes: u64,
    pub(crate) bytes: u64,
    pub(crate) asked: u64,
    /// Number of volumes on the call's node.
    pub(crate) on_node: u64,
    pub(crate) is_repeat: bool,
}

/// Whether the array handles calls of a method. Those of the Node and Identity services do not reach it.
pub(super) fn is_for_array(path: &str) -> bool {
    !path.starts_with("/csi.v1.Node/") && !path.starts_with("/csi.v1.Identity/")
}

/// The capacity that a call reserves, with its bytes, if it uses any that limits count.
pub(super) fn reserved_by(call: &dyn CallInfo) -> Option<(ReservationKey, u64)> {
    match call.path() {
        PUBLISH => {
            let (node, volume) = (call.node().to_owned(), call.volume().to_owned());
            Some((ReservationKey::Attach { node, volume }, 0))
        }
        CREATE => {
            let name = call.name().to_owned();
            Some((ReservationKey::Create { name }, call.size()))
        }
        _ => None,
    }
}
