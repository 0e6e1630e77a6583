//! Which services a process has.

use std::str::FromStr;

/// Which services a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All of them.
    #[default]
    All,
    /// All but the Node service: the array and what is done to it.
    Controller,
    /// Identity and Node, for one node of an array that another process has.
    Node,
}

// === impl Mode ===

impl Mode {
    /// Whether the array is in this process, with the services for it.
    pub(crate) fn has_array(self) -> bool {
        match self {
            Self::All | Self::Controller => true,
            Self::Node => false,
        }
    }

    /// Whether a node stands in this process, if its id is known.
    pub(crate) fn has_node(self) -> bool {
        match self {
            Self::All | Self::Node => true,
            Self::Controller => false,
        }
    }
}

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            "controller" => Ok(Self::Controller),
            "node" => Ok(Self::Node),
            _ => Err("must be all, controller or node"),
        }
    }
}
