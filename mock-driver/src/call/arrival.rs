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

    /// Reads the request by its descriptor: few rules ask, so nobody else pays for it.
    fn entry(&self, field: &str, key: &str) -> Option<String> {
        let descriptor = schema::message(Q::MESSAGE)?;
        let message = DynamicMessage::decode(descriptor, self.request.encode_to_vec().as_slice()).ok()?;
        entry(&message, field, key)
    }

    fn place(&self) -> Option<Place> {
        let volume = self.request.volume();
        (!volume.is_empty()).then(|| self.driver.place(volume, self.request.node()))
    }
}

/// An entry of a map of texts.
pub(crate) fn entry(message: &DynamicMessage, field: &str, key: &str) -> Option<String> {
    let map = message.get_field_by_name(field)?;
    let value = map.as_map()?.get(&MapKey::String(key.to_owned()))?;
    value.as_str().map(str::to_owned)
}
