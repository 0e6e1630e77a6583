use std::str::FromStr;

use super::error::Error;
use super::loopback;

/// The value of the flag for the kind of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Loop devices if available, else emulated ones.
    Auto,
    Loop,
    #[default]
    Emulated,
    /// No devices: attachments are only recorded.
    None,
    /// For simulations: volumes are only recorded as staged and published. The flag does not have this value.
    Simulated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Loop devices, which need privileges.
    Loop,
    Emulated,
    None,
    Simulated,
}

// === impl Choice ===

impl Choice {
    /// Chooses the kind of devices, and logs it.
    pub fn settle(self) -> Result<Kind, Error> {
        let kind = match self {
            Self::None => Kind::None,
            Self::Simulated => return Ok(Kind::Simulated),
            Self::Emulated => Kind::Emulated,
            Self::Loop => match loopback::unavailable() {
                None => Kind::Loop,
                Some(reason) => return Err(Error::NoLoop { reason }),
            },
            Self::Auto => match loopback::unavailable() {
                None => Kind::Loop,
                Some(reason) => {
                    tracing::warn!(
                        reason,
                        "no loop devices here: devices and filesystems are emulated"
                    );
                    Kind::Emulated
                }
            },
        };
        tracing::info!(devices = kind.name(), "devices chosen");
        Ok(kind)
    }
}

impl FromStr for Choice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "loop" => Ok(Self::Loop),
            "emulated" => Ok(Self::Emulated),
            "none" => Ok(Self::None),
            _ => Err("must be auto, loop, emulated or none"),
        }
    }
}

// === impl Kind ===

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Emulated => "emulated",
            Self::None => "none",
            Self::Simulated => "simulated",
        }
    }
}
