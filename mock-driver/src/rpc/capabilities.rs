//! What the driver says it can do. All of it, unless a flag or somebody at run time takes something
//! away: from then on it behaves as a driver that never had it.
//!
//! Capabilities of the plugin and of the Controller and GroupController services go by their names in
//! the specification; those of the Node service, which has some names in common with the Controller
//! service, by their names after `NODE_`.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};

pub use self::capability::{Capability, Place};
use crate::rpc::method::Method;

mod capability;

/// The capabilities a driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer(BTreeSet<Capability>);

/// An offer that can be changed while calls are answered.
#[derive(Debug)]
pub struct LiveOffer(RwLock<Offer>);

/// A list of changes that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// An item has no sign.
    #[error("\"{0}\" must begin with + or -")]
    NoSign(String),
    /// There is no such capability.
    #[error("\"{name}\" is no capability of this driver; it has {}", Capability::ALL.map(Capability::name).join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
}

// === impl Offer ===

impl Offer {
    /// Whether the driver has the capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// Adds a capability, or takes it away.
    pub fn set(&mut self, capability: Capability, has: bool) {
        if has {
            self.0.insert(capability);
        } else {
            self.0.remove(&capability);
        }
    }

    /// Whether calls of the method are answered.
    pub fn serves(&self, method: Method) -> bool {
        Capability::behind(method)
            .iter()
            .all(|capability| self.has(*capability))
    }

    /// The capabilities, in the order of [`Capability::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = Capability> {
        self.0.iter().copied()
    }

    /// Makes changes as the flag has them: `-PUBLISH_READONLY,+LIST_VOLUMES`. The last word on each
    /// counts.
    ///
    /// # Errors
    /// At the first item that is not understood; nothing has changed then.
    pub fn change(&mut self, changes: &str) -> Result<(), OfferError> {
        let mut changed = self.clone();
        for change in changes
            .split(',')
            .map(str::trim)
            .filter(|change| !change.is_empty())
        {
            let (sign, name) = change.split_at_checked(1).unwrap_or((change, ""));
            match sign {
                "+" => changed.set(name.parse()?, true),
                "-" => changed.set(name.parse()?, false),
                _ => return Err(OfferError::NoSign(change.to_owned())),
            }
        }
        *self = changed;
        Ok(())
    }
}

impl Default for Offer {
    /// Everything that is not superseded ([`Capability::is_default`]).
    fn default() -> Self {
        Self(
            Capability::ALL
                .into_iter()
                .filter(|capability| capability.is_default())
                .collect(),
        )
    }
}

impl FromStr for Offer {
    type Err = OfferError;

    /// Reads changes to the default.
    fn from_str(changes: &str) -> Result<Self, OfferError> {
        let mut offer = Self::default();
        offer.change(changes)?;
        Ok(offer)
    }
}

// === impl LiveOffer ===

impl LiveOffer {
    /// Begins with `offer`.
    pub fn new(offer: Offer) -> Self {
        Self(RwLock::new(offer))
    }

    /// What is offered at this moment.
    pub fn now(&self) -> Offer {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the driver has the capability at this moment.
    pub fn has(&self, capability: Capability) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .has(capability)
    }

    /// Whether calls of the method are answered at this moment.
    pub fn serves(&self, method: Method) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .serves(method)
    }

    /// Adds a capability, or takes it away: as if the driver had been exchanged for another version.
    pub fn set(&self, capability: Capability, has: bool) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .set(capability, has);
    }

    /// Makes changes as the flag has them.
    ///
    /// # Errors
    /// At the first item that is not understood; nothing has changed then.
    pub fn change(&self, changes: &str) -> Result<Offer, OfferError> {
        let mut offer = self.0.write().unwrap_or_else(PoisonError::into_inner);
        offer.change(changes)?;
        Ok(offer.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_made_to_the_whole() {
        assert_eq!("".parse(), Ok(Offer::default()));
        let offer: Offer = "-PUBLISH_UNPUBLISH_VOLUME, -LIST_VOLUMES,+LIST_VOLUMES"
            .parse()
            .unwrap();
        assert!(!offer.has(Capability::PublishUnpublishVolume));
        assert!(!offer.serves(Method::ControllerUnpublishVolume));
        assert!(offer.serves(Method::ListVolumes), "the last word counts");
        assert!(offer.serves(Method::Probe));
        assert_eq!(offer.iter().count(), Offer::default().iter().count() - 1);
        for capability in Capability::ALL {
            let name = capability.name();
            let without: Offer = format!("-{name}").parse().unwrap();
            assert!(!without.has(capability), "{capability:?}");
            let with: Offer = format!("+{name}").parse().unwrap();
            assert!(with.has(capability), "{capability:?}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_and_changes_nothing() {
        for (changes, error) in [
            ("LIST_VOLUMES", OfferError::NoSign("LIST_VOLUMES".into())),
            ("-LIST", OfferError::Unknown { name: "LIST".into() }),
            ("-", OfferError::Unknown { name: String::new() }),
            ("é", OfferError::NoSign("é".into())),
        ] {
            let live = LiveOffer::new(Offer::default());
            assert_eq!(
                live.change(&format!("-LIST_VOLUMES,{changes}")),
                Err(error),
                "{changes:?}"
            );
            assert_eq!(live.now(), Offer::default(), "{changes:?}");
        }
    }

    #[test]
    fn live_offer_changes_for_whoever_asks_next() {
        let live = LiveOffer::new(Offer::default());
        live.set(Capability::ListVolumes, false);
        assert!(!live.serves(Method::ListVolumes));
        let now = live.change("+LIST_VOLUMES,-GET_VOLUME").unwrap();
        assert!(live.has(Capability::ListVolumes) && !now.serves(Method::ControllerGetVolume));
        assert_eq!(live.now(), now);
    }
}
