//! Capacity reserved by in-flight calls. It counts as allocated, so that concurrent calls cannot exceed a limit together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
pub(crate) struct Reservations(BTreeMap<ReservationKey, ReservedAmount>);

/// Capacity reserved by a running call. Drop it only after the array has changed or the call has failed.
#[derive(Debug)]
pub(crate) struct Reservation {
    all: Arc<Mutex<Reservations>>,
    key: ReservationKey,
}

/// Calls with the same key take the capacity once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReservationKey {
    Attach { node: String, volume: String },
    Create { name: String },
}

/// Number of calls with the same key, and the maximum of their bytes.
#[derive(Debug, Default)]
struct ReservedAmount {
    calls: usize,
    bytes: u64,
}

// === impl Reservations ===

impl Reservations {
    /// The volumes that in-flight calls attach to a node.
    pub(crate) fn attaching<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().filter_map(move |key| match key {
            ReservationKey::Attach { node: own, volume } if own == node => Some(volume.as_str()),
            ReservationKey::Attach { .. } | ReservationKey::Create { .. } => None,
        })
    }

    /// Names and bytes of the volumes that in-flight calls create.
    pub(crate) fn creating(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().filter_map(|(key, amount)| match key {
            ReservationKey::Create { name } => Some((name.as_str(), amount.bytes)),
            ReservationKey::Attach { .. } => None,
        })
    }

    fn enter(&mut self, key: ReservationKey, bytes: u64) {
        let amount = self.0.entry(key).or_default();
        amount.calls += 1;
        amount.bytes = amount.bytes.max(bytes);
    }

    fn leave(&mut self, key: ReservationKey) {
        if let Entry::Occupied(mut entry) = self.0.entry(key) {
            entry.get_mut().calls -= 1;
            if entry.get().calls == 0 {
                entry.remove();
            }
        }
    }
}

// === impl Reservation ===

impl Reservation {
    /// Reserves bytes under a key in `reserved`, the content of `all`.
    pub(super) fn new(
        key: ReservationKey,
        bytes: u64,
        all: &Arc<Mutex<Reservations>>,
        reserved: &mut Reservations,
    ) -> Self {
        reserved.enter(key.clone(), bytes);
        Self {
            all: all.clone(),
            key,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        crate::lock(&self.all).leave(self.key.clone());
    }
}
