//! A call as fault rules see it.

use prost_reflect::{DynamicMessage, MapKey};

use super::Rpc;
use crate::driver::Driver;
use crate::fault::{Occasion, Place};
use crate::schema;

/// A typed request that has arrived at a driver.
pub(super) struct Arrival<'a, Q> {
    pub(super) request: &'a Q,
    pub(super) driver: &'a Driver,
}

impl<Q: Rpc> Occasion for Arrival<'_, Q> {
    fn path(&self) -> &str {
        Q::METHOD.path()
    }

    fn volume(&self) -> &str {
        self.request.volume()
    }

    fn node(&self) -> &str {
        self.request.node()
    }

    fn name(&self) -> &str {
        self.request.name()
    }

    fn entry(&self, field: &str, key: &str) -> Option<String> {
        map_entry(&self.message()?, field, key)
    }

    fn size(&self) -> u64 {
        self.message().map_or(0, |message| requested_size(&message))
    }

    fn place(&self) -> Option<Place> {
        let volume = self.request.volume();
        (!volume.is_empty()).then(|| self.driver.place(volume, self.request.node()))
    }
}

impl<Q: Rpc> Arrival<'_, Q> {
    /// The request by its descriptor: few rules ask, so nobody else pays for it.
    fn message(&self) -> Option<DynamicMessage> {
        let descriptor = schema::message(Q::MESSAGE)?;
        DynamicMessage::decode(descriptor, self.request.encode_to_vec().as_slice()).ok()
    }
}

/// The bytes a request asks for at least.
pub(crate) fn requested_size(message: &DynamicMessage) -> u64 {
    let range = message.get_field_by_name("capacity_range");
    let bytes = range
        .as_deref()
        .and_then(|range| range.as_message()?.get_field_by_name("required_bytes")?.as_i64());
    bytes
        .and_then(|bytes| u64::try_from(bytes).ok())
        .unwrap_or_default()
}

/// An entry of a map of texts.
pub(crate) fn map_entry(message: &DynamicMessage, field: &str, key: &str) -> Option<String> {
    let map = message.get_field_by_name(field)?;
    let value = map.as_map()?.get(&MapKey::String(key.to_owned()))?;
    value.as_str().map(str::to_owned)
}
