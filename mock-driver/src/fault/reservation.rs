//! What calls under way are about to take of the array. It counts like what is taken, so that calls which come
//! at the same time cannot go beyond a limit together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rule::CallInfo;

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const CREATE: &str = "/csi.v1.Controller/CreateVolume";

/// All that calls under way are about to take.
#[derive(Debug, Default)]
pub struct Reservations(BTreeMap<ReservationKey, ReservedAmount>);

/// What a call is about to take. It is given back when this is dropped: drop it when the array has it, or
/// when the call has failed, and not before.
#[derive(Debug)]
pub struct Reservation {
    claims: Arc<Mutex<Reservations>>,
    aim: ReservationKey,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReservationKey {
    Attach { node: String, volume: String },
    Create { name: String },
}

/// How many calls have the same aim, and the most bytes one of them asks for.
#[derive(Debug, Default)]
struct ReservedAmount {
    calls: usize,
    bytes: u64,
}

// === impl Claims ===

impl Reservations {
    /// The volumes that are about to be attached to a node.
    pub fn attaching<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().filter_map(move |aim| match aim {
            ReservationKey::Attach { node: own, volume } if own == node => Some(volume.as_str()),
            ReservationKey::Attach { .. } | ReservationKey::Create { .. } => None,
        })
    }

    /// The names of the volumes that are about to be made, and the bytes they ask for.
    pub fn creating(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().filter_map(|(aim, weight)| match aim {
            ReservationKey::Create { name } => Some((name.as_str(), weight.bytes)),
            ReservationKey::Attach { .. } => None,
        })
    }

    fn enter(&mut self, aim: ReservationKey, bytes: u64) {
        let weight = self.0.entry(aim).or_default();
        weight.calls += 1;
        weight.bytes = weight.bytes.max(bytes);
    }

    fn leave(&mut self, aim: ReservationKey) {
        if let Entry::Occupied(mut entry) = self.0.entry(aim) {
            entry.get_mut().calls -= 1;
            if entry.get().calls == 0 {
                entry.remove();
            }
        }
    }
}

// === impl Claim ===

impl Reservation {
    /// Claims what a call would take, if it would take anything that limits count.
    pub(super) fn of(call: &dyn CallInfo, all: &Arc<Mutex<Reservations>>) -> Option<Self> {
        let aim = match call.path() {
            PUBLISH => ReservationKey::Attach {
                node: call.node().to_owned(),
                volume: call.volume().to_owned(),
            },
            CREATE => ReservationKey::Create {
                name: call.name().to_owned(),
            },
            _ => return None,
        };
        lock(all).enter(aim.clone(), call.size());
        Some(Self {
            claims: all.clone(),
            aim,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.claims).leave(self.aim.clone());
    }
}

pub(super) fn lock(claims: &Mutex<Reservations>) -> MutexGuard<'_, Reservations> {
    claims.lock().unwrap_or_else(PoisonError::into_inner)
}
