//! The driver's capabilities: all, unless a flag or the admin API removes one; then the driver behaves as one that never had
//! it.
//!
//! Capabilities of the plugin and of the Controller and GroupController services have their names of the CSI specification;
//! those of the Node service, some of whose names equal the Controller service's, have the prefix `NODE_`.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use self::capability::{Capability, CapabilitySetError, ReportedIn};

mod capability;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilitySet(BTreeSet<Capability>);

/// Capabilities that can change at run time.
#[derive(Debug)]
pub struct LiveCapabilities(RwLock<CapabilitySet>);

// === impl CapabilitySet ===

impl CapabilitySet {
    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    pub(crate) fn set(&mut self, capability: Capability, has: bool) {
        if has {
            self.0.insert(capability);
        } else {
            self.0.remove(&capability);
        }
    }

    /// The capabilities, in the order of [`Capability::ALL`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = Capability> {
        self.0.iter().copied()
    }

    /// Applies changes in the form of the flag, `-PUBLISH_READONLY,+LIST_VOLUMES`. The last change of a capability wins.
    ///
    /// # Errors
    /// An item is malformed; nothing has changed then.
    pub fn change(&mut self, changes: &str) -> Result<(), CapabilitySetError> {
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
                _ => return Err(CapabilitySetError::NoSign(change.to_owned())),
            }
        }
        *self = changed;
        Ok(())
    }
}

impl Default for CapabilitySet {
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

impl FromStr for CapabilitySet {
    type Err = CapabilitySetError;

    /// Parses changes to the default.
    fn from_str(changes: &str) -> Result<Self, CapabilitySetError> {
        let mut offered = Self::default();
        offered.change(changes)?;
        Ok(offered)
    }
}

// === impl LiveCapabilities ===

impl LiveCapabilities {
    pub(crate) fn new(offered: CapabilitySet) -> Self {
        Self(RwLock::new(offered))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, CapabilitySet> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the capabilities for a change, as by an upgrade of the driver.
    pub fn write(&self) -> RwLockWriteGuard<'_, CapabilitySet> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.read().has(capability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_made_to_the_whole() {
        assert_eq!("".parse(), Ok(CapabilitySet::default()));
        let offered: CapabilitySet = "-PUBLISH_UNPUBLISH_VOLUME, -LIST_VOLUMES,+LIST_VOLUMES"
            .parse()
            .unwrap();
        assert!(!offered.has(Capability::PublishUnpublishVolume));
        assert!(offered.has(Capability::ListVolumes), "the last word counts");
        assert_eq!(
            offered.iter().count(),
            CapabilitySet::default().iter().count() - 1
        );
        for capability in Capability::ALL {
            let name = capability.name();
            let without: CapabilitySet = format!("-{name}").parse().unwrap();
            assert!(!without.has(capability), "{capability:?}");
            let with: CapabilitySet = format!("+{name}").parse().unwrap();
            assert!(with.has(capability), "{capability:?}");
        }
    }

    #[test]
    fn unparsable_change_is_refused_without_effect() {
        for (changes, error) in [
            ("LIST_VOLUMES", CapabilitySetError::NoSign("LIST_VOLUMES".into())),
            ("-LIST", CapabilitySetError::Unknown { name: "LIST".into() }),
            ("-", CapabilitySetError::Unknown { name: String::new() }),
            ("é", CapabilitySetError::NoSign("é".into())),
        ] {
            let live = LiveCapabilities::new(CapabilitySet::default());
            let outcome = live.write().change(&format!("-LIST_VOLUMES,{changes}"));
            assert_eq!(outcome, Err(error), "{changes:?}");
            assert_eq!(*live.read(), CapabilitySet::default(), "{changes:?}");
        }
    }

    #[test]
    fn live_capabilities_change_for_later_calls() {
        let live = LiveCapabilities::new(CapabilitySet::default());
        live.write().set(Capability::ListVolumes, false);
        assert!(!live.has(Capability::ListVolumes) && !live.read().has(Capability::ListVolumes));
        live.write().change("+LIST_VOLUMES,-GET_VOLUME").unwrap();
        assert!(live.has(Capability::ListVolumes) && !live.has(Capability::GetVolume));
    }
}
