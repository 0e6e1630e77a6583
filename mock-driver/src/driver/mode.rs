use std::str::FromStr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    All,
    /// All but the Node service.
    Controller,
    /// Identity and Node; the array is in another process.
    Node,
}

// === impl Mode ===

impl Mode {
    /// Whether the array and its services are in this process.
    pub(crate) fn has_array(self) -> bool {
        match self {
            Self::All | Self::Controller => true,
            Self::Node => false,
        }
    }

    /// Whether this process has the Node service, if it has a node id.
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
