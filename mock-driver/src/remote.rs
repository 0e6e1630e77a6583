//! The array when another process has it: nodes ask it over that process's admin API.
//!
//! A node follows what is attached to it, so that devices come and go although nobody calls the node then;
//! and it asks again before it uses a volume, so that no call depends on how fast it follows. The bytes
//! of the volumes are not part of this: all processes share the directory they lie in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Mutex, MutexGuard};
use tonic::Code;

use crate::admin::Endpoint;
use crate::admin::client::{self, Client};
use crate::admin::resource;
use crate::backend::{Ailment, Attachment, Capability, Hold, Severity, StorageAilment, StorageSeverity};
use crate::code;
use crate::error::chain;
use crate::node::{self, View};

/// How often a node looks what is attached to it.
pub(crate) const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// The array in another process.
#[derive(Debug)]
pub(crate) struct RemoteArray {
    client: Client,
    endpoint: Endpoint,
    /// Whoever acts on an answer has it from the question on, so that an older answer never undoes what
    /// was done on a newer one.
    turn: Mutex<()>,
    /// The volumes that were attached to this process's node when it looked last.
    here: std::sync::Mutex<BTreeSet<String>>,
}

/// What the array has of a node.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The id that the node has by now, if somebody gave it another one.
    pub(crate) became: Option<String>,
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
            client: Client::new(endpoint.clone()),
            endpoint,
            turn: Mutex::default(),
            here: std::sync::Mutex::default(),
        }
    }

    /// The admin endpoint of the process that has the array.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Takes note of what is attached to this process's node.
    pub(crate) fn note_all(&self, attached: &BTreeSet<String>) {
        self.here().clone_from(attached);
    }

    /// Takes note of whether one volume is.
    pub(crate) fn note(&self, volume: &str, is_attached: bool) {
        if is_attached {
            self.here().insert(volume.to_owned());
        } else {
            self.here().remove(volume);
        }
    }

    /// Whether the volume was attached to this process's node when it looked last.
    pub(crate) fn is_here(&self, volume: &str) -> bool {
        self.here().contains(volume)
    }

    fn here(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// What the array has of a node; none if it has never heard of it. One that somebody took out of the
    /// register is not forgotten: it must not join again by itself.
    ///
    /// # Errors
    /// If the array does not answer.
    pub(crate) async fn node(&self, id: &str) -> Result<Option<Known>, node::Error> {
        match self.client.node(id).await {
            Ok(node) => Ok(Some(Known {
                became: node.became,
                advertised: node.advertised_limit,
                topology: node.topology,
                attached: node.volumes.into_iter().collect(),
            })),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(no_array(&error)),
        }
    }

    /// Attaches a volume to a node.
    ///
    /// # Errors
    /// If the array refuses or does not answer.
    pub(crate) async fn attach(
        &self,
        volume: &str,
        node: &str,
        capability: &Capability,
    ) -> Result<(), node::Error> {
        let attach = resource::Attach {
            access_mode: Some(capability.mode.name().to_owned()),
            block: capability.is_block(),
            readonly: false,
        };
        let attached = self.client.attach(volume, node, &attach).await;
        attached.map(drop).map_err(refusal)
    }

    /// Takes a volume off a node; nothing happens if it is not attached there.
    ///
    /// # Errors
    /// If the array refuses or does not answer.
    pub(crate) async fn detach(&self, volume: &str, node: &str) -> Result<(), node::Error> {
        match self.client.detach(volume, node).await {
            Err(error) if !is_not_found(&error) => Err(refusal(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// What ails the storage as seen from a node: that behind all nodes first.
    ///
    /// # Errors
    /// If the array does not answer.
    pub(crate) async fn storage_health(&self, node: &str) -> Result<Vec<StorageAilment>, node::Error> {
        let storage = self.client.storage().await.map_err(|error| no_array(&error))?;
        let own = storage.nodes.into_iter().filter(|own| own.node == node);
        let all = storage.health.into_iter().chain(own.flat_map(|own| own.health));
        Ok(all.map(read_storage_ailment).collect())
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

fn refusal(error: client::Error) -> node::Error {
    if let client::Error::Refused { problem, .. } = error {
        return node::Error::Refused {
            code: code::named(&problem.code).unwrap_or(Code::Unknown),
            reason: problem.message,
        };
    }
    no_array(&error)
}

fn no_array(error: &client::Error) -> node::Error {
    node::Error::NoArray { reason: chain(error) }
}

fn read_attachment(attachment: &resource::Attachment) -> Result<Attachment, node::Error> {
    let capability = Capability::read(&attachment.capability).ok_or_else(|| node::Error::NoArray {
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

fn read_ailment(ailment: resource::Ailment) -> Ailment {
    Ailment {
        status: serde_json::from_value(ailment.status.into()).unwrap_or(Severity::Unknown),
        reason: ailment.reason,
        message: ailment.message,
    }
}

fn read_storage_ailment(ailment: resource::StorageAilment) -> StorageAilment {
    StorageAilment {
        status: serde_json::from_value(ailment.status.into()).unwrap_or(StorageSeverity::Unknown),
        reason: ailment.reason,
        message: ailment.message,
        capability: ailment.capability.as_deref().and_then(Capability::read),
    }
}
