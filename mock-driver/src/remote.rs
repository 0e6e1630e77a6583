//! The array when another process has it: nodes ask it over that process's admin API.
//!
//! A node follows what is attached to it, so that devices come and go although nobody calls the node then;
//! and it asks again before it uses a volume, so that no call depends on how fast it follows. The bytes
//! of the volumes are not part of this: all processes share the directory they lie in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Mutex, MutexGuard};

use crate::admin::Endpoint;
use crate::admin::client::{self, Client};
use crate::admin::resource;
use crate::backend::{Access, AccessMode, Ailment, Attachment, Capability, Hold, Severity};
use crate::error::chain;
use crate::node::{self, View};

/// How often a node looks what is attached to it.
pub(crate) const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// The array in another process.
#[derive(Debug)]
pub(crate) struct RemoteArray {
    client: Client,
    /// Whoever acts on an answer has it from the question on, so that an older answer never undoes what
    /// was done on a newer one.
    turn: Mutex<()>,
}

/// What the array has of a node.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Whether the node is registered.
    pub(crate) registered: bool,
    /// How many volumes it is to say it takes.
    pub(crate) advertised: Option<usize>,
    pub(crate) topology: BTreeMap<String, String>,
    /// The volumes attached to it.
    pub(crate) attached: BTreeSet<String>,
}

// === impl RemoteArray ===

impl RemoteArray {
    pub(crate) fn at(endpoint: Endpoint) -> Self {
        Self {
            client: Client::new(endpoint),
            turn: Mutex::default(),
        }
    }

    /// The right to act on answers.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// A volume as the array has it for a node; none if there is no such volume.
    ///
    /// # Errors
    /// If the array does not answer.
    pub(crate) async fn view(&self, volume: &str, node: &str) -> Result<Option<View>, node::Error> {
        let found = match self.client.volume(volume).await {
            Ok(found) => found,
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) => return Err(no_array(&error)),
        };
        let attachment = found
            .attachments
            .iter()
            .find(|attachment| attachment.node == node);
        Ok(Some(View {
            bytes: found.capacity_bytes,
            attachment: attachment.map(read_attachment).transpose()?,
            ailments: found.health.into_iter().map(read_ailment).collect(),
        }))
    }

    /// What the array has of a node; none if it has never heard of it.
    ///
    /// # Errors
    /// If the array does not answer.
    pub(crate) async fn node(&self, id: &str) -> Result<Option<Known>, node::Error> {
        match self.client.node(id).await {
            Ok(node) => Ok(Some(Known {
                registered: node.registered,
                advertised: node.advertised_limit,
                topology: node.topology,
                attached: node.volumes.into_iter().collect(),
            })),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(no_array(&error)),
        }
    }

    /// Makes a node known to the array.
    ///
    /// # Errors
    /// If the array does not answer, or refuses it.
    pub(crate) async fn join(&self, id: &str, topology: BTreeMap<String, String>) -> Result<(), node::Error> {
        let new = resource::NodeNew {
            id: id.to_owned(),
            limit: None,
            topology: Some(topology).filter(|topology| !topology.is_empty()),
        };
        self.client
            .register_node(&new)
            .await
            .map(drop)
            .map_err(|error| no_array(&error))
    }
}

fn is_not_found(error: &client::Error) -> bool {
    matches!(error, client::Error::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
}

fn no_array(error: &client::Error) -> node::Error {
    node::Error::NoArray { reason: chain(error) }
}

fn read_attachment(attachment: &resource::Attachment) -> Result<Attachment, node::Error> {
    let capability = read_capability(&attachment.capability).ok_or_else(|| node::Error::NoArray {
        reason: format!("\"{}\" is no capability", attachment.capability),
    })?;
    Ok(Attachment {
        number: attachment.number,
        hold: Hold {
            capability,
            readonly: attachment.readonly,
        },
    })
}

/// Reads what [`Capability`] displays. Mount options are not part of that, and nobody asks for them.
fn read_capability(text: &str) -> Option<Capability> {
    let (access, mode) = text.rsplit_once(' ')?;
    let mode = AccessMode::ALL.into_iter().find(|known| known.name() == mode)?;
    let access = match access.strip_prefix("mount") {
        None if access == "block" => Access::Block,
        None => return None,
        Some(fs_type) => Access::Mount {
            fs_type: fs_type.trim_matches(['(', ')']).to_owned(),
            flags: Vec::new(),
            group: String::new(),
        },
    };
    Some(Capability { access, mode })
}

fn read_ailment(ailment: resource::Ailment) -> Ailment {
    Ailment {
        status: serde_json::from_value(ailment.status.into()).unwrap_or(Severity::Unknown),
        reason: ailment.reason,
        message: ailment.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_array_displays_is_read_back() {
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
                assert_eq!(read_capability(&capability.to_string()), Some(capability));
            }
            let block = Capability {
                access: Access::Block,
                mode,
            };
            assert_eq!(read_capability(&block.to_string()), Some(block));
        }
        assert_eq!(read_capability("blocks SINGLE_NODE_WRITER"), None);
        assert_eq!(read_capability(""), None);
    }
}
