//! Volume capabilities: block or filesystem, number of nodes, and writers.
//!
//! The array supports every access mode of CSI. This module decides whether the capabilities of a volume cover a requested
//! one, and whether two nodes may have the volume attached at the same time.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Capability {
    pub access: Access,
    pub mode: AccessMode,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Block,
    Mount {
        /// Filesystem type; empty for the driver's default.
        fs_type: String,
        flags: Vec<String>,
        /// Group of the files; empty for none.
        group: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AccessMode {
    SingleNodeWriter,
    SingleNodeReaderOnly,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
    /// One node and one workload on it.
    SingleNodeSingleWriter,
    /// One node and many workloads on it.
    SingleNodeMultiWriter,
}

/// Arguments of a publish call: the capability and `readonly`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishParams {
    pub capability: Capability,
    pub readonly: bool,
}

// === impl Capability ===

impl Capability {
    pub(crate) fn is_block(&self) -> bool {
        self.access == Access::Block
    }

    /// Whether a volume created for `self` can be used as `asked`.
    ///
    /// Filesystem and mount options are not compared: staging decides about them.
    pub fn covers(&self, asked: &Self) -> bool {
        let same_access = matches!(
            (&self.access, &asked.access),
            (Access::Block, Access::Block) | (Access::Mount { .. }, Access::Mount { .. })
        );
        same_access && self.mode.covers(asked.mode)
    }

    /// Parses the displayed form; `None` for any other text. Mount options and groups are not displayed.
    pub fn read(text: &str) -> Option<Self> {
        let (access, mode) = text.rsplit_once(' ')?;
        let mode = AccessMode::ALL.into_iter().find(|known| known.name() == mode)?;
        let mount = |fs_type: &str| Access::Mount {
            fs_type: fs_type.to_owned(),
            flags: Vec::new(),
            group: String::new(),
        };
        let access = match access.strip_prefix("mount") {
            None if access == "block" => Access::Block,
            None => return None,
            Some("") => mount(""),
            Some(fs_type) => mount(fs_type.strip_prefix('(')?.strip_suffix(')')?),
        };
        Some(Self { access, mode })
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.access {
            Access::Block => write!(f, "block {}", self.mode.name()),
            Access::Mount { fs_type, .. } if fs_type.is_empty() => {
                write!(f, "mount {}", self.mode.name())
            }
            Access::Mount { fs_type, .. } => write!(f, "mount({fs_type}) {}", self.mode.name()),
        }
    }
}

// === impl AccessMode ===

impl AccessMode {
    pub const ALL: [Self; 7] = [
        Self::SingleNodeWriter,
        Self::SingleNodeReaderOnly,
        Self::MultiNodeReaderOnly,
        Self::MultiNodeSingleWriter,
        Self::MultiNodeMultiWriter,
        Self::SingleNodeSingleWriter,
        Self::SingleNodeMultiWriter,
    ];

    /// The mode's name as CSI spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleNodeWriter => "SINGLE_NODE_WRITER",
            Self::SingleNodeReaderOnly => "SINGLE_NODE_READER_ONLY",
            Self::MultiNodeReaderOnly => "MULTI_NODE_READER_ONLY",
            Self::MultiNodeSingleWriter => "MULTI_NODE_SINGLE_WRITER",
            Self::MultiNodeMultiWriter => "MULTI_NODE_MULTI_WRITER",
            Self::SingleNodeSingleWriter => "SINGLE_NODE_SINGLE_WRITER",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
        }
    }

    pub(crate) fn is_multi_node(self) -> bool {
        match self {
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter => true,
            Self::SingleNodeWriter
            | Self::SingleNodeReaderOnly
            | Self::SingleNodeSingleWriter
            | Self::SingleNodeMultiWriter => false,
        }
    }

    /// Whether a volume created for this mode can be used in the `asked` one, which may demand less.
    pub fn covers(self, asked: Self) -> bool {
        if self == asked {
            return true;
        }
        match self {
            Self::MultiNodeMultiWriter => true,
            Self::MultiNodeSingleWriter => asked == Self::MultiNodeReaderOnly || !asked.is_multi_node(),
            Self::MultiNodeReaderOnly => asked == Self::SingleNodeReaderOnly,
            // SINGLE_NODE_WRITER does not limit the workloads on the node, so it covers both newer modes: volumes remain usable
            // for a caller that begins to use SINGLE_NODE_MULTI_WRITER.
            Self::SingleNodeWriter | Self::SingleNodeMultiWriter => !asked.is_multi_node(),
            Self::SingleNodeSingleWriter => {
                matches!(asked, Self::SingleNodeWriter | Self::SingleNodeReaderOnly)
            }
            Self::SingleNodeReaderOnly => false,
        }
    }

    pub(crate) fn is_reader_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }
}

// === impl PublishParams ===

impl PublishParams {
    pub(crate) fn writes(&self) -> bool {
        !self.readonly && !self.capability.mode.is_reader_only()
    }

    /// Whether attachments of `self` on one node and of `other` on another node may coexist.
    ///
    /// Symmetric: both modes must be multi-node, and neither may write where the other one's mode excludes other writers.
    pub(crate) fn tolerates(&self, other: &Self) -> bool {
        let both_multi_node = self.capability.mode.is_multi_node() && other.capability.mode.is_multi_node();
        both_multi_node && self.allows_writer(other) && other.allows_writer(self)
    }

    fn allows_writer(&self, other: &Self) -> bool {
        if !other.writes() {
            return true;
        }
        match self.capability.mode {
            AccessMode::MultiNodeMultiWriter => true,
            // MULTI_NODE_SINGLE_WRITER: the single writer is one of these nodes.
            AccessMode::MultiNodeSingleWriter => {
                !self.writes() && other.capability.mode == self.capability.mode
            }
            AccessMode::MultiNodeReaderOnly
            | AccessMode::SingleNodeWriter
            | AccessMode::SingleNodeReaderOnly
            | AccessMode::SingleNodeSingleWriter
            | AccessMode::SingleNodeMultiWriter => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_hold(mode: AccessMode, readonly: bool) -> PublishParams {
        PublishParams {
            capability: Capability {
                access: Access::Block,
                mode,
            },
            readonly,
        }
    }

    #[test]
    fn every_mode_covers_itself_and_only_single_node_modes_stay_on_one_node() {
        for mode in AccessMode::ALL {
            assert!(mode.covers(mode), "{}", mode.name());
            for asked in AccessMode::ALL {
                if !mode.is_multi_node() && asked.is_multi_node() {
                    assert!(!mode.covers(asked), "{} covers {}", mode.name(), asked.name());
                }
                if mode.is_reader_only() && !asked.is_reader_only() {
                    assert!(!mode.covers(asked), "{} covers {}", mode.name(), asked.name());
                }
            }
        }
    }

    #[test]
    fn what_is_displayed_is_read_back() {
        for mode in AccessMode::ALL {
            for fs_type in ["", "ext4"] {
                let capability = Capability {
                    access: Access::Mount {
                        fs_type: fs_type.to_owned(),
                        flags: Vec::new(),
                        group: String::new(),
                    },
                    mode,
                };
                assert_eq!(Capability::read(&capability.to_string()), Some(capability));
            }
            let block = Capability {
                access: Access::Block,
                mode,
            };
            assert_eq!(Capability::read(&block.to_string()), Some(block));
        }
        for text in [
            "",
            "block",
            "blocks SINGLE_NODE_WRITER",
            "mountext4 SINGLE_NODE_WRITER",
        ] {
            assert_eq!(Capability::read(text), None, "{text}");
        }
    }

    #[test]
    fn block_never_covers_mount() {
        let block = Capability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        };
        let mount = Capability {
            access: Access::Mount {
                fs_type: String::new(),
                flags: vec![],
                group: String::new(),
            },
            mode: AccessMode::SingleNodeWriter,
        };
        assert!(!block.covers(&mount));
        assert!(!mount.covers(&block));
    }

    #[test]
    fn two_nodes_share_a_volume_only_as_their_modes_promise() {
        use AccessMode::{
            MultiNodeMultiWriter as Mnmw, MultiNodeReaderOnly as Mnro, MultiNodeSingleWriter as Mnsw,
            SingleNodeWriter as Snw,
        };
        // (one node's mode and readonly, the other's, may they coexist)
        let table = [
            ((Snw, false), (Snw, false), false),
            ((Snw, true), (Snw, true), false),
            ((Snw, false), (Mnmw, false), false),
            ((Mnmw, false), (Mnmw, false), true),
            ((Mnro, false), (Mnro, false), true),
            ((Mnro, false), (Mnmw, false), false),
            ((Mnro, false), (Mnmw, true), true),
            ((Mnsw, false), (Mnsw, false), false),
            ((Mnsw, false), (Mnsw, true), true),
            ((Mnsw, true), (Mnsw, true), true),
            ((Mnsw, false), (Mnro, false), false),
            ((Mnsw, true), (Mnmw, false), false),
            ((Mnsw, true), (Mnmw, true), true),
        ];
        for ((a, a_ro), (b, b_ro), expected) in table {
            let (one, other) = (mk_hold(a, a_ro), mk_hold(b, b_ro));
            let case = format!("{} readonly={a_ro}, {} readonly={b_ro}", a.name(), b.name());
            assert_eq!(one.tolerates(&other), expected, "{case}");
            assert_eq!(other.tolerates(&one), expected, "{case}, the other way round");
        }
    }
}
