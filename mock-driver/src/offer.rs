//! What the driver says it can do. All of it, unless the flag takes something away: then it behaves as a
//! driver that never had it.

use std::collections::BTreeSet;
use std::str::FromStr;

use csi_proto::v1::controller_service_capability::rpc;

use crate::method::Method;

/// The capabilities a driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer(BTreeSet<Capability>);

/// Something a driver may or may not be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each variant is the capability of the same name")]
pub enum Capability {
    /// Only told: the Controller service's RPCs are answered all the same, since volumes must come from
    /// somewhere.
    ControllerService,
    CreateDeleteVolume,
    PublishUnpublishVolume,
    ListVolumes,
    PublishReadonly,
    ListVolumesPublishedNodes,
    GetVolume,
    SingleNodeMultiWriter,
}

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

    /// Whether calls of the method are answered.
    pub fn serves(&self, method: Method) -> bool {
        Capability::behind(method).is_none_or(|capability| self.has(capability))
    }

    /// The Controller service's capabilities, as they are told.
    pub fn rpcs(&self) -> impl Iterator<Item = rpc::Type> {
        self.0.iter().filter_map(|capability| capability.rpc())
    }
}

impl Default for Offer {
    fn default() -> Self {
        Self(Capability::ALL.into())
    }
}

impl FromStr for Offer {
    type Err = OfferError;

    /// Reads changes to the whole: `-PUBLISH_READONLY,-LIST_VOLUMES`. The last word on each counts.
    fn from_str(changes: &str) -> Result<Self, OfferError> {
        let mut offer = Self::default();
        for change in changes
            .split(',')
            .map(str::trim)
            .filter(|change| !change.is_empty())
        {
            let (sign, name) = change.split_at_checked(1).unwrap_or((change, ""));
            let known = || {
                let named = |capability: &Capability| capability.name() == name;
                let known = Capability::ALL.into_iter().find(named);
                known.ok_or_else(|| OfferError::Unknown {
                    name: name.to_owned(),
                })
            };
            match sign {
                "+" => offer.0.insert(known()?),
                "-" => offer.0.remove(&known()?),
                _ => return Err(OfferError::NoSign(change.to_owned())),
            };
        }
        Ok(offer)
    }
}

// === impl Capability ===

impl Capability {
    /// Every capability.
    pub const ALL: [Self; 8] = [
        Self::ControllerService,
        Self::CreateDeleteVolume,
        Self::PublishUnpublishVolume,
        Self::ListVolumes,
        Self::PublishReadonly,
        Self::ListVolumesPublishedNodes,
        Self::GetVolume,
        Self::SingleNodeMultiWriter,
    ];

    /// Its name in the specification.
    pub fn name(self) -> &'static str {
        self.rpc().map_or("CONTROLLER_SERVICE", |rpc| rpc.as_str_name())
    }

    fn rpc(self) -> Option<rpc::Type> {
        match self {
            Self::ControllerService => None,
            Self::CreateDeleteVolume => Some(rpc::Type::CreateDeleteVolume),
            Self::PublishUnpublishVolume => Some(rpc::Type::PublishUnpublishVolume),
            Self::ListVolumes => Some(rpc::Type::ListVolumes),
            Self::PublishReadonly => Some(rpc::Type::PublishReadonly),
            Self::ListVolumesPublishedNodes => Some(rpc::Type::ListVolumesPublishedNodes),
            Self::GetVolume => Some(rpc::Type::GetVolume),
            Self::SingleNodeMultiWriter => Some(rpc::Type::SingleNodeMultiWriter),
        }
    }

    /// The capability without which nobody may call the method.
    fn behind(method: Method) -> Option<Self> {
        match method {
            Method::CreateVolume | Method::DeleteVolume => Some(Self::CreateDeleteVolume),
            Method::ControllerPublishVolume | Method::ControllerUnpublishVolume => {
                Some(Self::PublishUnpublishVolume)
            }
            Method::ListVolumes => Some(Self::ListVolumes),
            Method::ControllerGetVolume => Some(Self::GetVolume),
            Method::GetPluginInfo
            | Method::GetPluginCapabilities
            | Method::Probe
            | Method::ValidateVolumeCapabilities
            | Method::ControllerGetCapabilities
            | Method::NodeGetCapabilities
            | Method::NodeGetInfo => None,
        }
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
        assert_eq!(offer.rpcs().count(), 6);
        for capability in Capability::ALL {
            let offer: Offer = format!("-{}", capability.name()).parse().unwrap();
            assert!(!offer.has(capability), "{capability:?}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (changes, error) in [
            ("LIST_VOLUMES", OfferError::NoSign("LIST_VOLUMES".into())),
            ("-LIST", OfferError::Unknown { name: "LIST".into() }),
            ("-", OfferError::Unknown { name: String::new() }),
            ("é", OfferError::NoSign("é".into())),
        ] {
            assert_eq!(changes.parse::<Offer>(), Err(error), "{changes:?}");
        }
    }
}
